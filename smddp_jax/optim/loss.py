# SPDX-License-Identifier: Apache-2.0
"""The loss of a global batch (Goyal et al. 3, remark 3)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from smddp_jax.collectives import psum
from smddp_jax.optim.reduction import AxisName, Op


def global_mean_loss(
    losses: jax.Array,
    axis_name: AxisName,
    *,
    weights: Any = None,
    op: Op = "mean",
) -> jax.Array:
    """This device's part of the mean loss over the global batch.

    Its gradients, reduced over the devices by the same `op`, are those of the mean over
    all examples of all devices: divided by the examples of the global batch, once.
    Also where the devices have unlike numbers of examples that count, for which the
    mean of the devices' means is wrong.

    Args:
      losses: one loss per example (or token) of this device, of any shape.
      axis_name: the name of the axis, or several names.
      weights: how much each counts, such as 0 for padding; broadcast to `losses`.
      op: how the gradients are reduced, as given to `all_reduce_gradients` or
        `value_and_grad`.

    Returns:
      A scalar of this device; its mean (or sum, by `op`) over the devices is the loss.
    """
    devices = lax.psum(1, axis_name)
    counts = jnp.ones_like(losses) if weights is None else weights
    counts = jnp.broadcast_to(lax.stop_gradient(counts), losses.shape)
    counts = counts.astype(losses.dtype)
    examples = psum(counts.sum(), axis_name)
    total = jnp.sum(losses * counts) * (devices if op == "mean" else 1)
    return total / jnp.where(examples == 0, 1, examples)
