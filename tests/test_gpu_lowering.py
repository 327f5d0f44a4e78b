# SPDX-License-Identifier: Apache-2.0
"""What our rules write into a program for GPUs, and what they leave to XLA.

No GPU is needed: programs are lowered for the platform `cuda`, and never compiled. That
GPUs can be used is a fact of the session, which tests set.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("_gpus")]
smddp_jax = pytest.importorskip("smddp_jax")

from smddp_jax import _native  # noqa: E402
from smddp_jax.cluster import session  # noqa: E402
from smddp_jax.collectives import explain, placement  # noqa: E402

RANKS = np.arange(8, dtype=np.float32)
LINE = Mesh(np.array(jax.devices()[:8]), ("i",))
GRID = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))


def set_fact(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    changed = dataclasses.replace(session.current(), **facts)
    monkeypatch.setattr(session, "_session", changed)


@pytest.fixture
def _gpus(monkeypatch) -> None:
    """The job's GPUs can run our collectives."""
    set_fact(monkeypatch, gpu_problem=None)


def mapped(f: Callable, mesh: Mesh = LINE, **specs: Any) -> Any:
    usual = {"in_specs": P(mesh.axis_names), "out_specs": P(), "check_vma": False}
    return jax.jit(jax.shard_map(f, mesh=mesh, **{**usual, **specs}))


def lowered(f: Any, *args: Any, platforms: tuple[str, ...] = ("cuda",)) -> str:
    return f.trace(*args).lower(lowering_platforms=platforms).as_text()


class ForGpus:
    """A function that is always lowered for GPUs, for `explain`."""

    def __init__(self, f: Any, platforms: tuple[str, ...] = ("cuda",)):
        self.f, self.platforms = f, platforms

    def lower(self, *args: Any) -> Any:
        return self.f.trace(*args).lower(lowering_platforms=self.platforms)


def why(f: Any, *args: Any) -> tuple[str, str]:
    """Who runs the one collective of f on GPUs, and the reason."""
    (row,) = explain(f if isinstance(f, ForGpus) else ForGpus(f), *args).rows
    return row.runs, row.why


def calls(text: str) -> list[str]:
    return re.findall(r"custom_call @(\w+)\(", text)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("reduce", ["psum", "pmean", "pmax", "pmin"])
@pytest.mark.parametrize("module", [lax, smddp_jax], ids=["lax", "ours"])
def test_every_reduction_is_taken(module, reduce, checked) -> None:
    f = mapped(lambda v: getattr(module, reduce)(v, "i"), check_vma=checked)
    text = lowered(f, RANKS)
    assert calls(text) == ["smddp_all_reduce"]
    assert "stablehlo.all_reduce" not in text


def test_the_call_is_that_of_a_cpu() -> None:
    def step(v):
        twice = lax.psum(v, "i"), lax.pmax(v * 2, "i")
        return twice, smddp_jax.psum([v, v.astype(jnp.bfloat16)], "i")

    texts = [
        [
            line
            for line in lowered(mapped(step), RANKS, platforms=(platform,)).split("\n")
            if "@smddp" in line
        ]
        for platform in ("cuda", "cpu")
    ]
    assert len(texts[0]) == 4 and texts[0] == texts[1]


def test_the_sum_that_differentiation_inserts_is_taken() -> None:
    def gradient(w, v):
        return jax.grad(lambda w: jnp.sum(w * v))(w)

    f = mapped(gradient, in_specs=(P(), P("i")), check_vma=True)
    assert calls(lowered(f, np.float32(2), RANKS)) == ["smddp_all_reduce"]


def test_a_started_sum_is_two_calls() -> None:
    def step(v):
        started = smddp_jax.psum_start([v, v * 2], "i")
        return v * 3, started.done()

    f = mapped(step, out_specs=(P("i"), P()))
    assert calls(lowered(f, RANKS)) == [
        "smddp_all_reduce_start",
        "smddp_all_reduce_done",
    ]


def test_a_started_sum_that_xla_runs_is_an_ordinary_one(monkeypatch) -> None:
    set_fact(monkeypatch, gpu_problem="no")
    f = mapped(lambda v: smddp_jax.psum_start([v, v * 2], "i").done())
    text = lowered(f, RANKS)
    assert not calls(text) and text.count('"stablehlo.all_reduce"') == 2


def test_explain_names_the_platform() -> None:
    f = mapped(lambda v: lax.psum(v, "i"))
    assert why(f, RANKS) == ("ours", "on cuda, within a process")
    assert explain(f, RANKS).rows[0].why == "within a process"


