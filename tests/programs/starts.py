# SPDX-License-Identifier: Apache-2.0
"""A rank that starts sums and ends them later.

Arguments: a scenario, and a folder for `waits`. `sums`: several under way, ended in
another order, in one program, in a loop and as gradients, over many steps. `waits`: the
last rank comes only when the first one has all its sums under way. `dies`: it never
comes.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from member import join, say, say_raised

rank, size = join(install=False)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import smddp_jax  # noqa: E402
from smddp_jax import _native  # noqa: E402

scenario = sys.argv[1]
mesh = Mesh(np.array(jax.devices()), ("i",))
STARTS = 4


def rows(count: int) -> jax.Array:
    """Row k counts up from k."""

    def row(index) -> np.ndarray:
        return np.arange(count, dtype=np.float32)[None] % 97 + (index[0].start or 0)

    sharding = NamedSharding(mesh, P("i"))
    return jax.make_array_from_callback((mesh.size, count), sharding, row)


def mapped(f):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P()))


def several(x):
    """Sums of x, 2x, ..., each of them started before any ends."""
    started = [smddp_jax.psum_start((n + 1) * x[0], "i") for n in range(STARTS)]
    return [each.done() for each in started[::-1]][::-1]


def looped(x):
    def body(total, n):
        first = smddp_jax.psum_start(n * x[0], "i")
        second = smddp_jax.psum_start(x[0], "i")
        return total + second.done() + first.done(), None

    return lax.scan(body, jnp.zeros(x.shape[1:]), jnp.arange(3.0))[0]


def slope(x):
    def loss(scale):
        local = smddp_jax.psum_start(scale * x[0], "i").done()
        return (local * local).sum()

    return jax.grad(loss)(jnp.float32(1))


def sums() -> None:
    for count in (1, 1000, 300_000):
        x = rows(count)
        whole = sum(
            np.arange(count, dtype=np.float32) % 97 + k for k in range(mesh.size)
        )
        for _ in range(5):
            for n, got in enumerate(mapped(several)(x)):
                want = (n + 1) * whole
                np.testing.assert_array_equal(got.addressable_data(0), want)
            np.testing.assert_array_equal(
                mapped(looped)(x).addressable_data(0), 6 * whole
            )
        want = 2 * (whole.astype(np.float64) ** 2).sum()
        np.testing.assert_allclose(mapped(slope)(x).addressable_data(0), want, 1e-5)


def watch(reached: Path) -> None:
    """Says when all sums of this process are under way at once."""
    core = _native.load()
    while core.stats()["in_flight"] < STARTS:
        time.sleep(0.01)
    reached.touch()
    say("all under way")


def waits(reached: Path) -> None:
    x = rows(8)
    several_at_once = mapped(several).lower(x).compile()
    if rank == 0:
        threading.Thread(target=watch, args=(reached,), daemon=True).start()
    while rank == size - 1 and not reached.exists():
        time.sleep(0.01)
    for got in several_at_once(x):
        got.block_until_ready()


def dies() -> None:
    x = rows(300_000)
    compiled = mapped(several).lower(x).compile()
    say("ready")
    if rank == size - 1:
        time.sleep(600)
    for got in compiled(x):
        got.block_until_ready()


try:
    {"sums": sums, "waits": lambda: waits(Path(sys.argv[2])), "dies": dies}[scenario]()
except (jax.errors.JaxRuntimeError, ValueError) as error:
    if "smddp_jax" not in str(error):
        raise
    say_raised(error)
    raise
say("DONE")
