# SPDX-License-Identifier: Apache-2.0
"""What of a step's communication stays exposed, with and without gradient buckets.

Prints Markdown. The step is the gradient of a network of 24 dense layers; exposed is
what the step takes longer with its gradients reduced than without. Two ranks on one
host, on two hosts, and on two hosts at 1 and 2 Gbit/s: network namespaces, which need
root, and each with its share of the cores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding

import smddp_jax
from smddp_jax import optim
from smddp_jax.bench.clock import Program, in_turns
from smddp_jax.bench.data import place_rows
from smddp_jax.bench.programs import ALIKE, AXIS, EVERY
from smddp_jax.launch import Host, Job, run_job
from smddp_jax.launch.namespaces import Namespaces, problem

LAYERS, WIDTH, BATCH = 24, 512, 1024
MIB = 1 << 20
BUCKETS = (MIB, 4 * MIB, 8 * MIB)
ITERATIONS, WARMUP = 15, 2
ALONE, REDUCTION = "not reduced", "(the reduction alone, ours)"
STOCK, ONE = "stock JAX, lax.pmean", "one bucket"


@dataclass(frozen=True)
class Place:
    """Where two ranks run: hosts of their own if `hosts`, their links limited."""

    title: str
    hosts: int = 0
    rate: str | None = None


PLACES = (
    Place("one host"),
    Place("two hosts, links as they are", 2),
    Place("two hosts at 2 Gbit/s", 2, "2gbit"),
    Place("two hosts at 1 Gbit/s", 2, "1gbit"),
)


def study(places: Sequence[Place] = PLACES) -> str:
    """A table: a row for each place and each way to reduce."""
    size = LAYERS * WIDTH * WIDTH * 4 / MIB
    lines = [
        f"`python benchmarks/buckets.py`: {LAYERS} layers of {WIDTH} x {WIDTH}, "
        f"{size:.0f} MiB of float32 gradients, {BATCH} rows per rank, 2 ranks of one "
        f"device, each host with its share of {os.cpu_count()} cores; medians of "
        f"{ITERATIONS} steps in turns, quartiles.\n",
        "| where | gradients | step ms | q1-q3 | exposed ms |",
        "|---|---|---|---|---|",
    ]
    for place in places:
        reason = problem() if place.hosts else None
        if reason is None:
            lines += _rows(place, _measure(place))
        else:
            lines.append(f"| {place.title} | not measured: {reason} | | | |")
    return "\n".join(lines) + "\n"


def _rows(place: Place, seconds: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    alone = np.median(seconds[ALONE])
    rows = []
    for name, samples in seconds.items():
        first, median, third = np.percentile(samples, (25, 50, 75)) * 1e3
        compared = name not in (ALONE, REDUCTION)
        exposed = f"{median - alone * 1e3:.0f}" if compared else ""
        spread = f"{first:.0f}-{third:.0f}"
        rows.append(f"| {place.title} | {name} | {median:.0f} | {spread} | {exposed} |")
    return rows


def _measure(place: Place) -> dict[str, np.ndarray[Any, Any]]:
    """Seconds of each step: of the rank that took longest."""
    with tempfile.TemporaryDirectory(prefix="smddp-buckets-") as folder:
        file, hosts = str(Path(__file__).resolve()), str(place.hosts)
        program = ["-P", file, "--rank", folder, hosts]
        job = Job(program=program, processes=2, devices_per_process=1)
        if not place.hosts:
            code = run_job(job)
        else:
            with Namespaces() as cluster:
                cluster.up(place.hosts, place.rate)
                hosts = [
                    Host(cluster.name(n), cluster.address(n), cluster.prefix(n))
                    for n in range(place.hosts)
                ]
                code = run_job(replace(job, hosts=hosts))
        if code:
            raise SystemExit(f"the ranks of {place.title!r} ended with code {code}")
        ranks = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return {name: np.max([rank[name] for rank in ranks], axis=0) for name in ranks[0]}


def run_rank(folder: str, hosts: int) -> None:
    """Times the steps on one rank, together with the other."""
    if hosts:  # Lest one computes on the other's cores, and keeps it waiting.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[int(os.environ["SMDDP_RANK"]) :: hosts] or cores)
    smddp_jax.init()
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    batch = place_rows(mesh, (BATCH, WIDTH), _rows_of)
    weights = jax.jit(_first_weights, out_shardings=NamedSharding(mesh, ALIKE))()
    programs = {}
    for name, gradient in _gradients().items():
        out = EVERY if name == ALONE else ALIKE
        step = jax.shard_map(
            gradient, mesh=mesh, in_specs=(ALIKE, EVERY), out_specs=out
        )
        mode = contextlib.nullcontext if name == STOCK else smddp_jax.lowering
        call = functools.partial(jax.jit(step), weights, batch)
        programs[name] = Program(call, mode)
    samples, last = in_turns(programs, ITERATIONS, WARMUP)
    for name in programs.keys() - {ALONE, REDUCTION, STOCK}:
        _check(last[name], last[STOCK], name)
    seconds = {name: counted["seconds"] for name, counted in samples.items()}
    Path(folder, f"{smddp_jax.rank()}.json").write_text(json.dumps(seconds))


def _gradients() -> dict[str, Callable[[Any, Any], Any]]:
    """The gradient of the mean loss, unreduced and by each way to reduce it."""

    def local(weights: Any, x: Any) -> Any:
        return jax.grad(_loss)(optim.as_varying(weights, AXIS), x)

    def alone(weights: Any, x: Any) -> Any:
        gradients = local(weights, x)
        # One number is reduced, lest a rank runs ahead of the other.
        number = smddp_jax.pmean(gradients[0][0, 0], AXIS)
        return lax.pcast(number[None], AXIS, to="varying"), [g[None] for g in gradients]

    def reduction(weights: Any, x: Any) -> Any:
        return smddp_jax.pmean(optim.as_varying(weights, AXIS), AXIS)

    def stock(weights: Any, x: Any) -> Any:
        return lax.pmean(local(weights, x), AXIS)

    def ours(bucket_bytes: int) -> Callable[[Any, Any], Any]:
        both = optim.value_and_grad(_loss, AXIS, bucket_bytes=bucket_bytes)
        return lambda weights, x: both(weights, x)[1]

    return {
        ALONE: alone,
        REDUCTION: reduction,
        STOCK: stock,
        ONE: ours(1 << 40),
        **{f"buckets of {size // MIB} MiB": ours(size) for size in BUCKETS},
    }


def _loss(weights: Any, x: Any) -> Any:
    x = x[0]
    for layer in weights:
        x = x + 0.1 * jax.nn.relu(x @ layer)
    return (x * x).mean()


def _first_weights() -> Any:
    keys = jax.random.split(jax.random.key(0), LAYERS)
    scale = (2 / WIDTH) ** 0.5
    return [scale * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys]


def _rows_of(rank: int) -> np.ndarray[Any, Any]:
    rows = np.random.default_rng(rank).normal(size=(BATCH, WIDTH))
    return rows.astype(np.float32)


def _check(got: Any, want: Any, name: str) -> None:
    for one, other in zip(jax.device_get(got), jax.device_get(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6, err_msg=name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2], int(sys.argv[3]))
    else:
        print(study())
