# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax bench`: starts the ranks, and prints the table of what they measured."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from smddp_jax import bench, report
from smddp_jax.bench.cases import FORMS, OPS
from smddp_jax.cli.arguments import add_allocator, positive, value_of
from smddp_jax.launch import Job

_SIZES = "4K,1M,16M,64M"
_OVERLAP_SIZES = "64M"
_IN_FLIGHT_SIZES = "16K"
_WIRE_DTYPES = ("float32", "bfloat16", "float16")
_T = TypeVar("_T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    job = parser.add_argument_group("the job")
    job.add_argument(
        *("-n", "--processes"),
        type=positive,
        metavar="P",
        help="of all hosts together (default: 1, or one per host)",
    )
    job.add_argument(
        *("-d", "--devices", "--devices-per-process"),
        type=positive,
        metavar="D",
        help="CPU devices of each process (default: 8 in one process, 1 in several)",
    )
    add_allocator(job)
    _add_hosts(parser.add_argument_group("hosts of their own"))
    what = parser.add_argument_group("what to reduce")
    what.add_argument(
        "--sizes",
        type=_sizes,
        metavar="BYTES,...",
        help=f"per device (default: {_SIZES})",
    )
    what.add_argument("--dtype", default="float32", help="default: float32")
    what.add_argument("--op", choices=OPS, default="sum", help="default: sum")
    what.add_argument(
        "--form",
        choices=(*FORMS, "both"),
        default="argument",
        help="reduce an argument of the program, or a value that it computes",
    )
    what.add_argument(
        "--alias",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let XLA put our result into the operand's buffer",
    )
    what.add_argument(
        "--tree",
        choices=("resnet50",),
        help="reduce the gradients of a network at once instead of one array",
    )
    what.add_argument(
        "--leaves",
        type=int,
        default=500,
        metavar="N",
        help="cut the largest arrays of the tree until there are N (0: don't cut)",
    )
    kind = parser.add_argument_group(
        "other measurements"
    ).add_mutually_exclusive_group()
    kind.add_argument(
        "--overlap",
        action="store_true",
        help="an all-reduce beside independent compute that takes as long",
    )
    kind.add_argument(
        "--in-flight", type=positive, metavar="N", help="N steps that nobody waits for"
    )
    parser.add_argument(
        "--busy",
        type=positive,
        default=1,
        metavar="N",
        help="devices that compute during --overlap (default: 1)",
    )
    parser.add_argument(
        "--peer",
        choices=("xla", "none", "only"),
        default="xla",
        help="XLA's all-reduce beside ours, not at all, or without ours",
    )
    parser.add_argument(
        "--iterations", type=positive, metavar="N", help="timed calls of each side"
    )
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the table as Markdown, too"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to a file")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="with --hosts: draw time over size beside Gloo and the bound, as .svg or "
        ".png (needs matplotlib)",
    )


def _add_hosts(group: argparse._ArgumentGroup) -> None:
    group.description = (
        "Network namespaces of this machine, with limited links; needs root. Each "
        "number of reducers and each wire dtype is a job of its own."
    )
    group.add_argument(
        "--hosts", type=positive, metavar="N", help="hosts with workers (2 or more)"
    )
    group.add_argument(
        *("--rate", "--rates"),
        type=_list_of(_rate),
        default="1gbit",
        metavar="RATE,...",
        help="of every host's link, each way, or one for each host, those with workers "
        "first (default: %(default)s)",
    )
    group.add_argument(
        "--reducers",
        type=_list_of(_count),
        default="0",
        metavar="K,...",
        help="more hosts, with a dedicated reducer each; 0: workers reduce "
        "(default: 0)",
    )
    group.add_argument(
        "--weights",
        type=value_of("SMDDP_WEIGHTS", "--weights"),
        metavar="W,...|measure",
        help="relative speed of the links, in the same order, or that it is measured; "
        "default: all alike",
    )
    group.add_argument(
        "--wire-dtype",
        type=_list_of(_wire_dtype),
        default="float32",
        metavar="DTYPE,...",
        help="what float32 is rounded to between hosts: bfloat16, float16, or float32 "
        "(default) for not at all",
    )


def run(args: argparse.Namespace) -> int:
    """Measures; returns 1 where a result was wrong, or what the ranks returned."""
    problem = _problem(args)
    if problem is not None:
        print(f"smddp-jax bench: {problem}", file=sys.stderr)
        return 2
    processes = args.processes or args.hosts or 1
    job = Job(
        program=(),
        processes=processes,
        devices_per_process=args.devices or (8 if processes == 1 else 1),
        allocator=args.allocator,
    )
    notes: list[str] = []
    try:
        if args.hosts:
            networks = _networks(args)
            results, notes = report.measure_on_hosts(_cases(args), job, networks)
        else:
            results = report.measure(_cases(args), job)
    except report.JobFailedError as error:
        return error.exit_code
    _write(args, results, notes)
    print(_headline(args, results[0]))
    print(bench.as_text(results, bench.cores()), end="")
    print(*(f"# {note}\n" for note in notes), sep="", end="")
    return 1 if any(result.wrong for result in results) else 0


