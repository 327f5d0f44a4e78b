# SPDX-License-Identifier: Apache-2.0
"""Says how much CPU time this rank takes per step of 256 KiB on each device.

A number for each of `BATCHES`. The step is small, so that what 8 ranks hold stays in
the caches, as what 2 hold does.
"""

from __future__ import annotations

import time

from member import join, say

join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

BATCHES, STEPS, ELEMENTS = 80, 25, 1 << 16

mesh = Mesh(np.array(jax.devices()), ("i",))
f = jax.jit(
    jax.shard_map(
        lambda v: lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
)
value = jax.make_array_from_callback(
    (mesh.size, ELEMENTS),
    NamedSharding(mesh, P("i")),
    lambda index: np.ones((1, ELEMENTS), np.float32),
)
result = f(value).block_until_ready()
took = []
for _ in range(BATCHES):
    before = time.process_time()
    for _ in range(STEPS):
        result = f(value).block_until_ready()
    took.append((time.process_time() - before) / STEPS)
say(f"CPU {' '.join(map(str, took))}")
assert (np.asarray(result.addressable_shards[0].data) == mesh.size).all()
