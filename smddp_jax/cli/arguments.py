# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands have, declared once."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from smddp_jax import _env
from smddp_jax._errors import SettingError
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


def value_of(variable: str, option: str) -> Callable[[str], str]:
    """A parser of what a setting may be; leaves the text as it is, for the variable."""

    def check(text: str) -> str:
        try:
            _env.parse(variable, text, option)
        except SettingError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check
