# SPDX-License-Identifier: Apache-2.0
"""Allocator settings that the launcher gives to every rank alike.

They decide what fresh result buffers cost, for XLA's collectives as for ours. A
variable that the user has set is left alone.
"""

from __future__ import annotations

ALLOCATORS: dict[str, dict[str, str]] = {
    "default": {},
    # glibc maps each large buffer anew and gives it back at once, so that every
    # reduction pays for page faults: let it keep up to 1 GiB on its own heap.
    "keep": {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_TOP_PAD_": str(64 << 20),
    },
    # The same buffers in 2 MiB pages: one fault instead of 512.
    "huge": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
