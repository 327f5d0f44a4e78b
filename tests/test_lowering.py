# SPDX-License-Identifier: Apache-2.0
"""What our rules write into a program, and what they leave to JAX."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from world import World

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")
collectives = pytest.importorskip("smddp_jax.collectives")

RANKS = np.arange(8, dtype=np.float32)
DEVICES = np.array(jax.devices()[:8])
LINE = Mesh(DEVICES, ("i",))


def calls(lowered: Any) -> list[dict[str, Any]]:
    """The attributes of each of our calls in a lowered program, in its order."""
    found = []
    for text in re.findall(r"@smddp_all_reduce\(.*", lowered.as_text()):
        ints = {k: int(v) for k, v in re.findall(r"(\w+) = (-?\d+) : i64", text)}
        dense = re.findall(r"(\w+) = dense<([^>]*)> : tensor<(\d+)xi64>", text)
        lists = {
            name: [int(n) for n in re.findall(r"-?\d+", value)] * _times(value, size)
            for name, value, size in dense
        }
        label = re.search(r'label = "([^"]*)"', text)
        assert label is not None
        found.append({**ints, **lists, "label": label[1]})
    return found


def _times(value: str, size: str) -> int:
    return 1 if value.startswith("[") or not value else int(size)


def on_line(f: Callable, mesh: Mesh = LINE, **specs: Any) -> Any:
    usual = {"in_specs": P(mesh.axis_names), "out_specs": P()}
    return jax.jit(jax.shard_map(f, mesh=mesh, **{**usual, **specs}))


def test_attributes_of_a_call() -> None:
    def step(v):
        return lax.psum(v, "i")

    (call,) = calls(on_line(step).lower(RANKS))
    ids = [device.id for device in DEVICES]
    assert call["groups"] == call["devices"] == ids
    assert call["group_sizes"] == [8] and call["processes"] == [0] * 8
    assert call["op"] == 0 and call["exported"] == 0
    assert call["label"] == "psum('i') in jit_step"


@pytest.mark.parametrize(
    ("reduce", "op"), [(lax.psum, 0), (lax.pmean, 0), (lax.pmax, 1), (lax.pmin, 2)]
)
@pytest.mark.parametrize("how", ["pmap", "checked", "unchecked"])
def test_each_of_jaxs_reductions_is_taken(reduce, op, how) -> None:
    f = lambda v: reduce(v, "i")  # noqa: E731
    if how == "pmap":
        lowered = jax.pmap(f, axis_name="i").lower(RANKS)
    else:
        lowered = on_line(f, check_vma=how == "checked").lower(RANKS)
    assert [call["op"] for call in calls(lowered)] == [op]
    assert "stablehlo.all_reduce" not in lowered.as_text()


def test_the_sum_that_differentiation_inserts_is_taken() -> None:
    def gradient(w, v):
        return jax.grad(lambda w: jnp.sum(w * v))(w)

    f = on_line(gradient, in_specs=(P(), P("i")))
    assert len(calls(f.lower(np.float32(2), RANKS))) == 1
    assert f(np.float32(2), RANKS) == 28


def test_keys_differ_within_a_program_and_agree_between_processes() -> None:
    program = """
        import jax, numpy as np, smddp_jax
        from jax.sharding import Mesh, PartitionSpec as P
        smddp_jax.install()
        mesh = Mesh(np.array(jax.devices()), ("i",))

        @jax.jit
        def inner(v):
            return jax.lax.psum(v, "i")

        def step(v):
            same = [inner(v), inner(v), jax.lax.psum(v, "i"), jax.lax.psum(v, "i")]
            return same, smddp_jax.psum([v, v], "i")

        f = jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P())
        print(jax.jit(f).lower(np.ones(8, np.float32)).as_text())
    """
    lines = "\n".join(line[8:] for line in program.splitlines())
    texts = [
        subprocess.run(
            [sys.executable, "-c", lines], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    keys = re.findall(r"key = (-?\d+)", texts[0])
    assert len(keys) == len(set(keys)) == 5  # inner is lowered once and called twice


@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ("x", [[3, 4, 5, 2], [1, 0, 7, 6]]),
        ("y", [[3, 1], [4, 0], [5, 7], [2, 6]]),
        (("y", "x"), [[3, 4, 5, 2, 1, 0, 7, 6]]),
    ],
)
def test_groups_are_device_ids_in_axis_order(axes, groups) -> None:
    order = [3, 1, 4, 0, 5, 7, 2, 6]
    mesh = Mesh(DEVICES[order].reshape(4, 2), ("x", "y"))
    f = on_line(lambda v: lax.psum(v, axes), mesh, out_specs=P(("x", "y")))
    (call,) = calls(f.lower(RANKS))
    ids = [device.id for device in DEVICES]
    assert call["groups"] == [ids[n] for group in groups for n in group]
    assert call["group_sizes"] == [len(group) for group in groups]
    assert call["devices"] == [ids[n] for n in order]


def test_axis_index_groups_of_unlike_size() -> None:
    groups = [[0, 5], [1, 2, 3], [7, 6, 4]]
    f = on_line(
        lambda v: lax.psum(v, "i", axis_index_groups=groups),
        out_specs=P("i"),
        check_vma=False,
    )
    (call,) = calls(f.lower(RANKS))
    assert call["groups"] == [0, 5, 1, 2, 3, 7, 6, 4]
    assert call["group_sizes"] == [2, 3, 3]


def test_meshes_of_one_shape_do_not_share_a_lowering() -> None:
    def f(v):
        weighted = lambda u: lax.psum(u * (lax.axis_index("i") + 1), "i")  # noqa: E731
        return jax.shard_map(weighted, in_specs=P("i"), out_specs=P())(v)

    jitted, ids = jax.jit(f), [device.id for device in DEVICES]
    for devices, wanted in [(DEVICES, ids), (DEVICES[::-1], ids[::-1])] * 2:
        mesh = Mesh(devices, ("i",), axis_types=(AxisType.Auto,))
        with jax.set_mesh(mesh):
            given = jax.device_put(RANKS, NamedSharding(mesh, P("i")))
            assert calls(jitted.lower(given))[0]["groups"] == wanted
            assert jitted(given) == 168


def test_meshes_of_two_shapes_in_one_program() -> None:
    grid = Mesh(DEVICES.reshape(4, 2), ("x", "y"))

    @jax.jit
    def f(v):
        over = lambda axis: lambda u: lax.psum(u, axis)  # noqa: E731
        line = jax.shard_map(over("i"), mesh=LINE, in_specs=P("i"), out_specs=P())
        rows = P(("x", "y"))
        columns = jax.shard_map(over("x"), mesh=grid, in_specs=rows, out_specs=P("y"))
        return line(v), columns(v)

    assert len(calls(f.lower(RANKS))) == 2
    line, columns = f(RANKS)
    assert line == 28
    np.testing.assert_array_equal(columns, [12, 16])


def test_vmap_over_a_reduced_axis_stays_in_the_device() -> None:
    def f(v):
        return jax.vmap(lambda u: lax.psum(u, ("v", "i")), axis_name="v")(v)

    both = on_line(f, check_vma=False)
    given = np.arange(24, dtype=np.float32)
    assert len(calls(both.lower(given))) == 1
    np.testing.assert_array_equal(both(given), [given.sum()] * 3)
    alone = jax.jit(jax.vmap(lambda u: lax.psum(u, "v"), axis_name="v"))
    assert not calls(alone.lower(RANKS))


def test_eager_shard_map() -> None:
    f = jax.shard_map(
        lambda v: smddp_jax.psum({"a": lax.psum(v, "i") + v, "none": None}, "i"),
        mesh=LINE,
        in_specs=P("i"),
        out_specs=P(),
    )
    assert f(RANKS) == {"a": 28 * 9, "none": None}


def test_an_export_holds_positions_and_no_devices() -> None:
    exported = export.export(on_line(lambda v: lax.psum(v, "i")))(RANKS)
    text = exported.mlir_module()
    (found,) = re.findall(r"@smddp_all_reduce\(.*", text)
    both = jax.jit(lambda v: exported.call(exported.call(v) * RANKS))
    given = jax.device_put(RANKS, NamedSharding(LINE, P("i")))
    keys = [call["key"] for call in calls(both.lower(given))]
    assert len(keys) == len(set(keys)) == 2
    assert both(given) == 28 * 28
    assert "exported = 1" in found and "devices = dense<> : tensor<0xi64>" in found
    assert "tensor<ui32>" in found and "stablehlo.partition_id" in text
    other = NamedSharding(Mesh(DEVICES[::-1], ("i",)), P("i"))
    assert jax.jit(exported.call)(jax.device_put(RANKS, other)) == 28


def test_an_export_for_several_platforms_is_jaxs_own() -> None:
    f = on_line(lambda v: (lax.psum(v, "i"), smddp_jax.psum(v, "i")))
    text = export.export(f, platforms=["cpu", "cuda"])(RANKS).mlir_module()
    assert "@smddp" not in text and text.count('"stablehlo.all_reduce"') == 2


def test_reducing_in_place_is_an_option() -> None:
    f = on_line(lambda v: smddp_jax.psum((v, v * 2), "i"))
    assert "output_operand_alias" not in f.lower(RANKS).as_text()
    collectives.alias_results(True)
    try:
        assert f.lower(RANKS).as_text().count("output_operand_alias<") == 2
        assert f(RANKS) == (28, 56)
    finally:
        collectives.alias_results(False)
    assert "output_operand_alias" not in f.lower(RANKS).as_text()


def test_install_twice_and_uninstall_twice() -> None:
    f = on_line(lambda v: lax.psum(v, "i"))
    smddp_jax.install()
    smddp_jax.uninstall()
    try:
        assert not smddp_jax.is_installed() and not calls(f.lower(RANKS))
        smddp_jax.uninstall()
        with smddp_jax.lowering(), smddp_jax.lowering():
            assert calls(f.lower(RANKS))
        assert not calls(f.lower(RANKS))
    finally:
        smddp_jax.install()
    assert calls(f.lower(RANKS))


def outcome(f: Callable, *args: Any) -> Any:
    """The result of f, or its error's type and first line."""
    try:
        return jax.tree.map(np.asarray, f(*args))
    except Exception as error:  # noqa: BLE001 - errors are what is compared
        return type(error), str(error).split("\n")[0]


