# SPDX-License-Identifier: Apache-2.0
"""Workers on other hosts that die, freeze or are cut off; bad links; addresses.

Every result that a survivor has in flight is right, or an error that names who is gone.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from failing import (
    all_raise,
    every_result,
    goes_on,
    nothing_lingers,
)
from ranks import Job, Rank, free_port, run_ranks

from smddp_jax.launch import namespaces
from smddp_jax.launch.namespaces import Namespaces

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]

needs_root = pytest.mark.skipif(
    namespaces.problem() is not None, reason=f"no hosts here: {namespaces.problem()}"
)

START = 60
BIG = 1 << 20  # floats of each device
FAR = {"SMDDP_TIMEOUT": "120"}  # a deadline that must not be what ends the wait
SILENT = {**FAR, "SMDDP_SILENCE": "3"}


def training(folder: Path, floats: int = BIG, devices: int = 2, **options: Any):
    end = folder / "end"
    return run_ranks(
        "in_flight", floats, 4, end, devices=devices, logs=folder, **options
    )


def right_or_error(job: Job, ranks: list[Rank]) -> None:
    for rank in ranks:
        count = every_result(rank)
        assert count["right"] > 0 and count["errors"] > 0, count


@pytest.mark.parametrize("victim", range(4))
def test_a_worker_is_killed(tmp_path: Path, victim: int) -> None:
    """In the middle of big sums of 2 hosts with 2 processes each."""
    with training(tmp_path, devices=1, processes=4, hosts=2, env=FAR) as job:
        job.until_said("right 3", START)
        killed = time.monotonic()
        job[victim].send(signal.SIGKILL)
        survivors = job.others(victim)
        for message in all_raise(job, survivors, killed, within=5):
            assert re.search(rf"rank {victim} \(.*on \S+\)", message), message
        right_or_error(job, survivors)
        nothing_lingers(job)


def test_a_worker_is_killed_before_its_first_step(tmp_path: Path) -> None:
    """Hosts that have not summed anything together yet miss each other as well."""
    options = {"processes": 2, "hosts": 2, "env": FAR, "logs": tmp_path}
    with run_ranks("steps", "absent", 12, 6, **options) as job:
        job.until_said("begin 0", START, [job[0]])
        job.until_said("sleeping", START, [job[1]])
        killed = time.monotonic()
        job[1].send(signal.SIGKILL)
        (message,) = all_raise(job, [job[0]], killed, within=5)
        assert re.search(r"rank 1 \(on \S+\)", message), message
        nothing_lingers(job)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_freezes(tmp_path: Path, victim: int) -> None:
    with training(tmp_path, hosts=2, env=SILENT) as job:
        job.until_said("right 3", START)
        frozen = time.monotonic()
        job[victim].send(signal.SIGSTOP)
        survivors = job.others(victim)
        for message in all_raise(job, survivors, frozen, within=6):
            assert re.search(rf"rank {victim} \(on \S+\)", message), message
            assert "silent for 3 s" in message, message
        right_or_error(job, survivors)


@needs_root
def test_a_host_is_cut_off(tmp_path: Path) -> None:
    """Both sides find out, and name one of the other side."""
    with Namespaces().up(2) as cluster:
        with training(
            tmp_path, processes=4, hosts=2, devices=1, namespaces=cluster, env=SILENT
        ) as job:
            job.until_said("right 3", START)
            cut = time.monotonic()
            cluster.cut(1)
            for rank, message in zip(
                job.ranks, all_raise(job, job.ranks, cut, within=6), strict=True
            ):
                others = "[23]" if rank.index < 2 else "[01]"
                assert re.search(rf"rank {others} \(on \S+\)", message), message
                assert "silent for 3 s" in message, message
            right_or_error(job, job.ranks)
            # The coordination service, a child of rank 0, waits for the other side.


def spoil(cluster: Namespaces, how: str) -> None:
    if how == "loss":
        cluster.loss(0, 1)
        cluster.loss(1, 1)
    else:
        cluster.rate(1, "20mbit")


@needs_root
@pytest.mark.parametrize("how", ["loss", "slow"])
def test_a_bad_link_only_slows_down(tmp_path: Path, how: str) -> None:
    """1 % of the packets lost; a host with a fiftieth of the others' rate."""
    with Namespaces().up(2) as cluster:
        options = {"namespaces": cluster, "hosts": 2, "env": SILENT}
        with training(tmp_path, 100_000, **options) as job:
            job.until_said("right 3", START)
            spoil(cluster, how)
            goes_on(job, job.ranks, 60, steps=10)
            (tmp_path / "end").touch()
            job.succeed(60)
            for rank in job.ranks:
                assert every_result(rank).get("errors", 0) == 0
                assert "warning" not in rank.output(), rank.output()


def sums(job: Job) -> None:
    assert all("DONE" in output for output in job.succeed(60))


@needs_root
@pytest.mark.parametrize("version", [4, 6])
def test_addresses(tmp_path: Path, version: int) -> None:
    """Own names that mean 127.0.1.1, as on Debian; fixed ports; a chosen interface."""
    with Namespaces().up(2) as cluster:
        for host in range(2):
            names = Path("/etc/netns") / cluster.name(host) / "hosts"
            own = re.sub(r"^10\S+ (?!h\d)", "127.0.1.1 ", names.read_text(), flags=re.M)
            assert "127.0.1.1" in own
            names.write_text(own)
        env = {"SMDDP_PORT": "7700"}
        if version == 6:
            if not Path("/proc/net/if_inet6").exists():
                pytest.skip("this kernel has no IPv6")
            env["SMDDP_COORDINATOR"] = f"[{cluster.address6(0)}]:4400"
        else:
            env["SMDDP_INTERFACE"] = "eth0"
        options = {"namespaces": cluster, "processes": 4, "hosts": 2, "env": env}
        with run_ranks("queued", 5, 1000, "check", **options, logs=tmp_path) as job:
            sums(job)


def test_an_unknown_interface_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    options = {"hosts": 2, "env": {"SMDDP_INTERFACE": "eth77"}, "logs": tmp_path}
    with run_ranks("queued", 1, 4, "check", **options) as job:
        job.until_ended(60)
    for rank in job.ranks:
        assert rank.code == 1, job.logs()
        assert re.search(r"no network interface 'eth77'.*\blo\b", rank.output())


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    """Both hosts are this machine: the second process finds the port taken."""
    port = free_port()
    env = {"SMDDP_PORT": str(port), "SMDDP_INIT_TIMEOUT": "5", "SMDDP_TIMEOUT": "5"}
    with run_ranks("queued", 1, 4, "check", hosts=2, env=env, logs=tmp_path) as job:
        job.until_ended(60)
    assert all(rank.code not in (0, None) for rank in job.ranks), job.logs()
    assert re.search(rf"listen on 127.0.0.1:{port}.*SMDDP_PORT", job.logs())
