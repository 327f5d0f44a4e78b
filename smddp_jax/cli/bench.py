# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax bench`: starts the ranks, and prints the table of what they measured."""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

from smddp_jax import bench
from smddp_jax.bench.cases import FORMS, OPS
from smddp_jax.launch import ALLOCATORS, DEFAULT_ALLOCATOR, Job, run_job

_SIZES = "4K,1M,16M,64M"
_OVERLAP_SIZES = "64M"
_IN_FLIGHT_SIZES = "16K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    job = parser.add_argument_group("the job")
    job.add_argument(
        *("-n", "--processes"),
        type=_positive,
        default=1,
        metavar="P",
        help="default: 1",
    )
    job.add_argument(
        *("-d", "--devices"),
        type=_positive,
        metavar="D",
        help="CPU devices of each process (default: 8 in one process, 1 in several)",
    )
    job.add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default=DEFAULT_ALLOCATOR,
        help="malloc settings for all processes, and so for both sides; "
        "default: %(default)s",
    )
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
        "--in-flight", type=_positive, metavar="N", help="N steps that nobody waits for"
    )
    parser.add_argument(
        "--busy",
        type=_positive,
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
        "--iterations", type=_positive, metavar="N", help="timed calls of each side"
    )
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "--markdown", metavar="FILE", help="write the table as Markdown, too"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to a file")


def run(args: argparse.Namespace) -> int:
    """Measures; returns 1 where a result was wrong, or what the ranks returned."""
    cases = _cases(args)
    with tempfile.TemporaryDirectory(prefix="smddp-bench-") as folder:
        listed = Path(folder) / "cases.json"
        listed.write_text(json.dumps([case.as_dict() for case in cases]))
        # -P: the package that is installed, not a source tree in the working directory.
        code = run_job(
            Job(
                program=["-P", "-m", "smddp_jax.bench", str(listed), folder],
                processes=args.processes,
                devices_per_process=args.devices or (8 if args.processes == 1 else 1),
                allocator=args.allocator,
            )
        )
        if code:
            return code
        ranks = [
            json.loads((Path(folder) / f"{rank}.json").read_text())
            for rank in range(args.processes)
        ]
    results = [bench.join_ranks(measured) for measured in zip(*ranks, strict=True)]
    if args.json:
        about = bench.describe() | {"command": " ".join(["smddp-jax", *sys.argv[1:]])}
        Path(args.json).write_text(bench.as_json(results, about))
    if args.markdown:
        Path(args.markdown).write_text(bench.as_markdown(results, bench.cores()))
    print(_headline(args, results[0]))
    print(bench.as_text(results, bench.cores()), end="")
    return 1 if any(result.wrong for result in results) else 0


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
            iterations=args.in_flight
            or args.iterations
            or bench.default_iterations(size),
            warmup=args.warmup,
            leaves=leaves,
            busy=args.busy,
        )
        for form in (forms if plain else ("argument",))
        for size in (args.sizes if args.sizes and kind != "tree" else _sizes(default))
    ]


def _headline(args: argparse.Namespace, result: bench.Result) -> str:
    peer = "XLA's rendezvous" if result.processes == 1 else "XLA's Gloo"
    sides = {"xla": f"ours and {peer} in turns", "none": "ours", "only": peer}
    return (
        f"# smddp-jax bench: {result.processes} processes, {result.ranks} devices, "
        f"{sides[args.peer]}, medians; allocator: {args.allocator}"
    )


def _sizes(text: str) -> list[int]:
    try:
        return [bench.parse_size(size) for size in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
