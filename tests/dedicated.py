# SPDX-License-Identifier: Apache-2.0
"""A dedicated reducer for a test to kill, freeze, cut off and start again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SECRET = "known to all of the job"
_LINE = re.compile(
    r"(\d+) jobs ended, (\d+) connections, (\d+) refused; (\d+) shards.*?"
    r"(\d+) stale frames; .* ([\d.]+) MiB in all"
)


class Dedicated:
    """`smddp-jax reducer` at one address, in one process after another."""

    def __init__(self, address: str, log: Path, prefix: Sequence[str], silence: float):
        self.address = address
        self.log = log
        self._command = [*prefix, sys.executable, "-m", "smddp_jax", "reducer"]
        self._env = {"SMDDP_SECRET": SECRET, "SMDDP_SILENCE": str(silence)}
        self.start()

    def start(self) -> None:
        before = self.output().count("listening on ")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*self._command, "--listen", self.address],
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._until(lambda: self.output().count("listening on ") > before)

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait(30)

    def statistics(self) -> Mapping[str, float]:
        """What it says when asked."""
        before = len(_LINE.findall(self.output()))
        self.send(signal.SIGUSR1)
        self._until(lambda: len(_LINE.findall(self.output())) > before)
        names = ("jobs", "connections", "refused", "shards", "stale", "mebibytes")
        said = map(float, _LINE.findall(self.output())[-1])
        return dict(zip(names, said, strict=True))

    def until_used(self, seconds: float, beyond: float = 0) -> float:
        """Waits until it has summed more than that many shards; returns the seconds."""
        return self._until(lambda: self.statistics()["shards"] > beyond, seconds)

    def _until(self, condition: Callable[[], bool], seconds: float = 30) -> float:
        start = time.monotonic()
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() - start < seconds, self.output()
            time.sleep(0.05)
        return time.monotonic() - start


@contextmanager
def dedicated(
    *addresses: str,
    logs: Path,
    prefixes: Sequence[Sequence[str]] | None = None,
    silence: float = 2,
) -> Iterator[list[Dedicated]]:
    """Starts one at each address; ends them all, frozen or not."""
    started: list[Dedicated] = []
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for number, address in enumerate(addresses):
            prefix = prefixes[number] if prefixes else ()
            log = logs / f"reducer.{number}.log"
            started.append(Dedicated(address, log, prefix, silence))
        yield started
    finally:
        for each in started:
            each.kill()


def variables(reducers: Sequence[Dedicated]) -> dict[str, str]:
    """What a job needs to use them."""
    addresses = ",".join(each.address for each in reducers)
    return {"SMDDP_REDUCERS": addresses, "SMDDP_SECRET": SECRET}
