# SPDX-License-Identifier: Apache-2.0
"""Decides in a lowered module which sums that were started may stay under way.

XLA knows nothing of a sum under way: to it, what a start returns is there. So a start
stays one only where nothing but its own done sees the result, in the same run of the
same block, and where XLA will get to that done. Elsewhere it becomes a reduction like
any other, and its done vanishes: right everywhere, but nothing overlaps.

A start that stays passes its arguments on to its done, as results that lie in them.
XLA would compute cheap ones anew for the done, and use the memory of the first again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.interpreters.mlir import ir

from smddp_jax.collectives.behind import go_on_behind, hold_back
from smddp_jax.collectives.numbering import (
    CONFIG,
    DONE,
    START,
    TARGETS,
    children,
    target_of,
)

# Custom calls that don't fail once they run. After one that does, Python's callbacks
# above all, XLA would take back the memory that a sum under way is written to.
_SAFE = frozenset(
    "Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint "
    "annotate_device_placement ApproxTopK PartialReduce".split()
)
_SAFE_FAMILIES = (
    *("smddp_", "lapack_", "mhlo.", "chlo.", "stablehlo.", "xla.sdy.", "sdy."),
    *("cublas", "cudnn", "cusolver", "cu_", "__cublas", "__cudnn", "__gpu$"),
)


def settle_starts(module: Any) -> None:
    """Makes ordinary reductions of the starts in `module` that can't stay under way."""
    starts = [op for op in _walk(module.operation) if target_of(op) == START]
    if not starts:
        return
    reliable = not unsafe_calls(module)
    with module.context, ir.Location.unknown(module.context):
        kept = [_settle(start, reliable) for start in starts]
        for start, done in filter(None, kept):
            # Where the program has not said itself what comes before it.
            if len(done.operands) == 2 * len(done.results):
                hold_back(start, done)
            go_on_behind(start)


def unsafe_calls(module: Any) -> list[str]:
    """The names of custom calls in `module` after which XLA may give up the run."""
    found = {target_of(op) for op in _walk(module.operation)} - {None}
    return sorted(
        name
        for name in map(str, found)
        if name not in _SAFE and not name.startswith(_SAFE_FAMILIES)
    )


def started_by(value: Any, block: Any) -> Any:
    """The start in `block` that `value` is a result of, or None."""
    owner = getattr(value.owner, "operation", None)
    if owner is None or target_of(owner) != START or owner.block != block:
        return None
    return owner


def _walk(op: Any) -> Iterator[Any]:
    for child in children(op):
        yield child
        yield from _walk(child)


def _settle(start: Any, reliable: bool) -> tuple[Any, Any] | None:
    """Lets a start be one, and returns it with its done, or makes a psum of it."""
    count = _count(start)
    sums, kept = [*start.results][:count], len(start.results) > count  # By an export
    users = {use.owner.operation for each in sums for use in each.uses}
    dones = [user for user in users if target_of(user) == DONE]
    sizes = [ir.RankedTensorType(each.type).shape for each in sums]
    if reliable and any(0 not in size for size in sizes) and len(users) == 1 and dones:
        return None if kept else (_keep(start, dones[0]), dones[0])
    for done in dones:
        for result, value in zip(done.results, sums, strict=True):
            result.replace_all_uses_with(value)
        done.erase()
    attributes = {
        "call_target_name": ir.StringAttr.get(TARGETS["sum"]),
        "has_side_effect": ir.BoolAttr.get(False),
        "output_operand_aliases": ir.ArrayAttr.get([]),
    }
    _rewrite(start, attributes, 1)
    return None


def _keep(start: Any, done: Any) -> Any:
    """`start`, which now returns its arguments, too, for `done` to take."""
    count = _count(start)
    aliases = [_lies_in(operand=n, result=count + n) for n in range(count)]
    attributes = {
        "output_operand_aliases": ir.ArrayAttr.get(aliases),
        # Not to be dropped, merged with others or moved out of a loop, one by one.
        "has_side_effect": ir.BoolAttr.get(True),
    }
    done.attributes["has_side_effect"] = attributes["has_side_effect"]
    kept = _rewrite(start, attributes, 2)
    for n, passed in enumerate(kept.results[count:]):
        done.operands[count + n] = passed
        for use in list(kept.operands[n].uses):
            # Other dones that only come behind it.
            if target_of(use.owner) == DONE:
                if use.operand_number >= 2 * len(use.owner.results):
                    use.owner.operands[use.operand_number] = passed
    return kept


def _count(start: Any) -> int:
    """How many sums it starts: an exported one has its partition's id behind them."""
    exported = {each.name: each.attr for each in start.attributes[CONFIG]}["exported"]
    return len(start.operands) - exported.value


def _rewrite(start: Any, changes: dict[str, Any], times: int) -> Any:
    """`start` with other attributes, and its sums as results once or twice."""
    count = _count(start)
    sums = [each.type for each in start.results][:count]
    layouts = [*start.attributes["result_layouts"]][:count]
    changes["result_layouts"] = ir.ArrayAttr.get(layouts * times)
    with ir.InsertionPoint(start):
        made = ir.Operation.create(
            start.name,
            results=sums * times,
            operands=list(start.operands),
            attributes={**dict(start.attributes.items()), **changes},
            loc=start.location,
        )
    now = [*made.results[:count], *made.operands[:count]]
    for old, new in zip(start.results, now, strict=False):
        old.replace_all_uses_with(new)
    start.erase()
    return made


def _lies_in(operand: int, result: int) -> Any:
    return ir.Attribute.parse(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{result}], "
        f"operand_index = {operand}, operand_tuple_indices = []>"
    )
