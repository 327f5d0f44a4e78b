# SPDX-License-Identifier: Apache-2.0
"""A rank of what `jax_on_gpus.py` runs: our collectives through JAX, beside numpy.

The argument names a scenario. Nothing here says what the devices are, so that machines
without a GPU run the same program on CPUs. Values are whole numbers that every type
adds exactly, so results must be equal to the bit, however the sum is taken.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

from member import join, say, say_raised

rank, size = join()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import smddp_jax  # noqa: E402

jax.config.update("jax_enable_x64", True)

DTYPES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
).split()
COUNTS = (1, 3, 129, 30_011)
LARGE = 3_000_017  # of float32: many calls of a staging buffer, many segments
REDUCTIONS = {lax.psum: np.sum, lax.pmax: np.max, lax.pmin: np.min}

line = Mesh(np.array(jax.devices()), ("i",))
psum = functools.partial(lax.psum, axis_name="i")


def mapped(f: Callable, mesh: Mesh = line) -> Callable:
    """`f` on every device, over rows of its arguments."""
    rows = P(mesh.axis_names)
    return jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    )


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Whole numbers, other ones in every row; a row for each device."""
    random = np.random.default_rng(seed)
    low = 0 if dtype.startswith("uint") else -15
    return random.integers(low, 16, (line.size, *shape)).astype(jnp.dtype(dtype))


def put(rows: np.ndarray, mesh: Mesh = line) -> jax.Array:
    """Row k on device k."""
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    return jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at])


def check(got: jax.Array, wanted: np.ndarray) -> None:
    """Every row that lies here is the wanted one."""
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    for shard in got.addressable_shards:
        for row in np.asarray(shard.data):
            np.testing.assert_array_equal(row.astype("f8"), wanted.astype("f8"))


def check_ours(f: Callable, *args: Any) -> None:
    """The engine runs every collective of `f`."""
    explanation = smddp_jax.explain(f, *args)
    assert explanation.rows, "no collective is left"
    assert all(row.runs == "ours" for row in explanation.rows), str(explanation)


def check_usable() -> None:
    """The device of this process computes."""
    ones = jnp.ones((256, 256), jnp.float32, device=jax.local_devices()[0])
    assert float((ones @ ones)[0, 0]) == 256.0


def every_type() -> None:
    """Sums, maxima, minima of every type and of odd sizes; trees; means."""
    for dtype in DTYPES:
        rows = {str(n): numbers(dtype, n, seed=n) for n in COUNTS}
        args = jax.tree.map(put, rows)
        for reduce, plain in REDUCTIONS.items():
            f = mapped(lambda tree, r=reduce: fused(r, tree))
            check_ours(f, args)
            got = f(args)
            for key, row in rows.items():
                check(got[key], plain(row, 0).astype(row.dtype))
    rows = numbers("float32", LARGE)
    check(mapped(psum)(put(rows)), rows.sum(0))
    check(
        mapped(lambda v: lax.pmean(v, "i"))(put(rows)), rows.sum(0) / np.float32(size)
    )


def fused(reduce: Callable, tree: Any) -> Any:
    """One fused call for the whole tree."""
    return getattr(smddp_jax, reduce.__name__)(tree, "i")


def same_bits() -> None:
    """Random floats: what is added is close, and the same bits everywhere."""
    random = np.random.default_rng(1)
    for dtype in ("float32", "bfloat16", "float16"):
        rows = random.standard_normal((line.size, 100_003)).astype(jnp.dtype(dtype))
        got = mapped(psum)(put(rows))
        mine = np.asarray(got.addressable_shards[0].data[0])
        exact = rows.astype("f8").sum(0)
        eps = float(jnp.finfo(dtype).eps)
        bound = eps * np.abs(exact) + 1e-6 * np.abs(rows.astype("f8")).sum(0)
        assert (np.abs(mine.astype("f8") - exact) <= bound).all()
        say(f"bits {dtype} {zlib.crc32(mine.tobytes())}")


