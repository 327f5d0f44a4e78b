# SPDX-License-Identifier: Apache-2.0
"""Says how much CPU time this rank takes per step of 1 MiB on each device."""

from __future__ import annotations

import time

from member import join, say

join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

STEPS = 200

mesh = Mesh(np.array(jax.devices()), ("i",))
f = jax.jit(
    jax.shard_map(
        lambda v: lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
)
value = jax.make_array_from_callback(
    (mesh.size, 1 << 18),
    NamedSharding(mesh, P("i")),
    lambda index: np.ones((1, 1 << 18), np.float32),
)
f(value).block_until_ready()
before = time.process_time()
for _ in range(STEPS):
    result = f(value).block_until_ready()
say(f"CPU {(time.process_time() - before) / STEPS}")
assert (np.asarray(result.addressable_shards[0].data) == mesh.size).all()
