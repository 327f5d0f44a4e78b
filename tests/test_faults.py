# SPDX-License-Identifier: Apache-2.0
"""Real processes that die, freeze, leave or disagree: an error on every survivor.

The shared memory is anonymous (memfd), so the size of /dev/shm does not matter and no
kind of death can leave anything there.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from failing import all_raise, nothing_lingers
from ranks import free_port, run_ranks

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]

FAR = {"SMDDP_TIMEOUT": "120"}  # a deadline that must not be what ends the wait
NEAR = {"SMDDP_TIMEOUT": "5"}
START = 60


def steps(scenario: str, logs: Path, *, count: int = 12, floats: int = 6, **options):
    return run_ranks("steps", scenario, count, floats, logs=logs, **options)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("processes", "devices", "victim"), [(2, 2, 1), (2, 2, 0), (4, 1, 0)]
)
def test_B63_a_peer_is_killed(tmp_path, processes, devices, victim) -> None:
    """In the middle of big reductions that follow each other without a pause."""
    with steps(
        "forever",
        tmp_path,
        count=10**6,
        floats=4 << 20,
        processes=processes,
        devices=devices,
        env=FAR,
    ) as job:
        job.until_said("step 5", START)
        killed = time.monotonic()
        job[victim].send(signal.SIGKILL)
        for message in all_raise(job, job.others(victim), killed, within=5):
            assert f"rank {victim}" in message, message
        assert time.monotonic() - killed < 10
        nothing_lingers(job)


def test_B63_a_peer_is_killed_that_never_came(tmp_path) -> None:
    with steps("sleeps", tmp_path, processes=3, env=FAR) as job:
        job.until_said("begin 5", START, [job[0], job[1]])
        job.until_said("sleeping", START, [job[2]])
        killed = time.monotonic()
        job[2].send(signal.SIGKILL)
        for message in all_raise(job, [job[0], job[1]], killed, within=5):
            assert "rank 2" in message, message
        nothing_lingers(job)


def test_B62_a_peer_is_frozen(tmp_path) -> None:
    """The deadline's error says who, what and where; the wait burns no core."""
    with steps("sleeps", tmp_path, processes=3, floats=1000, env=NEAR) as job:
        job.until_said("begin 5", START, [job[0], job[1]])
        job.until_said("sleeping", START, [job[2]])
        frozen = time.monotonic()
        job[2].send(signal.SIGSTOP)
        time.sleep(1)
        before = [cpu_seconds(job[k].pid) for k in (0, 1)]
        time.sleep(2)
        after = [cpu_seconds(job[k].pid) for k in (0, 1)]
        assert all(b - a < 0.5 for a, b in zip(before, after, strict=True))
        for message in all_raise(job, [job[0], job[1]], frozen, within=10):
            assert "rank 2" in message, message
            assert "psum" in message, message
            assert re.search(r"4[,_ ]?000", message), message  # the bytes
            assert re.search(r"step 5|step 6", message), message


def test_B62_a_peer_is_frozen_within_a_sum(tmp_path) -> None:
    with steps(
        "forever", tmp_path, count=10**6, floats=4 << 20, processes=3, env=NEAR
    ) as job:
        job.until_said("step 5", START)
        frozen = time.monotonic()
        job[1].send(signal.SIGSTOP)
        for message in all_raise(job, job.others(1), frozen, within=12):
            assert "rank 1" in message, message


@pytest.mark.parametrize(("processes", "hosts"), [(3, 1), (2, 2)])
def test_B65_rank_0_leaves_early(tmp_path, processes, hosts) -> None:
    options = {"processes": processes, "hosts": hosts, "env": NEAR}
    with steps("leaves", tmp_path, **options) as job:
        job.until_said("left", START, [job[0]])
        left = time.monotonic()
        for message in all_raise(job, job.others(0), left, within=10):
            assert "rank 0" in message, message
        nothing_lingers(job)


