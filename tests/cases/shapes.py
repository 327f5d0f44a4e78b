# SPDX-License-Identifier: Apache-2.0
"""Rows about shapes and trees."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from world import World, psum

from cases import case

RANKS = np.arange(8)


@case("B13")
def arrays_without_elements(w: World) -> None:
    for shape in ((0, 4), (0,), (3, 0)):
        result = w.each(psum, np.zeros((8, *shape), np.float32))
        result.equal(np.zeros((8, *shape)), jnp.float32)


@case("B13")
def an_empty_leaf_beside_a_full_one(w: World) -> None:
    tree = {"empty": np.zeros((8, 0), np.float32), "full": RANKS.astype(np.float32)}
    result = w.each(psum, tree)
    result["empty"].equal(np.zeros((8, 0)))
    result["full"].equal([28] * 8)


SIZES = (1, 3, 7, 127, 129, 1023, 65537, 1055659)


def _odd_counts(w: World, dtype: str) -> None:
    values = [(np.arange(8 * n).reshape(8, n) % 5).astype(np.int32) for n in SIZES]
    result = w.each(
        lambda *vs: tuple(psum(v) for v in vs), *[v.astype(dtype) for v in values]
    )
    for position, value in enumerate(values):
        result[position].equal(np.broadcast_to(value.sum(0), value.shape), dtype)


@case("B14")
def odd_counts_of_int8(w: World) -> None:
    _odd_counts(w, "int8")


@case("B14")
def odd_counts_of_float32(w: World) -> None:
    _odd_counts(w, "float32")


@case("B14")
def odd_counts_of_bfloat16(w: World) -> None:
    _odd_counts(w, "bfloat16")


@case("shapes")
def scalars_and_many_dimensions(w: World) -> None:
    w.each(psum, RANKS.astype(np.float32)).equal([28] * 8)
    value = RANKS.reshape(8, 1, 1, 1, 1, 1, 1) * np.ones(
        (8, 2, 1, 3, 1, 2, 1), np.float32
    )
    w.each(psum, value.astype(np.float32)).equal(np.full(value.shape, 28))


@case("B17")
def trees_keep_none_and_their_types(w: World) -> None:
    tree = {
        "a": RANKS.astype(np.int8),
        "b": None,
        "c": (RANKS.astype(np.float16), {"d": 2 * RANKS.astype(np.float32)}),
    }
    result = w.each(psum, tree)
    assert result.tree["b"] is None
    result["a"].equal([28] * 8, np.int8)
    result["c"][0].equal([28] * 8, np.float16)
    result["c"][1]["d"].equal([56] * 8, np.float32)


@case("B17")
def trees_without_leaves(w: World) -> None:
    result = w.each(lambda v: (v, psum({}), psum(None), psum(())), RANKS)
    assert result.tree[1:] == ({}, None, ())


@case("B19", "checked")
def five_hundred_small_sums_in_one_program(w: World) -> None:
    def program(v):
        return tuple(psum(v + k % 100) for k in range(500))

    result = w.each(program, np.zeros((8, 8), np.float16))
    for k in range(500):
        result[k].equal(np.full((8, 8), 8 * (k % 100)), np.float16)


@case("shapes")
def many_leaves_of_several_types(w: World) -> None:
    leaves = [
        ((RANKS[:, None] + k) % 7 * np.ones((8, 1 + k % 5))).astype(dtype)
        for k in range(20)
        for dtype in ("float32", "int32", "bfloat16")
    ]
    result = w.each(lambda *vs: lax.psum(vs, "i"), *leaves)
    for k, leaf in enumerate(leaves):
        total = leaf.astype(np.float32).sum(0)
        result[k].equal(np.broadcast_to(total, leaf.shape), leaf.dtype)
