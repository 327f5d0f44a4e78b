# SPDX-License-Identifier: Apache-2.0
"""A rank that sums arrays of several sizes and looks at every element."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import smddp_jax

smddp_jax.init()
smddp_jax.install()
mesh = jax.make_mesh((jax.device_count(),), ("x",))


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P())
def total(x: jax.Array) -> jax.Array:
    return jax.lax.psum(x, "x")


for count in (1, 1000, 300_000):
    rows = [np.arange(count, dtype=np.float32) % 97 + r for r in range(mesh.size)]
    whole = np.concatenate(rows)
    sharding = jax.NamedSharding(mesh, P("x"))
    x = jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__)
    for _ in range(5):
        np.testing.assert_array_equal(
            total(x).addressable_data(0), np.sum(rows, axis=0)
        )
smddp_jax.shutdown()
