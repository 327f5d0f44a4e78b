# SPDX-License-Identifier: Apache-2.0
"""Times programs in turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax

Samples = dict[str, list[float]]

_CALLS_PER_TURN = 5


@dataclass(frozen=True)
class Program:
    """A program with its arguments.

    Attributes:
      call: runs it, without waiting for the result.
      mode: in which it must be called; entered before the clock starts.
    """

    call: Callable[[], Any]
    mode: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def __call__(self) -> Any:
        """Runs it in its mode and waits for the result."""
        with self.mode():
            return jax.block_until_ready(self.call())


def in_turns(
    programs: Mapping[str, Program], iterations: int, warmup: int, interface: str = ""
) -> tuple[dict[str, Samples], dict[str, Any]]:
    """Calls the programs in turns of a few calls each, in forward and backward order.

    Every rank must make the same calls. Where there is more than one program, each turn
    begins with a call that is not timed: ranks leave a collective at unlike times, and
    how unlike depends on the program before. A result is released after the clock has
    stopped, before the next call.

    Returns:
      Per program the samples of each call, in order, and the result of the last call.
      Samples are `seconds`, `cpu_seconds`, `minor_faults` and, of the interface if one
      is named, `sent_bytes` and `received_bytes`.
    """
    timed = functools.partial(_timed, interface=interface)
    samples: dict[str, Samples] = {
        name: collections.defaultdict(list) for name in programs
    }
    last: dict[str, Any] = {}
    order = list(programs)
    lead_in = len(order) > 1
    with _no_collector():
        for name in order * warmup:
            timed(programs[name])
        for done in range(0, iterations, _CALLS_PER_TURN):
            calls = min(_CALLS_PER_TURN, iterations - done)
            for name in order:
                if lead_in:
                    timed(programs[name])
                for call in range(calls):
                    result = timed(programs[name], samples[name])
                    if done + call == iterations - 1:
                        last[name] = result
                    del result
            order.reverse()
    return samples, last


def _timed(program: Program, samples: Samples | None = None, *, interface: str) -> Any:
    with program.mode():
        before = _counters(interface)
        start = time.perf_counter()
        result = jax.block_until_ready(program.call())
        seconds = time.perf_counter() - start
        after = _counters(interface)
    if samples is not None:
        samples["seconds"].append(seconds)
        for name, count in after.items():
            samples[name].append(count - before[name])
    return result


def _counters(interface: str) -> dict[str, float]:
    counted = {
        "cpu_seconds": time.process_time(),
        "minor_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
    }
    if interface:
        counted["sent_bytes"] = _statistic(interface, "tx_bytes")
        counted["received_bytes"] = _statistic(interface, "rx_bytes")
    return counted


def _statistic(interface: str, name: str) -> int:
    return int(os.pread(_opened(interface, name).fileno(), 32, 0))


@functools.cache
def _opened(interface: str, name: str) -> BinaryIO:
    """Kept open: what a rank does between two calls, the others wait for."""
    return Path("/sys/class/net", interface, "statistics", name).open("rb")


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
