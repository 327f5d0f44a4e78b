# SPDX-License-Identifier: Apache-2.0
"""The demo, cut short: it compares its own loss curves and fails if they differ."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import environment

pytestmark = pytest.mark.ours
for needed in ("flax", "sklearn", "tqdm"):
    pytest.importorskip(needed)

DEMO = Path(__file__).parents[1] / "examples" / "digits.py"
STEPS = 10


@pytest.mark.parametrize(("processes", "devices"), [(1, 8), (2, 4)])
def test_the_demo_trains(processes: int, devices: int) -> None:
    launcher = [sys.executable, "-P", "-m", "smddp_jax", "run", "-n", str(processes)]
    done = subprocess.run(
        [*launcher, str(DEMO), "--steps", str(STEPS)],
        env=environment(devices),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert f"{processes} processes, 8 devices, {STEPS} steps" in done.stdout
    losses = [float(loss) for loss in re.findall(r"last loss (\S+)", done.stdout)]
    assert len(losses) == 1 and losses[0] < 1.5, done.stdout[-3000:]
    ours = re.findall(r"psum  float32 .* ours ", done.stdout)
    assert len(ours) >= 3, done.stdout[-3000:]
