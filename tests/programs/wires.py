# SPDX-License-Identifier: Apache-2.0
"""Sums that are rounded on their way between hosts: are they as close as promised?

With `disagree`, every rank asks for a type of its own instead.
"""

from __future__ import annotations

import functools
import sys

from member import join, say

rank, size = join()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from world import World  # noqa: E402

import smddp_jax  # noqa: E402

UNITS = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}
world = World("unchecked", jax.devices())


def check(rows: np.ndarray, wire: str, asked: str | None) -> float:
    """Returns how much of the promised error psum makes."""
    wide = rows.astype(np.float64)
    exact, size = wide.sum(0), np.abs(wide).sum(0)
    unit, own = UNITS[wire], UNITS.get(rows.dtype.name, 0.0)
    added = 8 * 2.0**-24 * size + own * np.abs(exact)
    bound = added + unit * (size + np.abs(exact)) * (1 + unit)

    sums = functools.partial(smddp_jax.psum, axis_name="i", wire_dtype=asked)
    got = world.each(sums, rows).tree.astype(np.float64)
    assert all((row == got[0]).all() for row in got)
    assert (np.abs(got[0] - exact) <= bound).all()

    if asked is None:
        again = world.each(lambda v: lax.psum(v, "i"), rows).tree
        assert (again.astype(np.float64) == got).all()
    blocks = functools.partial(smddp_jax.psum_scatter, axis_name="i", tiled=True)
    blocks = functools.partial(blocks, wire_dtype=asked)
    scattered = world.each(blocks, rows)
    for row, at in zip(scattered.tree, scattered.mine, strict=True):
        error = np.abs(row.astype(np.float64) - np.split(exact, 8)[at])
        assert (error <= np.split(bound, 8)[at]).all()
    return float((np.abs(got[0] - exact) / bound).max())


def main() -> None:
    default = smddp_jax.cluster.default_wire_dtype() or "float32"
    random = np.random.default_rng(0)
    for count in (8, 1000, 40_000, 300_000):
        rows = random.standard_normal((8, count)).astype(np.float32)
        for asked in (None, "float32", "bf16", "f16"):
            long = {None: default, "bf16": "bfloat16", "f16": "float16"}
            wire = long.get(asked, "float32")
            share = check(rows, wire, asked)
            # Less than a tenth of it would mean that nothing was rounded.
            assert count < 40_000 or share > 0.1, (wire, share)
        check(rows.astype("bfloat16"), "bfloat16", "bf16")
    say("CLOSE")


def disagree() -> None:
    wire = ("bf16", "f16")[rank]
    rows = np.ones((jax.device_count(), 4), np.float32)
    try:
        world.each(lambda v: smddp_jax.psum(v, "i", wire_dtype=wire), rows)
    except jax.errors.JaxRuntimeError as error:
        say(f"REFUSED {error}")


disagree() if sys.argv[1:] == ["disagree"] else main()