def test_the_engine_is_told_which_device_each_gpu_is(monkeypatch) -> None:
    told = []
    monkeypatch.setattr(_native, "name_gpus", lambda: told.append(True))
    lowered(mapped(lambda v: lax.psum(v, "i")), RANKS, platforms=("cpu",))
    assert not told
    lowered(mapped(lambda v: lax.psum(v, "i")), RANKS)
    assert told


def test_scatters_and_gathers_are_left_to_xla() -> None:
    reason = ("XLA", "on GPUs we take psum, pmax and pmin only")
    for module in (lax, smddp_jax):
        scatter = mapped(lambda v: module.psum_scatter(v, "i"), in_specs=P())  # noqa: B023
        gather = mapped(lambda v: module.all_gather(v, "i"))  # noqa: B023
        assert why(scatter, RANKS) == why(gather, RANKS) == reason
        assert "stablehlo.reduce_scatter" in lowered(scatter, RANKS)
        assert "stablehlo.all_gather" in lowered(gather, RANKS)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint32", "float16", "bfloat16", "float32", "complex64"]
)
def test_dtypes_are_those_of_cpus(dtype) -> None:
    f = mapped(lambda v: lax.psum(v.astype(dtype), "i"))
    assert why(f, RANKS)[0] == "ours"
    f = mapped(lambda v: lax.pmax(v > 3, "i"))
    assert why(f, RANKS) == ("XLA", "we don't take max of bool")


def test_exports_are_left_to_xla() -> None:
    f = mapped(lambda v: (lax.psum(v, "i"), smddp_jax.psum(v, "i")))
    text = export.export(f, platforms=["cuda"])(RANKS).mlir_module()
    assert "@smddp" not in text and text.count('"stablehlo.all_reduce"') == 2


@pytest.mark.parametrize("platforms", [("cpu", "cuda"), ("tpu",)])
def test_other_platforms_and_several_at_once_are_left_to_xla(platforms) -> None:
    def f(v):
        return (
            lax.psum(v, "i"),
            lax.all_gather(v, "i"),
            smddp_jax.all_gather(v, "i"),
        )

    rows = explain(ForGpus(mapped(f), platforms), RANKS).rows
    text = f"lowered for {', '.join(platforms)}, we take cpu or cuda alone"
    assert {(row.runs, row.why) for row in rows} == {("XLA", text)}
    assert "@smddp" not in lowered(mapped(f), RANKS, platforms=platforms)


def test_the_reason_that_init_found_is_shown(monkeypatch) -> None:
    reason = "GPUs of rank 1 (on node7): 0 and 1 can't reach each other"
    set_fact(monkeypatch, gpu_problem=reason)
    f = mapped(lambda v: smddp_jax.psum(v, "i"))
    assert why(f, RANKS) == ("XLA", reason)
    assert "@smddp" not in lowered(f, RANKS)
    assert calls(lowered(f, RANKS, platforms=("cpu",))) == ["smddp_all_reduce"]


def test_without_init_this_process_is_asked(monkeypatch) -> None:
    monkeypatch.setattr(session, "_session", None)
    f = mapped(lambda v: lax.psum(v, "i"))
    assert why(f, RANKS) == ("XLA", _native.NO_GPUS)


HALVES = ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize(
    ("axis", "hosts", "reason"),
    [
        ("i", ["a"] * 8, None),
        ("i", HALVES, None),
        ("x", ["a", "b"] * 4, None),
        ("y", ["a", "b"] * 4, None),
        ("i", ["a"] * 3 + ["b"] * 5, "3 GPUs of one host, 5 of another"),
        ("x", ["a"] * 6 + ["b"] * 2, "1 GPUs of one host, 3 of another"),
        ("y", ["a"] * 6 + ["b"] * 2, None),
    ],
)
def test_hosts_bring_as_many_gpus_each(axis, hosts, reason) -> None:
    mesh = LINE if axis == "i" else GRID
    groups = placement.logical_groups(tuple(mesh.shape.items()), (axis,), None)
    problem = placement.gpus_problem(groups, hosts)
    assert problem == (reason and f"a group has {reason}")


def test_a_host_brings_eight_gpus_at_most() -> None:
    sixteen = (tuple(range(16)),)
    assert placement.gpus_problem(sixteen, ["a"] * 8 + ["b"] * 8) is None
    problem = placement.gpus_problem(sixteen, ["a"] * 16)
    assert problem == "a group has 16 GPUs of one host, we take 8"
