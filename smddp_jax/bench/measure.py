# SPDX-License-Identifier: Apache-2.0
"""Measures one case on this rank. All ranks of the job must do the same at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from smddp_jax import _jax_compat, collectives
from smddp_jax.bench import data, overlap
from smddp_jax.bench.cases import Case
from smddp_jax.bench.clock import Program, in_turns
from smddp_jax.bench.programs import (
    ALIKE,
    AXIS,
    COMPUTE,
    EVERY,
    OURS,
    PEER,
    make_program,
    reduction,
)
from smddp_jax.bench.resnet import resnet50_shapes, split_leaves
from smddp_jax.bench.sockets import connections


def measure(case: Case) -> dict[str, Any]:
    """Runs one case; returns what `summary.join_ranks` takes, fit for JSON."""
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    run: Callable[[Case, Mesh], dict[str, Any]] = {
        "all_reduce": _all_reduce,
        "tree": _tree,
        "overlap": _overlap,
        "in_flight": _in_flight,
    }[case.kind]
    collectives.alias_results(case.alias)
    try:
        measured = run(case, mesh)
    finally:
        collectives.alias_results(False)
    return {
        "case": case.as_dict(),
        "rank": jax.process_index(),
        "processes": jax.process_count(),
        "ranks": mesh.devices.size,
        "platform": mesh.devices.flat[0].platform,
        "connections": connections(without=_jax_compat.coordinator_address()),
        **measured,
    }


def _sides(case: Case) -> list[str]:
    return [side for side, on in ((OURS, case.ours), (PEER, case.peer)) if on]


def _all_reduce(case: Case, mesh: Mesh) -> dict[str, Any]:
    dtype = data.resolve_dtype(case.dtype)
    count = max(1, case.bytes // dtype.itemsize)
    x = data.sharded(mesh, (count,), dtype)
    return _reduce_and_check(case, mesh, [x], [0], fused=False)


def _tree(case: Case, mesh: Mesh) -> dict[str, Any]:
    dtype = data.resolve_dtype(case.dtype)
    shapes = split_leaves(resnet50_shapes(), case.leaves)
    offsets = list(range(len(shapes)))
    leaves = [
        data.sharded(mesh, shape, dtype, offset)
        for shape, offset in zip(shapes, offsets, strict=True)
    ]
    return _reduce_and_check(case, mesh, leaves, offsets, fused=True)


def _reduce_and_check(
    case: Case, mesh: Mesh, leaves: list[jax.Array], offsets: list[int], fused: bool
) -> dict[str, Any]:
    dtype = leaves[0].dtype
    # An argument, lest the compiler computes with it; of the dtype's own one.
    one = jax.device_put(np.ones((), dtype), NamedSharding(mesh, ALIKE))

    def prepare(tree: list[Any], scale: Any) -> list[Any]:
        if case.form == "argument":
            return tree
        return [leaf * scale for leaf in tree]

    programs: dict[str, Program] = {}
    for side in _sides(case):
        reduce = reduction(side, case.op, fused)

        def step(tree: list[Any], scale: Any, reduce: Any = reduce) -> Any:
            return reduce(prepare(tree, scale))

        programs[side] = make_program(
            side, step, mesh, (leaves, one), (EVERY, ALIKE), ALIKE
        )
    if case.form == "intermediate":
        programs[COMPUTE] = make_program(
            COMPUTE, prepare, mesh, (leaves, one), (EVERY, ALIKE), EVERY
        )

    def wrong(side: str, results: list[jax.Array]) -> int:
        wire_dtype = case.wire_dtype if side == OURS else ""
        return sum(
            data.count_wrong(
                result, mesh.devices.size, dtype, case.op, offset, wire_dtype
            )
            for result, offset in zip(results, offsets, strict=True)
        )

    found = {side: wrong(side, programs[side]()) for side in _sides(case)}
    samples, last = in_turns(programs, case.iterations, case.warmup, case.interface)
    for side in _sides(case):
        found[side] += wrong(side, last[side])
    count = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    return _measured(count, dtype, samples, found)


def _overlap(case: Case, mesh: Mesh) -> dict[str, Any]:
    dtype = data.resolve_dtype(case.dtype)
    x = data.sharded(mesh, (max(1, case.bytes // dtype.itemsize),), dtype)
    programs = overlap.programs(mesh, x, _sides(case), case.op, case.busy)
    samples, last = in_turns(programs, case.iterations, case.warmup)
    wrong = {
        side: data.count_wrong(last[side][0], mesh.devices.size, dtype, case.op)
        for side in _sides(case)
    }
    return _measured(x.shape[1], dtype, samples, wrong)


def _in_flight(case: Case, mesh: Mesh) -> dict[str, Any]:
    """Starts all steps before it waits for the first."""
    dtype = data.resolve_dtype(case.dtype)
    x = data.sharded(mesh, (max(1, case.bytes // dtype.itemsize),), dtype)
    samples: dict[str, Any] = {}
    wrong: dict[str, int] = {}
    for side in _sides(case):
        reduce = reduction(side, case.op)
        one = make_program(side, reduce, mesh, (x,), EVERY, ALIKE)
        one()  # compiles, and brings the engine up

        def all_steps(one: Program = one) -> list[Any]:
            return [one.call() for _ in range(case.iterations)]

        timed, last = in_turns({side: Program(all_steps, one.mode)}, 1, warmup=0)
        samples |= timed
        wrong[side] = sum(
            data.count_wrong(result, mesh.devices.size, dtype, case.op)
            for result in last[side]
        )
    return _measured(x.shape[1], dtype, samples, wrong)


def _measured(
    count: int, dtype: Any, samples: dict[str, Any], wrong: dict[str, int]
) -> dict[str, Any]:
    size = count * dtype.itemsize
    return {"count": count, "size": size, "samples": samples, "wrong": wrong}
