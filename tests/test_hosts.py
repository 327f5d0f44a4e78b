# SPDX-License-Identifier: Apache-2.0
"""Jobs over several hosts: the table of cases, and whole processes.

Blocks of ranks are given host ids of their own, so that they take each other for
strangers and meet over the loopback interface; that works on every machine.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cases import Case, selection
from ranks import compare_cpu, free_port, run_ranks

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]

PASSED = re.compile(r"^PASS (\S+)", re.MULTILINE)


class Layout(NamedTuple):
    """How eight devices are spread, and which selection of the table runs there."""

    hosts: int
    processes: int
    devices: int
    cases: str

    def as_options(self) -> dict[str, int]:
        return {
            "hosts": self.hosts,
            "processes": self.processes,
            "devices": self.devices,
        }


LAYOUTS = {
    "2 hosts x 2 x 2": Layout(2, 4, 2, "4x2"),
    "4 hosts x 1 x 2": Layout(4, 4, 2, "8x1"),
    "2 hosts x 4 x 1": Layout(2, 8, 1, "8x1"),
}
SMALL = {"2 x 1": (2, 2), "2 x 2": (2, 4), "4 x 1": (4, 4)}


def name_of(variant: tuple[Case, str]) -> str:
    case, how = variant
    return f"{case.name}-{how}"


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> Callable[[str], list[tuple[str, set[str]]]]:
    """By layout: every rank's log and the cases that passed there, from one run."""

    @functools.cache
    def run(name: str) -> list[tuple[str, set[str]]]:
        layout, env = LAYOUTS[name], {"SMDDP_TIMEOUT": "20"}
        logs = tmp_path_factory.mktemp("hosts")
        job = run_ranks(
            "table", layout.cases, **layout.as_options(), logs=logs, env=env
        )
        with job as ranks:
            with contextlib.suppress(AssertionError):
                ranks.until_ended(220)  # cases without a report fail, and show the log
            outputs = [rank.output() for rank in ranks.ranks]
        return [(output, set(PASSED.findall(output))) for output in outputs]

    return run


ACROSS = [
    (name, name_of(variant))
    for name, layout in LAYOUTS.items()
    for variant in selection(layout.cases)
]


@pytest.mark.timeout(280)
@pytest.mark.parametrize(("layout", "name"), ACROSS)
def test_across_hosts(layout: str, name: str, reports) -> None:
    for rank, (output, passed) in enumerate(reports(layout)):
        before, found, _ = output.partition(f"FAIL {name}")
        shown = before[-3000:] if found else output[-3000:]
        assert name in passed, f"rank {rank}:\n{shown}"


def _runs_on(explained: str) -> set[str]:
    return set(re.findall(r"psum (\w+)", explained))


def test_it_is_the_engine_that_runs(tmp_path: Path) -> None:
    """Else all others here would show that XLA is right."""
    with run_ranks("explained", processes=4, hosts=2, logs=tmp_path) as job:
        assert all(_runs_on(output) == {"ours"} for output in job.succeed(60))


@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize(
    ("count", "floats"), [(1000, 64), (30, 100_003), (3, 5_000_000)]
)
def test_many_steps_in_flight(tmp_path: Path, shape: str, count, floats) -> None:
    hosts, processes = SMALL[shape]
    options = {"hosts": hosts, "processes": processes, "logs": tmp_path}
    with run_ranks("queued", count, floats, "check", **options) as job:
        assert all("DONE" in output for output in job.succeed(150))


@pytest.mark.parametrize("connections", [1, 4])
def test_several_connections_and_little_memory(tmp_path: Path, connections) -> None:
    env = {
        "SMDDP_CONNECTIONS": str(connections),
        "SMDDP_STAGING_BYTES": "1MiB",
        "SMDDP_SHARD_BYTES": "4KiB",
    }
    options = {"hosts": 2, "processes": 4, "devices": 2, "env": env, "logs": tmp_path}
    with run_ranks("queued", 40, 100_003, "check", **options) as job:
        assert all("DONE" in output for output in job.succeed(120))


def test_B48_one_process_is_warm_and_the_other_is_cold(tmp_path: Path) -> None:
    def env_of(rank: int) -> dict[str, str]:
        cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "warm")}
        return cache if rank == 0 else {}

    for attempt in ("first", "second"):
        options = {"hosts": 2, "devices": 2, "env_of": env_of}
        with run_ranks("cached", **options, logs=tmp_path / attempt) as job:
            outputs = job.succeed(90)
        assert len(set(re.findall(r"^text (\w+)$", "\n".join(outputs), re.M))) == 1


def test_B60_a_script_ends_with_work_in_flight(tmp_path: Path) -> None:
    options = {"hosts": 2, "devices": 2, "logs": tmp_path}
    with run_ranks("queued", 50, 100_000, "leave", **options) as job:
        assert all("DONE" in output for output in job.succeed(90))


@pytest.mark.parametrize("whose", ["lax", "ours"])
def test_B18_dictionaries_in_opposite_orders(tmp_path: Path, whose: str) -> None:
    with run_ranks("dictionaries", "dict", whose, hosts=2, logs=tmp_path) as job:
        assert all("SUMMED" in output for output in job.succeed(60))


def test_B18_ordered_dictionaries_in_opposite_orders(tmp_path: Path) -> None:
    """Equal results everywhere, or an error everywhere that names the leaf."""
    env = {"SMDDP_TIMEOUT": "5"}
    options = {"hosts": 2, "env": env, "logs": tmp_path}
    with run_ranks("dictionaries", "ordered", "ours", **options) as job:
        outputs = job.succeed(60)
    summed = all("SUMMED" in output for output in outputs)
    refused = all(re.search(r"REFUSED .*layer\d", output) for output in outputs)
    assert summed or refused, outputs


def test_B87_more_ranks_than_cores(tmp_path: Path) -> None:
    """Waiting costs next to nothing: 8 ranks take, each, at most 3 x the CPU of 2."""
    few, many = {"processes": 2, "hosts": 2}, {"processes": 8, "hosts": 4}
    two, eight = compare_cpu(tmp_path, few, many, limit=3)
    assert eight < 3 * two


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_both_kinds_of_addresses(tmp_path: Path, address: str) -> None:
    env = {"SMDDP_COORDINATOR": f"{address}:{free_port()}"}
    options = {"hosts": 2, "processes": 4, "env": env, "logs": tmp_path}
    with run_ranks("queued", 5, 1000, "check", **options) as job:
        assert all("DONE" in output for output in job.succeed(90))


def test_peers_with_another_secret_are_refused(tmp_path: Path) -> None:
    def env_of(rank: int) -> dict[str, str]:
        return {"SMDDP_SECRET": f"the secret of rank {rank}"}

    env = {"SMDDP_INIT_TIMEOUT": "10", "SMDDP_TIMEOUT": "10"}
    options = {"hosts": 2, "env": env, "env_of": env_of, "logs": tmp_path}
    with run_ranks("queued", 1, 4, "check", **options) as job:
        job.until_ended(60)
    assert all(rank.code not in (0, None) for rank in job.ranks), job.logs()
    assert "SMDDP_SECRET" in job.logs()
    assert "the secret of" not in job.logs()


def test_weights_must_fit_the_hosts(tmp_path: Path) -> None:
    options = {"hosts": 2, "env": {"SMDDP_WEIGHTS": "1,1,2"}, "logs": tmp_path}
    with run_ranks("queued", 1, 4, "check", **options) as job:
        job.until_ended(60)
    for rank in job.ranks:
        assert rank.code not in (0, None), job.logs()
        assert "SMDDP_WEIGHTS has 3 numbers" in rank.output()
