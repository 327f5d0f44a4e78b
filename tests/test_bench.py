# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax bench`: its figures, its check of results, what it prints and writes."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from smddp_jax import ClusterError, EngineUnavailableError, SmddpError, bench, report
from smddp_jax.bench import data, measure, programs, sockets
from smddp_jax.launch import Host, namespaces
from smddp_jax.launch.namespaces import Namespaces
from smddp_jax.launch.reducers import Reducers

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]
needs_hosts = pytest.mark.skipif(
    namespaces.problem() is not None, reason=f"no hosts here: {namespaces.problem()}"
)


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
    seconds: dict[str, list[float]],
    wrong: int = 0,
    sent_bytes: list[float] | None = None,
    **case: Any,
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
    if sent_bytes is not None:
        samples["ours"]["sent_bytes"] = sent_bytes
    return {
        "case": bench.Case(**case).as_dict(),
        "rank": 0,
        "processes": 2,
        "platform": "cpu",
        "ranks": 4,
        "count": 250_000_000,
        "size": 1_000_000_000,
        "connections": 3,
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


@pytest.mark.parametrize(
    ("reducers", "seconds", "worker", "reducer"),
    # n = 4 hosts: of S a worker host reduces (4-k)/D, a reducer 6/D, D = 16 + 2k.
    [(0, 1.5, 1.5, 0), (1, 24 / 18, 24 / 18, 24 / 18), (4, 1, 1, 1)],
)
def test_bound_and_bytes_are_those_of_the_plan(
    reducers: int, seconds: float, worker: float, reducer: float
) -> None:
    network = bench.Network(hosts=4, reducers=reducers, rate="800mbit")
    size = 95_650_000  # what a link carries in a second
    assert network.bound(size) == pytest.approx(seconds)
    assert network.worker_bytes(size) == pytest.approx(worker * size)
    assert network.reducer_bytes(size) == pytest.approx(reducer * size)
    halved = bench.Network(4, reducers, "800mbit", wire_dtype="bfloat16")
    assert halved.bound(size) == pytest.approx(seconds / 2)
    assert halved.worker_bytes(size) == pytest.approx(worker * size / 2)


def test_unequal_links_have_the_bound_of_their_best_shares() -> None:
    size, rate = 95_650_000, "800mbit,800mbit,400mbit,800mbit"
    equal = bench.Network(4, 0, rate)
    weighted = bench.Network(4, 0, rate, weights="1,1,0.5,1")
    # The slow host needs 2 s for its own values; three others can sum all till then,
    # 1/3 each: 1 + 2/3 of S for each of them.
    assert equal.bound(size) == weighted.bound(size) == pytest.approx(2)
    assert equal.worker_bytes(size) == pytest.approx(1.5 * size)
    assert weighted.worker_bytes(size) == pytest.approx(5 / 3 * size)
    measured = bench.Network(4, 0, rate, weights="measure")
    assert measured.worker_bytes(size) == pytest.approx(5 / 3 * size)
    faster = bench.Network(4, 1, f"{rate},1600mbit", weights="1,1,1,1,2")
    assert faster.reducer_bytes(size) > bench.Network(4, 1, rate).reducer_bytes(size)


def test_between_two_hosts_a_worker_moves_all_bytes_once_each_way() -> None:
    for reducers in (0, 1, 2):
        network = bench.Network(hosts=2, reducers=reducers, rate="1gbit")
        assert network.worker_bytes(1000) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("text", "rate"), [("1gbit", 1e9), ("2.5Gbit", 2.5e9), ("500mbit", 5e8)]
)
def test_rates(text: str, rate: float) -> None:
    assert bench.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0gbit", "1gbps"])
def test_unusable_rates(text: str) -> None:
    with pytest.raises(ValueError, match="no rate such as"):
        bench.parse_rate(text)


def between_hosts(reducers: int = 0, wire_dtype: str = "") -> bench.Result:
    network = bench.Network(4, reducers, "1gbit", wire_dtype)
    sides = {"ours": [16.0, 18.0], "peer": [34.0, 34.0]}
    ranks = [measured(sides, sent_bytes=[5.0, 7.0]), measured(sides, sent_bytes=[1, 2])]
    return bench.join_ranks(ranks, network)


