# SPDX-License-Identifier: Apache-2.0
"""Rows about axis names, groups and meshes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from world import World, psum

from cases import case

RANKS = np.arange(8, dtype=np.float32)
PAIRED = [[0, 2, 4, 6], [1, 3, 5, 7]]
UNEVEN = [[0], [1, 2, 3], [4, 5, 6, 7]]


def _grouped(groups):
    return lambda v: lax.psum(v, "i", axis_index_groups=groups)


@case("B21", "pmap", "unchecked")
def interleaved_groups(w: World) -> None:
    w.each(_grouped(PAIRED), RANKS).equal([12, 16] * 4)
    largest = w.each(lambda v: lax.pmax(v, "i", axis_index_groups=PAIRED), RANKS)
    largest.equal([6, 7] * 4)
    mean = w.each(lambda v: lax.pmean(v, "i", axis_index_groups=PAIRED), RANKS)
    mean.equal([3, 4] * 4)


@case("B22", "pmap", "unchecked")
def groups_of_unlike_size(w: World) -> None:
    w.each(_grouped(UNEVEN), RANKS).equal([0, 6, 6, 6, 22, 22, 22, 22])


@case("B22", "pmap", "unchecked")
def groups_in_any_order(w: World) -> None:
    # The order inside a group may differ from the order of the ranks.
    groups = [[7, 0, 3], [6, 1], [5, 2, 4]]
    wanted = [10, 7, 11, 10, 11, 11, 7, 10]
    w.each(_grouped(groups), RANKS).equal(wanted)


@case("B23", "checked")
def groups_under_type_checking_stay_refused(w: World) -> None:
    with pytest.raises(NotImplementedError):
        w.each(_grouped(PAIRED), RANKS)


@case("B25", "checked", "unchecked")
def one_or_several_axis_names(w: World) -> None:
    def over(*names):
        return w.each(lambda v: lax.psum(v, names), RANKS, mesh=w.grid)

    over("x", "y").equal([28] * 8)
    over("y", "x").equal([28] * 8)
    over("x").equal([12, 16] * 4)
    over("y").equal(np.repeat([1, 5, 9, 13], 2))


@case("B26", "checked", "unchecked")
def meshes_in_another_order_than_the_ranks(w: World) -> None:
    mixed = w.mesh([3, 1, 4, 0, 5, 7, 2, 6], (4, 2), "xy")
    w.each(lambda v: lax.psum(v, "x"), RANKS, mesh=mixed).equal([12, 16] * 4)
    w.each(lambda v: lax.psum(v, "y"), RANKS, mesh=mixed).equal(
        np.repeat([1, 5, 9, 13], 2)
    )
    backwards = w.mesh(range(7, -1, -1))
    weighted = w.each(
        lambda v: psum(v * (lax.axis_index("i") + 1)), RANKS, mesh=backwards
    )
    weighted.equal([168] * 8)


@case("B27", "checked", "unchecked")
def some_of_the_devices(w: World) -> None:
    three = w.mesh([6, 2, 5])
    if w.takes_part(three):
        w.each(psum, RANKS[:3], mesh=three).equal([3] * 3)
    one = w.mesh([5])
    if w.takes_part(one):
        w.each(psum, RANKS[4:5], mesh=one).equal([4])


@case("B27", "checked", "unchecked")
def an_axis_of_size_one(w: World) -> None:
    flat = w.mesh(range(8), (8, 1), "xy")
    w.each(lambda v: lax.psum(v, "y"), RANKS, mesh=flat).equal(RANKS)
    w.each(lambda v: lax.psum(v, "x"), RANKS, mesh=flat).equal([28] * 8)


@case("B55", "checked", "unchecked")
def halves_one_after_the_other(w: World) -> None:
    for order, total in (([0, 2, 4, 6], 6), ([7, 5, 3, 1], 6)):
        half = w.mesh(order)
        if w.takes_part(half):
            f, given = w.mapped(psum, half), w.put(RANKS[:4], half)
            for _ in range(20):
                w.take(f(given), half).equal([total] * 4)


@case("B29", "checked", "unchecked")
def vmap_over_a_shard_map(w: World) -> None:
    if w.how == "checked":
        f = jax.jit(jax.vmap(w.shard_map(psum, in_specs=P("i"), out_specs=P())))
        value = np.arange(16, dtype=np.float32).reshape(2, 8)
        np.testing.assert_array_equal(_whole(f(value)), [[28], [92]])
    inner = w.shard_map(
        lambda v: lax.psum(v, "y"), w.grid, in_specs=P("y"), out_specs=P()
    )
    f = jax.jit(jax.vmap(inner, spmd_axis_name="x"))
    result = _whole(f(RANKS.reshape(4, 2)))
    np.testing.assert_array_equal(result, [[1], [5], [9], [13]])


def _whole(array: jax.Array) -> np.ndarray:
    """The global value, as far as this process sees it (the rest is filled in)."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    everywhere = NamedSharding(array.sharding.mesh, P())
    return np.asarray(jax.jit(lambda v: v, out_shardings=everywhere)(array))


@case("B29")
def vmap_inside(w: World) -> None:
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    total = np.broadcast_to(value.sum(0), value.shape)
    w.each(jax.vmap(psum), value).equal(total)
    two = np.arange(64, dtype=np.float32).reshape(8, 4, 2)
    wanted = np.broadcast_to(two.sum(0), two.shape)
    w.each(jax.vmap(psum, in_axes=1, out_axes=1), two).equal(wanted)


@case("B29", "checked")
def an_axis_of_vmap_has_no_devices(w: World) -> None:
    f = jax.vmap(psum, axis_name="i")
    np.testing.assert_array_equal(f(jnp.arange(8)), [28] * 8)
    assert "custom_call" not in jax.jit(f).lower(jnp.arange(8)).as_text()


@case("B31")
def constants_are_known_at_trace_time(w: World) -> None:
    seen = {}

    def f(v):
        seen["int"] = psum(1)
        seen["float"] = psum(np.float32(2))
        return v

    w.each(f, RANKS)
    assert seen["int"] == 8 and isinstance(seen["int"], int)
    assert seen["float"] == 16 and seen["float"].dtype == np.float32


@case("B32", "pmap", "unchecked")
def an_unbound_axis_is_named(w: World) -> None:
    with pytest.raises(NameError, match="unbound axis name: i"):
        jax.jit(psum)(jnp.ones(8))
    with pytest.raises(NameError, match="unbound axis name: batch"):
        w.each(lambda v: lax.psum(v, "batch"), RANKS)


@case("B33", "checked")
def explicit_meshes(w: World) -> None:
    mesh = jax.make_mesh((8,), ("i",), devices=list(w.devices))
    f = jax.jit(jax.shard_map(psum, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
    w.take(f(w.put(RANKS, mesh)), mesh).equal([28] * 8)
    if jax.process_count() == 1:
        with pytest.raises(ValueError):  # JAX's own, unchanged
            f(jnp.arange(8.0))
