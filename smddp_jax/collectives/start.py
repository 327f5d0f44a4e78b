# SPDX-License-Identifier: Apache-2.0
"""A psum in two halves: what is computed between them overlaps the communication.

The start hands the arrays to the engine and returns; the done waits for the sum. XLA's
buffers stay where they are meanwhile, because the done takes the arguments of the start
and its results, and its own results lie in the latter. `pairs.py` says where.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe
from jax.interpreters.mlir import ir

from smddp_jax import _jax_compat
from smddp_jax.collectives import primitive
from smddp_jax.collectives.numbering import DONE
from smddp_jax.collectives.pairs import started_by
from smddp_jax.collectives.psum import AxisName, reduce_tree
from smddp_jax.collectives.wire import checked_wire


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Started:
    """A sum that `psum_start` has started."""

    _tree: Any

    def done(self) -> Any:
        """The sum, as `psum` would have returned it."""
        return done(self)


def psum_start(x: Any, axis_name: AxisName, *, wire_dtype: Any = None) -> Started:
    """Starts a sum and returns at once; `.done()` of what it returns is the sum.

    What the program computes between the two, and what does not need the sum, overlaps
    the communication. Any number of sums may be under way, and end in any order. Until
    its done, a sum holds both the memory of `x` and of the result; an `x` that is an
    argument of the program, or that is needed otherwise, is copied first.

    It is a sum like every other where XLA runs it, where the done stands elsewhere than
    the start (across the border of a `jax.jit`, a loop or a branch), where the program
    has no done, and where it calls Python (`jax.pure_callback`, `jax.debug.print`) or
    custom calls that we don't know: the result is the same, and nothing overlaps.
    Derivatives are those of `psum`.

    Args:
      x: a pytree of arrays, as for `psum`; all of one dtype are one call.
      axis_name: the name of the axis, or several names.
      wire_dtype: as for `psum`.

    Returns:
      A pytree with a method `done`, which gives the tree with each leaf's sum.

    Raises:
      ValueError: a leaf's sum can't be sent as `wire_dtype`.
    """
    kind = primitive.psum_start_p
    if _jax_compat.checks_varying_axes():
        kind = primitive.psum_start_invariant_p
    wire = checked_wire(wire_dtype, x)
    return Started(reduce_tree(lax.psum, kind, x, axis_name, None, wire=wire))


def done(started: Any, behind: Sequence[Any] = ()) -> Any:
    """The sums of a tree of `Started`, not before the arrays `behind` are computed."""
    leaves, tree = jax.tree.flatten(
        jax.tree.map(
            lambda each: each._tree if isinstance(each, Started) else each,
            started,
            is_leaf=lambda each: isinstance(each, Started),
        )
    )
    # What is no tracer is over: the program that started it has returned.
    live = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    ended = done_p.bind(*(leaves[n] for n in live), *behind, count=len(live))
    for n, value in zip(live, ended, strict=True):
        leaves[n] = value
    return jax.tree.unflatten(tree, leaves)


done_p = Primitive("smddp_psum_done")
done_p.multiple_results = True
done_p.def_impl(functools.partial(_jax_compat.apply_primitive, done_p))


@done_p.def_abstract_eval
def _types(*avals: Any, count: int) -> list[Any]:
    return list(avals[:count])


def _batch(values: Any, dims: Any, *, count: int) -> tuple[Any, Any]:
    return done_p.bind(*values, count=count), dims[:count]


def _drop_unused(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # jax 0.11 put an argument in front of it
    behind = eqn.invars[len(used) :]
    if not any(used):
        return [False] * len(eqn.invars), None
    keep = [n for n, wanted in enumerate(used) if wanted]
    return used + [True] * len(behind), eqn.replace(
        invars=[*(eqn.invars[n] for n in keep), *behind],
        outvars=[eqn.outvars[n] for n in keep],
        params={"count": len(keep)},
    )


def _jvp(primals: Any, tangents: Any, *, count: int) -> tuple[Any, Any]:
    outs = done_p.bind(*primals, count=count)
    moved = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    live = [n for n in range(count) if type(tangents[n]) is not ad.Zero]
    if live:
        ended = done_p.bind(*(tangents[n] for n in live), count=len(live))
        for n, value in zip(live, ended, strict=True):
            moved[n] = value
    return outs, moved


def _transpose(cotangents: Any, *args: Any, count: int) -> list[Any]:
    return [*cotangents, *[None] * (len(args) - count)]


def _lower(ctx: Any, *args: Any, count: int) -> list[Any]:
    """One call for each start whose results all are here; what has no start is over."""
    here: Any = ir.InsertionPoint.current
    types = dict(zip(args, ctx.avals_in, strict=True))
    behind = args[count:]
    ended: dict[Any, Any] = {}
    for value in args[:count]:
        start = started_by(value, here.block)
        if (
            start is None
            or value in ended
            or any(y not in types for y in start.results)
        ):
            continue
        sums = list(start.results)
        operands = [*sums, *start.operands[: len(sums)], *behind]
        avals = [types[each] for each in sums]
        results = _jax_compat.custom_call(
            ctx,
            DONE,
            operands,
            [*avals, *avals, *ctx.avals_in[count:]],
            avals,
            {n: n for n in range(len(sums))},
            {},
        )
        ended.update(zip(sums, results, strict=True))
    return [ended.get(value, value) for value in args[:count]]


ad.primitive_jvps[done_p] = _jvp
ad.primitive_transposes[done_p] = _transpose
batching.primitive_batchers[done_p] = _batch
pe.dce_rules[done_p] = _drop_unused
mlir.register_lowering(done_p, _lower, cacheable=False)
