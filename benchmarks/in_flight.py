# SPDX-License-Identifier: Apache-2.0
"""200 independent psum steps on 8 devices, all started before the first is waited for.

Prints Markdown: ours, then XLA's rendezvous by itself, which gets a time limit.
"""

from __future__ import annotations

from report import table

STEPS = 200
LIMIT_SECONDS = 50  # XLA gives up after 40 s and aborts the process


def study() -> str:
    """Ours and XLA's, each in a process of its own."""
    return "\n".join(
        table(f"-d 8 --in-flight {STEPS} --peer {peer}", seconds=LIMIT_SECONDS)
        for peer in ("none", "only")
    )


if __name__ == "__main__":
    print(study())
