# SPDX-License-Identifier: Apache-2.0
"""How each program of the tests becomes a member of its job.

`SMDDP_TEST_STOCK=1` runs the same programs on JAX's own collectives: the values that
the tests expect are JAX's.
"""

from __future__ import annotations

import os
import time

import jax

STOCK = os.environ.get("SMDDP_TEST_STOCK") == "1"


def join(install: bool = True) -> tuple[int, int]:
    """Joins the job that the environment names, if any; returns rank and size."""
    if STOCK:
        rank = int(os.environ.get("SMDDP_RANK", "0"))
        size = int(os.environ.get("SMDDP_SIZE", "1"))
        if size > 1:
            jax.distributed.initialize(os.environ["SMDDP_COORDINATOR"], size, rank)
        return rank, size

    import smddp_jax

    smddp_jax.init()
    if install:
        smddp_jax.install()
    return smddp_jax.rank(), smddp_jax.size()


def say(text: str) -> None:
    """One line, at once, in one piece (the harness reads it while the job runs)."""
    os.write(1, f"{text}\n".encode())


def say_raised(error: Exception) -> None:
    """Says what was raised, and when, as `failing.py` reads it."""
    say(f"RAISED {time.monotonic()} {' '.join(str(error).split())}")