def queued() -> None:
    """Many steps in flight, alone and in a row; loops; groups side by side."""
    rows = numbers("float32", 1000)
    arg, step = put(rows), mapped(lambda v: psum(v) / line.size)
    check_ours(step, arg)
    flying = [step(arg + k) for k in range(200)]
    chained = arg
    for _ in range(50):
        chained = step(chained)
    mean = rows.mean(0, dtype="f4")
    for k, got in enumerate(flying):
        check(got, mean + np.float32(k))
    np.testing.assert_allclose(chained.addressable_shards[0].data[0], mean, rtol=1e-5)

    def loop(v: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 20, lambda _, w: psum(w) - (line.size - 1) * w, v)

    alike = np.broadcast_to(rows[:1], rows.shape)  # which the loop leaves as they are
    check(mapped(loop)(put(alike)), rows[0])
    if line.size == 4:
        two_groups(rows)


def two_groups(rows: np.ndarray) -> None:
    """Sums over either axis of a mesh of four, at once."""
    grid = Mesh(line.devices.reshape(2, 2), ("x", "y"))
    both = mapped(lambda v: [lax.psum(v, name) for name in grid.axis_names], grid)
    over_x, over_y = both(put(rows, grid))
    for got, pairs in ((over_x, [(0, 2), (1, 3)]), (over_y, [(0, 1), (2, 3)])):
        for shard in got.addressable_shards:
            mine = shard.index[0].start or 0
            pair = next(pair for pair in pairs if mine in pair)
            np.testing.assert_array_equal(shard.data[0], rows[list(pair)].sum(0))


def started() -> None:
    """A sum that other work overlaps."""

    def step(v: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        handle = smddp_jax.psum_start(v, "i")
        product = w @ jnp.swapaxes(w, 1, 2)
        return handle.done(), product

    rows, factor = numbers("float32", 100_003), numbers("float32", 128, 128)
    args, f = (put(rows), put(factor)), mapped(step)
    check_ours(f, *args)
    for total, product in [f(*args) for _ in range(20)]:
        check(total, rows.sum(0))
        for shard in product.addressable_shards:
            mine = factor[shard.index[0]]
            np.testing.assert_array_equal(shard.data, mine @ mine.swapaxes(1, 2))


def until_it_raises(step: Callable, arg: Any, wanted: np.ndarray) -> None:
    """Steps until a collective fails; says how. No result is wrong: it is right or NaN.

    What a step gave whose collective failed on the device is told by a later step.
    """
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            got = np.asarray(step(arg).addressable_shards[0].data[0])
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            say_raised(error)
            break
        assert np.isnan(got).all() or (got == wanted).all(), got
    else:
        raise AssertionError("no step raised")
    check_usable()
    say("USABLE")


def lost() -> None:
    """The last rank is killed between two steps."""
    rows = numbers("float32", 4096)
    step, arg = mapped(psum), put(rows)
    for _ in range(3):
        check(step(arg), rows.sum(0))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until_it_raises(step, arg, rows.sum(0))


def disagreeing() -> None:
    """The last rank asks for another number of elements."""
    rows = numbers("float32", 6 if rank == size - 1 else 4)
    until_it_raises(mapped(psum), put(rows), rows.sum(0))


SCENARIOS = {
    f.__name__: f for f in (every_type, same_bits, queued, started, lost, disagreeing)
}


def first_step() -> None:
    """A product and a sum as the very first thing that a device does."""
    rows = numbers("float32", 64, 64)
    f = mapped(lambda v: psum(v @ jnp.swapaxes(v, 1, 2)))
    check(f(put(rows)), (rows @ rows.swapaxes(1, 2)).sum(0))


first_step()
SCENARIOS[sys.argv[1]]()
check_usable()
say(f"DONE on {jax.devices()[0].platform}")
