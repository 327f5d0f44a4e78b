# SPDX-License-Identifier: Apache-2.0
"""Gives XLA's CPU client enough threads for programs that wait for each other.

A thread of its pool stays with a device's program until our result is there, and
another one waits to launch the next program. With one thread per device, all of them
can be taken while the last device of a reduction finds none: a deadlock with some tens
of steps in flight. The client reads the size of its pool once, when it is made.
"""

from __future__ import annotations

import os
import re

import jax

_VARIABLE = "PJRT_NPROC"
_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
# One that runs and one that launches, for two threads that launch programs.
_THREADS_PER_DEVICE = 4


def make_room() -> None:
    """Sizes the pool, unless the user did. Too late once JAX has made its backend."""
    if _VARIABLE in os.environ:
        return
    devices: int = getattr(jax.config, "jax_num_cpu_devices", 0)
    if devices < 1:
        flags = _FLAG.findall(os.environ.get("XLA_FLAGS", ""))
        devices = int(flags[-1]) if flags else 1
    cores = len(os.sched_getaffinity(0))
    os.environ[_VARIABLE] = str(cores + _THREADS_PER_DEVICE * devices)
