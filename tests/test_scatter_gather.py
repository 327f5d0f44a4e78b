# SPDX-License-Identifier: Apache-2.0
"""psum_scatter and all_gather by name, what they lower to, and the wire type.

What values they give, over processes too, is in `cases/blocks.py`.
"""

from __future__ import annotations

import functools
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from ranks import run_ranks
from world import HOWS, World

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")

RANKS = np.arange(8, dtype=np.float32)
ROWS = np.random.default_rng(0).integers(-8, 9, (8, 8, 16)).astype(np.float32)
OURS = {"psum_scatter": "reduce_scatter", "all_gather": "all_gather"}


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


@pytest.fixture
def uninstalled():
    smddp_jax.uninstall()
    yield
    smddp_jax.install()


def lower(world: World, f: Callable, *args: Any) -> str:
    mapped = jax.pmap(f, axis_name="i") if world.how == "pmap" else world.mapped(f)
    return mapped.lower(*args).as_text()


def calls(text: str) -> tuple[list[str], list[str]]:
    """The collectives of a program: ours, and JAX's own."""
    ours = re.findall(r"custom_call @smddp_(\w+)\(", text)
    return ours, re.findall(
        r'"stablehlo\.(all_gather|reduce_scatter|all_reduce)"', text
    )


def both(f: Callable[[Any], Any], world: World, *args: Any) -> tuple[Any, Any]:
    """The results of f(smddp_jax) and of f(lax), which JAX runs."""
    return world.each(f(smddp_jax), *args).tree, world.each(f(lax), *args).tree


def options(name: str, dimension: int, tiled: bool) -> dict[str, Any]:
    which = "axis" if name == "all_gather" else "scatter_dimension"
    return {which: dimension, "tiled": tiled}


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("name", OURS)
def test_by_name_they_are_ours_and_equal_jax(
    world: World, uninstalled, name: str, tiled: bool
) -> None:
    for dimension in (0, 1) if tiled or name == "all_gather" else (0,):
        chosen = options(name, dimension, tiled)
        f = lambda m, chosen=chosen: lambda v: getattr(m, name)(v, "i", **chosen)  # noqa: E731
        assert calls(lower(world, f(smddp_jax), ROWS)) == ([OURS[name]], [])
        assert calls(lower(world, f(lax), ROWS)) == ([], [OURS[name]])
        ours, stock = both(f, world, ROWS)
        np.testing.assert_array_equal(ours, stock)


@pytest.mark.parametrize("name", OURS)
def test_installed_they_are_taken_over(world: World, name: str) -> None:
    text = lower(world, lambda v: getattr(lax, name)(v, "i"), ROWS)
    assert calls(text) == ([OURS[name]], [])


def test_negative_dimensions_count_from_the_end(world: World) -> None:
    gather = lambda v: smddp_jax.all_gather(v, "i", axis=-1)  # noqa: E731
    world.each(gather, ROWS).equal(np.stack([np.stack(list(ROWS), -1)] * 8))
    scatter = lambda v: smddp_jax.psum_scatter(  # noqa: E731
        v, "i", scatter_dimension=-1, tiled=True
    )
    world.each(scatter, ROWS).equal(np.stack(np.split(ROWS.sum(0), 8, -1)))


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("tiled", [True, False])
def test_a_batch_is_one_more_dimension(
    world: World, dimension: int, tiled: bool
) -> None:
    """vmap over each dimension gives what a loop over its positions gives."""
    for module in (smddp_jax, lax):
        if module is lax and not tiled and dimension == 1:
            continue  # JAX loses the place of the batch behind what it scatters
        for name in OURS:
            f = functools.partial(getattr(module, name), axis_name="i", tiled=tiled)
            batched = jax.vmap(f, in_axes=dimension)
            single = lambda v, f=f: jnp.stack(  # noqa: E731
                [f(row) for row in jnp.moveaxis(v, dimension, 0)]
            )
            rows = np.moveaxis(ROWS, 1, 2) if dimension == 0 else ROWS
            rows = np.ascontiguousarray(rows[:, :, :8] if dimension else rows[..., :8])
            world.each(batched, rows).equal(world.each(single, rows).tree)


def test_a_vmapped_axis_is_local() -> None:
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    scatter = jax.vmap(lambda v: smddp_jax.psum_scatter(v, "v"), axis_name="v")
    np.testing.assert_array_equal(scatter(value), value.sum(0))
    gather = jax.vmap(lambda v: smddp_jax.all_gather(v, "v"), axis_name="v")
    np.testing.assert_array_equal(gather(value), np.stack([value] * 8))
    assert calls(jax.jit(gather).lower(value).as_text()) == ([], [])


