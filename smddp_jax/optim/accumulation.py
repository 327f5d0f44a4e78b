# SPDX-License-Identifier: Apache-2.0
"""Gradients of several micro-batches, reduced once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import lax


def multi_steps(
    optimizer: optax.GradientTransformation,
    every_k_schedule: int | Callable[[Any], Any],
    **options: Any,
) -> optax.MultiSteps:
    """`optax.MultiSteps` that runs its optimizer, with the reduction, once per update.

    `optax.MultiSteps` runs its optimizer in every micro-step and drops the result of
    all but one: a reduction in its chain would be paid k times. Here it runs when the
    update is due. Schedules in the optimizer count updates, not micro-steps.

    The gradients that it accumulates must be the devices' own (see `as_varying`), and
    so are the accumulators: between the micro-steps of one update they differ from
    device to device. In `pmap` they are kept so. In `jax.shard_map` take all
    micro-batches of an update in one step, where they begin and end as zeros.

    Example:
      >>> chain = optax.chain(all_reduce_gradients("data"), optax.sgd(0.1))
      >>> optimizer = multi_steps(chain, 4)

    Args:
      optimizer: what is run once per update.
      every_k_schedule: micro-steps per update, or a function of the updates so far.
      **options: as for `optax.MultiSteps`.

    Returns:
      An `optax.MultiSteps`: its state is `optax.MultiStepsState`, and its updates are
      zeros until one is due.
    """
    return _OncePerUpdate(optimizer, every_k_schedule, **options)


class _OncePerUpdate(optax.MultiSteps):
    def __init__(self, optimizer: Any, every_k_schedule: Any, **options: Any):
        super().__init__(_when_due(optimizer), every_k_schedule, **options)
        fixed = isinstance(every_k_schedule, int)
        self._every = (lambda _: every_k_schedule) if fixed else every_k_schedule

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        due = state.mini_step == self._every(state.gradient_step) - 1
        return super().update(updates, state, params, _due=due, **extra_args)


def _when_due(optimizer: Any) -> optax.GradientTransformationExtraArgs:
    optimizer = optax.with_extra_args_support(optimizer)

    def update(
        updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        due = extra_args.pop("_due")

        def run() -> tuple[Any, Any]:
            return optimizer.update(updates, state, params, **extra_args)

        def wait() -> tuple[Any, Any]:
            types = jax.eval_shape(run)[0]
            return jax.tree.map(
                lambda t: jax.numpy.zeros(t.shape, t.dtype), types
            ), state

        return lax.cond(due, run, wait)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)
