# SPDX-License-Identifier: Apache-2.0
"""Sums with results in flight until it is told to stop, and judges every result.

Arguments: floats per device, results in flight, a file whose existence ends the job. A
rank writes `right K` or `WRONG K` for step K, `RAISED <time> <message>` for the first
error, and in the end what became of every step that it launched. A right sum has the
stages' bits: of a process's devices, then of a host's processes, then of the hosts.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from member import join, say, say_raised

rank, size = join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from smddp_jax import _native  # noqa: E402

floats, depth, end = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
devices = jax.devices()
mesh = Mesh(np.array(devices), ("i",))
f = jax.jit(
    jax.shard_map(
        lambda v, factor, over: (lax.psum(v * factor, "i"), lax.psum(over, "i")),
        mesh=mesh,
        in_specs=(P("i"), P(), P("i")),
        out_specs=(P("i"), P("i")),
    )
)


def row(device: int) -> np.ndarray:
    return np.random.default_rng(device).standard_normal((1, floats), np.float32)


def rows(of: Callable[[int], np.ndarray]) -> jax.Array:
    def at(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return of(index[0].start or 0)

    shape = (len(devices), *of(0).shape[1:])
    return jax.make_array_from_callback(shape, NamedSharding(mesh, P("i")), at)


def add(parts: list[np.ndarray], per: int) -> list[np.ndarray]:
    return [
        functools.reduce(np.add, group)
        for group in (parts[i : i + per] for i in range(0, len(parts), per))
    ]


@functools.cache
def wanted(factor: int) -> np.ndarray:
    parts = [row(d) * np.float32(factor) for d in range(len(devices))]
    parts = add(parts, len(devices) // size)
    parts = add(parts, int(os.environ["SMDDP_LOCAL_SIZE"]))
    return add(parts, len(parts))[0]


def launch(step: int) -> tuple[jax.Array, jax.Array]:
    over = np.full((1, 1), float(rank == 0 and end.exists()), np.float32)
    return f(value, np.float32(1 + step % 3), rows(lambda device: over))


value = rows(row)
flying: collections.deque[tuple[int, tuple[jax.Array, jax.Array]]] = collections.deque()
count = collections.Counter()
first: Exception | None = None


def failed(error: Exception) -> None:
    global first
    if "smddp_jax" not in str(error):
        raise error
    count["errors"] += 1
    if first is None:
        first = error
        say_raised(error)


def judge() -> bool:
    """Of the oldest result; returns whether it says that the job is over."""
    step, (sums, over) = flying.popleft()
    try:
        got = [np.asarray(shard.data) for shard in sums.addressable_shards]
        ended = float(np.asarray(over.addressable_shards[0].data).item()) > 0
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        failed(error)
        return True
    same = all((g.view("u4") == wanted(1 + step % 3).view("u4")).all() for g in got)
    count["right" if same else "wrong"] += 1
    say(f"{'right' if same else 'WRONG'} {step}")
    return ended


for step in itertools.count():
    count["launched"] += 1
    try:
        flying.append((step, launch(step)))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        failed(error)
        break
    if len(flying) > depth and judge():
        break
while flying:
    judge()
say(f"ENDED {dict(count)}")
say(f"STATS {_native.load().stats()}")
if first is not None:
    raise first
say("DONE")
