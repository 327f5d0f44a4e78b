# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax run`: starts a program on several processes of this host."""

from __future__ import annotations

import argparse
import sys

from smddp_jax import _env
from smddp_jax.cli.arguments import add_allocator, positive, value_of
from smddp_jax.launch import Job, run_job

# Options that stand for a variable of the ranks.
_BETWEEN_HOSTS = {
    "--reducers": (
        "SMDDP_REDUCERS",
        "HOST:PORT,...",
        "dedicated reducers, which run already and know your SMDDP_SECRET",
    ),
    "--weights": (
        "SMDDP_WEIGHTS",
        "W,...|measure",
        "relative speed of the link of each host in rank order, then of each reducer, "
        "or that it is measured",
    ),
    "--wire-dtype": (
        "SMDDP_WIRE_DTYPE",
        "DTYPE",
        "what float32 values are rounded to between hosts",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.usage = "smddp-jax run [options] (script.py | -m module) [arguments ...]"
    parser.add_argument(
        *("-n", "--processes"),
        type=positive,
        default=1,
        metavar="P",
        help="number of processes (default: 1)",
    )
    parser.add_argument(
        *("-d", "--devices-per-process"),
        type=positive,
        metavar="D",
        help="CPU devices of each process (sets JAX_NUM_CPU_DEVICES)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long a collective waits for its peers (sets SMDDP_TIMEOUT)",
    )
    add_allocator(parser)
    for option, (variable, shown, meaning) in _BETWEEN_HOSTS.items():
        parser.add_argument(
            option,
            dest=variable,
            type=value_of(variable, option),
            metavar=shown,
            help=f"{meaning} (sets {variable})",
        )
    parser.add_argument(
        *("-x", "--env"),
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another variable for all processes (they inherit all of this one's)",
    )
    # All that follows belongs to the program, also what looks like an option of ours.
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help="run a module"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Runs the job; returns the code of the rank that failed first, or 0."""
    program = ["-m", *args.module] if args.module else args.program
    if program[:1] == ["--"]:
        program = program[1:]
    if not program:
        print("smddp-jax run: name a script, or -m and a module", file=sys.stderr)
        return 2
    variables = [variable for variable, _, _ in _BETWEEN_HOSTS.values()]
    given = {name: getattr(args, name) for name in variables if getattr(args, name)}
    job = Job(
        program=program,
        processes=args.processes,
        devices_per_process=args.devices_per_process,
        timeout=args.timeout,
        allocator=args.allocator,
        variables={**given, **dict(args.env)},
    )
    return run_job(job)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if _env.is_secret(name):
        raise argparse.ArgumentTypeError(
            f"others can read {name} on a command line: set it in the environment"
        )
    return name, value
