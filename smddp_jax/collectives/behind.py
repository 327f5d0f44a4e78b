# SPDX-License-Identifier: Apache-2.0
"""Keeps XLA from ending a sum before what the program has put between start and done.

To XLA a done needs its start alone, so it may put one right behind the other, where
nothing overlaps. So a done gets more operands, which nobody reads: the results of what
stands between the two and takes its time.
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


def _between(start: Any, done: Any) -> list[Any]:
    block = [op.operation for op in start.block.operations]
    return block[block.index(start) + 1 : block.index(done)]


def _results_of(ops: Sequence[Any]) -> list[Any]:
    """What of the work of `ops`, and of what follows from it, only others use."""
    within, worked = set(ops), set()
    found = []
    for op in ops:
        target = target_of(op)
        sources = {getattr(each.owner, "operation", None) for each in op.operands}
        if target == DONE or not (op.name in _WORK or sources & worked):
            continue
        worked.add(op)
        # Of a start only what it passes on: its sums are not there yet.
        values = op.results[len(op.results) // 2 :] if target == START else op.results
        found += [each for each in values if _is_for_others(each, within)]
    return found


def _is_for_others(value: Any, within: set[Any]) -> bool:
    users = {use.owner.operation for use in value.uses}
    if not users or any(target_of(user) != DONE for user in users & within):
        return False
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and kind.has_static_shape


def _layout(value: Any) -> Any:
    order = list(range(ir.RankedTensorType(value.type).rank))[::-1]
    return ir.Attribute.parse(f"dense<{order}> : tensor<{len(order)}xindex>")
