# SPDX-License-Identifier: Apache-2.0
"""Joins its job, calls everything twice, and says what it found.

Arguments: `joined` starts jax.distributed first, `late` makes JAX's backend first.
"""

from __future__ import annotations

import os
import sys

import jax
from member import say

import smddp_jax
from smddp_jax import cluster

mode = sys.argv[1] if len(sys.argv) > 1 else ""
if mode == "joined":
    jax.distributed.initialize(
        os.environ["SMDDP_COORDINATOR"],
        int(os.environ["SMDDP_SIZE"]),
        int(os.environ["SMDDP_RANK"]),
    )
elif mode == "late":
    jax.devices()

smddp_jax.init()
smddp_jax.init()
rank, size = smddp_jax.rank(), smddp_jax.size()
local = f"{smddp_jax.local_rank()} of {smddp_jax.local_size()}"
devices = f"{jax.local_device_count()} of {jax.device_count()}"
say(f"rank {rank} of {size}, local {local}, devices {devices}")
say(f"hosts {len(set(cluster.hosts_of(range(size))))}")
assert (jax.process_index(), jax.process_count()) == (rank, size)

# A forked child is no member, and its end must not be taken for ours.
child = os.fork()
if child == 0:
    smddp_jax.shutdown()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert cluster.is_initialized()

if mode != "joined":
    smddp_jax.shutdown()
    smddp_jax.shutdown()
    assert not cluster.is_initialized()
