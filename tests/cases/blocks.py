# SPDX-License-Identifier: Apache-2.0
"""Scatters and gathers: every device has, or gets, one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from world import World

from cases import case

GROUPS = [[5, 0, 3, 1], [2, 7, 4, 6]]
# A shape, and a dimension of it.
TILED = (((16,), 0), ((3, 16, 2), 1), ((5, 24), -1), ((8, 1), 0))
UNTILED = (((8,), 0), ((8, 3), 0), ((3, 8, 2), 1), ((2, 3, 8), 2))


def scattered(rows: np.ndarray, dimension: int, tiled: bool) -> np.ndarray:
    """What the devices get of the sum of the rows, one row per device."""
    blocks = np.split(rows.sum(0, dtype=rows.dtype), len(rows), dimension)
    return np.stack(blocks if tiled else [b.squeeze(dimension) for b in blocks])


def gathered(rows: np.ndarray, dimension: int, tiled: bool) -> np.ndarray:
    join = np.concatenate if tiled else np.stack
    return np.stack([join(list(rows), dimension)] * len(rows))


def in_groups(want: Callable[..., np.ndarray], rows: np.ndarray, *args: Any) -> Any:
    """The same for the groups, each of which is in an order of its own."""
    result: list[Any] = [None] * len(rows)
    for group in GROUPS:
        for device, row in zip(group, want(rows[group], *args), strict=True):
            result[device] = row
    return np.stack(result)


def whole_numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    random = np.random.default_rng(shape)
    return random.integers(-8, 9, (8, *shape)).astype(dtype)


def scatter(dimension: int, tiled: bool, **options: Any) -> Callable[[Any], Any]:
    # JAX lowers negative dimensions for gathers only.
    return lambda v: lax.psum_scatter(
        v, "i", scatter_dimension=dimension % v.ndim, tiled=tiled, **options
    )


def gather(dimension: int, tiled: bool, **options: Any) -> Callable[[Any], Any]:
    return lambda v: lax.all_gather(v, "i", axis=dimension, tiled=tiled, **options)


@case("blocks")
def scatters_along_any_dimension(w: World) -> None:
    for tiled, shapes in ((True, TILED), (False, UNTILED)):
        for shape, dimension in shapes:
            rows = whole_numbers(*shape)
            result = w.each(scatter(dimension, tiled), rows)
            result.equal(scattered(rows, dimension, tiled), np.float32)


@case("blocks")
def gathers_along_any_dimension(w: World) -> None:
    for tiled in (True, False):
        for shape, dimension in (*TILED, ((3, 2), 1), ((3, 2), -1)):
            rows = whole_numbers(*shape)
            result = w.each(gather(dimension, tiled), rows)
            result.equal(gathered(rows, dimension, tiled), np.float32)


@case("blocks", "pmap", "unchecked")
def groups_in_any_order(w: World) -> None:
    rows = whole_numbers(4, 12)
    options = {"axis_index_groups": GROUPS}
    for dimension, tiled in ((1, True), (0, False)):
        want = in_groups(scattered, rows, dimension, tiled)
        w.each(scatter(dimension, tiled, **options), rows).equal(want)
        want = in_groups(gathered, rows, dimension, tiled)
        w.each(gather(dimension, tiled, **options), rows).equal(want)


@case("blocks", "checked", "unchecked")
def blocks_go_in_the_order_of_the_axes(w: World) -> None:
    mesh = Mesh(np.array(w.devices).reshape(2, 4), ("x", "y"))
    rows, places = whole_numbers(16), np.arange(8).reshape(2, 4)
    by_axes = {
        ("x", "y"): [places.reshape(-1)],
        ("y", "x"): [places.T.reshape(-1)],
        ("y",): list(places),
    }
    for axes, groups in by_axes.items():
        summed = np.empty((8, 16 // len(groups[0])), np.float32)
        joined = np.empty((8, 16 * len(groups[0])), np.float32)
        for group in groups:
            summed[group] = scattered(rows[group], 0, True)
            joined[group] = gathered(rows[group], 0, True)
        f = lambda v, axes=axes: lax.psum_scatter(v, axes, tiled=True)  # noqa: E731
        w.each(f, rows, mesh=mesh).equal(summed)
        f = lambda v, axes=axes: lax.all_gather(v, axes, tiled=True)  # noqa: E731
        w.each(f, rows, mesh=mesh).equal(joined)


@case("blocks", ours=True)  # XLA changes NaNs of bfloat16
def gathers_move_bits_of_any_type(w: World) -> None:
    bits = np.random.default_rng(1).integers(0, 256, (8, 3, 16)).astype(np.uint8)
    for dtype in ("bool", "int8", "uint16", "bfloat16", "float32", "float8_e4m3fn"):
        dtype = jnp.dtype(dtype)
        # Any bits: among them NaNs of all kinds, -0.0 and subnormal numbers.
        rows = bits > 128 if dtype == np.bool_ else bits.view(dtype)
        result = w.each(gather(0, False), rows)
        assert result.tree.dtype == dtype
        want = np.stack([rows] * 8)[result.mine]
        assert result.tree.tobytes() == want.tobytes(), dtype
    pair = bits.view(np.int32)[..., :2] % 100
    rows = (pair + 1j * pair).astype(np.complex64)
    result = w.each(gather(-1, True), rows)
    np.testing.assert_array_equal(result.tree, gathered(rows, -1, True)[result.mine])


@case("blocks")
def scatters_of_many_types(w: World) -> None:
    for dtype in ("int8", "uint32", "bfloat16", "float32"):
        rows = whole_numbers(16, 3, dtype=np.int64)
        want = scattered(rows, 0, True)
        want = want if dtype == "bfloat16" else want.astype(dtype)  # which may wrap
        w.each(scatter(0, True), rows.astype(dtype)).equal(want, dtype)
    rows = whole_numbers(8, 3) + 1j * whole_numbers(8, 3)
    result = w.each(scatter(0, True), rows.astype(np.complex64))
    np.testing.assert_array_equal(result.tree, scattered(rows, 0, True)[result.mine])


@case("blocks", ours=True)
def scattered_sums_of_16_bits_are_rounded_once(w: World) -> None:
    """256 and seven ones; narrow sums would stay at 256, or at 2048."""
    for dtype, first in (("bfloat16", 256), ("float16", 2048)):
        rows = np.ones((8, 16), np.float32)
        rows[2] = first
        want = jnp.asarray(rows.sum(0), dtype).astype(np.float32).reshape(8, 2)
        w.each(scatter(0, True), rows.astype(dtype)).equal(want, dtype)


@case("blocks")
def blocks_of_many_sizes(w: World) -> None:
    """Up to many segments between processes, at lengths that no border likes."""
    for size in (0, 1, 1021, 40_009, 150_001):
        rows = whole_numbers(8 * size, dtype=np.int16)
        w.each(scatter(0, True), rows).equal(scattered(rows, 0, True))
        rows = rows[:, :size]
        w.each(gather(0, True), rows).equal(gathered(rows, 0, True))


@case("blocks")
def each_is_the_derivative_of_the_other(w: World) -> None:
    rows, weights = whole_numbers(16, 3), whole_numbers(2, 3)

    def scattered_loss(v, weight):
        return jnp.sum(scatter(0, True)(v) * weight)

    # The cotangents of all blocks are gathered.
    result = w.each(jax.grad(scattered_loss), rows, weights)
    result.equal(gathered(weights, 0, True))
    values, all_weights = whole_numbers(2, 3), whole_numbers(8, 2, 3)

    def gathered_loss(v, weight):
        return jnp.sum(gather(0, False)(v) * weight)

    result = w.each(jax.grad(gathered_loss), values, all_weights)
    result.equal(scattered(all_weights, 0, False))


@case("blocks", "checked", "unchecked")
def halves_of_a_mean_and_a_gathered_update(w: World) -> None:
    """A step as ZeRO does it: each device updates its block of the weights."""

    def step(weights, v):
        g = lax.psum_scatter(v, "i", tiled=True) / 8
        mine = lax.dynamic_slice_in_dim(weights, lax.axis_index("i") * 2, 2)
        return lax.all_gather(mine - g, "i", tiled=True, to="invarying")

    f = w.shard_map(step, in_specs=(P(), P("i")), out_specs=P())
    rows = whole_numbers(16)
    weights = np.arange(16, dtype=np.float32)
    got = jax.jit(f)(weights, w.put(rows.reshape(-1)))
    np.testing.assert_array_equal(np.asarray(got), weights - rows.mean(0))
