# SPDX-License-Identifier: Apache-2.0
"""The demo, cut short: it compares its own loss curves and fails if they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ranks import run_launched

pytestmark = pytest.mark.ours
for needed in ("flax", "sklearn", "tqdm"):
    pytest.importorskip(needed)

DEMO = Path(__file__).parents[1] / "examples" / "digits.py"
STEPS = 10


@pytest.mark.parametrize(("processes", "devices"), [(1, 8), (2, 4)])
def test_the_demo_trains(processes: int, devices: int) -> None:
    said = run_launched(
        *(DEMO, "--steps", STEPS), processes=processes, devices=devices, seconds=150
    )
    assert f"{processes} processes, 8 devices, {STEPS} steps" in said
    losses = [float(loss) for loss in re.findall(r"last loss (\S+)", said)]
    assert len(losses) == 1 and losses[0] < 1.5, said[-3000:]
    ours = re.findall(r"psum  float32 .* ours ", said)
    assert len(ours) >= 3, said[-3000:]
