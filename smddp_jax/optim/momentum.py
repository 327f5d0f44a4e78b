# SPDX-License-Identifier: Apache-2.0
"""Momentum when the rate changes (Goyal et al. 3, remark 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax


class MomentumCorrectionState(NamedTuple):
    """The inner optimizer's state and the rate that its velocity holds."""

    count: jax.Array
    learning_rate: jax.Array
    inner_state: Any


def scale_by_momentum_correction(
    make: Callable[[Any], optax.GradientTransformation],
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformationExtraArgs:
    """Scales the velocity by new rate / old rate, where the rate is inside of it.

    `optax.lars` keeps `v = m v + lr g` (form 10 of Goyal et al.): when the rate rises,
    `v` still holds the old one, and must be multiplied by new / old. `optax.sgd` keeps
    `u = m u + g` and multiplies by the rate afterwards (form 9): there a correction
    would be wrong, and is refused.

    Example:
      >>> schedule = gradual_warmup_schedule(0.1, 0.8, 500)
      >>> scale_by_momentum_correction(lambda lr: lars(lr, momentum=0.9), schedule)

    Args:
      make: makes the optimizer of a rate, such as `optax.lars`.
      learning_rate: rate or schedule. After a rate of zero the velocity starts anew.

    Raises:
      ValueError: at `init`, when the optimizer has no `optax.TraceState` or its velocity
        does not depend on the rate.
    """
    raise NotImplementedError
