# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands have, declared once."""

from __future__ import annotations

import argparse

from smddp_jax.launch import ALLOCATORS, DEFAULT_ALLOCATOR


def add_allocator(parser: argparse._ActionsContainer) -> None:
    """Declares the malloc settings that the ranks get."""
    parser.add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default=DEFAULT_ALLOCATOR,
        help="malloc settings for all processes, as far as their variables are unset; "
        "system: none; default: %(default)s",
    )


def positive(text: str) -> int:
    """Reads a whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
