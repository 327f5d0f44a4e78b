# SPDX-License-Identifier: Apache-2.0
"""Starts dedicated reducers on hosts of their own, for measurements and tests.

They end with this process, or when the context is left.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from smddp_jax._errors import ClusterError
from smddp_jax.launch.job import Host
from smddp_jax.launch.process import die_with_parent

_PORT = 4780
_LISTENING = "0A"
_START_SECONDS = 30.0
_END_SECONDS = 5.0


class Use(NamedTuple):
    """What a reducer took of its host so far."""

    cpu_seconds: float
    peak_resident_bytes: int


class Reducers:
    """One `smddp-jax reducer` on each host. Use as a context manager, main thread only.

    Args:
      hosts: where they run; may be none.
      port: where each of them listens.
    """

    def __init__(self, hosts: Sequence[Host], port: int = _PORT):
        self._secret = secrets.token_hex(32)
        self._addresses = [_with_port(host.address, port) for host in hosts]
        self._port = port
        self._hosts = hosts
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Reducers:
        try:
            for host, address in zip(self._hosts, self._addresses, strict=True):
                self._processes.append(self._start(host, address))
            for index in range(len(self._processes)):
                self._wait_until_it_listens(index)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def variables(self) -> Mapping[str, str]:
        """What a job needs in its environment to use them."""
        if not self._processes:
            return {"SMDDP_REDUCERS": ""}
        reducers = ",".join(self._addresses)
        return {"SMDDP_REDUCERS": reducers, "SMDDP_SECRET": self._secret}

    def use(self, index: int) -> Use:
        """What one of them took so far.

        Raises:
          ClusterError: it has ended.
        """
        self._check(index)
        folder = Path("/proc", str(self._processes[index].pid))
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # in user and in kernel mode
        peak = next(
            line.split()[1]
            for line in (folder / "status").read_text().splitlines()
            if line.startswith("VmHWM:")
        )
        return Use(ticks / os.sysconf("SC_CLK_TCK"), int(peak) << 10)

    def pid(self, index: int) -> int:
        """The process of one of them."""
        return self._processes[index].pid

    def stop(self) -> None:
        """Asks all of them to end; kills those that don't."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []

    def _start(self, host: Host, address: str) -> subprocess.Popen[bytes]:
        program = (sys.executable, "-P", "-m", "smddp_jax", "reducer")
        return subprocess.Popen(
            [*host.prefix, *program, "--listen", address],
            env={**os.environ, "SMDDP_SECRET": self._secret},
            stdin=subprocess.DEVNULL,
            stdout=2,  # what they tell is not what the caller prints
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )

    def _wait_until_it_listens(self, index: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self._processes[index].pid, self._port):
            self._check(index)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the reducer at {self._addresses[index]} does not listen after "
                    f"{_START_SECONDS:g} s: see what it wrote"
                )
            time.sleep(0.02)

    def _check(self, index: int) -> None:
        code = self._processes[index].poll()
        if code is not None:
            raise ClusterError(
                f"the reducer at {self._addresses[index]} has ended with exit code "
                f"{code}: see what it wrote"
            )


def _with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _listens(pid: int, port: int) -> bool:
    """Whether anybody listens on a port in the network that a process is in."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc", str(pid), "net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                return True
    return False
