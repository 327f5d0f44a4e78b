# SPDX-License-Identifier: Apache-2.0
"""The table of cases in one process, and in two layouts of several processes."""

from __future__ import annotations

import jax
import pytest
from cases import Case, variants
from ranks import run_ranks
from world import World

VARIANTS = variants()
NAMES = [f"{case.name}-{how}" for case, how in VARIANTS]
LAYOUTS = {"2x4": (2, 4), "4x2": (4, 2)}


@pytest.mark.parametrize(("case", "how"), VARIANTS, ids=NAMES)
def test_in_one_process(case: Case, how: str) -> None:
    case.run(World(how, jax.devices()))


@pytest.fixture(scope="module", params=LAYOUTS)
def reports(request, tmp_path_factory) -> list[tuple[str, set[str]]]:
    """Every rank's log and the cases that passed there, from one run of the table."""
    processes, devices = LAYOUTS[request.param]
    logs = tmp_path_factory.mktemp(request.param)
    env = {"SMDDP_TIMEOUT": "20"}
    with run_ranks(
        "table", processes=processes, devices=devices, logs=logs, env=env
    ) as job:
        try:
            job.until_ended(240)
        except AssertionError:
            pass  # the cases that are missing from the reports fail, with the logs
        outputs = [rank.output() for rank in job.ranks]
    lines = [[line.split() for line in out.splitlines()] for out in outputs]
    passed = [{w[1] for w in ls if len(w) > 1 and w[0] == "PASS"} for ls in lines]
    return list(zip(outputs, passed, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_across_processes(name: str, reports: list[tuple[str, set[str]]]) -> None:
    for rank, (output, passed) in enumerate(reports):
        assert name in passed, f"rank {rank}:\n{_about(name, output)}"


def _about(name: str, output: str) -> str:
    """What a rank wrote just before it reported the case, or at its end."""
    before, found, _ = output.partition(f"FAIL {name}")
    return before[-3000:] if found else output[-3000:]
