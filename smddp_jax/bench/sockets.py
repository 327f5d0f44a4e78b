# SPDX-License-Identifier: Apache-2.0
"""Counts this process's connections, as the kernel lists them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ESTABLISHED = "01"


def connections(without: str) -> int:
    """TCP connections of this process, but for those to one address.

    Args:
      without: host:port of JAX's coordination service, whose connections are not ours.
    """
    port = int(without.rpartition(":")[2] or 0)
    sockets = _own_sockets()
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            remote_port = int(fields[2].rpartition(":")[2], 16)
            established = fields[3] == _ESTABLISHED and remote_port != port
            count += established and f"socket:[{fields[9]}]" in sockets
    return count


def _own_sockets() -> set[str]:
    links = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one by which we list
            links.add(os.readlink(descriptor))
    return links
