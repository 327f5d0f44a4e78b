# SPDX-License-Identifier: Apache-2.0
"""`jax.value_and_grad` that reduces gradients while the backward pass still runs.

The loss is traced once and played again with the weights of each bucket passing, where
the first of them is used, through an identity whose derivative is the reduction. The
backward pass walks that program from its end, so the reduction stands right behind what
makes the last gradient of the bucket. There it only starts; all of them end behind the
last gradient. So nothing that XLA has yet to compute waits for one. Nor is the memory
of one given to what it has yet to compute, which would make that wait, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from smddp_jax.collectives import Started
from smddp_jax.collectives.start import done
from smddp_jax.optim.reduction import (
    BUCKET_BYTES,
    AxisName,
    Op,
    Reduction,
    as_varying,
    has_ordered_dict,
    natural,
    pending_axes,
)

Reducer = Callable[[Sequence[Any]], list[Any]]


def value_and_grad(
    loss: Callable[..., Any],
    axis_name: AxisName,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: Op = "mean",
    wire_dtype: Any = None,
    bucket_bytes: int = BUCKET_BYTES,
    pre_divide: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Like `jax.value_and_grad`, with the gradient averaged over a mapped axis.

    Weights are put into buckets in the order in which the loss uses them, and each
    bucket is reduced by one call as soon as the backward pass has made the last of its
    gradients, while the rest of that pass still runs. It works in `jax.shard_map`, type
    checked or not, and in `pmap`; give replicated weights as they come. Both the local
    gradients and the reduced ones are in memory until that pass ends.

    The value and the auxiliary data are this device's own: `pmean` what you report.

    Args:
      loss: this device's own loss, not averaged over the axis: a mean over its part of
        the batch, or `global_mean_loss`.
      axis_name: the name of the axis, or several names.
      argnums: as in `jax.value_and_grad`.
      has_aux: as in `jax.value_and_grad`; the auxiliary data are arrays.
      op: "mean" or "sum" over the devices.
      wire_dtype: as in `all_reduce_gradients`.
      bucket_bytes: about how many bytes of gradients one call reduces.
      pre_divide: as in `all_reduce_gradients`.
      allow_int: as in `jax.value_and_grad`.

    Returns:
      A function of `loss`'s arguments that returns `(value, gradient)`, or
      `((value, aux), gradient)` with `has_aux`.

    Raises:
      ValueError: types are checked, and the loss is reduced over the axis already.
    """
    reduction = Reduction(axis_name, op, wire_dtype, pre_divide, bucket_bytes)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def reduced(*args: Any, **kwargs: Any) -> Any:
        under_way: list[_UnderWay] = []

        def bucketed(*args: Any, **kwargs: Any) -> Any:
            def of_weights(weights: tuple[Any, ...]) -> Any:
                every = list(args)
                for n, value in zip(numbers, weights, strict=True):
                    every[n] = value
                return loss(*every, **kwargs)

            weights = tuple(args[n] for n in numbers)
            return _run_in_buckets(of_weights, weights, reduction, under_way)

        both = jax.value_and_grad(bucketed, argnums, has_aux, allow_int=allow_int)
        value, gradients = both(*args, **kwargs)
        return value, _ended(gradients, reduction, under_way)

    return reduced


@dataclass(frozen=True)
class _UnderWay:
    """The reduction of one bucket.

    Attributes:
      positions: its weights, among the leaves of all.
      gradients: the local ones.
      axes: over which each weight varies: its gradient's type must say the same.
      started: the sum.
    """

    positions: Sequence[int]
    gradients: Sequence[Any]
    axes: Sequence[Any]
    started: Started


def _ended(gradients: Any, reduction: Reduction, under_way: Sequence[_UnderWay]) -> Any:
    """The gradients, once those that were still being reduced have arrived."""
    if not under_way:
        return gradients
    leaves, tree = jax.tree.flatten(gradients)
    # XLA must not wait for any sum while there is something left to compute.
    sums = done([each.started for each in under_way], behind=under_way[-1].gradients)
    for each, arrived in zip(under_way, sums, strict=True):
        values = map(as_varying, reduction.end(arrived), each.axes)
        for n, value in zip(each.positions, values, strict=True):
            leaves[n] = value
    return jax.tree.unflatten(tree, leaves)