def _problem(args: argparse.Namespace) -> str | None:
    if args.hosts is None:
        return "--plot shows times between hosts: add --hosts" if args.plot else None
    if args.hosts < 2:
        return "--hosts 1: between hosts there are 2 or more"
    if args.overlap or args.in_flight:
        return "--hosts measures all-reduces only, no --overlap and no --in-flight"
    if any(args.wire_dtype) and args.dtype != "float32":
        return f"--wire-dtype rounds float32, and --dtype is {args.dtype}"
    links = args.hosts + max(args.reducers)
    if len(args.rate) not in (1, links):
        return (
            f"--rate has {len(args.rate)} rates: give one, or one for each of {links}"
        )
    numbers = (args.weights or "measure").split(",")
    if numbers != ["measure"] and len(numbers) != links:
        return (
            f"--weights has {len(numbers)} numbers: give one for each of {links} hosts"
        )
    return None


def _networks(args: argparse.Namespace) -> list[bench.Network]:
    def first(values: Sequence[str], reducers: int) -> str:
        return ",".join(values[: args.hosts + reducers])

    return [
        bench.Network(
            args.hosts,
            reducers,
            first(args.rate, reducers),
            wire_dtype,
            first((args.weights or "").split(","), reducers),
        )
        for wire_dtype in args.wire_dtype
        for reducers in args.reducers
    ]


def _write(
    args: argparse.Namespace, results: list[bench.Result], notes: list[str]
) -> None:
    if args.json:
        about = bench.describe() | {"command": " ".join(["smddp-jax", *sys.argv[1:]])}
        Path(args.json).write_text(bench.as_json(results, {**about, "notes": notes}))
    if args.markdown:
        page = bench.as_markdown(results, bench.cores())
        page += "".join(f"- {note}\n" for note in notes)
        Path(args.markdown).write_text(page)
    if args.plot:
        report.plot(results, args.plot)


def _cases(args: argparse.Namespace) -> list[bench.Case]:
    kind, leaves, default = "all_reduce", 0, _SIZES
    if args.overlap:
        kind, default = "overlap", _OVERLAP_SIZES
    elif args.in_flight:
        kind, default = "in_flight", _IN_FLIGHT_SIZES
    elif args.tree:
        kind = "tree"
        shapes = bench.split_leaves(bench.resnet50_shapes(), args.leaves)
        leaves, default = len(shapes), str(4 * sum(map(math.prod, shapes)))
    plain = kind in ("all_reduce", "tree")
    forms = FORMS if args.form == "both" else (args.form,)
    iterations = (
        bench.default_iterations_between_hosts
        if args.hosts
        else bench.default_iterations
    )
    return [
        bench.Case(
            kind=kind,
            bytes=size,
            dtype=args.dtype,
            op=args.op,
            form=form,
            alias=args.alias,
            peer=args.peer != "none",
            ours=args.peer != "only",
            iterations=args.in_flight or args.iterations or iterations(size),
            warmup=args.warmup,
            leaves=leaves,
            busy=args.busy,
        )
        for form in (forms if plain else ("argument",))
        for size in (args.sizes if args.sizes and kind != "tree" else _sizes(default))
    ]


def _headline(args: argparse.Namespace, result: bench.Result) -> str:
    peer = "XLA's rendezvous" if result.processes == 1 else "XLA's Gloo"
    if result.platform != "cpu":
        peer = "XLA's collectives"
    sides = {"xla": f"ours and {peer} in turns", "none": "ours", "only": peer}
    return (
        f"# smddp-jax bench: {_places(args)}{result.processes} processes, "
        f"{result.ranks} {result.platform} devices, {sides[args.peer]}, medians; "
        f"allocator: {args.allocator}"
    )


def _places(args: argparse.Namespace) -> str:
    if not args.hosts:
        return ""
    weights = f", weights {args.weights}" if args.weights else ""
    return f"{args.hosts} hosts at {','.join(args.rate)}{weights}, "


def _list_of(parse: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    """A parser of such values with commas between them."""

    def parse_all(text: str) -> list[_T]:
        try:
            return [parse(part) for part in text.split(",")]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_all


_sizes = _list_of(bench.parse_size)


def _rate(text: str) -> str:
    bench.parse_rate(text)
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number, 0 or more")
    return int(text)


def _wire_dtype(text: str) -> str:
    """The dtype as `Network` has it."""
    if text not in _WIRE_DTYPES:
        raise ValueError(f"{text!r} is none of {', '.join(_WIRE_DTYPES)}")
    return "" if text == "float32" else text
