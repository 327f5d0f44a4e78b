# SPDX-License-Identifier: Apache-2.0
"""Installing and uninstalling, explain, export, and what stays JAX's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from test_trees import our_calls, stock_calls
from world import World, psum

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")

RANKS = np.arange(8, dtype=np.float32)


@pytest.fixture(params=["checked", "unchecked"])
def world(request) -> World:
    return World(request.param, jax.devices())


@pytest.fixture
def uninstalled():
    smddp_jax.uninstall()
    yield
    smddp_jax.install()


def test_the_switch_reaches_functions_compiled_before(world: World) -> None:
    f, given = world.mapped(psum), world.put(RANKS)
    for _ in range(2):
        assert our_calls(f.lower(given)) == 1
        world.take(f(given)).equal([28] * 8)
        smddp_jax.uninstall()
        try:
            assert our_calls(f.lower(given)) == 0
            world.take(f(given)).equal([28] * 8)
        finally:
            smddp_jax.install()


def test_a_context_for_some_programs(world: World, uninstalled) -> None:
    f, given = world.mapped(psum), world.put(RANKS)
    with smddp_jax.lowering():
        assert our_calls(f.lower(given)) == 1
        world.take(f(given)).equal([28] * 8)
    assert our_calls(f.lower(given)) == 0
    assert stock_calls(f.lower(given)) == 1
    world.take(f(given)).equal([28] * 8)


def test_our_own_functions_need_no_switch(world: World, uninstalled) -> None:
    f = world.mapped(lambda v: smddp_jax.psum((v, v * 2), "i"))
    assert our_calls(f.lower(world.put(RANKS))) == 1
    world.take(f(world.put(RANKS)))[1].equal([56] * 8)


def test_explain_lists_every_collective(world: World) -> None:
    def step(v):
        ours = psum(v), lax.pmax(v.astype(jnp.int32), "i"), lax.all_gather(v, "i")
        return ours, lax.all_to_all(lax.all_gather(v, "i"), "i", 0, 0)

    table = smddp_jax.explain(
        world.mapped(step), world.put(np.ones((8, 5), np.float32))
    )
    text = str(table)
    ours = [row for row in table.rows if row.runs == "ours"]
    assert [(row.op, row.dtype, row.bytes) for row in ours] == [
        ("psum", "float32", 20),
        ("pmax", "int32", 20),
        ("all_gather", "float32", 20),
    ]
    assert [row.count for row in ours] == [1, 1, 2]
    assert any(row.op == "all_to_all" and row.runs == "XLA" for row in table.rows)
    assert "psum" in text and "8 devices" in text


def test_explain_says_why_not(uninstalled) -> None:
    world = World("unchecked", jax.devices())
    table = smddp_jax.explain(world.mapped(psum), world.put(RANKS))
    assert [row.runs for row in table.rows] == ["XLA"]
    assert "install" in table.rows[0].why


def test_a_partly_manual_mesh_is_left_to_xla() -> None:
    """The partitioner would hand a custom call the gathered array there."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    f = jax.jit(
        jax.shard_map(
            lambda v: lax.psum(v, "x"),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P(),
            axis_names={"x"},
        )
    )
    value = np.arange(16, dtype=np.float32).reshape(8, 2)
    given = jax.device_put(value, NamedSharding(mesh, P("x", "y")))
    assert our_calls(f.lower(given)) == 0
    np.testing.assert_array_equal(f(given), value.reshape(4, 2, 2).sum(0))


def test_an_exported_program_runs_again(world: World) -> None:
    f, given = world.mapped(psum), world.put(RANKS)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("smddp_all_reduce")]
    exported = jax.export.export(f, disabled_checks=allowed)(given)
    assert "smddp_all_reduce" in exported.mlir_module()
    again = jax.export.deserialize(exported.serialize())
    for _ in range(3):
        world.take(jax.jit(again.call)(given)).equal([28] * 8)


def test_an_exported_program_of_groups_runs_again() -> None:
    world = World("unchecked", jax.devices())
    groups = [[0, 5], [1, 2, 3], [7, 6, 4]]
    f = world.mapped(lambda v: lax.psum(v, "i", axis_index_groups=groups))
    given = world.put(RANKS)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("smddp_all_reduce")]
    exported = jax.export.export(f, disabled_checks=allowed)(given)
    again = jax.export.deserialize(exported.serialize())
    wanted = [5, 6, 6, 6, 17, 5, 17, 17]
    world.take(jax.jit(again.call)(given)).equal(wanted)


def test_B47_an_untested_jax_is_named_in_one_line() -> None:
    from smddp_jax._jax_compat import version_problem

    assert version_problem() is None
    for version in ("0.9.2", "0.99.0", "1.0.0"):
        problem = version_problem(version)
        assert problem is not None and version in problem and "\n" not in problem
