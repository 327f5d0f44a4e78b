# SPDX-License-Identifier: Apache-2.0
"""Optimizers, masks, momentum correction and the noise scale, by hand-made numbers."""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import nnx
from test_optim_reduction import replicated
from world import HOWS, World

pytestmark = pytest.mark.ours
optim = pytest.importorskip("smddp_jax.optim")

W = jnp.array([[3.0, 4.0]])
G = jnp.array([[0.6, 0.8]])


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


def updates_of(optimizer, weights, *gradients):
    state, updates = optimizer.init(weights), None
    for gradient in gradients:
        updates, state = jax.jit(optimizer.update)(gradient, state, weights)
    return updates


def close(got, want) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


# --- LARS and LAMB --------------------------------------------------------------------


@pytest.mark.parametrize(("decay", "ratio"), [(0.0, 0.005), (0.1, 0.0033333333)])
def test_lars_has_the_ratio_of_the_norms(decay: float, ratio: float) -> None:
    """Row B101: 0.001 * 5 / (1 + decay * 5)."""
    update = updates_of(optim.lars(1.0, decay), W, G)
    close(update, -ratio * (G + decay * W))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zeros_neither_stop_nor_move_a_weight(decay: float) -> None:
    """Row B101."""
    close(updates_of(optim.lars(1.0, decay), 0 * W, G), -G)
    close(updates_of(optim.lars(1.0, decay), W, 0 * G), 0 * W)
    assert jnp.all(updates_of(optim.lamb(1.0, decay), 0 * W, G) != 0)
    close(updates_of(optim.lamb(1.0, decay), W, 0 * G), 0 * W)


def test_lamb_has_the_length_of_the_weight() -> None:
    update = updates_of(optim.lamb(0.1, 0.0), W, G)  # Adam's first step is (1, 1)
    close(update, jnp.full((1, 2), -0.1 * 5 / 2**0.5))
    decayed = np.array([[1.0, 1.0]]) + 0.1 * np.asarray(W)
    want = -0.1 * 5 * decayed / np.linalg.norm(decayed)
    close(updates_of(optim.lamb(0.1, 0.1), W, G), want)


@pytest.mark.parametrize(
    ("ours", "plain"),
    [
        (
            optim.lars(0.3, 0.1),
            optax.chain(optax.scale_by_learning_rate(0.3), optax.trace(0.9)),
        ),
        (
            optim.lamb(0.3, 0.1),
            optax.chain(
                optax.scale_by_adam(eps=1e-6), optax.scale_by_learning_rate(0.3)
            ),
        ),
    ],
)
def test_masked_leaves_get_the_plain_step_bit_for_bit(ours, plain) -> None:
    """Row B103."""
    random = np.random.default_rng(0)
    weights = {"kernel": W, "bias": jnp.asarray(random.normal(size=7), jnp.float32)}
    gradients = [
        jax.tree.map(
            lambda w: jnp.asarray(random.normal(size=w.shape), w.dtype), weights
        )
        for _ in range(3)
    ]
    got = updates_of(ours, weights, *gradients)
    want = updates_of(plain, weights, *gradients)
    np.testing.assert_array_equal(got["bias"], want["bias"])
    assert jnp.all(got["kernel"] != want["kernel"])


@pytest.mark.parametrize("make", [optim.lars, optim.lamb])
def test_recipes_are_optax_s_where_nothing_is_masked_or_zero(make) -> None:
    stock = {optim.lars: optax.lars, optim.lamb: optax.lamb}[make]
    schedule = optax.linear_schedule(0.1, 0.5, 3)
    got = updates_of(make(schedule, 0.1, mask=True), W, G, -2 * G, W)
    close(got, updates_of(stock(schedule, weight_decay=0.1), W, G, -2 * G, W))


@pytest.mark.parametrize("make", [optim.lars, optim.lamb])
def test_hyperparameters_of_recipes_can_be_injected(make) -> None:
    schedule = optax.linear_schedule(0.1, 0.5, 3)
    plain = updates_of(make(schedule), W, G, G)
    injected = optax.inject_hyperparams(make)(learning_rate=schedule)
    close(updates_of(injected, W, G, G), plain)
    injected = optax.inject_hyperparams(make, static_args="mask")
    masked = injected(learning_rate=schedule, mask=optim.weight_decay_mask)
    close(updates_of(masked, W, G, G), plain)


