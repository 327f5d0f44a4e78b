# SPDX-License-Identifier: Apache-2.0
"""smddp_jax's own functions of trees: one fused call per dtype, JAX's values."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from world import HOWS, World

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")

RANKS = np.arange(8, dtype=np.float32)
FORMS = ((3, 5), (7,), (), (2, 1, 4), (1000,))
DTYPES = ("float32", "bfloat16", "int32")


def our_calls(lowered: jax.stages.Lowered) -> int:
    return len(re.findall(r"custom_call @smddp_all_reduce", lowered.as_text()))


def stock_calls(lowered: jax.stages.Lowered) -> int:
    return len(re.findall(r"stablehlo\.all_reduce", lowered.as_text()))


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


@pytest.fixture
def tree() -> dict:
    random = np.random.default_rng(0)
    return {
        dtype: [random.integers(-8, 9, (8, *form)).astype(dtype) for form in FORMS]
        for dtype in DTYPES
    } | {"nothing": None}


def mapped(world: World, f):
    if world.how == "pmap":
        return jax.pmap(f, axis_name="i")
    return world.mapped(f)


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_a_tree_takes_one_call_per_dtype(world: World, tree: dict, name: str) -> None:
    ours, stock = getattr(smddp_jax, name), getattr(lax, name)
    lowered = mapped(world, lambda t: ours(t, "i")).lower(tree)
    assert our_calls(lowered) == len(DTYPES)
    assert stock_calls(lowered) == 0

    with_ours = world.each(lambda t: ours(t, "i"), tree)
    smddp_jax.uninstall()
    try:
        with_stock = world.each(lambda t: stock(t, "i"), tree)
    finally:
        smddp_jax.install()
    assert jax.tree.structure(with_ours.tree) == jax.tree.structure(with_stock.tree)
    for got, wanted in zip(
        jax.tree.leaves(with_ours.tree), jax.tree.leaves(with_stock.tree), strict=True
    ):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


def test_derivatives_of_a_tree_are_fused_too(world: World) -> None:
    """The transpose of a fused sum is a fused sum (or none, with varying types)."""

    def loss(a, b):
        summed = smddp_jax.psum({"a": a, "b": b}, "i")
        return jnp.sum(summed["a"] * 2) + jnp.sum(summed["b"] * 3)

    gradient = jax.grad(loss, argnums=(0, 1))
    a, b = np.ones((8, 5), np.float32), np.ones((8, 2, 2), np.float32)
    factor = 1 if world.how == "checked" else 8
    result = world.each(gradient, a, b)
    result[0].equal(np.full_like(a, 2 * factor))
    result[1].equal(np.full_like(b, 3 * factor))
    lowered = mapped(world, gradient).lower(a, b)
    assert our_calls(lowered) <= 1


def test_vmap_jvp_and_scan_of_a_tree(world: World) -> None:
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    total = np.broadcast_to(value.sum(0), value.shape)
    pair = lambda v: smddp_jax.psum((v, 2 * v), "i")  # noqa: E731

    result = world.each(jax.vmap(pair), value)
    result[0].equal(total)
    result[1].equal(2 * total)

    result = world.each(lambda v: jax.jvp(pair, (v,), (v * 3,)), value)
    result[1][1].equal(6 * total)

    def rounds(v):
        return lax.scan(lambda c, k: (c, pair(v + k)[0]), 0.0, jnp.arange(3.0))[1]

    result = world.each(rounds, value)
    result.equal(np.stack([total + 8 * k for k in range(3)], axis=1))


def test_groups_of_a_tree() -> None:
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    for how in ("pmap", "unchecked"):
        result = World(how, jax.devices()).each(
            lambda v: smddp_jax.psum([v, v + 1], "i", axis_index_groups=groups), RANKS
        )
        result[0].equal([12, 16] * 4)
        result[1].equal([16, 20] * 4)


def test_B31_constants_of_a_tree(world: World) -> None:
    seen = {}

    def f(v):
        seen["one"] = smddp_jax.psum(1, "i")
        return v

    world.each(f, RANKS)
    assert seen["one"] == 8 and isinstance(seen["one"], int)


@pytest.mark.parametrize("root", [0, 5])
def test_broadcast_keeps_every_bit(world: World, root: int) -> None:
    random = np.random.default_rng(4)
    bits = random.integers(0, 2**32, (8, 100), np.uint32)
    tree = {
        "any bits": bits.view(np.float32),
        "minus zero": np.full((8, 3), -0.0, np.float32),
        "int": bits.astype(np.int32),
        "bool": bits[:, :10] % 2 == 0,
        "half": random.standard_normal((8, 7)).astype(jnp.bfloat16),
    }
    result = world.each(lambda t: smddp_jax.broadcast(t, "i", root), tree)
    for name, leaf in tree.items():
        got = result.tree[name]
        assert got.dtype == leaf.dtype
        wanted = np.ascontiguousarray(leaf[root]).tobytes()
        assert all(np.ascontiguousarray(row).tobytes() == wanted for row in got)


def test_B42_no_more_calls_than_stock_has() -> None:
    """A data-parallel step with ten parameter leaves, and its gradients."""
    world = World("checked", jax.devices())
    weights = [np.ones((4, 4), np.float32) for _ in range(10)]

    def step(weights, v):
        def loss(weights):
            h = v
            for weight in weights:
                h = jnp.tanh(h @ weight)
            return lax.pmean(jnp.mean(h * h), "i")

        value, gradients = jax.value_and_grad(loss)(weights)
        new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
        return value, new

    f = world.shard_map(step, in_specs=(P(), P("i")), out_specs=P())
    batch = np.ones((16, 4), np.float32)
    ours = jax.jit(f).lower(weights, batch)
    smddp_jax.uninstall()
    try:
        stock = jax.jit(f).lower(weights, batch)
    finally:
        smddp_jax.install()
    assert our_calls(stock) == 0 and stock_calls(ours) == 0
    assert our_calls(ours) == stock_calls(stock) > 10
