# SPDX-License-Identifier: Apache-2.0
"""The processes of a local job: ranks in sessions of their own, and their watchdog."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> Callable[[], None]:
    """What a process of ours does between fork and exec.

    The kernel ties the death signal to the thread that forked, so the launcher's main
    thread starts them. The watchdog cleans up behind the ranks' own children.
    """

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


class Rank:
    """One rank: its process, and everything in its process group."""

    def __init__(
        self, index: int, command: Sequence[str], environment: Mapping[str, str]
    ):
        self.index = index
        self.ended: float | None = None
        self.stopped_by_us = False
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )

    @property
    def group(self) -> int:
        """The process group, which is the process id of its leader."""
        return self._process.pid

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard output and standard error."""
        assert self._process.stdout is not None and self._process.stderr is not None
        return self._process.stdout, self._process.stderr

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        code = self._process.poll()
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
        return code

    def stop(self, signum: int) -> None:
        """Sends a signal to the group if the rank still runs."""
        if self.poll() is None:
            self.stopped_by_us = True
            self._signal_group(signum)

    def clear(self) -> None:
        """Kills what is left of the group after its leader, and collects the rank."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        self.poll()

    def _signal_group(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signum)


class Watchdog:
    """The process that ends the ranks if this one is killed."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("watchdog.py")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(program)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def guard(self, rank: Rank) -> None:
        """Adds a rank to those that must not outlive us."""
        self._say(f"{rank.group}\n")

    def release(self) -> None:
        """Ends the watchdog; the ranks have ended."""
        self._say("done\n")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()
