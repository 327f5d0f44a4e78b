# SPDX-License-Identifier: Apache-2.0
"""Learning rates for large batches: scaling rules, warmups, steps in epochs.

All are pure functions of the step count, so that a restored count gives the rate that
the uninterrupted training would have.
"""

from __future__ import annotations

from collections.abc import Sequence

import optax


def linear_scaling(base_lr: float, base_batch: float, global_batch: float) -> float:
    """The rate for a batch k times larger is k times larger (Goyal et al. 2.1).

    Args:
      base_lr: a rate that is right for SGD with `base_batch`.
      base_batch: that batch, over all devices.
      global_batch: the batch that is used, over all devices.

    Raises:
      ValueError: a batch is not positive.
    """
    _check_batches(base_batch, global_batch)
    return base_lr * global_batch / base_batch


def sqrt_scaling(base_lr: float, base_batch: float, global_batch: float) -> float:
    """The rate grows with the square root of the batch: for Adam and its kin.

    The rule follows from the noise of adaptive methods (Malladi et al. 2022, arXiv
    2205.10287); LAMB's authors use it too. Arguments and errors as in `linear_scaling`.
    """
    _check_batches(base_batch, global_batch)
    return base_lr * (global_batch / base_batch) ** 0.5


def gradual_warmup_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    after: optax.Schedule | None = None,
) -> optax.Schedule:
    """From `init_value` to `peak_value` in equal increments (Goyal et al. 2.2).

    Step 0 has `init_value`, step `warmup_steps` has what `after` has there.

    Args:
      init_value: the rate of the first step, such as the one for the base batch.
      peak_value: where the warmup ends, such as `linear_scaling(...)` of it.
      warmup_steps: length; 0 leaves `after` alone. Goyal et al. take 5 epochs.
      after: the schedule as it would be without warmup: it counts from the start of
        training, not from the end of the warmup. `peak_value` for good by default.

    Returns:
      A schedule: of a step, an int or a traced int32 scalar, it makes the rate, a
      float32 scalar.

    Raises:
      ValueError: `warmup_steps` is negative.
    """
    _check_warmup(warmup_steps)
    ramp = optax.linear_schedule(init_value, peak_value, max(warmup_steps, 1))
    return _then(ramp, warmup_steps, after or optax.constant_schedule(peak_value))


def constant_warmup_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    after: optax.Schedule | None = None,
) -> optax.Schedule:
    """`init_value` for `warmup_steps`, then `after` (Goyal et al. 2.2).

    It helps when the first layers are pre-trained; on ImageNet from scratch it did not
    (25.9 % error, gradual 23.7 %). Arguments, result and errors as in
    `gradual_warmup_schedule`.
    """
    _check_warmup(warmup_steps)
    low = optax.constant_schedule(init_value)
    return _then(low, warmup_steps, after or optax.constant_schedule(peak_value))


def goyal_schedule(
    base_lr: float,
    base_batch: float,
    global_batch: float,
    steps_per_epoch: int,
    *,
    warmup_epochs: float = 5,
    decay_epochs: Sequence[float] = (30, 60, 80),
    decay_rate: float = 0.1,
) -> optax.Schedule:
    """Linear scaling, gradual warmup, then steps down in epochs (Goyal et al. 5.1).

    Args:
      base_lr: the rate for `base_batch`; 0.1 for 256 in the paper. The warmup starts
        there, or at the scaled rate where that is lower.
      base_batch: see `linear_scaling`.
      global_batch: see `linear_scaling`.
      steps_per_epoch: updates per epoch, not micro-steps.
      warmup_epochs: length of the warmup.
      decay_epochs: where the rate is multiplied by `decay_rate`, from the start of
        training on: the warmup counts too.
      decay_rate: the factor.

    Returns:
      A schedule, as in `gradual_warmup_schedule`.

    Raises:
      ValueError: a batch is not positive, or the warmup negative.
    """
    peak = linear_scaling(base_lr, base_batch, global_batch)
    steps = {round(epoch * steps_per_epoch): decay_rate for epoch in decay_epochs}
    return gradual_warmup_schedule(
        min(base_lr, peak),
        peak,
        round(warmup_epochs * steps_per_epoch),
        optax.piecewise_constant_schedule(peak, steps),
    )


def _then(first: optax.Schedule, steps: int, after: optax.Schedule) -> optax.Schedule:
    if steps == 0:
        return after
    return optax.join_schedules([first, lambda step: after(step + steps)], [steps])


def _check_warmup(steps: int) -> None:
    if steps < 0:
        raise ValueError(f"warmup_steps is {steps}: give 0 or more")


def _check_batches(base: float, used: float) -> None:
    if base <= 0 or used <= 0:
        raise ValueError(f"batches are {base} and {used}: give positive ones")
