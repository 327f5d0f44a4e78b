# SPDX-License-Identifier: Apache-2.0
"""What fresh result buffers cost under each of the launcher's allocator settings.

Prints Markdown: time and minor page faults of one call, ours and XLA's, which run in
the same processes and so under the same settings.
"""

from __future__ import annotations

from report import table

from smddp_jax.launch import ALLOCATORS


def study(iterations: int = 6) -> str:
    """All allocator settings, in one process and in four."""
    parts = []
    for name, variables in ALLOCATORS.items():
        shown = ", ".join(f"`{key}={value}`" for key, value in variables.items())
        parts.append(f"### Allocator `{name}`: {shown or 'nothing set'}\n")
        for job in ("", "-n 4 "):
            parts.append(
                table(
                    f"{job}--sizes 16M,64M --form intermediate "
                    f"--iterations {iterations} --allocator {name}"
                )
            )
    return "\n".join(parts)


if __name__ == "__main__":
    print(study())
