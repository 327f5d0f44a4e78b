# SPDX-License-Identifier: Apache-2.0
"""Momentum when the rate changes (Goyal et al. 3, remark 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.interpreters import partial_eval as pe


class MomentumCorrectionState(NamedTuple):
    """The inner optimizer's state and the rate that its velocity holds."""

    count: Any
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

    Returns:
      A transformation whose updates are those of the optimizer, in the types of the
      gradients, and whose state is a `MomentumCorrectionState`.

    Raises:
      ValueError: at `init`, when the optimizer has no velocity (`optax.TraceState`) or
        one that does not depend on the rate.
    """

    def rate_at(count: Any) -> jax.Array:
        rate = learning_rate(count) if callable(learning_rate) else learning_rate
        return jnp.asarray(rate, jnp.float32)

    def init(params: Any) -> MomentumCorrectionState:
        count = jnp.zeros([], jnp.int32)
        rate = rate_at(count)
        state = make(rate).init(params)
        _check_form(make, rate, state, params)
        return MomentumCorrectionState(count, rate, state)

    def update(
        updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MomentumCorrectionState]:
        rate, old = rate_at(state.count), state.learning_rate
        inner = _scale_velocity(
            state.inner_state, rate / jnp.where(old == 0, rate, old)
        )
        optimizer = optax.with_extra_args_support(make(rate))
        new, after = optimizer.update(updates, inner, params, **extra_args)
        # The rate, a float32 array, widens 16-bit gradients and their velocity.
        updates, inner = _cast(new, updates), _cast(after, inner)
        count = optax.safe_increment(state.count)
        return updates, MomentumCorrectionState(count, rate, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def _cast(tree: Any, like: Any) -> Any:
    return jax.tree.map(lambda new, old: new.astype(old.dtype), tree, like)


def _is_trace(node: Any) -> bool:
    return isinstance(node, optax.TraceState)


def _scale_velocity(state: Any, factor: Any) -> Any:
    def scale(node: Any) -> Any:
        if not _is_trace(node):
            return node
        scaled = jax.tree.map(lambda v: v * factor.astype(v.dtype), node.trace)
        return optax.TraceState(scaled)

    return jax.tree.map(scale, state, is_leaf=_is_trace)


def _velocity(state: Any) -> list[Any]:
    nodes = jax.tree.leaves(state, is_leaf=_is_trace)
    return [node.trace for node in nodes if _is_trace(node)]


def _check_form(make: Callable[[Any], Any], rate: Any, state: Any, params: Any) -> None:
    if not jax.tree.leaves(_velocity(state)):
        raise ValueError(
            "the optimizer has no velocity (optax.TraceState) to correct: momentum "
            "correction is for momentum SGD and optax.lars"
        )

    def next_velocity(rate: Any) -> Any:
        return _velocity(make(rate).update(params, state, params)[1])

    program = jax.make_jaxpr(next_velocity)(rate)
    _, (depends, *_) = pe.dce_jaxpr(program.jaxpr, [True] * len(program.out_avals))
    if not depends:
        raise ValueError(
            "the learning rate multiplies this optimizer's velocity from outside, as "
            "in optax.sgd (form 9 of Goyal et al. 2017): it follows a new rate by "
            "itself, and a correction would be wrong; use the optimizer as it is"
        )