USES = {
    "tree": lambda r: lambda v: r({"a": v, "b": (v * 2, None), "c": v > 3}, "i"),
    "constants": lambda r: lambda v: (r(3, "i"), r(np.float32(2), "i"), v),
    "unbound": lambda r: lambda v: r(v, "batch"),
    "positional": lambda r: lambda v: r(v, ("i", 0)),
    "groups": lambda r: (
        lambda v: r(v, "i", axis_index_groups=[[0, 2, 4, 6], [1, 3, 5, 7]])
    ),
    "no partition": lambda r: lambda v: r(v, "i", axis_index_groups=[[0, 1], [1, 2]]),
    "no axis": lambda r: lambda v: r(v, ()),
    "bool": lambda r: lambda v: r(v > 3, "i"),
    "invariant": lambda r: lambda v: r(r(v, "i"), "i"),
    "jvp": lambda r: lambda v: jax.jvp(lambda u: r((u, u * u), "i"), (v,), (v + 1,)),
    "grad": lambda r: jax.grad(lambda v: jnp.sum(r((v, jnp.sin(v)), "i")[1])),
    "remat": lambda r: jax.grad(
        jax.checkpoint(lambda v: jnp.sum(r((v, jnp.sin(v)), "i")[1]))
    ),
    "second": lambda r: jax.grad(
        lambda v: jnp.sum(jax.grad(lambda u: jnp.sum(r(u**3, "i")))(v))
    ),
    "integers": lambda r: jax.grad(
        lambda v: jnp.sum(r((v * 3, jnp.arange(3)), "i")[0]), allow_int=True
    ),
    "vmap": lambda r: jax.vmap(lambda u: r((u, u * 2), "i")),
    "vmap axis": lambda r: (
        lambda v: jax.vmap(lambda u: r((u, u * 2), ("v", "i")), axis_name="v")(v)
    ),
    "vmap own axis": lambda r: jax.vmap(lambda u: r((u, u * 2), "v"), axis_name="v"),
    "vmap in place": lambda r: (
        lambda v: jax.vmap(
            lambda u, w: r((u, w), ("v", "i")), axis_name="v", in_axes=(0, None)
        )(v, v)
    ),
    "scan": lambda r: (
        lambda v: lax.scan(
            lambda c, x: (c, r((c * x, x * 2.0), "i")), v, jnp.arange(3.0)
        )
    ),
    "cond": lambda r: (
        lambda v: lax.cond(
            jnp.max(lax.pmax(v, "i")) > 3,
            lambda u: r(u, "i"),
            lambda u: r(u * 0, "i"),
            v,
        )
    ),
}