def test_derivatives_by_name_are_ours_too(world: World, uninstalled) -> None:
    def loss(v, weight, m=smddp_jax):
        mine = m.psum_scatter(v, "i", tiled=True) * weight
        return jnp.sum(jnp.sin(m.all_gather(mine, "i")))

    weights = np.linspace(1, 2, 8 * 16, dtype=np.float32).reshape(8, 1, 16)
    ours, stock = calls(lower(world, jax.grad(loss), ROWS, weights))
    assert not stock and sorted(ours) == ["all_gather"] * 2 + ["reduce_scatter"] * 2

    def forward(m):
        f = functools.partial(loss, m=m)
        return lambda v, w: jax.jvp(f, (v, w), (v, w))

    def reverse(m):
        return jax.grad(functools.partial(loss, m=m), argnums=(0, 1))

    for derivative in (forward, reverse):
        assert not calls(lower(world, derivative(smddp_jax), ROWS, weights))[1]
        for got, want in zip(*both(derivative, world, ROWS, weights), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_types_vary_as_those_of_jax() -> None:
    world = World("checked", jax.devices())
    seen = {}

    def f(v):
        for module in (smddp_jax, lax):
            gathered = module.all_gather(v, "i")
            summed = module.psum_scatter(gathered, "i")
            seen[module] = jax.typeof(gathered), jax.typeof(summed)
            alike = jnp.ones(8)  # varies over nothing before
            seen[module] += (jax.typeof(module.psum_scatter(alike, "i")),)
        return v

    world.each(f, RANKS)
    assert seen[smddp_jax] == seen[lax]
    replicated = world.shard_map(lambda v: smddp_jax.all_gather(v, "i"), out_specs=P())
    with pytest.raises(ValueError, match="out_specs"):
        jax.jit(replicated)(RANKS)


def test_trees_go_by_the_names_of_their_leaves() -> None:
    world = World("unchecked", jax.devices())
    leaves = {"b": RANKS, "a": ROWS, "none": None}
    shapes = []
    for names in (("b", "none", "a"), ("a", "b", "none")):
        tree = OrderedDict((name, leaves[name]) for name in names)
        f = lambda t: smddp_jax.all_gather(t, "i")  # noqa: E731
        result = world.each(f, tree)
        assert list(result.tree) == list(names) and result.tree["none"] is None
        result["b"].equal(np.stack([RANKS] * 8))
        shapes.append(
            re.findall(r"@smddp_all_gather.* -> (\S+)", lower(world, f, tree))
        )
    assert shapes[0] == shapes[1] and len(shapes[0]) == 2


@pytest.mark.parametrize("module", [smddp_jax, lax], ids=["ours", "jax"])
def test_wrong_arguments_are_jax_errors(module) -> None:
    world = World("unchecked", jax.devices())
    wrong = {
        "must match": lambda v: module.psum_scatter(v[:7], "i"),
        "divisible": lambda v: module.psum_scatter(v[:7], "i", tiled=True),
        "out of bounds": lambda v: module.all_gather(v, "i", axis=4),
        "replica": lambda v: module.all_gather(
            v, "i", axis_index_groups=[[0], [1, 2, 3, 4, 5, 6, 7]]
        ),
    }
    for text, f in wrong.items():
        with pytest.raises(ValueError, match=text):
            world.each(f, ROWS)
    with pytest.raises(NameError, match="unbound axis name"):
        module.all_gather(RANKS, "nowhere")


def test_what_we_do_not_take_is_left_to_jax() -> None:
    world = World("unchecked", jax.devices())
    f = lambda v: smddp_jax.all_gather(v.astype(jnp.int4), "i").astype(jnp.int8)  # noqa: E731
    assert calls(lower(world, f, RANKS)) == ([], ["all_gather"])
    world.each(f, RANKS % 8).equal(np.stack([RANKS % 8] * 8))


# --- the type in which sums travel between hosts --------------------------------------


def wires(text: str) -> list[int]:
    """The `wire` attribute of each of our calls: -1, or a number of a type."""
    return [int(code) for code in re.findall(r"wire = (-?\d+) : i64", text)]


FUNCTIONS = (smddp_jax.psum, smddp_jax.pmean, smddp_jax.psum_scatter)
NONE, F16, BF16 = -1, 8, 9


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (None, NONE),
        ("float32", NONE),
        (jnp.float32, NONE),
        ("bf16", BF16),
        ("bfloat16", BF16),
        (jnp.bfloat16, BF16),
        ("float16", F16),
        (np.dtype("float16"), F16),
    ],
    ids=str,
)
def test_the_wire_type_is_an_attribute_and_changes_nothing_in_a_host(
    world: World, function: Callable, asked: Any, code: int
) -> None:
    f = lambda v: function(v, "i", wire_dtype=asked)  # noqa: E731
    plain = lambda v: function(v, "i")  # noqa: E731
    rows = np.random.default_rng(1).standard_normal((8, 8, 3)).astype(np.float32)
    assert wires(lower(world, f, rows)) == [code]
    got, want = world.each(f, rows).tree, world.each(plain, rows).tree
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_16_bit_sum_travels_as_itself_if_asked(function: Callable) -> None:
    world = World("unchecked", jax.devices())
    for dtype, code in (("bfloat16", BF16), ("float16", F16)):
        rows = np.ones((8, 8), dtype)
        for asked, wanted in ((None, NONE), ("float32", NONE), (dtype, code)):
            f = lambda v, asked=asked: function(v, "i", wire_dtype=asked)  # noqa: E731
            assert wires(lower(world, f, rows)) == [wanted]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wire_type_that_cannot_be_is_refused(function: Callable) -> None:
    world = World("unchecked", jax.devices())
    for asked in ("int8", "float64", jnp.int32, "half a float", 3.5):
        with pytest.raises(ValueError, match=r"wire_dtype is .*: give 'bfloat16'"):
            world.each(lambda v, asked=asked: function(v, "i", wire_dtype=asked), ROWS)
    for dtype in ("int32", "float16", "complex64"):
        rows = np.ones((8, 8), dtype)
        with pytest.raises(ValueError, match=f"a sum of {dtype} can't be sent as bf"):
            world.each(lambda v: function(v, "i", wire_dtype="bf16"), rows)
    tree = {"fine": ROWS, "counts": np.ones((8, 8), np.int32)}
    with pytest.raises(ValueError, match="sum the others in a call without it"):
        world.each(lambda t: function(t, "i", wire_dtype="bf16"), tree)


