# SPDX-License-Identifier: Apache-2.0
"""Runs the ranks of a benchmark as a job and joins what they measured."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smddp_jax import bench
from smddp_jax._errors import SmddpError
from smddp_jax.launch import Job, run_job


class JobFailedError(SmddpError):
    """A rank failed; the launcher has told which, and what it said."""

    def __init__(self, exit_code: int):
        super().__init__(f"the ranks of the benchmark ended with code {exit_code}")
        self.exit_code = exit_code


def measure(
    cases: Sequence[bench.Case], job: Job, network: bench.Network | None = None
) -> list[bench.Result]:
    """Measures all cases in one job, whose program this function puts in.

    Raises:
      JobFailedError: a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="smddp-bench-") as folder:
        listed = Path(folder) / "cases.json"
        listed.write_text(json.dumps([case.as_dict() for case in cases]))
        # -P: the package that is installed, not a source tree in the working directory.
        program = ["-P", "-m", "smddp_jax.bench", str(listed), folder]
        code = run_job(replace(job, program=program))
        if code:
            raise JobFailedError(code)
        ranks = [
            json.loads((Path(folder) / f"{rank}.json").read_text())
            for rank in range(job.processes)
        ]
    return [bench.join_ranks(told, network) for told in zip(*ranks, strict=True)]
