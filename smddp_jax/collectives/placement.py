# SPDX-License-Identifier: Apache-2.0
"""Decides, while a program is lowered, whether we run a collective and over whom.

The decision must come out alike in every process of a job, so it looks only at what
they share: the program, the mesh, which processes init() met, and what these agreed on
about their GPUs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from smddp_jax import _jax_compat, cluster

Groups = tuple[tuple[int, ...], ...]

_NUMBERS = frozenset(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64".split()
)
_COMPLEX = frozenset({"complex64", "complex128"})
_SUMS = frozenset({"sum", "sum_scatter"})
_BLOCKS = frozenset({"sum_scatter", "gather"})

CPU, CUDA = "cpu", "cuda"
# As in xla_ffi/device/call.h: as many GPUs of one host reduce with each other.
_MOST_GPUS = 8


@dataclass(frozen=True)
class Placement:
    """The devices of one collective, as the engine wants to hear of them.

    Attributes:
      groups: who goes together with whom: global device ids, or positions in the mesh
        where `exported`.
      devices: global ids of the mesh's devices, in order; empty where `exported`.
      processes: the process of each of `devices`.
      exported: whether the devices are known only when the program runs.
      platform: what the devices are, cpu or cuda.
    """

    groups: Groups
    devices: tuple[int, ...]
    processes: tuple[int, ...]
    exported: bool
    platform: str


@dataclass(frozen=True)
class Refusal:
    """Why a collective is left to XLA, and its groups if it has any."""

    reason: str
    groups: Groups = ()


def place(
    ctx: Any,
    op: str,
    avals: Sequence[Any],
    axes: Sequence[Hashable],
    axis_index_groups: Groups | None,
) -> Placement | Refusal:
    """Finds the devices that a collective over named `axes` joins, if we can run it."""
    platforms = _jax_compat.lowering_platforms(ctx)
    if platforms not in ((CPU,), (CUDA,)):
        return Refusal(f"lowered for {', '.join(platforms)}, we take cpu or cuda alone")
    mesh = _jax_compat.mesh_context(ctx)
    if mesh is None:
        return Refusal("not inside shard_map or pmap")
    groups = logical_groups(mesh.axes, axes, axis_index_groups)
    if max(map(len, groups)) == 1:
        return Refusal("groups of one device: nothing to exchange", groups)
    if any(size > 1 and name not in mesh.manual for name, size in mesh.axes):
        return Refusal("mesh is only partly manual", groups)
    if op in _BLOCKS and len(set(map(len, groups))) > 1:
        return Refusal("groups of unlike sizes", groups)
    on_gpus = platforms == (CUDA,)
    for aval in avals:
        if reason := _unusable(op, aval, on_gpus):
            return Refusal(reason, groups)
    if _jax_compat.is_exporting(ctx):
        if on_gpus:
            return Refusal("exported: who runs it would be in a GPU's memory", groups)
        return Placement(groups, (), (), exported=True, platform=CPU)
    if mesh.devices is None:
        return Refusal("the mesh is abstract: its devices are not known", groups)
    ids = tuple(device.id for device in mesh.devices)
    processes = tuple(device.process_index for device in mesh.devices)
    meeting = {frozenset(processes[n] for n in group) for group in groups}
    # GPUs of processes that don't meet run ours too, or none does.
    for joined in {frozenset(processes)} if on_gpus else meeting:
        if len(joined) > 1 and (reason := _apart(joined)):
            return Refusal(reason, groups)
    if on_gpus and (reason := gpus_problem(groups, cluster.hosts_of(processes))):
        return Refusal(reason, groups)
    global_groups = tuple(tuple(ids[n] for n in group) for group in groups)
    return Placement(global_groups, ids, processes, False, platforms[0])


def logical_groups(
    mesh_axes: Sequence[tuple[Hashable, int]],
    axes: Sequence[Hashable],
    axis_index_groups: Groups | None,
) -> Groups:
    """Positions in the mesh that reduce with each other, members in axis order."""
    names = [name for name, _ in mesh_axes]
    sizes = [size for _, size in mesh_axes]
    positions = np.arange(math.prod(sizes)).reshape(sizes)
    reduced = [names.index(axis) for axis in axes]
    rows = np.moveaxis(positions, reduced, range(len(reduced)))
    whole = rows.reshape(math.prod(sizes[n] for n in reduced), -1).T.tolist()
    if axis_index_groups is None:
        return tuple(map(tuple, whole))
    return tuple(
        tuple(row[n] for n in group) for row in whole for group in axis_index_groups
    )


def gpus_problem(groups: Groups, hosts: Sequence[str]) -> str | None:
    """Why we don't reduce over these groups of GPUs, if we don't.

    Args:
      groups: positions in the mesh.
      hosts: what tells hosts apart, for each position.
    """
    for group in groups:
        counts = sorted(Counter(hosts[n] for n in group).values())
        if counts[-1] > _MOST_GPUS:
            return f"a group has {counts[-1]} GPUs of one host, we take {_MOST_GPUS}"
        if counts[0] < counts[-1]:
            return f"a group has {counts[0]} GPUs of one host, {counts[-1]} of another"
    return cluster.gpu_problem()


def _unusable(op: str, aval: Any, on_gpus: bool) -> str | None:
    dtype = aval.dtype.name
    if on_gpus and op in _BLOCKS:
        return "on GPUs we take psum, pmax and pmin only"
    if op == "gather":
        known = _is_whole_bytes(aval.dtype)
    else:
        known = dtype in _NUMBERS or (op in _SUMS and dtype in _COMPLEX)
    if not known:
        return f"we don't take {op} of {dtype}"
    if not _jax_compat.is_static(aval.shape):
        return "its shape is symbolic"
    return None


def _is_whole_bytes(dtype: Any) -> bool:
    """Whether an array's elements are plain bytes: no random keys, no int4."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return False
    return jax.dtypes.itemsize_bits(dtype) % 8 == 0


def _apart(processes: frozenset[int]) -> str | None:
    """Why the engine can't join these processes, if it can't."""
    if not cluster.is_initialized():
        return "several processes, and smddp_jax.init() was not called"
    return cluster.group_problem(processes)
