# SPDX-License-Identifier: Apache-2.0
"""Whether the GPUs of a job run our collectives: found out and agreed on in init().

Every process must decide alike, or one would wait in XLA's collective for another that
is in ours. So a job's GPUs run ours where those of every process can, else none does.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterable

from smddp_jax import _native
from smddp_jax._errors import ClusterError
from smddp_jax.cluster.agreement import exchange
from smddp_jax.cluster.detect import Membership


def check_one_each(place: Membership) -> None:
    """Refuses more processes on this host than there are GPUs for them.

    JAX would give each process the GPU of its local rank, and fail to find it.

    Raises:
      ClusterError: there are too few GPUs.
    """
    if place.local_rank is None or "JAX_LOCAL_DEVICE_IDS" in os.environ:
        return
    count = _native.gpu_count()
    wanted = max(place.local_size or 0, place.local_rank + 1)
    if count < wanted:
        raise ClusterError(
            f"rank {place.rank} sees {count} GPUs for {wanted} processes of its host, "
            f"each of which takes the one of its local rank: start {count} processes "
            "per host; or set JAX_PLATFORMS=cpu to use none; or say with "
            "JAX_LOCAL_DEVICE_IDS which this process takes, 0 where its launcher shows "
            "it one of its own"
        )


def signed(problem: str | None, rank: int) -> str | None:
    """A problem of this process's GPUs, as the other processes should hear of it."""
    return problem and f"GPUs of rank {rank} (on {socket.gethostname()}): {problem}"


def first(problems: Iterable[str | None]) -> str | None:
    """The problem that all processes go by: that of the lowest rank."""
    return next(filter(None, problems), None)


def try_all(epoch: int, rank: int, size: int) -> str | None:
    """Tries the GPUs of every host; returns a problem, alike in all processes.

    Raises:
      ClusterError: a process did not come in time.
    """
    problem = _native.try_gpus()
    if size == 1:
        return problem
    mine = signed(problem, rank) or ""
    return first(exchange(f"smddp/{epoch}/gpus", rank, size, mine))


@functools.cache
def problem_alone() -> str | None:
    """Why the GPUs of a process that belongs to no job don't run ours, if they don't.

    To be asked once JAX has its backend.
    """
    return _native.gpu_problem() or _native.try_gpus()
