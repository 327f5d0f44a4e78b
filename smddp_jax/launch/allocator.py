# SPDX-License-Identifier: Apache-2.0
"""Allocator settings that the launcher gives to every rank alike.

They decide what fresh result buffers cost, for XLA's collectives as for ours. A
variable that the user has set is left alone.
"""

from __future__ import annotations

# glibc maps each large buffer anew and gives it back at once, so that every reduction
# pays for page faults: let it keep up to 1 GiB on its own heap.
_KEEP = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# What another thread's arena holds is of no use, and only the main one can be large.
_ONE_ARENA = {**_KEEP, "MALLOC_ARENA_MAX": "1"}
# 2 MiB pages, where the kernel gives them to those who ask: one fault instead of 512.
_HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

ALLOCATORS: dict[str, dict[str, str]] = {
    "system": {},
    "keep": _KEEP,
    "one-arena": _ONE_ARENA,
    "huge": _HUGE,
    "one-arena-huge": {**_ONE_ARENA, **_HUGE},
}
# The fastest for both sides (docs/benchmarks.md).
DEFAULT_ALLOCATOR = "one-arena-huge"
