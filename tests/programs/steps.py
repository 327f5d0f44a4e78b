# SPDX-License-Identifier: Apache-2.0
"""A job that reduces step after step, and goes wrong in the way that it is told to.

Arguments: a scenario, how many steps, how many floats each device gives. A rank writes
`step K` after each step, and `RAISED <time> <message>` if a collective fails; it then
ends as Python programs do, with a traceback.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from member import join, say, say_raised

rank, size = join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

scenario, steps, floats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
last = size - 1

devices = jax.devices()
mesh = Mesh(np.array(devices), ("i",))
total = len(devices) * (len(devices) + 1) / 2


def rows(shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Row k is full of k + 1."""

    def row(index) -> np.ndarray:
        return np.full((1, *shape), (index[0].start or 0) + 1, dtype)

    sharding = NamedSharding(mesh, P("i"))
    return jax.make_array_from_callback((len(devices), *shape), sharding, row)


def reduction(reduce=lax.psum, **options):
    return jax.jit(
        jax.shard_map(
            lambda v: reduce(v, "i", **options),
            mesh=mesh,
            in_specs=P("i"),
            out_specs=P("i"),
            check_vma=False,
        )
    )


usual, value = reduction(), rows((floats,), "float32")


def usual_step() -> None:
    got = usual(value).addressable_shards[0].data
    assert (np.asarray(got) == total).all(), got


def odd_step() -> None:
    """The last rank's fifth step in the scenarios of things that do not match."""
    given, f = value, usual
    if scenario == "shape":
        given = rows((floats - 2,), "float32")
    elif scenario == "dtype":
        given = rows((floats,), "int32")
    elif scenario == "op":
        f = reduction(lax.pmax)
    elif scenario == "group":
        order = list(range(len(devices)))
        f = reduction(axis_index_groups=[order[::2], order[1::2]])
    f(given).block_until_ready()


def run() -> None:
    for k in range(steps):
        if scenario == "raises" and rank == last and k == 5:
            raise ValueError("this rank has had enough")
        if scenario == "leaves" and rank == 0 and k == 5:
            say("left")
            return
        sleeps = {"absent": 0, "sleeps": 5}.get(scenario) == k
        if sleeps and rank == last:
            say("sleeping")
            time.sleep(600)
        odd = scenario in ("shape", "dtype", "op", "group") and rank == last and k == 5
        if scenario != "forever" or k < 6:
            say(f"begin {k}")
        (odd_step if odd else usual_step)()
        if scenario != "forever" or k < 6:
            say(f"step {k}")
        if scenario == "forks" and k == 9:
            fork()


def fork() -> None:
    """What data loaders do: a bare fork, and workers of the multiprocessing module."""
    child = os.fork()
    if child == 0:
        assert np.arange(1000).sum() == 499500
        os._exit(0)
    _, status = os.waitpid(child, 0)
    say(f"child ended with {status}")
    worker = multiprocessing.get_context("fork").Process(target=np.arange, args=(1000,))
    worker.start()
    worker.join(20)
    say(f"child ended with {worker.exitcode}")


if scenario == "uneven":
    steps += rank == 0
try:
    run()
except (jax.errors.JaxRuntimeError, ValueError) as error:
    # A process with one device runs its programs in the calling thread, and there JAX
    # raises ValueError for the same error.
    if "smddp_jax" not in str(error):
        raise
    say_raised(error)
    raise
say("DONE")
