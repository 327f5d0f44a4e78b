# SPDX-License-Identifier: Apache-2.0
"""Rows about values: types kept, sums exact or within a stated bound, same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from world import World, psum

from cases import case

RANKS = np.arange(8)


@case("B01")
def booleans_are_counted_in_int32(w: World) -> None:
    w.each(psum, RANKS % 2 == 0).equal([4] * 8, jnp.int32)


@case("B02")
def complex_sums(w: World) -> None:
    value = (RANKS + 1j * RANKS * RANKS).astype(np.complex64)
    w.each(psum, value).equal([28 + 140j] * 8, jnp.complex64)


@case("B03")
def bf16_is_kept_and_summed_wide(w: World) -> None:
    w.each(psum, np.ones(8, jnp.bfloat16)).equal([8] * 8, jnp.bfloat16)
    # A running sum in bf16 stays at 256; in float32 it is 263, which rounds to 264.
    for position in (0, 7):
        value = np.ones(8, jnp.bfloat16)
        value[position] = 256
        w.each(psum, value).equal([264] * 8, jnp.bfloat16)


@case("B05")
def integers_wrap_in_their_own_type(w: World) -> None:
    wanted = {"int8": 32, "uint8": 32, "int16": 800, "uint16": 800, "int32": 800}
    for dtype, total in wanted.items():
        w.each(psum, np.full(8, 100, dtype)).equal([total] * 8, dtype)
    w.each(psum, np.full(8, 2**29, np.int32)).equal([0] * 8, np.int32)
    w.each(psum, np.full(8, 2**30, np.uint32)).equal([0] * 8, np.uint32)


@case("B08")
def nan_and_inf_reach_everybody(w: World) -> None:
    one_nan, mixed, one_inf = (np.ones(8, np.float32) for _ in range(3))
    one_nan[1] = np.nan
    mixed[:2] = np.inf, -np.inf
    one_inf[0] = np.inf
    for value, total in ((one_nan, np.nan), (mixed, np.nan), (one_inf, np.inf)):
        w.each(psum, value).equal([total] * 8)


@case("B08")
def everybody_skips_the_same_step(w: World) -> None:
    optimizer = optax.apply_if_finite(optax.sgd(1.0), max_consecutive_errors=3)

    def step(gradient):
        weight = jnp.float32(5)
        state = optimizer.init(weight)
        update, state = optimizer.update(psum(gradient), state, weight)
        return optax.apply_updates(weight, update), state.notfinite_count

    finite, broken = np.ones(8, np.float32), np.ones(8, np.float32)
    broken[3] = np.nan
    weight, skipped = w.each(step, finite)[0], w.each(step, finite)[1]
    weight.equal([-3] * 8)
    skipped.equal([0] * 8)
    weight, skipped = w.each(step, broken)[0], w.each(step, broken)[1]
    weight.equal([5] * 8)
    skipped.equal([1] * 8)


@case("B10")
def means_of_integers_are_floats(w: World) -> None:
    mean = w.each(lambda v: lax.pmean(v, "i"), RANKS.astype(np.int32))
    mean.equal([3.5] * 8, jnp.float32)


@case("B96")
def means_of_a_loss(w: World) -> None:
    mean = w.each(lambda v: lax.pmean(v, "i"), RANKS.astype(np.float32))
    mean.equal([3.5] * 8, jnp.float32)


@case("max-min")
def largest_and_smallest(w: World) -> None:
    value = np.stack([RANKS, 10 - RANKS, RANKS % 3], axis=1)
    for dtype in ("int8", "uint16", "int32", "float32", "bfloat16", "float16"):
        largest = w.each(lambda v: lax.pmax(v, "i"), value.astype(dtype))
        largest.equal([[7, 10, 2]] * 8, dtype)
        smallest = w.each(lambda v: lax.pmin(v, "i"), value.astype(dtype))
        smallest.equal([[0, 3, 0]] * 8, dtype)


@case("max-min")
def largest_of_signed_and_infinite(w: World) -> None:
    value = np.linspace(-8, -1, 8, dtype=np.float32)
    w.each(lambda v: lax.pmax(v, "i"), value).equal([-1] * 8)
    value[2] = -np.inf
    w.each(lambda v: lax.pmin(v, "i"), value).equal([-np.inf] * 8)


@case("max-min", ours=True)
def nan_is_the_largest_and_the_smallest(w: World) -> None:
    """As StableHLO says; XLA's own rendezvous drops the NaN on some ranks' order."""
    value = np.linspace(-8, -1, 8, dtype=np.float32)
    value[5] = np.nan
    w.each(lambda v: lax.pmax(v, "i"), value).equal([np.nan] * 8)
    w.each(lambda v: lax.pmin(v, "i"), value).equal([np.nan] * 8)


@case("zeros")
def zeros_are_data(w: World) -> None:
    w.each(psum, np.zeros((8, 300), np.float32)).equal(np.zeros((8, 300)))
    w.each(psum, np.zeros(8, np.int8)).equal([0] * 8)


@case("B90")
def every_device_has_the_same_bits(w: World) -> None:
    random = np.random.default_rng(0)
    scale = 10.0 ** random.integers(-3, 4, (8, 1))
    value = (random.standard_normal((8, 100_003)) * scale).astype(np.float32)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        w.each(psum, value.astype(dtype)).same_bits()


@case("B91")
def every_run_has_the_same_bits(w: World) -> None:
    value = np.random.default_rng(1).standard_normal((8, 100_003)).astype(np.float32)
    first = w.each(psum, value).same_bits()
    if w.how == "pmap":
        assert all(w.each(psum, value).same_bits() == first for _ in range(10))
        return
    f, placed = w.mapped(psum), w.put(value)
    assert all(w.take(f(placed)).same_bits() == first for _ in range(10))


@case("B112")
def sums_are_within_the_bound_of_any_order(w: World) -> None:
    """Whatever order eight terms are added in: error <= 7 eps sum|x|."""
    random = np.random.default_rng(2)
    scale = 10.0 ** random.integers(-3, 4, (8, 1))
    value = (random.standard_normal((8, 100_003)) * scale).astype(np.float32)
    wide = value.astype(np.float64)
    bound = 7 * np.finfo(np.float32).eps * np.abs(wide).sum(0)
    error = np.abs(w.each(psum, value).tree.astype(np.float64) - wide.sum(0))
    assert (error <= bound).all()


@case("dtypes")
def wide_types_under_x64(w: World) -> None:
    with jax.enable_x64(True):
        for dtype in ("int64", "uint64", "float64", "complex128"):
            w.each(psum, np.arange(8).astype(dtype)).equal([28] * 8, dtype)
        big = np.full(8, 2**61, np.int64)
        w.each(psum, big).equal([0] * 8, np.int64)
        small = np.full(8, 2.0**-40)
        small[0] = 2.0**10
        w.each(psum, small).equal([2.0**10 + 7 * 2.0**-40] * 8, np.float64)
