# SPDX-License-Identifier: Apache-2.0
"""Keeps the order in which the program has put the two halves of a sum.

To XLA a done needs its start alone, and nothing else needs either: it may put one right
behind the other, where nothing overlaps. So a done gets more operands, which nobody
reads: the results of what stands between the two and takes its time. And what goes on
behind a start is tied to it by a barrier. XLA drops those for GPUs when it has put
everything in order; for CPUs before, where the order comes from the data at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.interpreters.mlir import ir

from smddp_jax.collectives.numbering import DONE, START, target_of

# What takes its time.
_WORK = frozenset(
    {"func.call"}
    | {
        f"stablehlo.{name}"
        for name in "case cholesky convolution custom_call dot_general fft if reduce "
        "reduce_window scatter sort triangular_solve while".split()
    }
)


def hold_back(start: Any, done: Any) -> None:
    """Puts `done` behind the work that stands between `start` and it in their block."""
    values = _results_of(_between(start, done))
    if not values:
        return
    layouts = [*done.attributes["operand_layouts"], *map(_layout, values)]
    attributes = {
        **dict(done.attributes.items()),
        "operand_layouts": ir.ArrayAttr.get(layouts),
    }
    with ir.InsertionPoint(done):
        made = ir.Operation.create(
            done.name,
            results=[each.type for each in done.results],
            operands=[*done.operands, *values],
            attributes=attributes,
            loc=done.location,
        )
    for old, new in zip(done.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    done.erase()


def go_on_behind(start: Any) -> None:
    """Puts the work that stands behind `start` in its block behind it."""
    ops = [op.operation for op in start.block.operations]
    at = ops.index(start)
    first = max((n + 1 for n in range(at) if target_of(ops[n]) == START), default=0)
    place = {op: n for n, op in enumerate(ops)}
    later = {
        value: uses
        for op in _worked(ops[first:at])
        for value in op.results
        if (uses := [use for use in value.uses if _place(use.owner, place) > at])
    }
    needed = _sources(start, set(ops[first:at]))
    tied = [value for value in later if value.owner.operation not in needed] or [
        *later
    ][-1:]
    if not tied:
        return
    passed = start.results[len(start.results) // 2]
    with ir.InsertionPoint(ops[at + 1]):
        barrier = ir.Operation.create(
            "stablehlo.optimization_barrier",
            results=[each.type for each in (*tied, passed)],
            operands=[*tied, passed],
            loc=start.location,
        )
    for value, now in zip(tied, barrier.results, strict=False):
        for use in later[value]:
            use.owner.operands[use.operand_number] = now


def _place(op: Any, place: dict[Any, int]) -> int:
    """Where in its block stands what `op` is, or is in."""
    op = op.operation
    while op not in place:
        op = op.parent.operation
    return place[op]


def _sources(op: Any, among: set[Any]) -> set[Any]:
    """What of `among` is needed for `op`."""
    found: set[Any] = set()
    left = [op]
    while left:
        owners = {
            getattr(each.owner, "operation", None) for each in left.pop().operands
        }
        left += [owner for owner in owners & among if owner not in found]
        found |= owners & among
    return found


def _between(start: Any, done: Any) -> list[Any]:
    block = [op.operation for op in start.block.operations]
    return block[block.index(start) + 1 : block.index(done)]


def _results_of(ops: Sequence[Any]) -> list[Any]:
    """What of the work of `ops` only others use."""
    within = set(ops)
    found = []
    for op in _worked(ops):
        # Of a start only what it passes on: its sums are not there yet.
        started = target_of(op) == START
        values = op.results[len(op.results) // 2 :] if started else op.results
        found += [each for each in values if _is_for_others(each, within)]
    return found


def _worked(ops: Sequence[Any]) -> list[Any]:
    """What of `ops` takes its time, or needs what does; no dones."""
    found: dict[Any, None] = {}
    for op in ops:
        sources = {getattr(each.owner, "operation", None) for each in op.operands}
        works = op.name in _WORK or not sources.isdisjoint(found)
        if works and target_of(op) != DONE:
            found[op] = None
    return list(found)


def _is_for_others(value: Any, within: set[Any]) -> bool:
    users = {use.owner.operation for use in value.uses}
    if not users or any(target_of(user) != DONE for user in users & within):
        return False
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and kind.has_static_shape


def _layout(value: Any) -> Any:
    order = list(range(ir.RankedTensorType(value.type).rank))[::-1]
    return ir.Attribute.parse(f"dense<{order}> : tensor<{len(order)}xindex>")
