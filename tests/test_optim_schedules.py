# SPDX-License-Identifier: Apache-2.0
"""Scaling rules and warmups, held to values computed by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

pytestmark = pytest.mark.ours
optim = pytest.importorskip("smddp_jax.optim")

RAMP = [0.1, 0.24, 0.38, 0.52, 0.66, 0.8, 0.8, 0.8]


def rates(schedule: optax.Schedule, steps) -> list[float]:
    plain = [float(schedule(step)) for step in steps]
    jitted = jax.jit(jax.vmap(schedule))(jnp.array(list(steps)))
    np.testing.assert_allclose(jitted, plain, rtol=1e-6)
    return plain


def ramp() -> optax.Schedule:
    peak = optim.linear_scaling(0.1, 32, 8 * 32)
    return optim.gradual_warmup_schedule(0.1, peak, 5)


def test_the_linear_rule() -> None:
    assert optim.linear_scaling(0.1, 256, 8192) == pytest.approx(3.2)
    assert optim.linear_scaling(0.1, 256, 64) == pytest.approx(0.025)


def test_the_square_root_rule() -> None:
    assert optim.sqrt_scaling(1e-3, 512, 32768) == pytest.approx(8e-3)


@pytest.mark.parametrize("rule", [optim.linear_scaling, optim.sqrt_scaling])
@pytest.mark.parametrize("batches", [(0, 8), (8, 0), (-1, 8)])
def test_batches_are_positive(rule, batches: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="give positive ones"):
        rule(0.1, *batches)


def test_a_gradual_warmup_starts_at_its_first_value_and_ends_at_the_peak() -> None:
    """Rows B97 and B99: no step at rate 0, and scaled once: 0.8, not 6.4."""
    np.testing.assert_allclose(rates(ramp(), range(8)), RAMP, rtol=1e-6)
    assert float(ramp()(10**6)) == pytest.approx(0.8)


def test_a_constant_warmup_stays_below() -> None:
    schedule = optim.constant_warmup_schedule(0.1, 0.8, 3)
    want = [0.1, 0.1, 0.1, 0.8, 0.8]
    np.testing.assert_allclose(rates(schedule, range(5)), want, rtol=1e-6)


@pytest.mark.parametrize(
    "make", [optim.gradual_warmup_schedule, optim.constant_warmup_schedule]
)
def test_a_warmup_of_no_steps_leaves_the_schedule(make) -> None:
    after = optax.linear_schedule(0.8, 0.0, 8)
    assert rates(make(0.1, 0.8, 0), range(3)) == pytest.approx([0.8] * 3)
    assert rates(make(0.1, 0.8, 0, after), range(3)) == pytest.approx([0.8, 0.7, 0.6])


@pytest.mark.parametrize(
    "make", [optim.gradual_warmup_schedule, optim.constant_warmup_schedule]
)
def test_what_follows_counts_from_the_start_of_training(make) -> None:
    after = optax.piecewise_constant_schedule(0.8, {6: 0.5})
    schedule = make(0.1, 0.8, 5, after)
    assert rates(schedule, (5, 6, 7)) == pytest.approx([0.8, 0.4, 0.4])


@pytest.mark.parametrize(
    "make", [optim.gradual_warmup_schedule, optim.constant_warmup_schedule]
)
def test_a_warmup_is_not_negative(make) -> None:
    with pytest.raises(ValueError, match="warmup_steps is -1: give 0 or more"):
        make(0.1, 0.8, -1)


def test_the_schedule_of_goyal_et_al() -> None:
    """Section 5.1 with a batch of 8192: 156 steps per epoch, 3.2 after 5 epochs."""
    schedule = optim.goyal_schedule(0.1, 256, 8192, 156)
    epochs = [0, 2.5, 5, 29, 30, 59, 60, 79, 80, 90]
    want = [0.1, 1.65, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032]
    steps = [round(156 * epoch) for epoch in epochs]
    np.testing.assert_allclose(rates(schedule, steps), want, rtol=1e-5)
    last = [float(schedule(156 * epoch - 1)) for epoch in (30, 60, 80)]
    np.testing.assert_allclose(last, [3.2, 0.32, 0.032], rtol=1e-5)


def test_the_schedule_of_goyal_et_al_for_a_small_batch() -> None:
    schedule = optim.goyal_schedule(0.1, 256, 128, 10, decay_epochs=(7,))
    assert rates(schedule, (0, 50, 69, 70)) == pytest.approx([0.05] * 3 + [0.005])


@pytest.mark.parametrize(("stop", "want"), [(3, 0.52), (7, 0.8)])
@pytest.mark.parametrize("injected", [False, True])
def test_a_restored_count_goes_on_where_it_was(
    tmp_path, stop: int, want: float, injected: bool
) -> None:
    """Row B98, through a checkpoint of orbax."""
    make = optax.inject_hyperparams(optax.sgd) if injected else optax.sgd
    optimizer = make(ramp())
    weights, gradients = jnp.zeros(2), jnp.ones(2)
    state = optimizer.init(weights)
    for _ in range(stop):
        _, state = optimizer.update(gradients, state, weights)

    checkpointer = orbax.checkpoint.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", state)
    checkpointer.wait_until_finished()
    fresh = optimizer.init(weights)
    restored = checkpointer.restore(tmp_path / "state", fresh)
    checkpointer.close()

    updates, _ = jax.jit(optimizer.update)(gradients, restored, weights)
    np.testing.assert_allclose(updates, [-want] * 2, rtol=1e-6)
