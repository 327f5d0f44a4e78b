# SPDX-License-Identifier: Apache-2.0
"""Random dtypes, shapes, groups and trees against NumPy.

Integers are exact modulo 2^bits; max and min are exact. For sums of floats, n terms
added in any order in a type with unit roundoff u are within (n - 1) u sum|x| of the
exact sum, to first order (complex: each part by itself). bf16 and f16 are added in
float32 and rounded once to their own type.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from world import World

pytestmark = pytest.mark.ours  # XLA adds float16 narrowly
smddp = pytest.importorskip("smddp_jax")

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple) | st.tuples(
    st.integers(1, 70_000)
)
seeds = st.integers(0, 2**32 - 1)
hows = st.sampled_from(("checked", "unchecked"))


@st.composite
def group_lists(draw) -> list[list[int]]:
    """A partition of the ranks into groups of any size, in any order."""
    order = draw(st.permutations(range(8)))
    cuts = sorted(draw(st.sets(st.integers(1, 7), max_size=4)))
    ends = [0, *cuts, 8]
    return [order[a:b] for a, b in zip(ends, ends[1:], strict=False)]


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Eight rows that use the width of their type."""
    random = np.random.default_rng(seed)
    full = (8, *shape)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, full, dtype, endpoint=True)
    scale = 10.0 ** random.integers(-2, 3, (8,) + (1,) * len(shape))
    if dtype in COMPLEX:
        real, imaginary = random.standard_normal((2, *full)) * scale
        return (real + 1j * imaginary).astype(dtype)
    return (random.standard_normal(full) * scale).astype(dtype)


def check_sum(got: np.ndarray, rows: np.ndarray) -> None:
    """One device's sum of the rows of its group."""
    assert got.dtype == rows.dtype and got.shape == rows.shape[1:]
    if rows.dtype.name in INTEGERS:
        np.testing.assert_array_equal(got, rows.sum(0, dtype=rows.dtype))
        return
    if np.iscomplexobj(rows):
        check_sum(got.real, rows.real)
        check_sum(got.imag, rows.imag)
        return
    wide = rows.astype(np.float64)
    own = float(jnp.finfo(rows.dtype).eps)
    added = max(float(np.finfo(np.float64).eps), min(own, np.finfo(np.float32).eps))
    bound = (len(rows) - 1) * added / 2 * np.abs(wide).sum(0) * (1 + 8 * added)
    if own > added:  # the one rounding to half precision, subnormals included
        bound += own / 2 * (np.abs(wide.sum(0)) + bound)
        bound += float(jnp.finfo(rows.dtype).smallest_subnormal)
    if own == np.finfo(np.float64).eps:  # NumPy's own sum is no better
        bound *= 2
    error = np.abs(got.astype(np.float64) - wide.sum(0))
    assert (error <= bound).all(), (error - bound).max()


@settings(max_examples=60)
@given(st.sampled_from(INTEGERS + FLOATS + COMPLEX), shapes, seeds, hows)
def test_sums_of_any_dtype_and_shape(dtype, shape, seed, how) -> None:
    with jax.enable_x64(True):
        rows = values(dtype, shape, seed)
        result = World(how, jax.devices()).each(lambda v: lax.psum(v, "i"), rows)
        for got in result.tree:
            check_sum(got, rows)
        if rows.size:
            result.same_bits()


@settings(max_examples=30)
@given(st.sampled_from(INTEGERS + FLOATS), shapes, seeds, hows)
def test_extremes_of_any_dtype_and_shape(dtype, shape, seed, how) -> None:
    with jax.enable_x64(True):
        rows = values(dtype, shape, seed)
        result = World(how, jax.devices()).each(
            lambda v: (lax.pmax(v, "i"), lax.pmin(v, "i")), rows
        )
        result[0].equal(np.broadcast_to(rows.max(0), rows.shape), rows.dtype)
        result[1].equal(np.broadcast_to(rows.min(0), rows.shape), rows.dtype)


@settings(max_examples=30)
@given(st.sampled_from(INTEGERS + FLOATS), shapes, seeds, group_lists())
def test_sums_over_any_groups(dtype, shape, seed, groups) -> None:
    with jax.enable_x64(True):
        rows = values(dtype, shape, seed)
        result = World("unchecked", jax.devices()).each(
            lambda v: lax.psum(v, "i", axis_index_groups=groups), rows
        )
        for group in groups:
            for rank in group:
                check_sum(result.tree[rank], rows[group])


leaves = st.tuples(st.sampled_from(INTEGERS + FLOATS), shapes, seeds)
trees = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=4)
    ),
    max_leaves=8,
)


def _is_leaf(node) -> bool:
    return isinstance(node, tuple)


@settings(max_examples=30)
@given(trees, hows)
def test_fused_sums_of_any_tree(drawn, how) -> None:
    with jax.enable_x64(True):
        tree = jax.tree.map(lambda leaf: values(*leaf), drawn, is_leaf=_is_leaf)
        world = World(how, jax.devices())
        result = world.each(lambda t: smddp.psum(t, "i"), tree)
        assert jax.tree.structure(result.tree) == jax.tree.structure(tree)
        for rows, got in zip(
            jax.tree.leaves(tree), jax.tree.leaves(result.tree), strict=True
        ):
            for one in got:
                check_sum(one, rows)
