# SPDX-License-Identifier: Apache-2.0
"""LARS and LAMB of optax's parts, with masks for both and zeros taken care of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from smddp_jax.optim.masks import weight_decay_mask

Mask = Any | Callable[[Any], Any]


def lars(
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule = 1e-4,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
    """LARS: momentum SGD with a rate per layer.

    Algorithm 1 of You et al. 2017 (arXiv 1708.03888).

    As `optax.lars`, with one mask for decay and trust ratio that leaves out biases and
    norms: they get the plain momentum step. A weight of norm zero has trust ratio 1, so
    that it can leave zero. A weight whose gradient is zero does not move: its decay
    alone, scaled up to the trusted length, would shrink it at a rate that does not
    depend on `weight_decay`.

    The rate is inside the velocity (Goyal et al. 3, remark 2): see
    `scale_by_momentum_correction` for schedules that rise steeply.

    Args:
      learning_rate: rate or schedule.
      weight_decay: strength of the decay, inside the trust ratio.
      momentum: decay of the velocity.
      nesterov: Nesterov's momentum.
      trust_coefficient: the length of a step relative to the weight's norm.
      eps: added to the norm of the update.
      mask: True for the leaves to decay and to adapt; a tree or a function of one, by
        default `weight_decay_mask`. `optax.inject_hyperparams` must be told that a
        function is no schedule: `static_args="mask"`.

    Returns:
      A chain of optax's; its updates have the gradients' shapes and types.
    """
    mask = weight_decay_mask if mask is None else mask
    return optax.chain(
        _decay_what_moves(weight_decay, mask),
        optax.masked(optax.scale_by_trust_ratio(0.0, trust_coefficient, eps), mask),
        optax.scale_by_learning_rate(learning_rate),
        optax.trace(momentum, nesterov),
    )


def lamb(
    learning_rate: optax.ScalarOrSchedule,
    weight_decay: optax.ScalarOrSchedule = 0.01,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    mask: Mask | None = None,
) -> optax.GradientTransformationExtraArgs:
    """LAMB: Adam with a rate per layer.

    Algorithm 2 of You et al. 2019 (arXiv 1904.00962).

    As `optax.lamb`, with one mask for decay and trust ratio: what it leaves out gets
    the plain Adam step. Zeros are handled as in `lars`.

    Args:
      learning_rate: rate or schedule.
      weight_decay: strength of the decay, inside the trust ratio.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: Adam's, outside of the root.
      mask: True for the leaves to decay and to adapt; a tree or a function of one, by
        default `weight_decay_mask`. `optax.inject_hyperparams` must be told that a
        function is no schedule: `static_args="mask"`.

    Returns:
      A chain of optax's; its updates have the gradients' shapes and types.
    """
    mask = weight_decay_mask if mask is None else mask
    return optax.chain(
        optax.scale_by_adam(b1, b2, eps),
        _decay_what_moves(weight_decay, mask),
        optax.masked(optax.scale_by_trust_ratio(), mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def _decay_what_moves(
    weight_decay: optax.ScalarOrSchedule, mask: Mask
) -> optax.GradientTransformation:
    """`optax.add_decayed_weights` for the leaves whose update is not all zero."""
    inner = optax.add_decayed_weights(weight_decay, mask)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        decayed, state = inner.update(updates, state, params)
        kept = jax.tree.map(
            lambda before, after: jnp.where(jnp.any(before != 0), after, before),
            updates,
            decayed,
        )
        return kept, state

    return optax.GradientTransformation(inner.init, update)
