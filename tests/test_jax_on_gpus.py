# SPDX-License-Identifier: Apache-2.0
"""What `make gpu-check` runs through JAX on GPUs, here on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax_on_gpus import CASES, Case, run

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_cpus(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, gpus=0)
