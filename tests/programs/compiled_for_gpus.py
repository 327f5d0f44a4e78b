# SPDX-License-Identifier: Apache-2.0
"""Compiles programs for four GPUs that are only described, and prints what XLA makes.

XLA's compiler for GPUs, of JAX's CUDA plugin, looks our calls up among its handlers and
runs their stage `instantiate`. Needs neither a GPU nor a driver.

The argument names the program: one with `calls` of every kind, or one in which
`gradients` of a few layers are reduced in buckets.
"""

from __future__ import annotations

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from member import join

import smddp_jax
from smddp_jax import _native
from smddp_jax.cluster import session

# What XLA must know of an H100 to compile for it.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def square(spec: P) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct((512, 512), np.float32, sharding=sharding)


def calls(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, ...]:
    product = x @ weights[0]
    started = smddp_jax.psum_start([product, product * 2], "i")
    y = jnp.tanh(x @ weights[1])
    total = lax.psum(y, "i"), lax.pmax(y.astype(jnp.bfloat16), "i")
    first, second = started.done()
    return first + second, *total


def gradients(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    one_weight = 4 * 512 * 512
    made = smddp_jax.optim.value_and_grad(loss, "i", bucket_bytes=one_weight)
    return made(weights, x)[1]


join()
core = _native.load()
_native._register("CUDA", core.cuda_types(), core.cuda_registrations())
session._session = dataclasses.replace(session.current(), gpu_problem=None)
gpus = topologies.get_topology_desc(
    "four", "cuda", topology="1x1x4", target_config=H100
).devices
mesh = Mesh(np.array(gpus), ("i",))
step = {"calls": calls, "gradients": gradients}[sys.argv[1]]
mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
arguments = [square(P()) for _ in range(4)], square(P("i"))
print(jax.jit(mapped).lower(*arguments).compile().as_text())
