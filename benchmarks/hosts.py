# SPDX-License-Identifier: Apache-2.0
"""Four hosts at 1 Gbit/s: ours with and without dedicated reducers, Gloo, the bound.

Prints Markdown. The hosts are network namespaces, which needs root. Draws hosts.svg
beside this file.
"""

from __future__ import annotations

from pathlib import Path

from report import table

PLOT = Path(__file__).with_name("hosts.svg")


def study() -> str:
    """Reducers on 0 to 4 more hosts; bfloat16 on the wire; two processes per host."""
    return "\n".join(
        [
            table("--hosts 4 --rate 1gbit --reducers 0,1,2,4", 600, plot=PLOT),
            "![Time over size](hosts.svg)\n",
            table("--hosts 4 --rate 1gbit --wire-dtype bfloat16 --sizes 16M,64M"),
            table("--hosts 2 --rate 1gbit -n 4 -d 2 --sizes 16M,64M"),
        ]
    )


if __name__ == "__main__":
    print(study())
