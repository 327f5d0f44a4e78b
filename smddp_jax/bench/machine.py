# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made on: processor, memory, versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

_PACKAGES = ("smddp-jax", "jax", "jaxlib", "numpy")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, str]:
    """The machine and the software, for the head of a table."""
    facts = {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(cores()),
        "memory": _memory(),
        "kernel": platform.release(),
        "huge pages": _line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
    }
    return facts | {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def _memory() -> str:
    kib = (_field("/proc/meminfo", "MemTotal") or "").split()
    return f"{int(kib[0]) / (1 << 20):.1f} GiB" if kib else "unknown"


def _field(file: str, name: str) -> str | None:
    for line in _text(file).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _line(file: str) -> str:
    return _text(file).strip() or "unknown"


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
