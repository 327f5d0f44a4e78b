# SPDX-License-Identifier: Apache-2.0
"""Emits our custom calls in the place of collectives, where we can run them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from smddp_jax import _jax_compat, _native, cluster
from smddp_jax.collectives.numbering import START, TARGETS, key_of
from smddp_jax.collectives.placement import CUDA, Groups, Placement, Refusal, place
from smddp_jax.collectives.wire import CODES, wire_of

NAMES = {
    "sum": "psum",
    "max": "pmax",
    "min": "pmin",
    "sum_scatter": "psum_scatter",
    "gather": "all_gather",
}
_OP_CODES = {"sum": 0, "max": 1, "min": 2, "sum_scatter": 0, "gather": 0}


@dataclass(frozen=True)
class Collective:
    """What a program asks for, apart from the arrays.

    Attributes:
      op: sum, max, min, sum_scatter or gather.
      axes: names of the axes it goes over.
      axis_index_groups: positions along the axes that go together; None: all.
      wire: in what sums travel between hosts, where the program says so.
      explicit: whether the program asked for us by name (`smddp_jax.psum`).
      starts: whether it only starts the sum, for a done to end (`psum_start`).
    """

    op: str
    axes: tuple[Hashable, ...]
    axis_index_groups: Groups | None = None
    wire: str | None = None
    explicit: bool = False
    starts: bool = False

    @property
    def name(self) -> str:
        """What the user calls it."""
        return NAMES[self.op] + "_start" * self.starts


@dataclass(frozen=True)
class Met:
    """One collective met while lowering, and what was decided about it.

    Attributes:
      collective: what the program asks for.
      avals: types of the arrays that go in, more than one where they are fused.
      found: where we would run it, or why we don't.
    """

    collective: Collective
    avals: tuple[Any, ...]
    found: Placement | Refusal


# Set while a program is lowered only to see what is in it.
observed: ContextVar[list[Met] | None] = ContextVar("observed", default=None)
_alias_results = False


def alias_results(enabled: bool) -> None:
    """Whether XLA may reduce in place: it spares fresh pages for a possible copy."""
    global _alias_results
    if enabled != _alias_results:
        _alias_results = enabled
        jax.clear_caches()


def engine() -> ModuleType | None:
    """The native module, or None where SMDDP_FALLBACK=1 makes up for its lack.

    Raises:
      EngineUnavailableError: the native module or this JAX can't be used.
    """
    return None if cluster.engine_problem() is not None else _native.load()


def lower_reduction(
    ctx: Any, collective: Collective, args: Sequence[Any], avals: Sequence[Any]
) -> list[Any] | None:
    """Emits our call for arrays of one dtype, or returns None to leave them to JAX."""
    placement = _take(ctx, collective, avals)
    if placement is None:
        return None
    return _emit(ctx, collective, placement, args, avals, avals)


def lower_blocks(
    ctx: Any, collective: Collective, arg: Any, dimension: int, *, tiled: bool
) -> list[Any] | None:
    """The same for a scatter or a gather along any dimension; ours go along the first.

    What is not tiled has that dimension on one side only.
    """
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    placement = _take(ctx, collective, [aval])
    if placement is None:
        return None
    gathers = collective.op == "gather"
    before = dimension if tiled or not gathers else 0
    after = dimension if tiled or gathers else 0
    (result,) = _emit(
        ctx,
        collective,
        placement,
        [_jax_compat.move_axis(arg, aval.ndim, before, 0)],
        [_with_axis_in_front(aval, before)],
        [_with_axis_in_front(out, after)],
    )
    return [_jax_compat.move_axis(result, out.ndim, 0, after)]


def _with_axis_in_front(aval: Any, axis: int) -> Any:
    shape = list(aval.shape)
    if axis > 0:
        shape.insert(0, shape.pop(axis))
    return ShapedArray(tuple(shape), aval.dtype)


def _take(ctx: Any, collective: Collective, avals: Sequence[Any]) -> Placement | None:
    """Where we run a collective, or None if we don't."""
    found = place(
        ctx, collective.op, avals, collective.axes, collective.axis_index_groups
    )
    met = observed.get()
    if met is not None:
        met.append(Met(collective, tuple(avals), found))
        return None
    if isinstance(found, Refusal) or engine() is None:
        return None
    if found.platform == CUDA:
        _native.name_gpus()
    return found


def _emit(
    ctx: Any,
    collective: Collective,
    placement: Placement,
    args: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
) -> list[Any]:
    op, axes = collective.op, collective.axes
    module = _jax_compat.module_name(ctx)
    label = f"{collective.name}({', '.join(map(_spell, axes))}) in {module}"
    # Numbered anew when the module is complete.
    key = key_of(label, f"emitted {_jax_compat.next_position(ctx)}")
    wire = wire_of(op, collective.wire, avals_in[0].dtype)
    in_place = _alias_results and op not in ("sum_scatter", "gather")
    in_place = in_place and not collective.starts
    operands, avals = list(args), list(avals_in)
    if placement.exported:
        operands.append(_jax_compat.partition_id())
        avals.append(ShapedArray((), np.dtype(np.uint32)))
    return _jax_compat.custom_call(
        ctx,
        START if collective.starts else TARGETS[op],
        operands,
        avals,
        avals_out,
        {n: n for n in range(len(args))} if in_place else {},
        {
            "key": np.int64(key),
            "op": np.int64(_OP_CODES[op]),
            "wire": np.int64(CODES[wire]),
            "exported": np.int64(placement.exported),
            "groups": _integers(n for group in placement.groups for n in group),
            "group_sizes": _integers(map(len, placement.groups)),
            "devices": _integers(placement.devices),
            "processes": _integers(placement.processes),
            "label": label,
        },
    )


def _spell(axis: Hashable) -> str:
    """The axis's name, alike in every process: the repr of an object may be not."""
    return repr(axis) if isinstance(axis, str | int) else type(axis).__name__


def _integers(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)
