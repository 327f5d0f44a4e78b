# SPDX-License-Identifier: Apache-2.0
"""The table of cases in one process, and in two layouts of several processes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable

import jax
import pytest
from cases import Case, selection, variants
from ranks import run_ranks
from world import World

PASSED = re.compile(r"^PASS (\S+)", re.MULTILINE)
LAYOUTS = {"2x4": (2, 4), "4x2": (4, 2), "8x1": (8, 1)}


def name_of(variant: tuple[Case, str]) -> str:
    case, how = variant
    return f"{case.name}-{how}"


@pytest.mark.parametrize(("case", "how"), variants(), ids=map(name_of, variants()))
def test_in_one_process(case: Case, how: str) -> None:
    case.run(World(how, jax.devices()))


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> Callable[[str], list[tuple[str, set[str]]]]:
    """By layout: every rank's log and the cases that passed there, from one run."""

    @functools.cache
    def run(layout: str) -> list[tuple[str, set[str]]]:
        processes, devices = LAYOUTS[layout]
        logs, env = tmp_path_factory.mktemp(layout), {"SMDDP_TIMEOUT": "20"}
        shape = {"processes": processes, "devices": devices}
        with run_ranks("table", layout, **shape, logs=logs, env=env) as job:
            with contextlib.suppress(AssertionError):
                job.until_ended(170)  # cases without a report fail, and show the log
            outputs = [rank.output() for rank in job.ranks]
        return [(output, set(PASSED.findall(output))) for output in outputs]

    return run


ACROSS = [(layout, name_of(v)) for layout in LAYOUTS for v in selection(layout)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("layout", "name"), ACROSS)
def test_across_processes(layout: str, name: str, reports) -> None:
    for rank, (output, passed) in enumerate(reports(layout)):
        assert name in passed, f"rank {rank}:\n{_about(name, output)}"


def _about(name: str, output: str) -> str:
    """What a rank wrote just before it reported the case, or at its end."""
    before, found, _ = output.partition(f"FAIL {name}")
    return before[-3000:] if found else output[-3000:]
