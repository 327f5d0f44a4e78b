# SPDX-License-Identifier: Apache-2.0
"""An all-reduce beside compute that takes as long: both together / the longer one.

Prints Markdown. `bound` is what the cores allow: where the CPU time of both is more
than the cores have in the time of the longer one, no scheduling reaches 1.0. The
compute keeps one core busy, and one worker thread leaves it that core on two.
"""

from __future__ import annotations

import os

from report import table


def study(size: str = "64M") -> str:
    """In one process and in two, with all worker threads and with one."""
    parts = []
    for variables in ({"SMDDP_THREADS": "1"}, {}):
        for job in ("-d 2", "-n 2"):
            arguments = f"{job} --overlap --sizes {size} --iterations 15"
            parts.append(table(arguments, variables=variables))
    return "\n".join(parts) + f"\nCores: {os.cpu_count()}.\n"


if __name__ == "__main__":
    print(study())
