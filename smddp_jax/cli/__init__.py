# SPDX-License-Identifier: Apache-2.0
"""The console script `smddp-jax <command>`.

A command is a row of `COMMANDS` and a module of this package with
`add_arguments(parser)` and `run(args) -> int`. Only the module of the command that runs
is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from smddp_jax._errors import SmddpError

COMMANDS = {
    "run": "start a program on several processes of this host",
    "bench": "time all-reduces, ours beside XLA's",
    "reducer": "sum for the workers of a job, on a host of its own",
    "env": "list the settings",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog="smddp-jax", description="All-reduce for JAX: tools"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    chosen = arguments[0] if arguments else None
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            module = importlib.import_module(f"smddp_jax.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    try:
        return args.run(args)
    except SmddpError as error:
        print(f"smddp-jax: {error}", file=sys.stderr)
        return 2
