# SPDX-License-Identifier: Apache-2.0
"""Says who would run a sum over all devices of the job, and why."""

from __future__ import annotations

from member import join, say

join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import smddp_jax  # noqa: E402

n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("i",))
f = jax.shard_map(lambda v: lax.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
for row in smddp_jax.explain(f, jax.ShapeDtypeStruct((n,), np.float32)).rows:
    say(f"{row.op} {row.runs} {row.why}")
