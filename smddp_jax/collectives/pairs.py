# SPDX-License-Identifier: Apache-2.0
"""Decides in a lowered module which sums that were started may stay under way.

XLA knows nothing of a sum under way: to it, what a start returns is there. So a start
stays one only where nothing but its own done sees the result, in the same run of the
same block, and where XLA will get to that done. Elsewhere it becomes a reduction like
any other, and its done vanishes: right everywhere, but nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.interpreters.mlir import ir

from smddp_jax.collectives.numbering import DONE, START, TARGETS, children, target_of

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
        for start in starts:
            _settle(start, reliable)


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


def _settle(start: Any, reliable: bool) -> None:
    users = {use.owner.operation for each in start.results for use in each.uses}
    dones = [user for user in users if target_of(user) == DONE]
    sizes = [ir.RankedTensorType(each.type).shape for each in start.results]
    if reliable and any(0 not in size for size in sizes) and len(users) == 1 and dones:
        # Not to be dropped, merged with others or moved out of a loop, one by one.
        for half in (start, *dones):
            half.attributes["has_side_effect"] = ir.BoolAttr.get(True)
        return
    start.attributes["call_target_name"] = ir.StringAttr.get(TARGETS["sum"])
    for done in dones:
        for result, value in zip(done.results, start.results, strict=True):
            result.replace_all_uses_with(value)
        done.erase()
