# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale of McCandlish et al. 2018 (arXiv 1812.06162)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from smddp_jax.optim.reduction import AxisName


class GradientNoiseScaleState(NamedTuple):
    """Running estimates.

    Attributes:
      count: updates seen.
      signal: moving average of the estimates of |G|^2, the true gradient's square.
      noise: moving average of the estimates of tr(Sigma), the noise of one example.
      noise_scale: B_simple = noise / signal, in examples.
      inner_state: the state of the reduction.
    """

    count: jax.Array
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
      local_batch: examples per device.
      decay: of the moving averages.

    Returns:
      A transformation whose updates are those of `reduce`, and whose state is a
      `GradientNoiseScaleState`.

    Raises:
      ValueError: one device, or gradients that arrive summed: see `as_varying`.
    """
    raise NotImplementedError


def suggested_batch(state: Any, multiple_of: int = 1) -> int:
    """The batch that the noise scale in an optimizer's state suggests, in examples.

    At a global batch equal to the noise scale, training takes about twice the smallest
    number of steps and twice the smallest number of examples (McCandlish et al. 2.3).

    Args:
      state: a `GradientNoiseScaleState`, or an optimizer's state that has one in it.
      multiple_of: the batch is rounded to a multiple of this, such as the number of
        devices, and is not below it.

    Raises:
      ValueError: there is no such state, or no estimate yet.
    """
    raise NotImplementedError
