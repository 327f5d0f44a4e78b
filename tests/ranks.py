# SPDX-License-Identifier: Apache-2.0
"""Starts a job of real processes for a test, and never leaves one of them behind.

Each rank runs one of `tests/programs/` in a session of its own, so that a test may
kill, freeze or fork it without touching anything else; it finds its place in the job by
the variables that our launcher sets. Every wait has a deadline; when one passes or a
rank fails unexpectedly, the test shows every rank's log.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from smddp_jax.launch.allocator import ALLOCATORS, DEFAULT_ALLOCATOR
from smddp_jax.launch.namespaces import Namespaces

TESTS = Path(__file__).parent
PROGRAMS = TESTS / "programs"


def _ports() -> Iterator[int]:
    """Ports that nobody else picks while a job starts: other ones for each process of
    the test run, and below those that the kernel gives to outgoing connections."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10
    for n in itertools.count(os.getpid()):
        yield 10000 + 1000 * worker + n % 1000


_candidates = _ports()


def free_port() -> int:
    for port in itertools.islice(_candidates, 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def environment(devices: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a program of ours needs, on top of the environment of the test run."""
    inherited = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    paths = [str(TESTS), inherited.get("PYTHONPATH", "")]
    return {
        **inherited,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **(extra or {}),
    }


class Rank:
    """One process of a job. It leads its own session, so its group is its own."""

    def __init__(
        self, index: int, command: Sequence[str], env: dict[str, str], log: Path
    ):
        self.index = index
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self) -> None:
        """Kills the whole process group, frozen or not, and collects the rank."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)


class Job:
    """The ranks of one job, in order."""

    def __init__(self, ranks: list[Rank]):
        self.ranks = ranks

    def __getitem__(self, index: int) -> Rank:
        return self.ranks[index]

    def others(self, index: int) -> list[Rank]:
        return [rank for rank in self.ranks if rank.index != index]

    def logs(self) -> str:
        parts = []
        for rank in self.ranks:
            parts.append(f"===== rank {rank.index}, exit code {rank.code}")
            parts.append(rank.output()[-6000:])
        return "\n".join(parts)

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        """Waits for a condition; returns the seconds it took."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > seconds:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.logs()}")
            time.sleep(0.02)
        return time.monotonic() - start

    def until_said(
        self, text: str, seconds: float, ranks: Sequence[Rank] | None = None
    ):
        """Waits until each of the ranks (default: all) has written the text."""
        wanted = self.ranks if ranks is None else ranks

        def said() -> bool:
            for rank in wanted:
                if rank.code not in (None, 0):
                    raise AssertionError(f"rank {rank.index} failed\n{self.logs()}")
            return all(text in rank.output() for rank in wanted)

        return self.until(said, seconds, f"{text!r} in every log")

    def until_ended(self, seconds: float, ranks: Sequence[Rank] | None = None) -> float:
        wanted = self.ranks if ranks is None else ranks
        return self.until(
            lambda: all(rank.code is not None for rank in wanted),
            seconds,
            f"the end of ranks {[rank.index for rank in wanted]}",
        )

    def succeed(self, seconds: float) -> list[str]:
        """Waits for all ranks; they must return 0. Returns what they wrote."""

        def over() -> bool:
            codes = [rank.code for rank in self.ranks]
            return all(c is not None for c in codes) or any(c for c in codes)

        self.until(over, seconds, "the end of the job")
        assert [rank.code for rank in self.ranks] == [0] * len(self.ranks), self.logs()
        return [rank.output() for rank in self.ranks]


@contextmanager
def run_ranks(
    program: str,
    *arguments: object,
    processes: int = 2,
    hosts: int = 1,
    devices: int = 1,
    logs: Path,
    env: Mapping[str, str] | None = None,
    env_of: Callable[[int], Mapping[str, str]] | None = None,
    prefix: Sequence[str] = (),
    port: int | None = None,
    namespaces: Namespaces | None = None,
) -> Iterator[Job]:
    """Runs `programs/<program>.py` on every rank; ends them all on the way out.

    `env` goes to every rank and `env_of(rank)` to one of them. `prefix` is put before
    the command (an `unshare`, a `taskset`). With several `hosts` the ranks, dealt out
    in blocks, take each other for strangers and meet over the loopback interface; with
    `namespaces`, the first of those are the hosts.
    """
    assert processes % hosts == 0
    port, local_size = port or free_port(), processes // hosts
    coordinator = namespaces.address(0) if namespaces else "127.0.0.1"
    forced = hosts > 1 and namespaces is None
    logs.mkdir(parents=True, exist_ok=True)
    command = [*prefix, sys.executable, str(PROGRAMS / f"{program}.py")]
    command += [str(argument) for argument in arguments]
    ranks: list[Rank] = []
    try:
        for index in range(processes):
            host = index // local_size
            joined = {
                "SMDDP_COORDINATOR": f"{coordinator}:{port}",
                "SMDDP_RANK": str(index),
                "SMDDP_SIZE": str(processes),
                "SMDDP_LOCAL_RANK": str(index % local_size),
                "SMDDP_LOCAL_SIZE": str(local_size),
                **({"SMDDP_HOST_ID": f"h{host}"} if forced else {}),
                **(env or {}),
                **(env_of(index) if env_of else {}),
            }
            log = logs / f"{program}.{index}.log"
            there = namespaces.prefix(host) if namespaces else []
            started = [*there, *command]
            ranks.append(Rank(index, started, environment(devices, joined), log))
        yield Job(ranks)
    finally:
        for rank in ranks:
            rank.end()


def run_alone(
    program: str,
    *arguments: object,
    devices: int = 8,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    seconds: float = 120,
) -> str:
    """Runs one program in one process; it must return 0. Returns what it wrote."""
    command = [*prefix, sys.executable, str(PROGRAMS / f"{program}.py")]
    command += [str(argument) for argument in arguments]
    return _run(command, environment(devices, env), seconds)


def run_launched(
    script: Path,
    *arguments: object,
    processes: int = 1,
    devices: int = 8,
    env: Mapping[str, str] | None = None,
    seconds: float = 170,
) -> str:
    """Runs a script under `smddp-jax run`; it must return 0. Returns what it wrote."""
    launcher = ["-P", "-m", "smddp_jax", "run", "-n", str(processes)]
    command = [sys.executable, *launcher, str(script), *map(str, arguments)]
    return _run(command, environment(devices, env), seconds)


def _run(command: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """What a command that must return 0 wrote."""
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def compare_cpu(
    logs: Path, few: Mapping[str, int], many: Mapping[str, int], limit: float
) -> tuple[float, float]:
    """CPU seconds per rank and step with few ranks and with many, in turns.

    Other work on the machine makes both larger and never smaller, so the smallest
    counts, and there is another turn where `many` is not below `limit` x `few`.
    """
    low = [float("inf"), float("inf")]
    for turn in range(3):
        for n, layout in enumerate((few, many)):
            low[n] = min(low[n], _cpu_per_step(logs / f"{turn}.{n}", **layout))
        if low[1] < limit * low[0]:
            break
    return low[0], low[1]


def _cpu_per_step(logs: Path, **layout: int) -> float:
    """In the cheapest of many batches of steps, over all ranks.

    The launcher's allocator settings keep page faults out of it: how many there are is
    chance, and they cost more than the step.
    """
    env = ALLOCATORS[DEFAULT_ALLOCATOR]
    with run_ranks("cpu_time", **layout, logs=logs, env=env) as job:
        outputs = job.succeed(120)
    said = [re.search(r"^CPU (.+)$", output, re.MULTILINE) for output in outputs]
    batches = zip(*(found[1].split() for found in said if found), strict=True)
    return min(sum(map(float, batch)) / len(said) for batch in batches)