def _run_in_buckets(
    loss: Callable[[Any], Any],
    weights: Any,
    reduction: Reduction,
    under_way: list[_UnderWay],
) -> Any:
    """`loss(weights)`, whose backward pass starts to reduce the gradients, or does it.

    What it only starts it adds to `under_way`.
    """
    named, tree = jax.tree_util.tree_flatten_with_path(weights)
    own = as_varying([leaf for _, leaf in named], reduction.axis_name)
    shape = None

    def flat(leaves: Sequence[Any]) -> list[Any]:
        nonlocal shape
        results, shape = jax.tree.flatten(loss(jax.tree.unflatten(tree, leaves)))
        return results

    traced = jax.make_jaxpr(flat)(own)
    order = [n for n in _uses(traced.jaxpr) if _has_gradient(own[n])][::-1]
    inputs: list[Any] = list(own)

    def put(positions: Sequence[int], reduce: Reducer) -> None:
        given = [named[n][1] for n in positions]
        bucket = _Bucket(given, reduction.axis_name, reduce)
        for place, n in enumerate(positions):
            inputs[n] = _Weight(bucket, place)

    def start(positions: Sequence[int], gradients: Sequence[Any]) -> list[Any]:
        axes = [pending_axes(named[n][1], reduction.axis_name) for n in positions]
        started = reduction.start(gradients)
        under_way.append(_UnderWay(positions, gradients, axes, started))
        return jax.tree.leaves(started)  # Not seen by anybody: see _ended.

    if has_ordered_dict(weights):
        order.sort(key=lambda n: natural(named[n][0]))
        put(order, functools.partial(reduction.reduce_all, in_order=True))
    else:
        for members in reduction.buckets([own[n] for n in order]):
            positions = [order[n] for n in members]
            put(positions, functools.partial(start, positions))
    results = _play(traced.jaxpr, traced.consts, inputs)
    _check_local(results[0], reduction.axis_name)
    assert shape is not None
    return jax.tree.unflatten(shape, results)


def _has_gradient(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def _check_local(value: Any, axis_name: AxisName) -> None:
    if pending_axes(value, axis_name):
        return
    raise ValueError(
        f"the loss is the same on every device of axis {axis_name!r}: return this "
        "device's own loss, without pmean or psum, and average what you report"
    )


class _Bucket:
    """Weights whose gradients are reduced together."""

    def __init__(self, weights: Sequence[Any], axis_name: AxisName, reduce: Reducer):
        self._weights = weights
        self._axis_name = axis_name
        self._reduce = reduce

    @functools.cached_property
    def values(self) -> Sequence[Any]:
        """The weights as the loss sees them, whose gradients are the devices' own."""
        axes = [pending_axes(weight, self._axis_name) for weight in self._weights]

        @jax.custom_vjp
        def own(weights: Sequence[Any]) -> Sequence[Any]:
            return as_varying(weights, self._axis_name)

        def forward(weights: Sequence[Any]) -> tuple[Any, None]:
            return own(weights), None

        def backward(_: None, gradients: Sequence[Any]) -> tuple[Sequence[Any]]:
            reduced = self._reduce(gradients)
            # A weight that varies must get a gradient whose type says the same.
            return (list(map(as_varying, reduced, axes)),)

        own.defvjp(forward, backward)
        return own(list(self._weights))


@dataclass(frozen=True)
class _Weight:
    """One weight of a bucket, until the loss uses it."""

    bucket: _Bucket
    place: int


def _uses(jaxpr: core.Jaxpr) -> list[int]:
    """The inputs that a program uses, in the order in which it first does."""
    place = {variable: n for n, variable in enumerate(jaxpr.invars)}
    found: dict[int, None] = {}

    def use(atom: Any) -> None:
        if isinstance(atom, core.Var) and atom in place:
            found.setdefault(place[atom])

    for eqn in jaxpr.eqns:
        inner = _jitted(eqn)
        for n in range(len(eqn.invars)) if inner is None else _uses(inner.jaxpr):
            use(eqn.invars[n])
    for atom in jaxpr.outvars:
        use(atom)
    return list(found)


def _jitted(eqn: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """The program that an equation calls by `jax.jit`, if it does."""
    return eqn.params["jaxpr"] if eqn.primitive.name in ("jit", "pjit") else None


def _play(jaxpr: core.Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Runs a program of which some inputs are a `_Weight`."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def find(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    def use(atom: Any) -> Any:
        value = find(atom)
        return value.bucket.values[value.place] if isinstance(value, _Weight) else value

    for eqn in jaxpr.eqns:
        given = list(map(find, eqn.invars))
        buckets = {value.bucket for value in given if isinstance(value, _Weight)}
        inner = _jitted(eqn)
        if inner is not None and len(buckets) > 1:
            results = _play(inner.jaxpr, inner.consts, given)
        else:
            results = _apply(jaxpr, eqn, list(map(use, eqn.invars)))
        values.update(zip(eqn.outvars, results, strict=True))
    return list(map(use, jaxpr.outvars))


def _apply(jaxpr: core.Jaxpr, eqn: core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Runs one equation of a program."""
    given = {
        atom: value
        for atom, value in zip(eqn.invars, operands, strict=True)
        if isinstance(atom, core.Var)
    }
    alone = jaxpr.replace(
        constvars=[], invars=list(given), outvars=eqn.outvars, eqns=[eqn]
    )
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, []))(*given.values())
