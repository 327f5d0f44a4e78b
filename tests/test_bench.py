# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax bench`: its figures, its check of results, what it prints and writes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from smddp_jax import EngineUnavailableError, bench
from smddp_jax.bench import data, measure, programs

pytestmark = pytest.mark.ours


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smddp_jax", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def mesh_of_all() -> Mesh:
    return Mesh(np.array(jax.devices()), (programs.AXIS,))


def measured(
    seconds: dict[str, list[float]], wrong: int = 0, **case: Any
) -> dict[str, Any]:
    """What one of two processes with two devices each reports."""
    samples = {
        side: {
            "seconds": values,
            "cpu_seconds": [0.5] * len(values),
            "minor_faults": [3] * len(values),
        }
        for side, values in seconds.items()
    }
    return {
        "case": bench.Case(**case).as_dict(),
        "rank": 0,
        "processes": 2,
        "ranks": 4,
        "count": 250_000_000,
        "size": 1_000_000_000,
        "samples": samples,
        "wrong": {side: wrong for side in seconds if side in ("ours", "peer")},
    }


def test_resnet50_is_the_real_one() -> None:
    shapes = bench.resnet50_shapes()
    assert (len(shapes), sum(map(math.prod, shapes))) == (161, 25_557_032)


def test_cutting_leaves_keeps_the_parameters() -> None:
    cut = bench.split_leaves(bench.resnet50_shapes(), 500)
    assert (len(cut), sum(map(math.prod, cut))) == (500, 25_557_032)
    with pytest.raises(ValueError, match="161 arrays can't become 100"):
        bench.split_leaves(bench.resnet50_shapes(), 100)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4K", 4096), ("16MiB", 1 << 24), ("1g", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert bench.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "4T", "-1", "1.5M"])
def test_unusable_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        bench.parse_size(text)


def test_figures_are_those_of_nccl_tests() -> None:
    ranks = [
        measured({"ours": [1.0, 3.0, 2.0], "peer": [8.0, 8.0, 8.0]}),
        measured({"ours": [3.0, 5.0, 4.0], "peer": [10.0, 10.0, 10.0]}),
    ]
    result = bench.join_ranks(ranks)
    assert result.sides["ours"].seconds == 3.0  # the mean of each call's two, 2 4 3
    assert result.sides["ours"].quartiles == (2.5, 3.5)
    assert result.sides["ours"].minor_faults == 6  # both processes'
    assert result.algbw("ours") == pytest.approx(1 / 3)
    assert result.busbw("ours") == pytest.approx(1 / 3 * 2 * 3 / 4)
    assert result.ratio == 3.0


def test_overlap_is_told_beside_what_the_cores_allow() -> None:
    sides = {"ours_alone": [2.0], "compute": [1.0], "ours": [2.5]}
    result = bench.join_ranks([measured(sides, kind="overlap")])
    assert result.overlap("ours") == 1.25
    assert result.overlap_bound("ours", cores=2) == 1.0
    assert "both/longer" in bench.as_text([result], cores=2)


def test_wrong_results_are_reported() -> None:
    result = bench.join_ranks([measured({"ours": [1.0]}, wrong=7)])
    assert "# Out of bounds values : 7 FAILED" in bench.as_text([result], cores=2)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_expected_values_are_numpys(dtype: str, op: str) -> None:
    dtype = data.resolve_dtype(dtype)
    rows = np.stack([data.values(rank, 1000, dtype, offset=9) for rank in range(8)])
    assert len({row.tobytes() for row in rows}) == 8
    reduce = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op].reduce
    want = reduce(rows, axis=0, dtype=dtype)
    np.testing.assert_array_equal(data.expected(8, 1000, dtype, op, offset=9), want)


def test_each_wrong_element_is_counted() -> None:
    mesh = mesh_of_all()
    right = data.expected(8, 1000, np.dtype("float32"), "sum")
    replicated = NamedSharding(mesh, PartitionSpec())
    good = jax.device_put(right[None], replicated)
    assert data.count_wrong(good, 8, np.dtype("float32"), "sum") == 0
    right[[3, 500]] += 1
    right[999] = np.nan
    bad = jax.device_put(right[None], replicated)
    assert data.count_wrong(bad, 8, np.dtype("float32"), "sum") == 3 * 8


def test_a_program_without_our_reduction_is_not_measured_as_ours() -> None:
    x = data.sharded(mesh_of_all(), (4,), np.dtype("float32"))
    with pytest.raises(EngineUnavailableError, match="program for 'ours'"):
        programs.make_program(
            "ours", lambda x: x * 2, mesh_of_all(), (x,), programs.EVERY, programs.EVERY
        )


@pytest.mark.parametrize(
    "case",
    [
        bench.Case(bytes=40_000, form="intermediate", alias=True),
        bench.Case(bytes=1000, dtype="bfloat16", op="max"),
        bench.Case(kind="overlap", bytes=4096),
        bench.Case(kind="in_flight", bytes=64, iterations=30, peer=False),
    ],
    ids=lambda case: f"{case.kind}-{case.form}",
)
def test_cases_run_and_are_right(case: bench.Case) -> None:
    fields = case.as_dict() | {"iterations": min(case.iterations, 30), "warmup": 1}
    if case.kind != "in_flight":
        fields["peer"] = False  # in this test run JAX's own psum is ours, too
        fields["iterations"] = 2
    result = bench.join_ranks([measure.measure(bench.Case.from_dict(fields))])
    assert result.wrong == 0
    assert result.sides["ours"].seconds > 0


@pytest.mark.parametrize("processes", [1, 2])
def test_command_prints_a_table_and_writes_json(processes: int, tmp_path: Path) -> None:
    written, page = tmp_path / "bench.json", tmp_path / "bench.md"
    done = run_bench(
        *("--processes", str(processes), "--devices", "2", "--sizes", "4K,100K"),
        *("--iterations", "3", "--form", "both"),
        *("--json", str(written), "--markdown", str(page)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for head in ("size", "count", "type", "algbw", "busbw", "#wrong", "XLA/ours"):
        assert head in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert page.read_text().startswith("| size (B) | count (elements) |")
    report = json.loads(written.read_text())
    assert report["schema"] == "smddp-jax bench 1"
    assert report["about"].keys() >= {"processor", "cores", "memory", "jax", "command"}
    results = report["results"]
    sizes = [(r["case"]["form"], r["size"], r["ranks"]) for r in results]
    assert sizes == [
        (form, size, 2 * processes)
        for form in ("argument", "intermediate")
        for size in (4096, 100 << 10)
    ]
    for result in results:
        ours, peer = result["sides"]["ours"], result["sides"]["peer"]
        assert ours["wrong"] == peer["wrong"] == 0
        assert ours["calls"] == peer["calls"] == 3
        assert result["ratio"] == pytest.approx(peer["seconds"] / ours["seconds"])
    assert "compute" in results[2]["sides"]


def test_command_refuses_what_it_cannot_measure() -> None:
    done = run_bench("--sizes", "4T")
    assert done.returncode == 2
    assert "'4T' is no size" in done.stderr
