# SPDX-License-Identifier: Apache-2.0
"""Times programs in turns, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import contextlib
import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

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
    programs: Mapping[str, Program], iterations: int, warmup: int
) -> tuple[dict[str, Samples], dict[str, Any]]:
    """Calls the programs in turns of a few calls each, in forward and backward order.

    Every rank must make the same calls. Where there is more than one program, each turn
    begins with a call that is not timed: ranks leave a collective at unlike times, and
    how unlike depends on the program before. A result is released after the clock has
    stopped, before the next call.

    Returns:
      Per program the samples `seconds`, `cpu_seconds` and `minor_faults` of each call,
      in order, and the result of the last call.
    """
    samples = {
        name: {"seconds": [], "cpu_seconds": [], "minor_faults": []}
        for name in programs
    }
    last: dict[str, Any] = {}
    order = list(programs)
    lead_in = len(order) > 1
    with _no_collector():
        for name in order * warmup:
            _timed(programs[name], samples[name], keep=False)
        for done in range(0, iterations, _CALLS_PER_TURN):
            calls = min(_CALLS_PER_TURN, iterations - done)
            for name in order:
                if lead_in:
                    _timed(programs[name], samples[name], keep=False)
                for call in range(calls):
                    result = _timed(programs[name], samples[name], keep=True)
                    if done + call == iterations - 1:
                        last[name] = result
                    del result
            order.reverse()
    return samples, last


def _timed(program: Program, samples: Samples, keep: bool) -> Any:
    with program.mode():
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        cpu = time.process_time()
        start = time.perf_counter()
        result = jax.block_until_ready(program.call())
        seconds = time.perf_counter() - start
    if keep:
        samples["seconds"].append(seconds)
        samples["cpu_seconds"].append(time.process_time() - cpu)
        now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        samples["minor_faults"].append(now - faults)
    return result


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
