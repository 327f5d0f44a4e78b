# SPDX-License-Identifier: Apache-2.0
"""Queues sums without waiting. Arguments: how many, floats per device, and whether to
look at the results (`check`) or to end with the work in flight (`leave`)."""

from __future__ import annotations

import sys

from member import join, say

join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

count, floats, ending = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

devices = jax.devices()
mesh = Mesh(np.array(devices), ("i",))
f = jax.jit(
    jax.shard_map(
        lambda v, k: lax.psum(v + k, "i"),
        mesh=mesh,
        in_specs=(P("i"), P()),
        out_specs=P("i"),
    )
)
value = jax.make_array_from_callback(
    (len(devices), floats),
    NamedSharding(mesh, P("i")),
    lambda index: np.full((1, floats), index[0].start or 0, np.float32),
)
results = [f(value, np.float32(k % 7)) for k in range(count)]
if ending == "check":
    n = len(devices)
    for k, result in enumerate(results):
        for shard in result.addressable_shards:
            assert (np.asarray(shard.data) == n * (n - 1) / 2 + n * (k % 7)).all(), k
say("DONE")
