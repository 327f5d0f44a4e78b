# SPDX-License-Identifier: Apache-2.0
"""`jax.value_and_grad` that reduces gradients while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smddp_jax.optim.reduction import BUCKET_BYTES, AxisName, Op


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
    checked or not, and in `pmap`; give replicated weights as they come.

    The value and the auxiliary data are this device's own: `pmean` what you report.

    Args:
      loss: this device's own loss, not averaged over the axis: a mean over its part of
        the batch, or `global_mean_loss`.
      axis_name: the name of the axis, or several names.
      argnums: as in `jax.value_and_grad`.
      has_aux: as in `jax.value_and_grad`.
      op: "mean" or "sum" over the devices.
      wire_dtype: as in `all_reduce_gradients`.
      bucket_bytes: about how many bytes of gradients one call reduces.
      pre_divide: as in `all_reduce_gradients`.
      allow_int: as in `jax.value_and_grad`.

    Returns:
      A function of `loss`'s arguments that returns `(value, gradient)`, or
      `((value, aux), gradient)` with `has_aux`.

    Raises:
      ValueError: types are checked, and the loss is averaged over the axis already.
    """
    raise NotImplementedError
