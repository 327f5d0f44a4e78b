# SPDX-License-Identifier: Apache-2.0
"""Whole processes: caches, work in flight, oversubscribed machines, name spaces."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ranks import compare_cpu, run_alone, run_ranks


def _cached(folder: Path) -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(folder)}


def _entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.glob("*-cache")}


def _text(output: str) -> str:
    found = re.search(r"^text (\w+)$", output, re.MULTILINE)
    assert found, output
    return found[1]


def test_B48_the_persistent_cache_is_hit(tmp_path: Path) -> None:
    """Three processes, one folder: no new key after the first, and right values."""
    outputs, seen = [], []
    for _ in range(3):
        outputs.append(run_alone("cached", env=_cached(tmp_path)))
        seen.append(_entries(tmp_path))
    assert seen[0] and seen[0] == seen[1] == seen[2]
    assert len({_text(output) for output in outputs}) == 1


def test_B48_the_text_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    assert _text(run_alone("cached")) == _text(run_alone("cached", "more"))


@pytest.mark.ours  # Gloo is keyed by run ids, which are unlike then
def test_B48_one_process_is_warm_and_the_other_is_cold(tmp_path: Path) -> None:
    def env_of(rank: int) -> dict[str, str]:
        return _cached(tmp_path / "warm") if rank == 0 else {}

    for attempt in ("first", "second"):
        logs = tmp_path / attempt
        with run_ranks("cached", devices=2, logs=logs, env_of=env_of) as job:
            outputs = job.succeed(90)
        assert len({_text(output) for output in outputs}) == 1
    assert _entries(tmp_path / "warm")


@pytest.mark.ours  # XLA's own rendezvous hangs at 50 to 100
def test_200_independent_steps_in_flight() -> None:
    run_alone("queued", 200, 4096, "check")


@pytest.mark.ours
def test_B53_1000_steps_in_flight_on_four_processes(tmp_path: Path) -> None:
    with run_ranks("queued", 1000, 64, "check", processes=4, logs=tmp_path) as job:
        assert all("DONE" in output for output in job.succeed(120))


def test_B57_more_devices_than_cores() -> None:
    one_core = ["taskset", "--cpu-list", "0"]
    if shutil.which("taskset") is None:
        one_core = []
    run_alone("queued", 50, 1, "check", devices=32, prefix=one_core)


@pytest.mark.ours  # XLA's own rendezvous may hang
def test_B60_a_script_ends_with_work_in_flight(tmp_path: Path) -> None:
    assert "DONE" in run_alone("queued", 50, 100_000, "leave", seconds=60)
    with run_ranks("queued", 50, 100_000, "leave", devices=2, logs=tmp_path) as job:
        assert all("DONE" in output for output in job.succeed(60))


@pytest.mark.parametrize("whose", ["lax", "ours"])
def test_B18_dictionaries_in_opposite_orders(tmp_path: Path, whose: str) -> None:
    with run_ranks("dictionaries", "dict", whose, logs=tmp_path) as job:
        assert all("SUMMED" in output for output in job.succeed(60))


@pytest.mark.ours
def test_B18_ordered_dictionaries_in_opposite_orders(tmp_path: Path) -> None:
    """JAX keeps an OrderedDict's own order: equal results, or an error that says so."""
    env = {"SMDDP_TIMEOUT": "5"}
    with run_ranks("dictionaries", "ordered", "ours", logs=tmp_path, env=env) as job:
        outputs = job.succeed(60)
    summed = all("SUMMED" in output for output in outputs)
    refused = all(re.search(r"REFUSED .*layer\d", output) for output in outputs)
    assert summed or refused, outputs


@pytest.mark.ours
def test_B87_more_ranks_than_cores(tmp_path: Path) -> None:
    """Waiting costs next to nothing: 8 ranks take, each, at most 3 x the CPU of 2."""
    few, many = {"processes": 2}, {"processes": 8}
    two, eight = compare_cpu(tmp_path, few, many, limit=3)
    assert eight < 3 * two


NAMESPACES = {
    "user": ["unshare", "--user", "--map-root-user"],
    "user and pid": ["unshare", "--user", "--map-root-user", "--pid", "--fork"],
}


@pytest.mark.parametrize("kind", NAMESPACES)
def test_B89_ranks_in_name_spaces_of_their_own(tmp_path: Path, kind: str) -> None:
    """Works, by shared memory or by XLA's own collectives."""
    prefix = NAMESPACES[kind]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("name spaces may not be made here")
    with run_ranks("queued", 5, 10, "check", logs=tmp_path, prefix=prefix) as job:
        assert all("DONE" in output for output in job.succeed(90))
