# SPDX-License-Identifier: Apache-2.0
"""Gradients over the devices of a mapped axis, as an optax transformation."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from smddp_jax import _jax_compat
from smddp_jax.collectives import Started, psum, psum_start

AxisName = Hashable | Sequence[Hashable]
Op = Literal["mean", "sum"]
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Reduction:
    """How the gradients of each device become one for all of them."""

    axis_name: AxisName
    op: Op = "mean"
    wire_dtype: Any = None
    pre_divide: bool = False
    bucket_bytes: int = BUCKET_BYTES

    def __post_init__(self) -> None:
        if self.op not in ("mean", "sum"):
            raise ValueError(f"op is {self.op!r}: give 'mean' or 'sum'")
        if self.pre_divide and self.op == "sum":
            raise ValueError("pre_divide is for op='mean': a sum is not divided")
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is {self.bucket_bytes}: give 1 or more")

    def kind(self, leaf: Any) -> tuple[Any, tuple[Hashable, ...]]:
        """Leaves of one kind share a call: the dtype, and the axes not yet summed."""
        return jnp.result_type(leaf), pending_axes(leaf, self.axis_name)

    def buckets(self, leaves: Sequence[Any]) -> list[list[int]]:
        """Positions of neighbours of one kind, about `bucket_bytes` together."""
        filled: list[list[int]] = []
        open_: dict[Any, tuple[list[int], int]] = {}
        for n, leaf in enumerate(leaves):
            kind, size = self.kind(leaf), leaf.size * leaf.dtype.itemsize
            bucket, used = open_.get(kind, ([], self.bucket_bytes))
            if used + size > self.bucket_bytes:
                bucket, used = [], 0
                filled.append(bucket)
            bucket.append(n)
            open_[kind] = bucket, used + size
        return filled

    def reduce_all(self, leaves: Sequence[Any], in_order: bool) -> list[Any]:
        """Reduces leaves bucket by bucket, one after the other if `in_order`."""
        results, before = list(leaves), None
        for bucket in self.buckets(leaves):
            reduced = self.reduce([leaves[n] for n in bucket], before)
            for n, value in zip(bucket, reduced, strict=True):
                results[n] = value
            if in_order:
                before = next((v.ravel()[:1] for v in reduced if v.size), before)
        return results

    def reduce(self, bucket: Sequence[Any], before: Any = None) -> list[Any]:
        """Reduces leaves of one kind, by one call if they are not summed already.

        The call waits for `before`, one number, if there is one.
        """
        values = list(bucket)
        dtype, axes = self.kind(values[0])
        if axes and before is not None:
            values[0] = jnp.append(values[0], jnp.real(before).astype(dtype))
        if axes and self.pre_divide:
            values = self._divided(values)
        if axes:
            values = psum(values, axes, wire_dtype=self._wire(dtype))
        if axes and before is not None:
            values[0] = values[0][:-1].reshape(bucket[0].shape)
        if self.op == "mean" and not (axes and self.pre_divide):
            values = self._divided(values)
        return values

    def start(self, bucket: Sequence[Any]) -> Started:
        """Starts to reduce leaves of one kind that are not summed yet."""
        dtype, axes = self.kind(bucket[0])
        values = self._divided(bucket) if self.pre_divide else list(bucket)
        return psum_start(values, axes, wire_dtype=self._wire(dtype))

    def end(self, sums: Sequence[Any]) -> list[Any]:
        """What `start` started, from the sums that came of it."""
        divides = self.op == "mean" and not self.pre_divide
        return self._divided(sums) if divides else list(sums)

    def _wire(self, dtype: Any) -> Any:
        return self.wire_dtype if dtype == jnp.float32 else None

    def _divided(self, values: Sequence[Any]) -> list[Any]:
        count = lax.psum(1, self.axis_name)
        return [value / count for value in values]


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    op: Op = "mean",
    wire_dtype: Any = None,
    bucket_bytes: int = BUCKET_BYTES,
    pre_divide: bool = False,
) -> optax.GradientTransformation:
    """Averages or sums gradients over a mapped axis: the first of a chain.

    It is the aggregation of Goyal et al. 4, in buckets, in one order on all processes.

    Every gradient must be that of this device's own loss. Inside `jax.shard_map` with
    type checking, gradients of replicated weights arrive summed over the axis already
    (their type says so): those are divided and not reduced again. Leaves that vary over
    the axis are reduced, as are all leaves in `pmap` and with `check_vma=False`. None
    and float0 leaves pass.

    Clipping and everything else that is not linear belongs behind this transformation.

    Args:
      axis_name: the name of the axis, or several names.
      op: "mean" or "sum" over the devices.
      wire_dtype: what float32 gradients are rounded to between hosts, as in
        `smddp_jax.psum`; gradients of other types travel as they are.
      bucket_bytes: about how many bytes are reduced by one call. The buckets follow
        the names of the leaves, whatever the order of the keys on this process.
      pre_divide: divides before the sum, with op "mean": keeps the sum of float16
        gradients in range, at the price of small ones that vanish.

    Returns:
      A stateless `optax.GradientTransformation`.

    Raises:
      ValueError: an argument is none of these, at once.
    """
    reduction = Reduction(axis_name, op, wire_dtype, pre_divide, bucket_bytes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        named, tree = jax.tree_util.tree_flatten_with_path(updates)
        leaves = [leaf for _, leaf in named]
        order = sorted(range(len(named)), key=lambda n: natural(named[n][0]))
        order = [n for n in order if is_reduced(leaves[n])]
        reduced = reduction.reduce_all(
            [leaves[n] for n in order], in_order=has_ordered_dict(updates)
        )
        for n, value in zip(order, reduced, strict=True):
            leaves[n] = value
        return jax.tree.unflatten(tree, leaves), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def as_varying(tree: Any, axis_name: AxisName) -> Any:
    """Weights seen as each device's own copies, so that gradients stay local.

    In `jax.shard_map` with type checking, the gradient with respect to a replicated
    weight is summed over the axis where it is made: one reduction per leaf, and once
    per micro-batch. With respect to `as_varying(weights, axis)` it stays this device's
    own, for `all_reduce_gradients` to reduce in buckets. Elsewhere nothing changes.
    """
    axes = _typed_axes(axis_name)
    return jax.tree.map(lambda leaf: _jax_compat.make_varying(leaf, axes), tree)


def pending_axes(leaf: Any, axis_name: AxisName) -> tuple[Hashable, ...]:
    """The axes over which a local gradient has not been summed, as its type says."""
    typed, varying = _typed_axes(axis_name), _jax_compat.varying_axes(leaf)
    return tuple(a for a in _axes(axis_name) if a not in typed or a in varying)


def is_reduced(leaf: Any) -> bool:
    """Whether a leaf of a gradient is one: float0 stands where there is none."""
    return jnp.result_type(leaf) != jax.dtypes.float0


def has_ordered_dict(tree: Any) -> bool:
    """Whether keys keep an order that may differ between processes, unlike a dict's.

    Their programs differ then, and XLA may run calls that do not depend on each other
    in different orders, in which the processes would wait for each other.
    """
    found = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, OrderedDict))
    return any(isinstance(node, OrderedDict) for node in found)


def natural(path: Sequence[Any]) -> list[Any]:
    """Sorts names as people do: layer_2 before layer_10."""
    parts = re.split(r"(\d+)", jax.tree_util.keystr(tuple(path)))
    return [int(part) if n % 2 else part for n, part in enumerate(parts)]


def _axes(axis_name: AxisName) -> tuple[Hashable, ...]:
    return tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)


def _typed_axes(axis_name: AxisName) -> tuple[Hashable, ...]:
    """Those axes that types tell about: none in pmap, vmap or with check_vma=False."""
    if not _jax_compat.checks_varying_axes():
        return ()
    manual = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in _axes(axis_name) if axis in manual)
