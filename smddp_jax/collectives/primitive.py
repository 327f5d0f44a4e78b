# SPDX-License-Identifier: Apache-2.0
"""Our own primitives: one of JAX's reductions over many arrays at once.

Each of them follows one stock primitive, array by array, in its types, effects, errors,
batching and derivatives, and differs in its lowering: one custom call per dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from smddp_jax import _jax_compat
from smddp_jax.collectives.calls import Collective, lower_reduction
from smddp_jax.collectives.lowering import own_primitives

Transpose = Callable[..., Sequence[Any]]


def _define(
    stock_name: str, transpose: Transpose | None, *, starts: bool = False
) -> Primitive:
    """With `starts`, the sums are to be ended by `start.done_p`."""
    stock, op = _jax_compat.stock_collectives()[stock_name]
    primitive = Primitive(f"smddp_{stock_name}{'_start' * starts}")
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(_jax_compat.apply_primitive, primitive))

    @primitive.def_effectful_abstract_eval
    def types(*avals: Any, **params: Any) -> Any:
        known = _stock_params(params)
        typed = [stock.abstract_eval(aval, **known) for aval in avals]
        effects = set().union(*(effects for _, effects in typed))
        return [aval for aval, _ in typed], effects

    batching.fancy_primitive_batchers[primitive] = functools.partial(
        _batch, primitive, stock
    )
    pe.dce_rules[primitive] = _drop_unused
    if transpose is not None:
        ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive)
        ad.primitive_transposes[primitive] = functools.partial(_transpose, transpose)
    mlir.register_lowering(
        primitive, functools.partial(_lower, stock, op, starts), cacheable=False
    )
    own_primitives.add(primitive)
    return primitive


def _stock_params(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name != "wire"}


def _batch(
    primitive: Primitive,
    stock: Any,
    axis_data: Any,
    values: Any,
    dims: Any,
    **params: Any,
) -> tuple[Any, Any]:
    """Reduces over a vmapped axis as stock does, then over the rest at once."""
    axes = params["axes"]
    if axis_data.name not in axes:
        return primitive.bind(*values, **params), dims
    local = {**_stock_params(params), "axes": (axis_data.name,)}
    rule = batching.fancy_primitive_batchers[stock]
    reduced = [
        rule(axis_data, (value,), (dim,), **local)
        for value, dim in zip(values, dims, strict=True)
    ]
    values, dims = [value for value, _ in reduced], [dim for _, dim in reduced]
    rest = tuple(axis for axis in axes if axis != axis_data.name)
    if rest:
        values = primitive.bind(*values, **{**params, "axes": rest})
    return values, dims


def _drop_unused(used: list[bool], *rest: Any) -> tuple[list[bool], Any]:
    eqn = rest[-1]  # jax 0.11 put an argument in front of it
    if not any(used):
        return used, None
    keep = [n for n, wanted in enumerate(used) if wanted]
    return used, eqn.replace(
        invars=[eqn.invars[n] for n in keep], outvars=[eqn.outvars[n] for n in keep]
    )


def _jvp(primitive: Primitive, primals: Any, tangents: Any, **params: Any) -> Any:
    """Linear, leaf by leaf: what is zero takes no part."""
    outs = primitive.bind(*primals, **params)
    tangents_out = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    live = [n for n, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if live:
        moved = primitive.bind(*(tangents[n] for n in live), **params)
        for n, tangent in zip(live, moved, strict=True):
            tangents_out[n] = tangent
    return outs, tangents_out


def _transpose(
    transpose: Transpose, cotangents: Any, *args: Any, **params: Any
) -> list[Any]:
    result: list[Any] = [
        ad.Zero(arg.aval.to_ct_aval()) if ad.is_undefined_primal(arg) else None
        for arg in args
    ]
    live = [
        n
        for n, cotangent in enumerate(cotangents)
        if type(cotangent) is not ad.Zero and result[n] is not None
    ]
    if live:
        moved = transpose(*(cotangents[n] for n in live), **params)
        for n, cotangent in zip(live, moved, strict=True):
            result[n] = cotangent
    return result


def _lower_stock(stock: Any, ctx: Any, *args: Any, **params: Any) -> list[Any]:
    known = _stock_params(params)
    return [
        _jax_compat.lower_stock(ctx, stock, aval, out, arg, known)
        for aval, out, arg in zip(ctx.avals_in, ctx.avals_out, args, strict=True)
    ]


def _lower(
    stock: Any, op: str, starts: bool, ctx: Any, *args: Any, **params: Any
) -> list[Any]:
    """One call per dtype, in the order in which the dtypes appear."""
    results: list[Any] = [None] * len(args)
    by_dtype: dict[Any, list[int]] = {}
    for n, aval in enumerate(ctx.avals_in):
        by_dtype.setdefault(aval.dtype, []).append(n)
    groups, wire = params.get("axis_index_groups"), params.get("wire")
    collective = Collective(op, params["axes"], groups, wire, True, starts)
    for members in by_dtype.values():
        reduced = lower_reduction(
            ctx,
            collective,
            [args[n] for n in members],
            [ctx.avals_out[n] for n in members],
        )
        if reduced is None:
            inner = ctx.replace(
                avals_in=[ctx.avals_in[n] for n in members],
                avals_out=[ctx.avals_out[n] for n in members],
            )
            reduced = _lower_stock(stock, inner, *(args[n] for n in members), **params)
        for n, value in zip(members, reduced, strict=True):
            results[n] = value
    return results


def _sum_again(*cotangents: Any, **params: Any) -> Sequence[Any]:
    return psum_p.bind(*cotangents, **params)


def _vary(*cotangents: Any, axes: tuple[Any, ...], wire: Any) -> Sequence[Any]:
    del wire  # Nothing is sent.
    return [jax.lax.pcast(cotangent, axes, to="varying") for cotangent in cotangents]


psum_p = _define("psum", _sum_again)
psum_invariant_p = _define("psum_invariant", _vary)
psum_start_p = _define("psum", _sum_again, starts=True)
psum_start_invariant_p = _define("psum_invariant", _vary, starts=True)
pmax_p = _define("pmax", None)
pmin_p = _define("pmin", None)
