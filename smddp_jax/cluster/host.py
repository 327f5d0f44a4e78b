# SPDX-License-Identifier: Apache-2.0
"""What tells hosts apart: processes with one host id can share memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from smddp_jax import _env

# Containers of one machine share its ids but not always a name space. Abstract unix
# sockets belong to the network one; peers' credentials are read through the user one.
_NAMESPACES = ("ipc", "net", "user")


def host_id() -> str:
    """Returns the id of this host, or SMDDP_HOST_ID where that is set."""
    chosen = _env.get("SMDDP_HOST_ID")
    if chosen:
        return chosen
    parts = [
        _read("/etc/machine-id"),
        _read("/proc/sys/kernel/random/boot_id"),
        *(_link(f"/proc/self/ns/{name}") for name in _NAMESPACES),
    ]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
