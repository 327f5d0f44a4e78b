# SPDX-License-Identifier: Apache-2.0
"""Compiles two programs into the persistent cache, or loads them from there, and says
how their text reads: it must not depend on the process or on what ran before."""

from __future__ import annotations

import hashlib
import sys

from member import join, say

join()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("i",))


def over_devices(f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")))


def step(v):
    return lax.psum(v, "i") + lax.psum(v * v, "i")


if "more" in sys.argv:  # another program first: nothing global may be counted
    over_devices(lambda v: lax.psum(v - 1, "i"))(np.zeros(n, np.float32))

f = over_devices(step)
text = f.lower(jax.ShapeDtypeStruct((n,), jnp.float32)).as_text()
say(f"text {hashlib.sha256(text.encode()).hexdigest()}")
value = np.arange(n, dtype=np.float32)
for _ in range(3):
    for shard in f(value).addressable_shards:
        assert (np.asarray(shard.data) == value.sum() + (value**2).sum()).all()
say("DONE")