# --- masks ----------------------------------------------------------------------------


def test_biases_and_norms_are_not_decayed() -> None:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3))(x)
            x = nn.BatchNorm(use_running_average=True)(x)
            x = nn.LayerNorm()(nn.Dense(3)(x))
            return nn.Embed(5, 2)(jnp.zeros((1,), int)).sum() + x.sum()

    weights = Model().init(jax.random.key(0), jnp.ones((1, 4, 4, 1)))
    mask = optim.weight_decay_mask(weights["params"])
    decayed = {
        jax.tree_util.keystr(path) for path, m in jax.tree.leaves_with_path(mask) if m
    }
    assert decayed == {
        "['Conv_0']['kernel']",
        "['Dense_0']['kernel']",
        "['Embed_0']['embedding']",
    }


def test_masks_know_stacked_layers_and_other_names() -> None:
    matrix = np.zeros((2, 3))
    weights = {
        "blocks": {"kernel": matrix, "bias": matrix, "ln_norm": {"w": matrix}},
        "bn1": {"w": matrix},
        "head": {"w": matrix, "b": np.zeros(3), "SCALE": matrix},
        "rescale": matrix,
        "list": [matrix, np.zeros(())],
    }
    assert optim.weight_decay_mask(weights) == {
        "blocks": {"kernel": True, "bias": False, "ln_norm": {"w": False}},
        "bn1": {"w": False},
        "head": {"w": True, "b": False, "SCALE": False},
        "rescale": True,
        "list": [True, False],
    }


def test_masks_know_the_weights_of_nnx() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 3, rngs=rngs)
            self.stacked = nnx.Param(jnp.zeros((2, 3)))
            self.scale = nnx.Param(jnp.zeros((2, 3)))

    state = nnx.state(Model(nnx.Rngs(0)), nnx.Param)
    mask = nnx.to_pure_dict(optim.weight_decay_mask(state))
    assert mask == {
        "linear": {"kernel": True, "bias": False},
        "stacked": True,
        "scale": False,
    }


# --- momentum correction --------------------------------------------------------------


def rate_in_velocity(learning_rate, momentum=0.9):
    return optax.chain(
        optax.scale_by_learning_rate(learning_rate), optax.trace(momentum)
    )


def test_the_velocity_is_scaled_with_the_rate() -> None:
    """Row B108: 0.38 where 0.29 would be uncorrected."""
    schedule = optax.piecewise_constant_schedule(0.1, {1: 2.0})
    one = jnp.ones(1)
    corrected = optim.scale_by_momentum_correction(rate_in_velocity, schedule)
    close(updates_of(rate_in_velocity(schedule), one, one, one), [-0.29])
    close(updates_of(corrected, one, one, one), [-0.38])
    close(updates_of(optax.sgd(schedule, 0.9), one, one, one), [-0.38])


def test_a_corrected_velocity_equals_the_rate_outside_of_it() -> None:
    schedule = optim.gradual_warmup_schedule(0.1, 0.8, 5)
    corrected = optim.scale_by_momentum_correction(rate_in_velocity, schedule)
    gradients = list(np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32))
    got = updates_of(corrected, jnp.ones(3), *gradients)
    close(got, updates_of(optax.sgd(schedule, 0.9), jnp.ones(3), *gradients))


@pytest.mark.parametrize("make", [optax.lars, optim.lars])
def test_lars_can_be_corrected(make) -> None:
    schedule = optax.piecewise_constant_schedule(0.1, {1: 2.0})
    corrected = optim.scale_by_momentum_correction(
        partial(make, weight_decay=0.0), schedule
    )
    close(updates_of(corrected, W, G, G), -0.005 * 0.38 * G)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(optax.sgd, momentum=0.9), "form 9"),
        (partial(optax.sgd, momentum=0.9, nesterov=True), "form 9"),
        (optax.sgd, "no velocity"),
        (optax.adam, "no velocity"),
    ],
)
def test_a_correction_that_would_be_wrong_is_refused(make, message: str) -> None:
    corrected = optim.scale_by_momentum_correction(make, 0.1)
    with pytest.raises(ValueError, match=message):
        jax.jit(corrected.init)(W)


