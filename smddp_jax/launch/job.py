# SPDX-License-Identifier: Apache-2.0
"""What one local job is, and the environment that each of its ranks gets."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smddp_jax.launch.allocator import ALLOCATORS, DEFAULT_ALLOCATOR


@dataclass(frozen=True)
class Job:
    """One program, run by several processes of this host.

    Attributes:
      program: arguments to the Python interpreter: a script or `-m module`, its own.
      processes: how many ranks.
      devices_per_process: CPU devices of each rank; None leaves that to JAX.
      timeout: deadline of a collective in seconds; None for the default.
      allocator: a key of `ALLOCATORS`.
      variables: additional variables for all ranks.
    """

    program: Sequence[str]
    processes: int
    devices_per_process: int | None = None
    timeout: float | None = None
    allocator: str = DEFAULT_ALLOCATOR
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> list[str]:
        """What each rank executes."""
        return [sys.executable, *self.program]

    def environment(
        self, inherited: Mapping[str, str], rank: int, coordinator: str
    ) -> dict[str, str]:
        """The variables of one rank: all inherited ones as they are, and ours."""
        ours = {
            "SMDDP_COORDINATOR": coordinator,
            "SMDDP_RANK": str(rank),
            "SMDDP_SIZE": str(self.processes),
            "SMDDP_LOCAL_RANK": str(rank),
            "SMDDP_LOCAL_SIZE": str(self.processes),
        }
        if self.devices_per_process is not None:
            # JAX reads this one by itself, also in programs that never call init().
            ours["JAX_NUM_CPU_DEVICES"] = str(self.devices_per_process)
        if self.timeout is not None:
            ours["SMDDP_TIMEOUT"] = repr(self.timeout)
        # Output goes through a pipe, where Python would hold lines back.
        defaults = {"PYTHONUNBUFFERED": "1", **ALLOCATORS[self.allocator]}
        return {**defaults, **inherited, **ours, **self.variables}


def free_address() -> str:
    """A loopback address with a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
