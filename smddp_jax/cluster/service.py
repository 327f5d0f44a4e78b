# SPDX-License-Identifier: Apache-2.0
"""Starts the coordination service of a job in a child process of rank 0."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from smddp_jax._errors import ClusterError

_PROGRAM = Path(__file__).with_name("coordinator.py")
_LOOPBACK = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "[::1]": "[::1]"}


class CoordinationService:
    """The child process, from rank 0's side. It ends after rank 0 by itself."""

    def __init__(self, keep_alive: int):
        self._keep_alive = keep_alive

    @classmethod
    def start(
        cls, coordinator: str, size: int, heartbeat_seconds: float, seconds: float
    ) -> CoordinationService:
        """Starts the service and waits until it listens.

        Args:
          coordinator: host:port at which the other processes look for it.
          size: number of processes of the job.
          heartbeat_seconds: after how long it takes a mute process for dead.
          seconds: how long to wait for it.

        Raises:
          ClusterError: it does not come up; the message says why.
        """
        host, _, port = coordinator.rpartition(":")
        # Other hosts may reach us by any of our addresses; a job on one host listens on
        # none that a stranger could reach.
        anywhere = "[::]" if Path("/proc/net/if_inet6").exists() else "0.0.0.0"
        numbers = (int(port), size, int(heartbeat_seconds), os.getpid())
        program = [sys.executable, str(_PROGRAM), _LOOPBACK.get(host, anywhere)]
        program += map(str, numbers)
        stdin, keep_alive = os.pipe()
        answer, stdout = os.pipe()
        try:
            # Not subprocess.Popen, which complains at exit about a child that lives on.
            os.posix_spawn(
                program[0],
                program,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, stdout, 1),
                    # Whoever reads rank 0's log waits for everybody who may write it.
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        finally:
            os.close(stdin)
            os.close(stdout)
        try:
            said = _first_line(answer, seconds)
        finally:
            os.close(answer)
        if said != "ready":
            os.close(keep_alive)
            why = said.removeprefix("error: ") or "it ended without a word"
            raise ClusterError(
                f"rank 0 could not open the coordination service at {coordinator}: "
                f"{why}; set SMDDP_COORDINATOR to an address of rank 0's host with a "
                "free port"
            )
        return cls(keep_alive)

    def release(self) -> None:
        """Lets the service end when the last process has left it. Idempotent."""
        if self._keep_alive >= 0:
            os.close(self._keep_alive)
            self._keep_alive = -1


def _first_line(pipe: int, seconds: float) -> str:
    """The first line that comes out of `pipe`; what there is of it at the deadline."""
    deadline = time.monotonic() + seconds
    text = b""
    while b"\n" not in text:
        left = max(0.0, deadline - time.monotonic())
        readable, _, _ = select.select([pipe], [], [], left)
        if not readable:
            return f"error: no answer within {seconds:g} s"
        part = os.read(pipe, 4096)
        if not part:
            break
        text += part
    return text.decode(errors="replace").partition("\n")[0].strip()