def test_between_hosts_the_bound_and_the_bytes_stand_beside_the_time() -> None:
    result = between_hosts()
    # The busiest interface, and the mean: a late byte is counted by the next call.
    assert result.sides["ours"].sent_bytes == 6.0
    assert result.sides["peer"].sent_bytes is None
    header, units, row = bench.as_text([result], cores=2).splitlines()[:3]
    cells = dict(zip(header.removeprefix("#").split(), row.split(), strict=False))
    assert "ours/bound" in header and "(B/NIC)" in units
    # 1 GB x 1.5 at 119.5625 MB/s is 12.546 s.
    assert cells["wire"] == "float32" and cells["reducers"] == "0"
    for cell in ("12545740", "1.36", "2.00", "1500000000", "6"):
        assert cell in row.split()
    fields = result.as_dict()["network"]
    assert fields["bound"] == pytest.approx(12.5457, rel=1e-4)
    assert fields["worker_bytes"] == pytest.approx(1.5e9)


def test_own_connections_are_counted_but_for_the_coordinators() -> None:
    before = sockets.connections(without="")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            with accepted:
                assert sockets.connections(without="") == before + 2
                assert sockets.connections(without=f"127.0.0.1:{port}") == before + 1
    assert sockets.connections(without="") == before


def test_plot_has_a_line_of_each_network_its_bound_and_gloo(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = [between_hosts(), between_hosts(2), between_hosts(0, "bfloat16")]
    target = tmp_path / "hosts.svg"
    report.plot(results, target)
    drawn = target.read_text()
    for text in (
        *("Gloo", "co-located reducers", "2 reducers"),
        *("co-located reducers, bfloat16 wire", "All-reduce, 4 hosts at 1gbit"),
    ):
        assert f">{text}" in drawn, text
    report.plot(results, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == drawn


def test_plot_needs_results_between_hosts(tmp_path: Path) -> None:
    with pytest.raises(SmddpError, match="measure with --hosts"):
        report.plot([bench.join_ranks([measured({"ours": [1.0]})])], tmp_path / "x.svg")


def test_rounded_results_are_held_against_rounded_sums() -> None:
    mesh = mesh_of_all()
    dtype = np.dtype("float32")
    sums = np.full(1000, 257.0, dtype)  # bfloat16 has 8 bits: 256 or 258
    rounded = jax.device_put(
        sums.astype(jnp.bfloat16).astype(dtype)[None],
        NamedSharding(mesh, PartitionSpec()),
    )
    data_expected, data.expected = data.expected, lambda *_: sums
    try:
        assert data.count_wrong(rounded, 8, dtype, "sum", 0, "bfloat16") == 0
        assert data.count_wrong(rounded, 8, dtype, "sum", 0) == 8 * 1000
    finally:
        data.expected = data_expected


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
    with pytest.raises(
        EngineUnavailableError, match="program for 'ours'.*\nno collectives"
    ):
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


@needs_hosts
@pytest.mark.timeout(300)
def test_command_measures_between_hosts(tmp_path: Path) -> None:
    written, page, drawn = (
        tmp_path / f"bench.{kind}" for kind in ("json", "md", "svg")
    )
    done = run_bench(
        *("--hosts", "2", "--rate", "2gbit", "--sizes", "100K,1M"),
        *("--wire-dtype", "bfloat16", "--iterations", "3"),
        *("--json", str(written), "--markdown", str(page), "--plot", str(drawn)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts at 2gbit, 2 processes" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    assert "| Gloo time (us) |" in page.read_text()
    assert "co-located reducers, bfloat16 wire" in drawn.read_text()
    results = json.loads(written.read_text())["results"]
    assert [result["size"] for result in results] == [100 << 10, 1 << 20]
    for result in results:
        # Between two hosts each side sends everything once, ours in half the bytes.
        ours, peer = result["sides"]["ours"], result["sides"]["peer"]
        planned = result["network"]["worker_bytes"]
        assert planned == pytest.approx(result["size"] / 2)
        assert ours["wrong"] == peer["wrong"] == 0
        if result["size"] == 1 << 20:
            assert ours["sent_bytes"] == pytest.approx(planned, rel=0.1)
            assert ours["received_bytes"] == pytest.approx(planned, rel=0.1)
            assert peer["sent_bytes"] == pytest.approx(result["size"], rel=0.1)


@needs_hosts
def test_each_number_of_reducers_is_measured_and_each_reducer_has_a_line(
    tmp_path: Path,
) -> None:
    written = tmp_path / "bench.json"
    done = run_bench(
        *("--hosts", "2", "--reducers", "0,1", "--sizes", "1M", "--iterations", "3"),
        *("--peer", "none", "--json", str(written)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# reducer 1 of 1, wire float32: received 0." in done.stdout
    without, one = json.loads(written.read_text())["results"]
    assert (without["network"]["reducers"], one["network"]["reducers"]) == (0, 1)
    for result in (without, one):
        sent = result["sides"]["ours"]["sent_bytes"]
        assert sent == pytest.approx(result["network"]["worker_bytes"], rel=0.1)
    # To the other worker's host, and to the reducer's, too.
    assert one["connections"] > without["connections"]


@needs_hosts
def test_measured_weights_are_those_of_the_links() -> None:
    """Also where both neighbours of a fast host are slow."""
    rates = [200, 100, 200, 100, 50]
    done = run_bench(
        *("--hosts", "4", "--rates", ",".join(f"{rate}mbit" for rate in rates)),
        *("--reducers", "1", "--weights", "measure", "--peer", "none"),
        *("--sizes", "100K", "--iterations", "2"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at 200mbit,100mbit,200mbit,100mbit,50mbit, weights measure" in done.stdout
    found = re.findall(r"SMDDP_WEIGHTS=measure found (\S+), where", done.stderr)
    assert len(found) == 1, done.stderr  # rank 0 tells it
    weights = [float(weight) for weight in found[0].split(",")]
    assert weights == pytest.approx([rate / 200 for rate in rates], rel=0.3)


@needs_hosts
def test_connections_are_shown_where_one_side_runs() -> None:
    done = run_bench(
        *("--hosts", "2", "--sizes", "4K", "--iterations", "2", "--peer", "only")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, table = done.stdout.split("# smddp-jax bench: ")
    rows = [line.split() for line in table.splitlines()]
    assert rows[1][-2:] == ["conns", "#wrong"]
    assert int(rows[3][-2]) >= 1


@needs_hosts
@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns; this child only executes
def test_a_reducer_that_does_not_start_is_told() -> None:
    with Namespaces().up(1) as cluster:
        host = Host("h0", "10.99.0.1", cluster.prefix(0))  # not its address
        with (
            pytest.raises(ClusterError, match=r"reducer at 10.99.0.1:4780 has ended"),
            Reducers([host]),
        ):
            pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sizes", "4T"), "'4T' is no size"),
        (("--hosts", "1"), "between hosts there are 2 or more"),
        (("--hosts", "2", "--overlap"), "no --overlap"),
        (("--hosts", "2", "--rate", "fast"), "'fast' is no rate"),
        (("--hosts", "3", "--rates", "1gbit,1gbit"), "has 2 rates: give one, or one"),
        (("--hosts", "2", "--weights", "1,0"), "--weights='1,0' is not usable"),
        (("--hosts", "2", "--weights", "1,2,3"), "3 numbers: give one for each of 2"),
        (("--hosts", "2", "--reducers", "0,x"), "'x' is no whole number"),
        (("--hosts", "2", "--wire-dtype", "int8"), "'int8' is none of float32"),
        (
            ("--hosts", "2", "--wire-dtype", "bfloat16", "--dtype", "int32"),
            "--wire-dtype rounds float32, and --dtype is int32",
        ),
        (("--plot", "x.svg"), "add --hosts"),
    ],
)
def test_command_refuses_what_it_cannot_measure(
    arguments: tuple[str, ...], message: str
) -> None:
    done = run_bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
