# SPDX-License-Identifier: Apache-2.0
"""Our collectives through JAX on GPUs, which may be one that all processes share.

`make gpu-check` runs `python tests/jax_on_gpus.py`; exits with 77 where JAX has no GPU.
Machines without one run the same jobs on CPUs, in `test_jax_on_gpus.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ranks import Job, run_ranks

NO_GPU = 77
SECONDS = 300


@dataclass(frozen=True)
class Case:
    """A scenario of `programs/on_gpus.py`, and the job that runs it."""

    scenario: str
    processes: int
    hosts: int

    def __str__(self) -> str:
        each = self.processes // self.hosts
        where = f"{self.hosts} hosts x {each}" if self.hosts > 1 else f"{each}"
        return f"{self.scenario}, {where} processes"


CASES = [
    *(Case("every_type", *job) for job in ((2, 1), (2, 2), (4, 2))),
    *(Case("same_bits", *job) for job in ((2, 1), (2, 2), (4, 2))),
    *(Case("queued", *job) for job in ((2, 1), (2, 2), (4, 2))),
    *(Case("started", *job) for job in ((2, 1), (2, 2))),
    *(Case("lost", *job) for job in ((2, 1), (2, 2))),
    *(Case("disagreeing", *job) for job in ((2, 1), (2, 2))),
]
FAILING = {"lost", "disagreeing"}

# All processes of a job may share one GPU, and so its memory.
ON_GPUS = {
    "JAX_PLATFORMS": "cuda",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "SMDDP_TIMEOUT": "60",
}


def count_gpus() -> int:
    """How many GPUs there are, for JAX and for us; says why there is none."""
    program = (
        "import jax, smddp_jax._cuda as cuda\n"
        "assert not cuda.problem(), cuda.problem()\n"
        "print(cuda.describe())\n"
        "print(len(jax.devices('cuda')), 'GPUs')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1])
    found = re.search(r"^(\d+) GPUs$", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0


def run(case: Case, logs: Path, gpus: int) -> None:
    """Runs a job; raises AssertionError where something is wrong.

    Without `gpus` it runs on CPUs.
    """

    def env_of(rank: int) -> dict[str, str]:
        if gpus == 0:
            return {"SMDDP_TIMEOUT": "30"}
        return {**ON_GPUS, "JAX_LOCAL_DEVICE_IDS": str(rank % gpus)}

    with run_ranks(
        "on_gpus",
        case.scenario,
        processes=case.processes,
        hosts=case.hosts,
        logs=logs,
        env_of=env_of,
    ) as job:
        if case.scenario == "lost":
            _check_lost(job)
        else:
            outputs = job.succeed(SECONDS)
            _check_outputs(case, outputs, "gpu" if gpus else "cpu")


def _check_lost(job: Job) -> None:
    victim = len(job.ranks) - 1
    job.until_ended(SECONDS)
    for rank in job.others(victim):
        assert rank.code == 0, job.logs()
        assert re.search(rf"RAISED .*rank {victim}\b", rank.output()), job.logs()
        assert "USABLE" in rank.output(), job.logs()


def _check_outputs(case: Case, outputs: list[str], platform: str) -> None:
    for output in outputs:
        assert f"DONE on {platform}" in output, output
        if case.scenario in FAILING:
            assert "RAISED" in output and "USABLE" in output, output
    said = [re.findall(r"^bits .*$", output, re.MULTILINE) for output in outputs]
    assert all(bits == said[0] for bits in said), said


def main() -> int:
    """Prints a table of all cases."""
    gpus = count_gpus()
    if gpus == 0:
        print("JAX has no GPU that we can use: NOTHING WAS CHECKED THROUGH JAX")
        return NO_GPU
    failed = []
    print(f"| through JAX, on {gpus} GPUs | result | seconds |\n|---|---|---|")
    for case in CASES:
        start, result = time.monotonic(), "right"
        with tempfile.TemporaryDirectory() as logs:
            try:
                run(case, Path(logs), gpus)
            except AssertionError as error:
                failed.append(f"===== {case}\n{error}")
                result = "WRONG"
        took = time.monotonic() - start
        print(f"| {case} | {result} | {took:.0f} |", flush=True)
    print(*failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
