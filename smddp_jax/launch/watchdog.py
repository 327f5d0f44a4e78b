# SPDX-License-Identifier: Apache-2.0
"""Ends the ranks when the launcher dies, however it dies.

Started by path in a session of its own, with a pipe from the launcher as standard
input. The launcher writes the process groups of the ranks and, before it ends in good
order, `done`. End of file without that means that it was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

_GRACE_SECONDS = 5.0


def main() -> None:
    """Waits for the launcher's end."""
    words = sys.stdin.read().split()
    if "done" in words:
        return
    groups = [int(word) for word in words]
    _signal(groups, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline and _signal(groups, 0):
        time.sleep(0.1)
    _signal(groups, signal.SIGKILL)


def _signal(groups: list[int], signum: int) -> bool:
    """Sends a signal to the groups; returns whether one of them still exists."""
    found = False
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signum)
            found = True
    return found


if __name__ == "__main__":
    main()