OF_EACH_KIND = ("tree", "constants", "groups", "bool", "grad", "vmap axis")
PAIRS = [("psum", use) for use in USES]
PAIRS += [(kind, use) for kind in ("pmean", "pmax") for use in OF_EACH_KIND]


@pytest.mark.parametrize("how", ["pmap", "checked", "unchecked"])
@pytest.mark.parametrize(("kind", "use"), PAIRS)
def test_ours_does_what_stock_does(kind: str, use: str, how: str) -> None:
    value = np.arange(24, dtype=np.float32).reshape(8, 3)

    def both(reduce: Callable) -> Any:
        f = USES[use](reduce)
        if how == "pmap":
            return outcome(jax.pmap(f, axis_name="i"), value)
        rows = lambda v: jax.tree.map(lambda x: jnp.asarray(x)[None], f(v[0]))  # noqa: E731
        specs = {"in_specs": P("i"), "out_specs": P("i"), "check_vma": how == "checked"}
        return outcome(jax.jit(jax.shard_map(rows, mesh=LINE, **specs)), value)

    got, want = both(getattr(smddp_jax, kind)), both(getattr(lax, kind))
    if isinstance(want, tuple) and isinstance(want[0], type):
        assert got == _in_our_name(want)
        return
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def _in_our_name(error: tuple[type, str]) -> tuple[type, str]:
    """JAX names the primitive in the error of a derivative that is not defined."""
    kind, text = error
    if kind is NotImplementedError and "rule for" in text:
        text = re.sub(r"rule for '(\w+)'", r"rule for 'smddp_\1'", text)
    return kind, text


