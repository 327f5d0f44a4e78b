# SPDX-License-Identifier: Apache-2.0
"""Makes every table of RESULTS.md: `python benchmarks/run_all.py [FILE]`.

Takes under twenty minutes on two quiet cores. Without a file it prints. The tables of
several hosts need root.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import buckets
import hosts
import in_flight
import many_hosts
import overlap
import page_faults
from report import facts, table

SECTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("In one process, 8 devices", lambda: table("--form both")),
    (
        "In one process, 8 devices, result aliased with operand",
        lambda: table("--form both --alias"),
    ),
    ("4 processes", lambda: table("-n 4 --form both")),
    (
        "4 processes, result aliased with operand",
        lambda: table("-n 4 --form both --alias"),
    ),
    ("2 processes", lambda: table("-n 2 --form both")),
    (
        "Gradients of ResNet-50, one fused psum",
        lambda: "\n".join(
            table(f"{job}--tree resnet50 --form intermediate --iterations 10")
            for job in ("", "-n 4 ")
        ),
    ),
    ("4 hosts at 1 Gbit/s", hosts.study),
    ("64 workers and 16 reducers", many_hosts.study),
    ("Overlap with compute", overlap.study),
    ("Gradients in buckets", buckets.study),
    ("Steps in flight", in_flight.study),
    ("Page faults and allocator settings", page_faults.study),
)


def main(target: str | None = None) -> None:
    """Runs all sections, one after the other; writes what there is after each."""
    start = time.monotonic()
    parts = ["# Results\n", facts()]
    for title, study in SECTIONS:
        parts.append(f"## {title}\n\n{study()}")
        if target:
            Path(target).write_text("\n".join(parts))
    if not target:
        print("\n".join(parts))
    print(f"{time.monotonic() - start:6.1f} s  in all", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:2])
