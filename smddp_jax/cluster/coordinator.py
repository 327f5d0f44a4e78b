# SPDX-License-Identifier: Apache-2.0
"""Hosts JAX's coordination service in a process of its own, a child of rank 0.

Started by path (`python coordinator.py ...`), so that only jaxlib is loaded. JAX runs
the service inside rank 0, and aborts every process 0.1 s after rank 0's death; out here
it outlives rank 0 for as long as any process is connected. It is created recoverable:
then no process is told of another one's end, and none waits for the others at its own.

It says `ready` or `error: ...` on its standard output.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

_ESTABLISHED = "01"
_POLL_SECONDS = 0.25
# Once rank 0 is gone, how often in a row nobody must be connected before the end.
_IDLE_POLLS = 3
# The end in any case: a host that lost its power never closes its connection.
_LONGEST_SECONDS = 3600


def main(host: str, port: int, size: int, heartbeat_seconds: int, parent: int) -> int:
    """Serves until rank 0 (process id `parent`) has ended and nobody is connected."""
    # Signals to the process group are rank 0's affair; we follow it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    problem = _port_problem(host, port)
    if problem is not None:
        print(f"error: {problem}", flush=True)
        return 1
    # Level 3: the service tells nothing that a user could use.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

        service = _jax.get_distributed_runtime_service(
            f"{host}:{port}",
            size,
            heartbeat_timeout=heartbeat_seconds,
            recoverable=True,
        )
    except Exception as error:
        print(f"error: {type(error).__name__}: {error}", flush=True)
        return 1
    print("ready", flush=True)
    _until_unused(port, parent)
    # Not the service's own shutdown, which may wait for clients; nobody is left.
    del service
    os._exit(0)


def _port_problem(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
    except OSError as error:
        return f"can't listen on {host}:{port}: {error.strerror}"
    return None


def _until_unused(port: int, parent: int) -> None:
    # Rank 0 keeps our standard input open and is our parent. Both are watched: a
    # process that rank 0 forked may hold the pipe open after it.
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if readable and not os.read(0, 1):
            break
    idle = 0
    end = time.monotonic() + _LONGEST_SECONDS
    while idle < _IDLE_POLLS and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        idle = 0 if _connections(port) else idle + 1


def _connections(port: int) -> int:
    """Established connections to `port` of this host."""
    count = 0
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _ESTABLISHED and int(local.rsplit(":")[-1], 16) == port:
                    count += 1
    return count


if __name__ == "__main__":
    _host, *_numbers = sys.argv[1:]
    sys.exit(main(_host, *map(int, _numbers)))
