# SPDX-License-Identifier: Apache-2.0
"""A table of every collective in a program: who runs it, and why.

The program is traced and lowered, never run, and nothing reaches the engine. What our
rules see is decided as it would be in earnest; JAX's other collectives are found in the
lowered text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax

from smddp_jax import cluster
from smddp_jax._errors import EngineUnavailableError
from smddp_jax.collectives.calls import Met, engine
from smddp_jax.collectives.lowering import is_active, observe
from smddp_jax.collectives.numbering import children
from smddp_jax.collectives.pairs import unsafe_calls
from smddp_jax.collectives.placement import CPU, Groups, Placement
from smddp_jax.collectives.wire import wire_of

_tokens = itertools.count()
_COLLECTIVES = frozenset(
    "all_reduce all_gather reduce_scatter all_to_all ragged_all_to_all "
    "collective_permute collective_broadcast".split()
)
# What XLA's partitioner may have to follow with a reduction.
_CONTRACTIONS = frozenset({"dot_general", "convolution", "reduce", "scatter"})
_COMPILED_REDUCTION = re.compile(r" (?:all-reduce|reduce-scatter)(?:-start)?\(")
# What JAX's own lowering of an operation is called.
_STOCK = {"sum_scatter": "reduce_scatter", "gather": "all_gather"}


@dataclass(frozen=True)
class Row:
    """One collective, or several alike.

    Attributes:
      op: psum, psum_start, pmax, pmin, psum_scatter, all_gather, or the name of another
        collective.
      dtype: the arrays' type; empty if it isn't known.
      bytes: what one device contributes; None if it isn't known.
      group: who takes part.
      runs: "ours" or "XLA".
      why: the reason.
      count: how often it stands in the program.
    """

    op: str
    dtype: str
    bytes: int | None
    group: str
    runs: str
    why: str
    count: int = 1


@dataclass(frozen=True)
class Explanation:
    """The table; print it, or read `rows`.

    Attributes:
      rows: one for each kind of collective, in the order of the program.
      installed: whether `smddp_jax.install()` was in force.
      notes: what the rows can't show.
    """

    rows: tuple[Row, ...]
    installed: bool
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = ("op", "dtype", "bytes", "count", "group", "runs", "why")
        lines = [head] + [
            (
                row.op,
                row.dtype,
                "" if row.bytes is None else f"{row.bytes:,}",
                str(row.count),
                row.group,
                row.runs,
                row.why,
            )
            for row in self.rows
        ]
        widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
        text = [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True))
            for line in lines
        ]
        if not self.rows:
            text = ["no collectives"]
        state = "is" if self.installed else "is not"
        text += [f"smddp_jax {state} installed", *(f"note: {n}" for n in self.notes)]
        return "\n".join(line.rstrip() for line in text)


def explain(
    f: Callable[..., Any], *args: Any, compiled: bool = False, **kwargs: Any
) -> Explanation:
    """Lists each collective of `f(*args, **kwargs)`, who runs it and why.

    Args:
      f: a function, plain or under `jax.jit`, `jax.pmap` or `jax.shard_map`.
      *args: its arguments, or `jax.ShapeDtypeStruct`s in their place.
      compiled: whether to compile the program too, which tells exactly how many
        reductions XLA's partitioner adds.
      **kwargs: its keyword arguments.

    Returns:
      A table to print.
    """
    installed = is_active()
    problem = _engine_problem()
    lowerable: Any = f if hasattr(f, "lower") else jax.jit(f)
    with observe(next(_tokens)) as met:
        lowered = lowerable.lower(*args, **kwargs)
    rows = [_row(each, installed, problem) for each in met]
    program = _Program(lowered.compiler_ir("stablehlo"))
    stock = program.collectives
    for each in met:
        stock[_STOCK.get(each.collective.op, "all_reduce")] -= len(each.avals)
    rows += [_stock_row(op, count) for op, count in stock.items() if count > 0]
    notes = []
    unsafe = unsafe_calls(lowered.compiler_ir("stablehlo"))
    if unsafe and any(each.collective.starts for each in met):
        notes.append(
            "psum_start waits where it stands, since the program may fail in "
            + ", ".join(unsafe)
        )
    if compiled:
        known = sum(len(each.avals) for each in met if _reduces_with_others(each))
        known += max(0, stock["all_reduce"]) + max(0, stock["reduce_scatter"])
        added = len(_COMPILED_REDUCTION.findall(lowered.compile().as_text())) - known
        if added > 0:
            notes.append(f"reductions that XLA's partitioner adds, and runs: {added}")
    elif program.partitioned:
        notes.append(
            "the program computes on sharded arrays outside of shard_map: XLA's "
            "partitioner may add reductions there, and run them; "
            "explain(..., compiled=True) counts them"
        )
    return Explanation(tuple(_merged(rows)), installed, tuple(notes))


def _engine_problem() -> str | None:
    try:
        return None if engine() is not None else "SMDDP_FALLBACK chose stock JAX"
    except EngineUnavailableError as error:
        return str(error)


def _row(met: Met, installed: bool, problem: str | None) -> Row:
    found, collective = met.found, met.collective
    ours = isinstance(found, Placement)
    why = _over(found) if isinstance(found, Placement) else found.reason
    if ours and (wire := wire_of(collective.op, collective.wire, met.avals[0].dtype)):
        why += f", sent as {wire} between hosts"
    if ours and problem is not None:
        ours, why = False, problem
    elif ours and not (installed or collective.explicit):
        ours, why = False, "not installed: smddp_jax.install() would take it"
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in met.avals)
    arrays = len(met.avals)
    return Row(
        collective.name if arrays == 1 else f"{collective.name} of {arrays} arrays",
        met.avals[0].dtype.name,
        size,
        _describe(found.groups, collective.axes),
        "ours" if ours else "XLA",
        why,
    )


def _over(placement: Placement) -> str:
    if placement.exported:
        return "exported: devices are found at run time"
    home = dict(zip(placement.devices, placement.processes, strict=True))
    together = max(({home[n] for n in group} for group in placement.groups), key=len)
    where = "within a process"
    if len(together) > 1:
        hosts = len(set(cluster.hosts_of(together)))
        hosts = "one host" if hosts == 1 else f"{hosts} hosts"
        where = f"{len(together)} processes of {hosts}"
    return where if placement.platform == CPU else f"on {placement.platform}, {where}"


def _describe(groups: Groups, axes: Iterable[Any]) -> str:
    names = ", ".join(map(str, axes))
    sizes = [len(group) for group in groups]
    if not sizes:
        return names
    if len(set(sizes)) > 1:
        return f"{names}: groups of {', '.join(map(str, sizes))} devices"
    if len(sizes) == 1:
        return f"{names}: {sizes[0]} devices"
    return f"{names}: {len(sizes)} groups of {sizes[0]} devices"


def _stock_row(op: str, count: int) -> Row:
    return Row(op, "", None, "", "XLA", "not a collective that we take", count)


def _merged(rows: Iterable[Row]) -> list[Row]:
    """Joins rows that differ only in their count."""
    counts: dict[Row, int] = {}
    for row in rows:
        kind = replace(row, count=1)
        counts[kind] = counts.get(kind, 0) + row.count
    return [replace(row, count=count) for row, count in counts.items()]


def _reduces_with_others(met: Met) -> bool:
    groups = met.found.groups
    alone = bool(groups) and max(map(len, groups)) == 1
    return met.collective.op != "gather" and not alone


class _Program:
    """What a lowered module contains.

    Attributes:
      collectives: how often each of JAX's collectives stands in it.
      partitioned: whether XLA's partitioner has something to split up.
    """

    def __init__(self, module: Any):
        self.collectives: Counter[str] = Counter()
        self._outside: Counter[str] = Counter()
        self._functions = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self._met: set[tuple[str, bool]] = set()
        for op in module.body.operations:
            self._count_collectives(op.operation)
        if "main" in self._functions:
            self._walk(self._functions["main"], manual=False)
        attributes = module.operation.attributes
        count = "mhlo.num_partitions"
        several = count in attributes and attributes[count].value > 1
        self.partitioned = several and not _CONTRACTIONS.isdisjoint(self._outside)

    def _count_collectives(self, op: Any) -> None:
        for child in children(op):
            name = child.name.removeprefix("stablehlo.")
            if name in _COLLECTIVES:
                self.collectives[name] += 1
            self._count_collectives(child)

    def _walk(self, op: Any, *, manual: bool) -> None:
        """Counts what stands outside of the parts that are spelled out per device."""
        for child in children(op):
            inside = manual or child.name == "sdy.manual_computation"
            if not inside:
                self._outside[child.name.removeprefix("stablehlo.")] += 1
            if child.name == "func.call":
                self._call(child.attributes["callee"].value, inside)
            self._walk(child, manual=inside)

    def _call(self, name: str, manual: bool) -> None:
        manual = manual or name.startswith("shmap_body")
        if (name, manual) not in self._met:
            self._met.add((name, manual))
            self._walk(self._functions[name], manual=manual)
