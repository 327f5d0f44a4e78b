# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax env`: lists the settings, and what is set here."""

from __future__ import annotations

import argparse

from smddp_jax import _env


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments: none."""


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    print(_env.as_markdown(here=True), end="")
    return 0
