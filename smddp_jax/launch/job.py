# SPDX-License-Identifier: Apache-2.0
"""What one job is, where its ranks run, and the environment that each of them gets."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smddp_jax._errors import ClusterError
from smddp_jax.launch.allocator import ALLOCATORS, DEFAULT_ALLOCATOR

# For a coordinator whose host we can't ask for a free port. Below Linux's range for
# outgoing connections, so that none is in the way.
_PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Host:
    """A host that this machine can start processes on, such as a network namespace.

    Attributes:
      name: what messages call it.
      address: where the other hosts reach it, without a port.
      prefix: what is put before a command to run it there, such as `ip netns exec h0`.
        It must keep the environment and become the command, as exec does.
    """

    name: str
    address: str
    prefix: Sequence[str]


@dataclass(frozen=True)
class Job:
    """One program, run by several processes of this host, or of `hosts`.

    Attributes:
      program: arguments to the Python interpreter: a script or `-m module`, its own.
      processes: how many ranks.
      devices_per_process: CPU devices of each rank; None leaves that to JAX.
      timeout: deadline of a collective in seconds; None for the default.
      allocator: a key of `ALLOCATORS`.
      variables: additional variables for all ranks.
      hosts: where the ranks run, dealt out in blocks; () for here.
      secret: what ranks of different hosts prove to each other, unless the user set it.
    """

    program: Sequence[str]
    processes: int
    devices_per_process: int | None = None
    timeout: float | None = None
    allocator: str = DEFAULT_ALLOCATOR
    variables: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[Host] = ()
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def __post_init__(self) -> None:
        if self.hosts and self.processes % len(self.hosts):
            raise ClusterError(
                f"{self.processes} processes can't be dealt evenly to "
                f"{len(self.hosts)} hosts: give a multiple of that"
            )

    @property
    def local_size(self) -> int:
        """How many ranks each host gets."""
        return self.processes // max(1, len(self.hosts))

    def host_of(self, rank: int) -> Host | None:
        """The host of one rank; None for here."""
        return self.hosts[rank // self.local_size] if self.hosts else None

    def name_of(self, rank: int) -> str:
        """What messages call one rank."""
        host = self.host_of(rank)
        return f"rank {rank}" if host is None else f"rank {rank} on {host.name}"

    def command(self, rank: int) -> list[str]:
        """What one rank executes."""
        host = self.host_of(rank)
        return [*(host.prefix if host else ()), sys.executable, *self.program]

    def coordinator(self) -> str:
        """An address of rank 0's host for the coordination service."""
        if not self.hosts:
            return free_address()
        address = self.hosts[0].address
        address = f"[{address}]" if ":" in address else address
        return f"{address}:{_PORTS[os.getpid() % len(_PORTS)]}"

    def environment(
        self, inherited: Mapping[str, str], rank: int, coordinator: str
    ) -> dict[str, str]:
        """The variables of one rank: all inherited ones as they are, and ours."""
        ours = {
            "SMDDP_COORDINATOR": coordinator,
            "SMDDP_RANK": str(rank),
            "SMDDP_SIZE": str(self.processes),
            "SMDDP_LOCAL_RANK": str(rank % self.local_size),
            "SMDDP_LOCAL_SIZE": str(self.local_size),
        }
        given = {**inherited, **self.variables}
        # Reducers run already: a secret that is made now can't be theirs.
        if not given.get("SMDDP_SECRET") and not given.get("SMDDP_REDUCERS"):
            ours["SMDDP_SECRET"] = self.secret
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
