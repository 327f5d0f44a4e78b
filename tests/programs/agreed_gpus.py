# SPDX-License-Identifier: Apache-2.0
"""Joins a job whose GPUs are made up, and says what its processes agreed on.

Argument r is what the GPUs of rank r are like: `none`, `good`, or a problem that is
found by looking (`look:...`) or by the trial (`trial:...`).
"""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from member import say

import smddp_jax
from smddp_jax import _native, cluster

found, _, problem = sys.argv[1 + int(os.environ["SMDDP_RANK"])].partition(":")


def try_gpus() -> str | None:
    say("tried")
    return problem or None


looked = {"none": _native.NO_GPUS, "look": problem}.get(found)
_native.gpu_problem = lambda: looked
_native.gpu_count = lambda: int(os.environ["SMDDP_LOCAL_SIZE"])
_native.try_gpus = try_gpus

smddp_jax.init()
smddp_jax.install()
say(f"agreed: {cluster.gpu_problem()}")

mesh = Mesh(np.array(jax.devices()), ("i",))
f = jax.shard_map(lambda v: lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
rows = jax.ShapeDtypeStruct((jax.device_count(),), np.float32)
lowered = jax.jit(f).trace(rows).lower(lowering_platforms=("cuda",))
say("ours" if "@smddp_all_reduce" in lowered.as_text() else "XLA's")
