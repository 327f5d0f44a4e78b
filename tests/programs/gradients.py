# SPDX-License-Identifier: Apache-2.0
"""Hands gradients whose keys were put in, on odd ranks, in the opposite order.

Arguments: dict or ordered; the name of what reduces them. The loss walks over the
weights in the order of their keys, and every weight is a bucket of its own.
"""

from __future__ import annotations

import collections
import sys

from member import join, say

rank, size = join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from smddp_jax import optim  # noqa: E402

kind, reducer = sys.argv[1:]
mesh = Mesh(np.array(jax.devices()), ("i",))
keys = [f"layer{k}" for k in range(6)]
if rank % 2:
    keys.reverse()
weights = {key: np.ones(3, np.float32) for key in keys}
if kind == "ordered":
    weights = collections.OrderedDict((key, weights[key]) for key in keys)


def loss(weights):
    own = lax.axis_index("i") + 1.0
    return sum(own * int(key[-1]) * w.sum() for key, w in weights.items())


def step(weights):
    if reducer == "value_and_grad":
        return optim.value_and_grad(loss, "i", bucket_bytes=1)(weights)[1]
    transform = optim.all_reduce_gradients("i", bucket_bytes=1)
    gradients = jax.grad(loss)(optim.as_varying(weights, "i"))
    return transform.update(gradients, transform.init(weights))[0]


gradients = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=P()))
values = {key: np.asarray(leaf).tolist() for key, leaf in gradients(weights).items()}
mean = (mesh.size + 1) / 2
wanted = {key: [mean * int(key[-1])] * 3 for key in keys}
assert values == wanted, (values, wanted)
say("AVERAGED")
