# SPDX-License-Identifier: Apache-2.0
"""Who takes part: this process's place in its job, and who shares its host."""

from __future__ import annotations

from smddp_jax.cluster.session import (
    current,
    default_wire_dtype,
    engine_problem,
    gpu_problem,
    group_problem,
    hosts_of,
    init,
    is_initialized,
    shutdown,
)
from smddp_jax.cluster.terms import wire_dtype_name

__all__ = [
    "default_wire_dtype",
    "engine_problem",
    "gpu_problem",
    "group_problem",
    "hosts_of",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "wire_dtype_name",
]


def rank() -> int:
    """Index of this process, 0 to size() - 1. Raises ClusterError before init()."""
    return current().rank


def size() -> int:
    """Number of processes of the job. Raises ClusterError before init()."""
    return current().size


def local_rank() -> int:
    """Index among the processes of this host. Raises ClusterError before init()."""
    session = current()
    return session.neighbours.index(session.rank)


def local_size() -> int:
    """Number of processes on this host. Raises ClusterError before init()."""
    return len(current().neighbours)
