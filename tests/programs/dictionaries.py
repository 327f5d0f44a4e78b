# SPDX-License-Identifier: Apache-2.0
"""Hands trees to psum whose keys were put in, on odd ranks, in the opposite order.

A reduction may refuse that, naming the leaf; it may not add up different leaves.
"""

from __future__ import annotations

import collections
import sys

from member import STOCK, join, say

rank, size = join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

kind, whose = sys.argv[1], sys.argv[2]
mesh = Mesh(np.array(jax.devices()), ("i",))
keys = [f"layer{k}" for k in range(6)]
if rank % 2:
    keys.reverse()
tree = {key: np.full(3, int(key[-1]) + 1, np.float32) for key in keys}
if kind == "ordered":
    tree = collections.OrderedDict((key, tree[key]) for key in keys)

if whose == "ours" and not STOCK:
    import smddp_jax

    psum = smddp_jax.psum
else:
    psum = lax.psum

f = jax.jit(
    jax.shard_map(
        lambda tree: psum(tree, "i"),
        mesh=mesh,
        in_specs=P(),
        out_specs=P(),
        check_vma=False,
    )
)
try:
    summed = f(tree)
    values = {key: np.asarray(leaf).tolist() for key, leaf in summed.items()}
except Exception as error:
    say(f"REFUSED {' '.join(str(error).split())}")
    sys.exit(0)
wanted = {key: [mesh.size * (int(key[-1]) + 1.0)] * 3 for key in keys}
assert values == wanted, (values, wanted)
say("SUMMED")