@pytest.mark.parametrize("hosts", [1, 2])
def test_B66_unlike_numbers_of_steps(tmp_path, hosts) -> None:
    with steps("uneven", tmp_path, count=10, hosts=hosts, env=NEAR) as job:
        job.until_said("begin 10", START, [job[0]])
        (message,) = all_raise(job, [job[0]], time.monotonic(), within=10)
        assert "rank 1" in message, message
        assert re.search(r"step 1[01]|left", message), message
        job.until_ended(10)
        assert job[1].code == 0


@pytest.mark.parametrize(("processes", "hosts"), [(3, 1), (2, 2)])
def test_one_rank_raises(tmp_path, processes, hosts) -> None:
    """Who failed first is told to the others, at once."""
    options = {"processes": processes, "hosts": hosts, "env": FAR}
    with steps("raises", tmp_path, **options) as job:
        last = job[processes - 1]
        job.until_ended(START, [last])
        ended = time.monotonic()
        assert "this rank has had enough" in last.output()
        for message in all_raise(job, job.others(last.index), ended, within=5):
            assert f"rank {last.index}" in message, message
            assert "ValueError: this rank has had enough" in message, message
        assert last.code == 1
        nothing_lingers(job)


MISMATCHES = {
    # what one rank and the others did, as the message has to show it
    "shape": (r"\b6\b", r"\b4\b"),
    "dtype": (r"float32|f32", r"int32|s32|i32"),
    "op": (r"psum|sum", r"pmax|max"),
    "group": (r"4 devices of ranks", r"2 devices of ranks"),
}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("kind", MISMATCHES)
def test_B68_ranks_disagree(tmp_path, kind: str, hosts: int) -> None:
    """Both sides are shown, and nobody is given a number."""
    devices = 2 if kind == "group" else 1
    with steps(kind, tmp_path, devices=devices, hosts=hosts, env=NEAR) as job:
        job.until_said("begin 5", START)
        begun = time.monotonic()
        messages = all_raise(job, job.ranks, begun, within=10)
        for rank in job.ranks:
            assert not re.search("^step 5$", rank.output(), re.MULTILINE)
        shown = " ".join(messages)
        for pattern in MISMATCHES[kind]:
            assert re.search(pattern, shown), shown
        assert "rank 0" in shown or "rank 1" in shown, shown


@pytest.mark.parametrize(
    ("signum", "hosts"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)]
)
def test_a_blocked_rank_can_be_interrupted(tmp_path, signum, hosts) -> None:
    """Within 10 s, whatever the deadline, and the others follow."""
    with steps("sleeps", tmp_path, hosts=hosts, env=FAR) as job:
        job.until_said("begin 5", START, [job[0]])
        job.until_said("sleeping", START, [job[1]])
        time.sleep(0.5)
        job[0].send(signum)
        job.until_ended(10, [job[0]])
        assert job[0].code != 0
        job[1].send(signum)
        job.until_ended(10)
        nothing_lingers(job)


def test_B72_a_child_is_forked(tmp_path) -> None:
    with steps("forks", tmp_path, count=20, processes=2, devices=2, env=NEAR) as job:
        for output in job.succeed(START):
            assert output.count("child ended with 0") == 2
            assert "step 19" in output and "DONE" in output


def test_restarts_right_after_a_kill(tmp_path) -> None:
    """Five times in a row, on the same port, with no pause."""
    port = free_port()
    for attempt in range(5):
        logs = tmp_path / str(attempt)
        with steps("forever", logs, count=10**6, env=FAR, port=port) as job:
            job.until_said("step 5", START)
            for rank in job.ranks:
                rank.send(signal.SIGKILL)
    with steps("usual", tmp_path / "last", env=FAR, port=port) as job:
        assert all("DONE" in output for output in job.succeed(START))


def test_B70_nothing_is_in_dev_shm(tmp_path) -> None:
    with steps("forever", tmp_path, count=10**6, floats=1 << 20, env=FAR) as job:
        job.until_said("step 5", START)
        for rank in job.ranks:
            maps = Path(f"/proc/{rank.pid}/maps").read_text()
            assert "/dev/shm/" not in maps
            assert "/memfd:" in maps
