# SPDX-License-Identifier: Apache-2.0
"""Dedicated reducers that are killed, frozen or cut off, and strangers at the ports.

The jobs sum all the while, with results in flight, and judge each to the last bit: a
fault of a reducer may cost time, and never a result.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import strangers
from dedicated import SECRET, Dedicated, dedicated, variables
from failing import every_result, goes_on, nothing_lingers, statistics
from ranks import Job, free_port, run_ranks

from smddp_jax.launch import namespaces
from smddp_jax.launch.namespaces import Namespaces

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]

needs_root = pytest.mark.skipif(
    namespaces.problem() is not None, reason=f"no hosts here: {namespaces.problem()}"
)

START = 60
BIG = 1 << 20  # floats of each device
LOST = "the other reducers take its share over"
BACK = "is back and gets its share again"


def training(end: Path, floats: int = BIG, **options: Any):
    return run_ranks("in_flight", floats, 4, end, devices=2, **options)


def here(count: int) -> list[str]:
    return [f"127.0.0.1:{free_port()}" for _ in range(count)]


def said(job: Job, text: str) -> list[str]:
    """The lines of all ranks that have this text."""
    lines = [line for rank in job.ranks for line in rank.output().splitlines()]
    return [line for line in lines if text in line]


def all_were_right(job: Job, end: Path) -> None:
    """Lets the job end, in which nothing went wrong."""
    end.touch()
    job.succeed(60)
    for rank in job.ranks:
        assert every_result(rank).get("errors", 0) == 0
    nothing_lingers(job)


def lost_once(job: Job, reducer: Dedicated, why: str) -> None:
    warnings = said(job, LOST)
    assert len(warnings) == 1, warnings
    assert f"reducer {reducer.address} {why}" in warnings[0], warnings


@pytest.mark.parametrize("processes", [2, 4])
def test_a_reducer_is_killed_and_started_again(tmp_path: Path, processes: int) -> None:
    """In the middle of big sums, which all come out right."""
    end = tmp_path / "end"
    with dedicated(*here(2), logs=tmp_path) as reducers:
        options = {"processes": processes, "hosts": 2, "env": variables(reducers)}
        with training(end, logs=tmp_path, **options) as job:
            job.until_said("right 3", START)
            reducers[0].kill()
            goes_on(job, job.ranks, 10)
            lost_once(job, reducers[0], "is gone")
            reducers[0].start()
            reducers[0].until_used(15)
            goes_on(job, job.ranks, 10)
            assert len(said(job, BACK)) == 1
            all_were_right(job, end)
            lost_once(job, reducers[0], "is gone")


def test_a_frozen_reducer_thaws(tmp_path: Path) -> None:
    """What it says when it comes to is of an epoch that is over."""
    end = tmp_path / "end"
    with dedicated(*here(1), logs=tmp_path) as (reducer,):
        env = {**variables([reducer]), "SMDDP_SILENCE": "2"}
        with training(end, hosts=2, env=env, logs=tmp_path) as job:
            job.until_said("right 3", START)
            reducer.send(signal.SIGSTOP)
            goes_on(job, job.ranks, 10)
            lost_once(job, reducer, "has been silent for 2 s")
            reducer.send(signal.SIGCONT)
            before = reducer.statistics()["shards"]
            goes_on(job, job.ranks, 10)
            reducer.until_used(15, beyond=before)
            all_were_right(job, end)
            lost_once(job, reducer, "has been silent for 2 s")
            assert len(said(job, BACK)) == 1


@needs_root
def test_a_reducer_is_cut_off_and_healed(tmp_path: Path) -> None:
    end = tmp_path / "end"
    with Namespaces().up(3) as cluster:
        options = {"prefixes": [cluster.prefix(2)], "logs": tmp_path}
        with dedicated(f"{cluster.address(2)}:4780", **options) as (reducer,):
            env = {**variables([reducer]), "SMDDP_SILENCE": "2"}
            workers = {"namespaces": cluster, "hosts": 2, "env": env}
            with training(end, logs=tmp_path, **workers) as job:
                job.until_said("right 3", START)
                cluster.cut(2)
                goes_on(job, job.ranks, 10)
                lost_once(job, reducer, "has been silent for 2 s")
                before = reducer.statistics()["shards"]
                cluster.heal(2)
                reducer.until_used(20, beyond=before)
                goes_on(job, job.ranks, 10)
                all_were_right(job, end)
                assert len(said(job, BACK)) == 1


def test_all_reducers_die_one_after_another(tmp_path: Path) -> None:
    """The workers' own carry on."""
    end = tmp_path / "end"
    with dedicated(*here(3), logs=tmp_path) as reducers:
        env = variables(reducers)
        with training(end, hosts=2, env=env, logs=tmp_path) as job:
            job.until_said("right 3", START)
            for count, reducer in enumerate(reducers, start=1):
                reducer.kill()
                goes_on(job, job.ranks, 10)
                warnings = said(job, LOST)
                assert len(warnings) == count, warnings
                assert reducer.address in warnings[-1]
            all_were_right(job, end)
            assert len(said(job, LOST)) == 3
        for rank in job.ranks:
            assert statistics(rank)["summed_bytes"] > 0


def knock(address: str, processes: int) -> int:
    """All kinds of strangers at one port; returns how many there were."""
    for _ in range(3):
        strangers.babble(address)
    silent = [strangers.connect(address) for _ in range(100)]
    half = [strangers.connect(address) for _ in range(3)]
    for connection in half:
        connection.sendall(strangers.hello(1, processes, 1)[:20])
    for process in range(2):
        wrong = f"another secret {process}".ljust(20)
        verdict = strangers.prove(address, wrong, process, processes, 1)
        assert verdict == "closed", verdict
    verdict = strangers.prove(address, SECRET, 1, processes, 1)
    assert re.search("another job|is busy with job", verdict), verdict
    for connection in [*silent, *half]:
        connection.close()
    return 3 + 100 + 3 + 2 + 1


def test_strangers_are_refused_counted_and_logged_once(tmp_path: Path) -> None:
    """They cost the job nothing but the line in the log."""
    end = tmp_path / "end"
    with dedicated(*here(1), logs=tmp_path) as (reducer,):
        ports = [free_port(), free_port()]
        options = {
            "hosts": 2,
            "env": variables([reducer]),
            "env_of": lambda rank: {"SMDDP_PORT": str(ports[rank])},
        }
        with training(end, 1 << 16, logs=tmp_path, **options) as job:
            job.until_said("right 3", START)
            memory = reducer.statistics()["mebibytes"]
            doors = [f"127.0.0.1:{port}" for port in ports]
            for rank, door in zip(job.ranks, doors, strict=True):
                assert door in strangers.listeners(rank.pid)
            knocked = [knock(door, 2) for door in [*doors, reducer.address]]
            goes_on(job, job.ranks, 10)
            job.until(
                lambda: reducer.statistics()["refused"] == knocked[2],
                10,
                "all strangers refused by the reducer",
            )
            assert reducer.statistics()["mebibytes"] < memory + 16
            all_were_right(job, end)
            for rank, count in zip(job.ranks, knocked, strict=False):
                assert statistics(rank)["refused_connections"] == count
        for output in [*(rank.output() for rank in job.ranks), reducer.output()]:
            lines = re.findall("refused a connection from .*", output)
            kinds = {re.sub(r"from \S+:", "", line) for line in lines}
            assert 3 <= len(lines) == len(kinds) <= 5, lines
            assert SECRET not in output
        assert not said(job, LOST)
