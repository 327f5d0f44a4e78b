# SPDX-License-Identifier: Apache-2.0
"""Programs in which an all-reduce and compute that does not need it run side by side.

The compute is a chain of loops, each on one core and in cache, so that what it takes
from the all-reduce is a core and nothing else. Chained loops are as many thunks, and
XLA's CPU executor runs thunks out of order only in programs of eight or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from smddp_jax.bench.clock import Program, in_turns
from smddp_jax.bench.data import place_rows
from smddp_jax.bench.programs import (
    ALIKE,
    COMPUTE,
    EVERY,
    OURS,
    PEER,
    make_program,
    reduction,
)

_LINKS = 12
_WIDTH = 4096
_PROBE_TRIPS = 200


def alone(side: str) -> str:
    """The name under which a side's all-reduce by itself is measured."""
    return f"{side}_alone"


def programs(
    mesh: Mesh, x: jax.Array, sides: Sequence[str], op: str, busy: int
) -> dict[str, Program]:
    """Compute alone, each side's all-reduce alone, and each side's both in one program.

    The compute is sized on this process so that it takes the time of the all-reduce of
    ours (of the peer if it is alone), on `busy` of the job's devices.
    """
    found: dict[str, Program] = {
        alone(side): make_program(side, reduction(side, op), mesh, (x,), EVERY, ALIKE)
        for side in sides
    }
    reference = alone(OURS if OURS in sides else PEER)
    goal = _median(found[reference], 5)
    probe = _trips_of(mesh, busy, _PROBE_TRIPS)
    seed = _seed(mesh)
    per_trip = _median(_chain_program(mesh, seed, probe), 5) / _PROBE_TRIPS
    # A process without a busy device finds next to no time, and gives no trips anyway.
    trips = _trips_of(mesh, busy, max(1, round(goal / max(per_trip, 1e-7))))
    found[COMPUTE] = _chain_program(mesh, seed, trips)
    for side in sides:
        reduce = reduction(side, op)

        def both(x: Any, seed: Any, trips: Any, reduce: Any = reduce) -> Any:
            return reduce(x), _chain(seed, trips)

        found[side] = make_program(
            side,
            both,
            mesh,
            (x, seed, trips),
            (EVERY, EVERY, EVERY),
            (ALIKE, EVERY),
        )
    return found


def _chain(seed: Any, trips: Any) -> Any:
    def link(_: Any, y: Any) -> Any:
        return jnp.sin(y) * 0.75 + y * 0.25

    for _ in range(_LINKS):
        seed = lax.fori_loop(0, trips[0, 0], link, seed)
    return seed


def _chain_program(mesh: Mesh, seed: jax.Array, trips: jax.Array) -> Program:
    return make_program(COMPUTE, _chain, mesh, (seed, trips), (EVERY, EVERY), EVERY)


def _seed(mesh: Mesh) -> jax.Array:
    row = np.linspace(0, 1, _WIDTH, dtype=np.float32)
    return place_rows(mesh, row.shape, lambda rank: row)


def _trips_of(mesh: Mesh, busy: int, trips: int) -> jax.Array:
    return place_rows(
        mesh, (1,), lambda rank: np.array([trips if rank < busy else 0], np.int32)
    )


def _median(program: Program, iterations: int) -> float:
    samples, _ = in_turns({"": program}, iterations, warmup=1)
    return float(np.median(samples[""]["seconds"]))
