# SPDX-License-Identifier: Apache-2.0
"""Gradients over the devices of a mapped axis, as an optax transformation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal

import optax

AxisName = Hashable | Sequence[Hashable]
Op = Literal["mean", "sum"]
BUCKET_BYTES = 25 << 20


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    op: Op = "mean",
    wire_dtype: Any = None,
    bucket_bytes: int = BUCKET_BYTES,
    pre_divide: bool = False,
) -> optax.GradientTransformation:
    """Averages or sums gradients over a mapped axis: the first of a chain.

    Every gradient must be that of this device's own loss. Inside `jax.shard_map` with
    type checking, gradients of replicated weights arrive summed over the axis already
    (their type says so): those are divided and not reduced again. Leaves that vary over
    the axis are reduced, as are all leaves in `pmap` and with `check_vma=False`. None
    and float0 leaves pass.

    Clipping and everything that is not linear belongs behind this transformation.

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
      ValueError: `op` or `bucket_bytes` is none, at once.
    """
    raise NotImplementedError


def as_varying(tree: Any, axis_name: AxisName) -> Any:
    """Weights seen as each device's own copies, so that gradients stay local.

    In `jax.shard_map` with type checking, the gradient with respect to a replicated
    weight is summed over the axis where it is made, one reduction per leaf, and once per
    micro-batch. With respect to `as_varying(weights, axis)` it stays this device's own,
    for `all_reduce_gradients` to reduce in buckets. Elsewhere this changes nothing.
    """
    raise NotImplementedError