def test_the_default_is_for_sums_of_float32(monkeypatch) -> None:
    world = World("unchecked", jax.devices())
    monkeypatch.setattr(smddp_jax.cluster, "default_wire_dtype", lambda: "bfloat16")

    def f(v):
        return (
            [lax.psum(v, "i"), lax.psum_scatter(v, "i"), smddp_jax.psum(v + 1, "i")],
            [lax.psum(v.astype(d), "i") for d in ("int32", "bfloat16", "complex64")],
            [lax.pmax(v, "i"), lax.all_gather(v, "i")],
            smddp_jax.psum(v + 2, "i", wire_dtype="float32"),
            smddp_jax.psum(v + 3, "i", wire_dtype="float16"),
        )

    text = lower(world, f, np.arange(64, dtype=np.float32).reshape(8, 8) * 1.5)
    assert wires(text) == [BF16] * 3 + [NONE] * 6 + [F16]


def test_derivatives_keep_the_wire_type() -> None:
    world = World("unchecked", jax.devices())
    for function in (smddp_jax.psum, smddp_jax.psum_scatter):
        f = lambda v, g=function: jnp.sum(jnp.sin(g(v, "i", wire_dtype="bf16")))  # noqa: E731
        found = wires(lower(world, jax.grad(f), np.ones((8, 8), np.float32)))
        assert found == ([BF16] * 2 if function is smddp_jax.psum else [BF16, NONE])


@pytest.mark.parametrize("default", ["", "bfloat16"])
@pytest.mark.parametrize(("processes", "devices"), [(2, 4), (4, 2)])
def test_between_hosts_errors_stay_in_their_bound(
    tmp_path: Path, processes: int, devices: int, default: str
) -> None:
    env = {"SMDDP_WIRE_DTYPE": default} if default else {}
    shape = {"hosts": 2, "processes": processes, "devices": devices}
    with run_ranks("wires", **shape, env=env, logs=tmp_path) as job:
        assert all("CLOSE" in output for output in job.succeed(120))


def test_ranks_that_ask_for_unlike_wire_types_are_told(tmp_path: Path) -> None:
    options = {"hosts": 2, "devices": 4, "env": {"SMDDP_TIMEOUT": "10"}}
    with run_ranks("wires", "disagree", **options, logs=tmp_path) as job:
        for output in job.succeed(60):
            assert "REFUSED" in output
            for words in ("as bfloat16 on the wire", "as float16 on the wire"):
                assert words in output