def test_types_of_a_fused_sum_are_stocks() -> None:
    def f(reduce: Callable) -> Any:
        world = World("checked", jax.devices())
        rows = world.shard_map(lambda v: reduce((v, v * 2), "i"), out_specs=P())
        return jax.make_jaxpr(rows)(RANKS).out_avals

    assert f(smddp_jax.psum) == f(lax.psum)


@pytest.mark.parametrize("root", [0, 5])
def test_a_derivative_of_broadcast_reaches_root_alone(root: int) -> None:
    def f(v):
        return jax.grad(lambda u: jnp.sum(smddp_jax.broadcast(u * u, "i", root)))(v)

    gradient = on_line(f, out_specs=P("i"))(RANKS)
    np.testing.assert_array_equal(gradient, 2 * RANKS * (np.arange(8) == root))


def test_broadcast_of_keys_and_a_root_that_is_none() -> None:
    keys = jax.random.split(jax.random.key(0), 8)
    got = on_line(lambda k: smddp_jax.broadcast(k, "i", 5))(keys)
    assert jax.random.key_data(got).tolist() == jax.random.key_data(keys)[5:6].tolist()
    with pytest.raises(ValueError, match="root is 8"):
        on_line(lambda v: smddp_jax.broadcast(v, "i", 8))(RANKS)
    with pytest.raises(ValueError, match="root is 1, there are 1 processes"):
        smddp_jax.broadcast(RANKS, root=1)
