# SPDX-License-Identifier: Apache-2.0
"""Runs a local job to its end, in the launcher's main thread.

Whatever happens, all ranks end: in good order, or because one failed, the user
interrupted or the launcher was told to end, each time by ever harder signals.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from smddp_jax.launch.job import Job
from smddp_jax.launch.output import RankStream, Screen
from smddp_jax.launch.process import Rank, Watchdog

_POLL_SECONDS = 0.05
_SHOWN_ERROR_LINES = 15

# What is sent, and how many seconds after the start of the end.
_Steps = tuple[tuple[float, int], ...]
# After a failure the others are given the time to fail by themselves and say why.
_AFTER_FAILURE: _Steps = ((3.0, signal.SIGTERM), (7.0, signal.SIGKILL))
_AFTER_INTERRUPT: _Steps = (
    (0.0, signal.SIGINT),
    (4.0, signal.SIGTERM),
    (7.0, signal.SIGKILL),
)
_AFTER_TERMINATE: _Steps = ((0.0, signal.SIGTERM), (5.0, signal.SIGKILL))


@dataclass
class _Ending:
    """The signals still to send."""

    steps: _Steps
    began: float = field(default_factory=time.monotonic)

    def due(self) -> Iterator[int]:
        while self.steps and time.monotonic() - self.began >= self.steps[0][0]:
            yield self.steps[0][1]
            self.steps = self.steps[1:]


class _Signals:
    """Notes the signals that tell the launcher to end."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self._previous = {}

    def __enter__(self) -> _Signals:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _: FrameType | None) -> None:
        self.received.append(signum)


class _Supervisor:
    def __init__(self, signals: _Signals):
        self._signals = signals
        self._told = 0
        self._selector = selectors.DefaultSelector()
        out, err = Screen(1), Screen(2)
        # On a terminal both are the same lines, and a live bar is in the way of either.
        self._screens = (out, out if out.live and err.live else err)
        self._errors: list[RankStream] = []
        self._ending: _Ending | None = None
        self._watchdog = Watchdog()
        self._ranks: list[Rank] = []

    def run(self, job: Job) -> int:
        """Returns the launcher's exit code."""
        try:
            coordinator = job.coordinator()
            for index in range(job.processes):
                environment = job.environment(os.environ, index, coordinator)
                self._add(Rank(index, job.command(index), environment))
            while any(rank.poll() is None for rank in self._ranks):
                self._forward(_POLL_SECONDS)
                self._decide()
        finally:
            self._close()
        first = self._first_failure()
        if self._told:
            return 128 + self._told
        if first is None:
            return 0
        self._report(job, first)
        code = first.poll() or 0
        return code if code > 0 else 128 - code

    def _add(self, rank: Rank) -> None:
        self._ranks.append(rank)
        self._watchdog.guard(rank)
        streams = [RankStream(rank.index, screen) for screen in self._screens]
        for pipe, stream in zip(rank.streams, streams, strict=True):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, stream)
        self._errors.append(streams[1])

    def _decide(self) -> None:
        """Begins the end where there is a reason to, and takes its next step."""
        while self._signals.received:
            signum = self._signals.received.pop(0)
            if self._told:
                self._ending = _Ending(((0.0, signal.SIGKILL),))
            elif signum == signal.SIGINT:
                self._ending = _Ending(_AFTER_INTERRUPT)
            else:
                self._ending = _Ending(_AFTER_TERMINATE)
            self._told = signum
        if self._ending is None and any(rank.poll() for rank in self._ranks):
            self._ending = _Ending(_AFTER_FAILURE)
        for signum in self._ending.due() if self._ending else ():
            for rank in self._ranks:
                rank.stop(signum)

    def _close(self) -> None:
        """Leaves nothing of the job behind."""
        self._forward(0)
        for rank in self._ranks:
            rank.clear()
        # What the ranks wrote last is in the pipes still.
        self._forward(0)
        for key in list(self._selector.get_map().values()):
            key.data.close()
        self._selector.close()
        for rank in self._ranks:
            for pipe in rank.streams:
                pipe.close()
        self._watchdog.release()

    def _forward(self, seconds: float) -> None:
        """Passes on what there is to read, waiting up to `seconds` for the first."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return
        while events := self._selector.select(seconds):
            for key, _ in events:
                self._read(key)
            seconds = 0
            if self._signals.received:
                return

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return
        if data:
            key.data.feed(data)
        else:
            key.data.close()
            self._selector.unregister(key.fileobj)

    def _first_failure(self) -> Rank | None:
        """The rank that failed before the others did.

        That is not always the one that ended first: who raises takes the others along,
        and may end after them. When its last traceback came out is nearer to the truth.
        And who was killed is never a consequence; SIGABRT may be, of rank 0's death.
        """
        failed = [rank for rank in self._ranks if rank.poll()]
        failed = [rank for rank in failed if not rank.stopped_by_us] or failed

        def when(rank: Rank) -> tuple[bool, float]:
            killed = (rank.poll() or 0) < 0 and rank.poll() != -signal.SIGABRT
            traceback = self._errors[rank.index].last_traceback
            assert rank.ended is not None
            return not killed, min(rank.ended, traceback or rank.ended)

        return min(failed, key=when, default=None)

    def _report(self, job: Job, first: Rank) -> None:
        lines = list(self._errors[first.index].last_lines)[-_SHOWN_ERROR_LINES:]
        name = job.name_of(first.index)
        text = [f"smddp-jax: {name} failed first: {_describe(first)}".encode()]
        if lines:
            text += [f"smddp-jax: the last lines of {name}'s error output:".encode()]
            text += [b"    " + line for line in lines]
        others = [rank for rank in self._ranks if rank is not first]
        if others:
            ends = ", ".join(f"{job.name_of(r.index)} {_describe(r)}" for r in others)
            text.append(f"smddp-jax: the others: {ends}".encode())
        for line in text:
            self._screens[1].line(line)


def _describe(rank: Rank) -> str:
    code = rank.poll() or 0
    by_us = ", sent by the launcher" if rank.stopped_by_us and code < 0 else ""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}{by_us}"
    return f"ended by signal {-code}{by_us}"


def run_job(job: Job) -> int:
    """Runs a job and returns the exit code for the launcher.

    That is 0 when all ranks returned 0, else the code of the rank that failed first, in
    the shell's way (128 + n) if signal n ended it.

    Args:
      job: what to run.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _Signals() as signals:
        return _Supervisor(signals).run(job)
