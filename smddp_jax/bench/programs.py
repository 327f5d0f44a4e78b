# SPDX-License-Identifier: Apache-2.0
"""The programs that are timed, for one side or the other.

Both sides run the same function; which all-reduce is in it is decided while it is
lowered, and looked up in the lowered text, so that no figure has the wrong name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from smddp_jax import collectives
from smddp_jax._errors import EngineUnavailableError
from smddp_jax.bench.clock import Program
from smddp_jax.collectives.numbering import TARGETS

AXIS = "i"
OURS, PEER, COMPUTE = "ours", "peer", "compute"
EVERY, ALIKE = PartitionSpec(AXIS), PartitionSpec()

_STOCK = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}
_OWN = {"sum": collectives.psum, "max": collectives.pmax, "min": collectives.pmin}


def reduction(side: str, op: str, fused: bool = False) -> Callable[[Any], Any]:
    """Reduces a tree over the axis: JAX's own function, or our fused one for ours."""
    table = _OWN if fused and side == OURS else _STOCK
    return lambda tree: table[op](tree, AXIS)


def make_program(
    side: str,
    step: Callable[..., Any],
    mesh: Mesh,
    arguments: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
) -> Program:
    """`step` over the mesh as the side would run it, with its arguments.

    Raises:
      EngineUnavailableError: it would run the other side's all-reduce.
    """
    mapped = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    )
    mode = collectives.lowering if side == OURS else contextlib.nullcontext
    with mode():
        lowered = mapped.lower(*arguments).as_text()
    if side != COMPUTE and (TARGETS["sum"] in lowered) != (side == OURS):
        raise EngineUnavailableError(
            f"the benchmark's program for {side!r} does not run the all-reduce that it "
            f"is to measure:\n{collectives.explain(mapped, *arguments)}"
        )
    return Program(lambda: mapped(*arguments), mode)
