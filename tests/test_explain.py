# SPDX-License-Identifier: Apache-2.0
"""The table that `smddp_jax.explain` prints: who runs what, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")

RANKS = np.arange(8, dtype=np.float32)
DEVICES = np.array(jax.devices()[:8])
LINE = Mesh(DEVICES, ("i",))
GRID = Mesh(DEVICES.reshape(4, 2), ("x", "y"))


def mapped(f: Callable, mesh: Any = LINE, **specs: Any) -> Callable:
    usual = {"in_specs": P(mesh.axis_names), "out_specs": P(mesh.axis_names)}
    specs = {**usual, "check_vma": False, **specs}
    return jax.jit(jax.shard_map(f, mesh=mesh, **specs))


def why(f: Callable, *args: Any) -> tuple[str, str]:
    """Who runs the one reduction of f, and the reason."""
    (row,) = smddp_jax.explain(f, *args).rows
    return row.runs, row.why


def test_rows_tell_what_is_reduced_and_by_whom() -> None:
    def step(v):
        twice = [lax.psum(v, "i"), lax.psum(v * 2, "i")]
        fused = smddp_jax.psum([v, v * 2, v.astype(jnp.bfloat16)], "i")
        return twice, fused, lax.pmean(v.astype(jnp.float16), "i")

    rows = smddp_jax.explain(mapped(step), np.ones((8, 3), np.float32)).rows
    assert [(row.op, row.dtype, row.bytes, row.count, row.runs) for row in rows] == [
        ("psum", "float32", 12, 2, "ours"),
        ("psum of 2 arrays", "float32", 24, 1, "ours"),
        ("psum", "bfloat16", 6, 1, "ours"),
        ("psum", "float16", 6, 1, "ours"),
    ]
    assert {row.group for row in rows} == {"i: 8 devices"}


@pytest.mark.parametrize(
    "form",
    [
        lambda f: mapped(f),
        lambda f: jax.shard_map(f, mesh=LINE, in_specs=P("i"), out_specs=P()),
        lambda f: jax.pmap(f, axis_name="i"),
        lambda f: lambda v: mapped(f)(v) + 1,
    ],
    ids=["jit", "shard_map", "pmap", "plain"],
)
def test_any_form_of_function(form: Callable) -> None:
    f = form(lambda v: lax.psum(v, "i"))
    for _ in range(2):  # also when it was lowered before
        assert why(f, RANKS) == ("ours", "within a process")
    assert why(f, jax.ShapeDtypeStruct((8,), np.float32))[0] == "ours"


def test_groups() -> None:
    uneven = [[0], [1, 2, 3], [4, 5, 6, 7]]
    f = mapped(lambda v: lax.psum(v, "i", axis_index_groups=uneven))
    assert smddp_jax.explain(f, RANKS).rows[0].group == "i: groups of 1, 3, 4 devices"
    f = mapped(lambda v: lax.psum(v, "x"), GRID)
    assert smddp_jax.explain(f, RANKS).rows[0].group == "x: 2 groups of 4 devices"
    f = mapped(lambda v: lax.psum(v, ("x", "y")), GRID)
    assert smddp_jax.explain(f, RANKS).rows[0].group == "x, y: 8 devices"


def test_reasons_for_leaving_a_reduction_to_xla() -> None:
    of = lambda cast: mapped(lambda v: lax.pmax(cast(v), "i"))  # noqa: E731
    assert why(of(lambda v: v > 3), RANKS) == ("XLA", "we don't take max of bool")
    small = mapped(lambda v: lax.all_gather(v.astype(jnp.int4), "i"), out_specs=P())
    assert why(small, RANKS) == ("XLA", "we don't take gather of int4")
    one = mapped(
        lambda v: lax.psum(v, "one"), Mesh(DEVICES.reshape(8, 1), ("i", "one"))
    )
    assert why(one, RANKS) == ("XLA", "groups of one device: nothing to exchange")
    partly = mapped(
        lambda v: lax.psum(v, "x"),
        GRID,
        in_specs=P("x"),
        out_specs=P(),
        axis_names={"x"},
    )
    assert why(partly, RANKS) == ("XLA", "mesh is only partly manual")
    abstract = mapped(lambda v: lax.psum(v, "i"), LINE.abstract_mesh)
    given = jax.device_put(RANKS, NamedSharding(LINE, P("i")))
    runs, reason = why(abstract, given)
    assert runs == "XLA" and "abstract" in reason


def test_what_is_not_installed_is_said_to_be_so() -> None:
    f = mapped(lambda v: (lax.psum(v, "i"), smddp_jax.pmax(v, "i")))
    smddp_jax.uninstall()
    try:
        table = smddp_jax.explain(f, RANKS)
        assert [row.runs for row in table.rows] == ["XLA", "ours"]
        assert "smddp_jax.install() would take it" in table.rows[0].why
        assert not table.installed and "smddp_jax is not installed" in str(table)
        with smddp_jax.lowering():
            assert [row.runs for row in smddp_jax.explain(f, RANKS).rows] == [
                "ours"
            ] * 2
    finally:
        smddp_jax.install()


def test_scatters_and_gathers_are_listed() -> None:
    def f(v):
        return lax.all_gather(v, "i"), lax.psum_scatter(
            smddp_jax.all_gather(v, "i")[:, 0], "i"
        )

    f = mapped(f, out_specs=P())
    kinds = lambda table: [(r.op, r.bytes, r.count, r.runs) for r in table.rows]  # noqa: E731
    gathers = ("all_gather", 4, 2, "ours")
    scatter = ("psum_scatter", 32, 1, "ours")
    assert kinds(smddp_jax.explain(f, RANKS)) == [gathers, scatter]
    assert not smddp_jax.explain(f, RANKS, compiled=True).notes


def test_other_collectives_are_listed() -> None:
    f = mapped(lambda v: lax.ppermute(v, "i", [(n, (n + 1) % 8) for n in range(8)]))
    (row,) = smddp_jax.explain(f, RANKS).rows
    assert (row.op, row.count, row.runs) == ("collective_permute", 1, "XLA")


def test_the_type_that_is_sent_between_hosts_is_shown() -> None:
    f = mapped(lambda v: smddp_jax.psum(v, "i", wire_dtype="bf16"))
    assert why(f, RANKS) == ("ours", "within a process, sent as bfloat16 between hosts")


def test_reductions_that_the_partitioner_adds_are_announced() -> None:
    across = NamedSharding(LINE, P(None, "i")), NamedSharding(LINE, P("i", None))
    product = jax.jit(lambda a, b: a @ b, in_shardings=across)
    square = np.ones((8, 8), np.float32)
    table = smddp_jax.explain(product, square, square)
    assert not table.rows and "may add" in str(table)
    assert "no collectives" in str(table)
    table = smddp_jax.explain(product, square, square, compiled=True)
    assert table.notes == ("reductions that XLA's partitioner adds, and runs: 1",)


def test_a_program_that_spells_everything_out_has_no_notes() -> None:
    f = mapped(lambda v: lax.psum(v @ v.T, "i"))
    for compiled in (False, True):
        assert not smddp_jax.explain(f, np.ones((8, 8)), compiled=compiled).notes


def test_explaining_leaves_no_trace() -> None:
    f = mapped(lambda v: lax.psum(v, "i"))
    before = f.lower(RANKS).as_text()
    smddp_jax.explain(f, RANKS)
    assert f.lower(RANKS).as_text() == before and "@smddp_all_reduce" in before


def test_local_reductions_of_vmap_are_no_rows() -> None:
    f = jax.vmap(lambda v: lax.psum(v, "v"), axis_name="v")
    assert smddp_jax.explain(f, RANKS).rows == ()
