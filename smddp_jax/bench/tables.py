# SPDX-License-Identifier: Apache-2.0
"""Prints results: nccl-tests' columns for people, Markdown for pages, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smddp_jax.bench.network import Network
from smddp_jax.bench.summary import Result

SCHEMA = "smddp-jax bench 1"
_NETWORK_LABELS = {"ours": "ours", "peer": "Gloo"}


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str
    cell: Callable[[Result], str]


def as_text(results: Sequence[Result], cores: int) -> str:
    """Aligned tables in the manner of nccl-tests, one for each set of columns."""
    parts = []
    for columns, rows in _tables(results, cores):
        grid = [[c.name for c in columns], [c.unit for c in columns]]
        grid += [[c.cell(row) for c in columns] for row in rows]
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for n, row in enumerate(grid):
            mark = "# " if n < 2 else "  "
            cells = (cell.rjust(w) for cell, w in zip(row, widths, strict=True))
            parts.append((mark + "  ".join(cells)).rstrip())
        parts.append("")
    wrong = sum(result.wrong for result in results)
    parts.append(f"# Out of bounds values : {wrong} {'OK' if not wrong else 'FAILED'}")
    return "\n".join(parts) + "\n"


def as_markdown(results: Sequence[Result], cores: int) -> str:
    """The same tables for a Markdown page."""
    parts = []
    for columns, rows in _tables(results, cores):
        heads = [f"{c.name} {c.unit}".strip() for c in columns]
        parts.append("| " + " | ".join(heads) + " |")
        parts.append("|" + " ---: |" * len(columns))
        for row in rows:
            parts.append("| " + " | ".join(c.cell(row) for c in columns) + " |")
        parts.append("")
    return "\n".join(parts)


def as_json(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """Everything that was measured; `about` is the machine, versions and command."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "about": dict(about),
            "results": [result.as_dict() for result in results],
        },
        indent=1,
    )


def _tables(
    results: Sequence[Result], cores: int
) -> list[tuple[list[_Column], list[Result]]]:
    """Neighbours that show the same columns share a table."""
    tables: list[tuple[list[_Column], list[Result]]] = []
    shown = None
    for result in results:
        kind = (
            result.case.kind == "overlap",
            result.case.kind == "in_flight",
            result.network is not None,
        )
        shape = (kind, tuple(result.sides))
        if shape != shown:
            shown = shape
            tables.append((_columns(result, cores), []))
        tables[-1][1].append(result)
    return tables


def _columns(result: Result, cores: int) -> list[_Column]:
    columns = [
        _Column("size", "(B)", lambda r: str(r.size)),
        _Column("count", "(elements)", lambda r: str(r.count)),
        _Column("type", "", lambda r: r.case.dtype),
        _Column("redop", "", lambda r: r.case.op),
    ]
    if result.case.kind == "overlap":
        columns.append(_Column("busy", "(devices)", lambda r: str(r.case.busy)))
        columns.append(_time("compute", "compute"))
        for side in _sides(result):
            columns += _overlap_columns(side, cores)
        return columns
    if result.network is not None:
        return columns + _network_columns(result)
    if result.case.kind == "in_flight":
        columns.append(_Column("steps", "", lambda r: str(r.case.iterations)))
    else:
        columns.append(_Column("form", "", _form))
    for side in _sides(result):
        columns += _side_columns(side, detailed=result.case.kind != "in_flight")
    if result.ratio is not None:
        columns.append(_Column("XLA/ours", "", lambda r: f"{r.ratio:.2f}"))
    if "compute" in result.sides:
        columns.append(_time("compute", "compute"))
    return columns


def _network_columns(result: Result) -> list[_Column]:
    columns = [
        _Column("form", "", _form),
        _Column("wire", "", lambda r: _network(r).wire_dtype or r.case.dtype),
        _Column("reducers", "", lambda r: str(_network(r).reducers)),
    ]
    for side in _sides(result):
        label = _NETWORK_LABELS[side]
        columns += [_time(side, f"{label} time"), _quartiles(side)]
    if result.ratio is not None:
        columns.append(_Column("Gloo/ours", "", lambda r: f"{r.ratio:.2f}"))
    if "ours" in result.sides:
        columns += [
            _Column("bound", "(us)", lambda r: _microseconds(_bound(r))),
            _Column("ours/bound", "", _times_bound),
            _Column("busbw", "(GB/s)", lambda r: f"{r.busbw('ours'):.3f}"),
            _Column("sent", "(B/NIC)", lambda r: _bytes(r.sides["ours"].sent_bytes)),
            _Column(
                "recv", "(B/NIC)", lambda r: _bytes(r.sides["ours"].received_bytes)
            ),
            _Column(
                "plan", "(B/NIC)", lambda r: _bytes(_network(r).worker_bytes(r.size))
            ),
        ]
    if len(result.sides) == 1:  # else there is no telling whose they are
        columns.append(_Column("conns", "(/process)", lambda r: str(r.connections)))
    return [*columns, _Column("#wrong", "", lambda r: str(r.wrong))]


def _network(result: Result) -> Network:
    assert result.network is not None
    return result.network


def _bound(result: Result) -> float:
    return _network(result).bound(result.size)


def _times_bound(result: Result) -> str:
    return f"{result.sides['ours'].seconds / _bound(result):.2f}"


def _bytes(count: float | None) -> str:
    return "-" if count is None else f"{count:.0f}"


def _sides(result: Result) -> list[str]:
    return [side for side in ("ours", "peer") if side in result.sides]


def _side_columns(side: str, detailed: bool) -> list[_Column]:
    label = {"ours": "ours", "peer": "XLA"}[side]
    columns = [_time(side, f"{label} time")]
    if detailed:
        columns += [
            _quartiles(side),
            _Column("algbw", "(GB/s)", lambda r: f"{r.algbw(side):.2f}"),
            _Column("busbw", "(GB/s)", lambda r: f"{r.busbw(side):.2f}"),
            _Column("faults", "(/call)", lambda r: _faults(r, side)),
        ]
    return [*columns, _Column("#wrong", "", lambda r: str(r.sides[side].wrong))]


def _overlap_columns(side: str, cores: int) -> list[_Column]:
    label = {"ours": "ours", "peer": "XLA"}[side]
    return [
        _time(f"{side}_alone", f"{label} alone"),
        _time(side, f"{label} both"),
        _Column("both/longer", "", lambda r: f"{r.overlap(side):.2f}"),
        _Column("bound", "", lambda r: f"{r.overlap_bound(side, cores):.2f}"),
        _Column("#wrong", "", lambda r: str(r.sides[side].wrong)),
    ]


def _time(side: str, name: str) -> _Column:
    return _Column(name, "(us)", lambda r: _microseconds(r.sides[side].seconds))


def _quartiles(side: str) -> _Column:
    return _Column("q1-q3", "(us)", lambda r: _spread(r, side))


def _form(result: Result) -> str:
    case = result.case
    what = (
        case.form if case.kind == "all_reduce" else f"{case.form}, {case.leaves} leaves"
    )
    return what + (", aliased" if case.alias else "")


def _microseconds(seconds: float) -> str:
    value = seconds * 1e6
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _spread(result: Result, side: str) -> str:
    return "-".join(map(_microseconds, result.sides[side].quartiles))


def _faults(result: Result, side: str) -> str:
    return f"{result.sides[side].minor_faults:.0f}"
