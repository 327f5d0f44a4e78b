# SPDX-License-Identifier: Apache-2.0
"""The table of cases: what a collective must do, whoever carries it out.

Each case is a function of a `World`; its id (B01, ...) is the row of the project's log
of public bug reports that it comes from. Both the tests of one process and the programs
that run on several import the whole table from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from world import HOWS, World


@dataclass(frozen=True)
class Case:
    name: str
    hows: tuple[str, ...]
    run: Callable[[World], None]


TABLE: list[Case] = []


def case(row: str, *hows: str, ours: bool = False) -> Callable[[Callable], Callable]:
    """Adds a function to the table, for the given ways of mapping (default: all).

    `ours` marks what JAX's own collectives get wrong or hang in.
    """

    def add(run: Callable[[World], None]) -> Callable[[World], None]:
        if ours and os.environ.get("SMDDP_TEST_STOCK") == "1":
            return run
        TABLE.append(Case(f"{row}_{run.__name__}", hows or HOWS, run))
        return run

    return add


def variants() -> list[tuple[Case, str]]:
    """Every case in each of its ways."""
    from cases import axes, blocks, compiling, numbers, shapes, transforms  # noqa: F401

    return [(entry, how) for entry in TABLE for how in entry.hows]


def selection(layout: str) -> list[tuple[Case, str]]:
    """What runs in a layout of processes x devices: everything once, then less."""
    everything = variants()
    if layout == "2x4":
        return everything
    if layout == "4x2":  # each case in one of its ways, in turn
        turns = enumerate(TABLE)
        return [(entry, entry.hows[n % len(entry.hows)]) for n, entry in turns]
    rows = ("B112", "B90", "B26", "B03")
    return [(c, how) for c, how in everything if c.name.startswith(rows)]
