# SPDX-License-Identifier: Apache-2.0
"""Our own primitives that scatter a sum and gather blocks, one array at a time.

Each follows a stock primitive in its types, effects and errors, is the other's
transpose, and differs in its lowering. Both have the same parameters: `dimension`,
`axis_name`, `axis_index_groups`, `axis_size` and `tiled` as in JAX, and `wire`, which
is for the one of them that sums.
"""

from __future__ import annotations

import functools
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from smddp_jax import _jax_compat
from smddp_jax.collectives.calls import Collective, lower_blocks
from smddp_jax.collectives.lowering import DIMENSIONS, own_primitives


def _define(stock_name: str) -> Primitive:
    stock, op = _jax_compat.stock_collectives()[stock_name]
    primitive = Primitive(f"smddp_{stock_name}")
    primitive.def_impl(functools.partial(_jax_compat.apply_primitive, primitive))

    @primitive.def_effectful_abstract_eval
    def types(aval: Any, **params: Any) -> Any:
        return stock.abstract_eval(aval, **_stock_params(op, params))

    batching.fancy_primitive_batchers[primitive] = functools.partial(
        _batch, primitive, stock, op
    )
    mlir.register_lowering(
        primitive, functools.partial(_lower, stock, op), cacheable=False
    )
    own_primitives.add(primitive)
    return primitive


def _stock_params(op: str, params: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in params.items() if name != "wire"}
    known[DIMENSIONS[op]] = known.pop("dimension")
    return known


def _batch(
    primitive: Primitive,
    stock: Any,
    op: str,
    axis_data: Any,
    values: Any,
    dims: Any,
    **params: Any,
) -> tuple[Any, Any]:
    """Over a vmapped axis as stock does it; else the batch is one more dimension."""
    if axis_data.name in params["axis_name"]:
        rule = batching.fancy_primitive_batchers[stock]
        return rule(axis_data, values, dims, **_stock_params(op, params))
    (value,), (dim,) = values, dims
    if dim is not None and dim <= params["dimension"]:
        params["dimension"] += 1
    elif dim is not None and not params["tiled"]:
        dim += 1 if op == "gather" else -1
    return primitive.bind(value, **params), dim


def _lower(stock: Any, op: str, ctx: Any, arg: Any, **params: Any) -> list[Any]:
    collective = Collective(
        op,
        params["axis_name"],
        params["axis_index_groups"],
        params["wire"],
        explicit=True,
    )
    moved = lower_blocks(
        ctx, collective, arg, params["dimension"], tiled=params["tiled"]
    )
    if moved is not None:
        return moved
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    known = _stock_params(op, params)
    return [_jax_compat.lower_stock(ctx, stock, aval, out, arg, known)]


def _transpose_to(other: Primitive, cotangent: Any, _: Any, **params: Any) -> list[Any]:
    return [other.bind(cotangent, **params)]


reduce_scatter_p = _define("reduce_scatter")
all_gather_p = _define("all_gather")
ad.deflinear2(reduce_scatter_p, functools.partial(_transpose_to, all_gather_p))
ad.deflinear2(all_gather_p, functools.partial(_transpose_to, reduce_scatter_p))
