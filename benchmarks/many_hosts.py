# SPDX-License-Identifier: Apache-2.0
"""64 workers and 16 reducers, each on a host of its own: `many_hosts.py [N [K]]`.

Prints Markdown. All of them share this machine's cores, so that only results (`#wrong`)
and connections mean anything. Takes a few minutes and 200 MiB for each worker, with the
system's allocator, which does not ask for huge pages.
"""

from __future__ import annotations

import sys

from report import table


def study(workers: int = 64, reducers: int = 16) -> str:
    """A 1 MiB all-reduce, 100 times; no peer, whose connections would be counted."""
    return table(
        f"--hosts {workers} --reducers {reducers} --sizes 1M --iterations 100 "
        "--peer none --allocator system",
        seconds=900,
    )


if __name__ == "__main__":
    print(study(*map(int, sys.argv[1:])))