def test_a_rate_of_zero_starts_the_velocity_anew() -> None:
    schedule = optax.piecewise_constant_schedule(0.1, {1: 0.0})
    corrected = optim.scale_by_momentum_correction(
        rate_in_velocity, lambda step: jnp.where(step == 2, 0.1, schedule(step))
    )
    one = jnp.ones(1)
    close(updates_of(corrected, one, one, one), [0.0])
    close(updates_of(corrected, one, one, one, one), [-0.1])


def test_a_correction_takes_injected_rates_and_is_restored(tmp_path) -> None:
    schedule = optax.piecewise_constant_schedule(0.1, {1: 2.0})

    def make(learning_rate):
        return optim.scale_by_momentum_correction(rate_in_velocity, learning_rate)

    optimizer = optax.inject_hyperparams(make)(learning_rate=schedule)
    one = jnp.ones(1)
    _, state = optimizer.update(one, optimizer.init(one), one)
    checkpointer = orbax.checkpoint.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", state)
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(tmp_path / "state", optimizer.init(one))
    checkpointer.close()
    close(optimizer.update(one, restored, one)[0], [-0.38])


# --- noise scale ----------------------------------------------------------------------


def estimator(decay: float = 0.5):
    return optim.gradient_noise_scale(
        optim.all_reduce_gradients("i"), "i", local_batch=4, decay=decay
    )


def test_the_noise_scale_of_known_gradients(world: World) -> None:
    """Appendix A.1 with B = 4 and 32: |g_4|^2 is 17.5, |g_32|^2 is 12.25."""
    rows = np.arange(8, dtype=np.float32)
    signal = (32 * 12.25 - 4 * 17.5) / 28
    noise = (17.5 - 12.25) / (1 / 4 - 1 / 32)
    transform = optax.chain(estimator(), optax.scale(-1.0))

    def step(weight, row):
        state = transform.init(weight)
        for scale in (1, 2):
            gradient = optim.as_varying(scale * row, "i")
            updates, state = transform.update(gradient, state)
        return updates, state

    updates, state = replicated(world, step)(jnp.float32(0), rows)
    found = state[0]
    assert float(updates) == -7.0
    assert int(found.count) == 2
    close(found.signal, 0.25 * signal + 0.5 * 4 * signal)
    close(found.noise, 0.25 * noise + 0.5 * 4 * noise)
    close(found.noise_scale, noise / signal)
    assert noise / signal == pytest.approx(2.087, abs=1e-3)
    assert optim.suggested_batch(state) == 2
    assert optim.suggested_batch(state, multiple_of=8) == 8


def test_the_noise_scale_is_found_in_noise(world: World) -> None:
    """Gradients G + e of one example each: tr(Sigma) = 3 * 4, |G|^2 = 3."""
    noise = np.random.default_rng(0).normal(0, 2, (8, 400, 4, 3))
    rows = (1 + noise).mean(axis=2).astype(np.float32)
    transform = estimator(decay=0.999)

    def step(weight, row):
        def update(state, gradient):
            gradient = optim.as_varying(gradient, "i")
            return transform.update(gradient, state)[1], None

        return jax.lax.scan(update, transform.init(weight), row)[0]

    state = replicated(world, step)(jnp.zeros(3), rows)
    assert float(state.noise_scale) == pytest.approx(4, rel=0.1)


def test_summed_gradients_are_refused() -> None:
    transform = estimator()

    def step(weight, row):
        gradient = jax.grad(lambda w: w * row)(weight)
        return transform.update(gradient, transform.init(weight))[0]

    mapped = replicated(World("checked", jax.devices()), step)
    with pytest.raises(ValueError, match="arrive summed over 'i'.*as_varying"):
        mapped(jnp.float32(1), np.arange(8, dtype=np.float32))


def test_one_device_is_refused() -> None:
    transform = estimator()
    with pytest.raises(ValueError, match="axis 'i' has one device"):
        jax.vmap(lambda g: transform.update(g, transform.init(g))[0], axis_name="i")(
            jnp.ones((1, 2))
        )


def test_no_batch_is_suggested_without_an_estimate() -> None:
    with pytest.raises(ValueError, match="no estimate after 0 updates"):
        optim.suggested_batch(estimator().init(jnp.zeros(3)))
    with pytest.raises(ValueError, match="no GradientNoiseScaleState"):
        optim.suggested_batch(optax.sgd(0.1).init(jnp.zeros(3)))
