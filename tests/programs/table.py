# SPDX-License-Identifier: Apache-2.0
"""Runs the table of cases of one layout on every rank and writes one line for each.

All ranks run the same cases in the same order. A case that fails on one rank only would
leave the others waiting, so a rank that fails says so and goes on: the deadline of the
collective ends the wait.
"""

from __future__ import annotations

import sys
import time
import traceback

from member import join, say

rank, size = join()

import jax  # noqa: E402
from cases import selection  # noqa: E402
from world import World  # noqa: E402

for case, how in selection(sys.argv[1]):
    name = f"{case.name}-{how}"
    start = time.monotonic()
    try:
        case.run(World(how, jax.devices()))
        say(f"PASS {name} {time.monotonic() - start:.2f}")
    except BaseException:
        traceback.print_exc()
        say(f"FAIL {name}")
say("TABLE DONE")
