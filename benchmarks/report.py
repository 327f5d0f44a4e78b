# SPDX-License-Identifier: Apache-2.0
"""Runs `smddp-jax bench` for the pages here, and keeps what the pages show of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from smddp_jax import bench


def facts() -> str:
    """The machine and the versions, as a Markdown list."""
    rows = [f"- {name}: {value}" for name, value in bench.describe().items()]
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return "\n".join([*rows, f"- load average at the start: {load}"]) + "\n"


def table(
    arguments: str,
    seconds: float = 240,
    variables: Mapping[str, str] | None = None,
    plot: Path | None = None,
) -> str:
    """One command and its table as Markdown; a failure is told in the table's place."""
    shown = "".join(f"{name}={value} " for name, value in (variables or {}).items())
    shown += f"smddp-jax bench {arguments}"
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="smddp-report-") as folder:
        page = Path(folder) / "table.md"
        files = ["--markdown", str(page), *(["--plot", str(plot)] if plot else [])]
        outcome = _run([*arguments.split(), *files], seconds, variables)
        shown_table = page.read_text() if page.exists() else ""
    print(f"{time.monotonic() - start:6.1f} s  {shown}", file=sys.stderr, flush=True)
    return "\n".join(
        [f"`{shown}`\n", *([outcome + "\n"] if outcome else []), shown_table]
    )


def _run(
    arguments: list[str], seconds: float, variables: Mapping[str, str] | None
) -> str:
    """Returns nothing if the command succeeded, or what became of it."""
    # -P: the package that is installed, not the tree in the working directory.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "smddp_jax", "bench", *arguments],
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # upon which the launcher ends its ranks
        process.communicate()
        return f"**Did not finish within {seconds:.0f} s.**"
    if process.returncode == 0:
        return ""
    return f"**Exit code {process.returncode}.** {_cause(output)}"


def _cause(output: str) -> str:
    """The line that tells why, as far as one does."""
    lines = [line for line in output.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if any(word in line for word in ("terminat", "FAILED", "Error", "Abort", "F0"))
    ]
    chosen = (telling or lines or ["no output"])[-1]
    return f"`{chosen.strip()[:300]}`"
