# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale of McCandlish et al. 2018 (arXiv 1812.06162)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from smddp_jax.collectives import psum
from smddp_jax.optim.reduction import AxisName, is_reduced, pending_axes


class GradientNoiseScaleState(NamedTuple):
    """Running estimates.

    Attributes:
      count: updates seen.
      signal: moving average of the estimates of |G|^2, the true gradient's square.
      noise: moving average of the estimates of tr(Sigma), the noise of one example.
      noise_scale: B_simple = noise / signal, in examples.
      inner_state: the state of the reduction.
    """

    count: Any
    signal: jax.Array
    noise: jax.Array
    noise_scale: jax.Array
    inner_state: Any


def gradient_noise_scale(
    reduce: optax.GradientTransformation,
    axis_name: AxisName,
    local_batch: float,
    *,
    decay: float = 0.99,
) -> optax.GradientTransformationExtraArgs:
    """Wraps the reduction of gradients and estimates the noise scale beside it.

    The squares of the local gradients (of `local_batch` examples) and of their mean (of
    all devices' examples) give unbiased estimates of signal and noise (appendix A.1),
    each averaged over time before they are divided. It costs one reduction of a scalar.

    Example:
      >>> optax.chain(
      ...     gradient_noise_scale(all_reduce_gradients("data"), "data", 32),
      ...     optax.sgd(0.1),
      ... )

    Args:
      reduce: what averages the gradients, such as `all_reduce_gradients(axis)`.
      axis_name: the axis it averages over, of two devices or more.
      local_batch: examples per device in one update: with `multi_steps`, those of all
        its micro-batches.
      decay: of the moving averages.

    Returns:
      A transformation whose updates are those of `reduce`, and whose state is a
      `GradientNoiseScaleState`.

    Raises:
      ValueError: one device, or gradients that arrive summed: see `as_varying`.
    """
    reduce = optax.with_extra_args_support(reduce)

    def init(params: Any) -> GradientNoiseScaleState:
        count, zero = jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32)
        return GradientNoiseScaleState(
            count, zero, zero, jnp.full([], jnp.nan), reduce.init(params)
        )

    def update(
        updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, GradientNoiseScaleState]:
        devices = lax.psum(1, axis_name)
        _check_local(updates, axis_name, devices)
        small = psum(_square(updates), axis_name) / devices
        updates, inner = reduce.update(updates, state.inner_state, params, **extra_args)
        big = _square(updates)
        # Appendix A.1: E|g_B|^2 = |G|^2 + tr(Sigma) / B, for B examples and for all.
        batch = local_batch * devices
        signal = (batch * big - local_batch * small) / (batch - local_batch)
        noise = (small - big) / (1 / local_batch - 1 / batch)
        signal = decay * state.signal + (1 - decay) * signal
        noise = decay * state.noise + (1 - decay) * noise
        count = optax.safe_increment(state.count)
        scale = jnp.where(signal > 0, noise / signal, jnp.nan)
        return updates, GradientNoiseScaleState(count, signal, noise, scale, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _square(tree: Any) -> jax.Array:
    leaves = [
        leaf.astype(jnp.float32) for leaf in jax.tree.leaves(tree) if is_reduced(leaf)
    ]
    return sum((jnp.sum(leaf**2) for leaf in leaves), start=jnp.zeros([]))


def _check_local(updates: Any, axis_name: AxisName, devices: int) -> None:
    if devices < 2:
        raise ValueError(
            f"axis {axis_name!r} has one device: the noise scale needs gradients of "
            "two batch sizes, local and reduced"
        )
    for leaf in jax.tree.leaves(updates):
        if is_reduced(leaf) and not pending_axes(leaf, axis_name):
            raise ValueError(
                f"gradients arrive summed over {axis_name!r}, and the local ones are "
                "gone: differentiate with respect to as_varying(weights, axis)"
            )


def suggested_batch(state: Any, multiple_of: int = 1) -> int:
    """The batch that the noise scale in an optimizer's state suggests, in examples.

    At a global batch equal to the noise scale, training takes about twice the smallest
    number of steps and twice the smallest number of examples (McCandlish et al. 2.3).

    Args:
      state: a `GradientNoiseScaleState`, or an optimizer's state that has one in it.
      multiple_of: the batch is rounded to a multiple of this, such as the number of
        devices, and is not below it.

    Returns:
      A number of examples, over all devices.

    Raises:
      ValueError: there is no such state, or no estimate yet.
    """
    found = [
        node
        for node in jax.tree.leaves(state, is_leaf=_is_noise_scale)
        if _is_noise_scale(node)
    ]
    if not found:
        raise ValueError("no GradientNoiseScaleState in this optimizer's state")
    scale = float(found[0].noise_scale)
    if not math.isfinite(scale):
        raise ValueError(
            f"no estimate after {int(found[0].count)} updates: the gradient is not "
            "seen above its noise yet; go on, with more devices or a larger decay"
        )
    return max(1, round(scale / multiple_of)) * multiple_of


def _is_noise_scale(node: Any) -> bool:
    return isinstance(node, GradientNoiseScaleState)
