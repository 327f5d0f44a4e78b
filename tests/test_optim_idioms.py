# SPDX-License-Identifier: Apache-2.0
"""optax's own idioms with each piece of smddp_jax.optim."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from test_optim_reduction import replicated
from world import World

pytestmark = pytest.mark.ours
optim = pytest.importorskip("smddp_jax.optim")

DEVICES, STEPS = 8, 4
WEIGHTS = {"kernel": np.array([[3.0, 4.0]], np.float32), "bias": np.ones(2, np.float32)}


def rate_in_velocity(rate):
    return optax.chain(optax.scale_by_learning_rate(rate), optax.trace(0.9))


# Each makes an optimizer, reduction first, of a rate or of a schedule.
PIECES = {
    "all_reduce_gradients": lambda rate: optax.sgd(rate, 0.9),
    "gradient_noise_scale": lambda rate: optax.sgd(rate, 0.9),
    "weight_decay_mask": lambda rate: optax.adamw(
        rate, weight_decay=0.1, mask=optim.weight_decay_mask
    ),
    "lars": optim.lars,
    "lamb": optim.lamb,
    "scale_by_momentum_correction": lambda rate: optim.scale_by_momentum_correction(
        rate_in_velocity, rate
    ),
}
RATES = {
    "fixed": 0.5,
    "gradual": optim.gradual_warmup_schedule(0.1, 0.4, 3),
    "constant": optim.constant_warmup_schedule(0.1, 0.4, 3),
    "goyal": optim.goyal_schedule(0.1, 32, 128, 1, warmup_epochs=2, decay_epochs=(3,)),
}


def maker(piece: str):
    def make(learning_rate):
        reduce = optim.all_reduce_gradients("i")
        if piece == "gradient_noise_scale":
            reduce = optim.gradient_noise_scale(reduce, "i", local_batch=4)
        return optax.chain(reduce, PIECES[piece](learning_rate))

    return make


@pytest.fixture(params=PIECES)
def make(request):
    return maker(request.param)


# Every piece with one schedule, and every schedule with one piece.
COMBINATIONS = [(piece, "gradual") for piece in PIECES]
COMBINATIONS += [("all_reduce_gradients", rate) for rate in RATES if rate != "gradual"]


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def both(request):
    """What makes an optimizer of a rate, and the rate."""
    piece, rate = request.param
    return maker(piece), RATES[rate]


def gradients(first: int = 0, last: int = STEPS):
    """Each device's own, of some steps."""
    random = np.random.default_rng(0)
    every = {
        name: random.normal(1, 1, (DEVICES, STEPS, *weight.shape)).astype(np.float32)
        for name, weight in WEIGHTS.items()
    }
    return {name: rows[:, first:last] for name, rows in every.items()}


def train(optimizer, rows, carry=None, own: tuple[str, ...] = ()):
    """The updates of all steps, and weights and state at the end.

    Leaves named in `own` keep each device's own gradients: their mean is returned.
    """

    def steps(carry, rows):
        def step(carry, row):
            weights, state = carry
            updates, state = optimizer.update(row, state, weights)
            for name in own:
                updates[name] = jax.lax.pmean(updates[name], "i")
            return (optax.apply_updates(weights, updates), state), updates

        return jax.lax.scan(step, carry, rows)[::-1]

    mapped = replicated(World("unchecked", jax.devices()), steps)
    return mapped(carry or (WEIGHTS, optimizer.init(WEIGHTS)), rows)


def same(got, want, **tolerance) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-5})),
        got,
        want,
    )


def test_inject_hyperparams(both) -> None:
    make, rate = both
    plain, _ = train(make(rate), gradients())
    optimizer = optax.inject_hyperparams(make)(learning_rate=rate)
    injected, (_, state) = train(optimizer, gradients())
    same(injected, plain)
    last = rate(STEPS - 1) if callable(rate) else rate
    same(state.hyperparams["learning_rate"], last)


def test_an_injected_rate_can_be_set(make) -> None:
    optimizer = optax.inject_hyperparams(make)(learning_rate=0.5)
    state = optimizer.init(WEIGHTS)
    state.hyperparams["learning_rate"] = jnp.float32(0.0)
    stopped, _ = train(optimizer, gradients(0, 1), (WEIGHTS, state))
    same(stopped, jax.tree.map(jnp.zeros_like, stopped), atol=0)


def test_chain(make) -> None:
    rows = gradients(0, 1)
    plain, _ = train(make(0.5), rows)
    chained = optax.chain(optax.identity(), make(0.5), optax.scale(2.0))
    same(train(chained, rows)[0], jax.tree.map(lambda u: 2 * u, plain))


def test_masked(make) -> None:
    """What the mask leaves out is neither reduced nor changed."""
    rows, mask = gradients(0, 1), {"kernel": True, "bias": False}
    plain, _ = train(make(0.5), {"kernel": rows["kernel"], "bias": 0 * rows["bias"]})
    updates, _ = train(optax.masked(make(0.5), mask), rows, own=("bias",))
    same(updates["kernel"], plain["kernel"])
    same(updates["bias"][0], rows["bias"][:, 0].mean(0))


@pytest.mark.parametrize("multi_steps", [optim.multi_steps, optax.MultiSteps])
def test_multi_steps(make, multi_steps) -> None:
    """Two micro-steps are an update of their mean, and the schedule counts updates."""
    rows, rate = gradients(), RATES["gradual"]
    means = {name: (v[:, ::2] + v[:, 1::2]) / 2 for name, v in rows.items()}
    want, _ = train(make(rate), means)
    got, (_, state) = train(multi_steps(make(rate), 2), rows)
    assert state.gradient_step == STEPS // 2 and state.mini_step == 0
    same(jax.tree.map(lambda u: u[1::2], got), want, rtol=2e-5)
    same(
        jax.tree.map(lambda u: u[::2], got), jax.tree.map(jnp.zeros_like, want), atol=0
    )


def test_orbax(both, tmp_path) -> None:
    """A restored training goes on with the bits of the whole one."""
    make, rate = both
    optimizer = optax.inject_hyperparams(make)(learning_rate=rate)
    whole, _ = train(optimizer, gradients())
    _, saved = train(optimizer, gradients(0, 2))
    checkpointer = orbax.checkpoint.StandardCheckpointer()
    checkpointer.save(tmp_path / "state", saved)
    checkpointer.wait_until_finished()
    fresh = WEIGHTS, optimizer.init(WEIGHTS)
    restored = jax.device_get(checkpointer.restore(tmp_path / "state", fresh))
    checkpointer.close()
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    went_on, _ = train(optimizer, gradients(2), restored)
    same(went_on, jax.tree.map(lambda u: u[2:], whole), rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_updates_have_the_dtype_of_the_gradients(both, dtype: str) -> None:
    make, rate = both
    weights = jax.tree.map(lambda w: jnp.asarray(w, dtype), WEIGHTS)
    optimizer = make(rate)

    def update(now):
        return optimizer.update(now, optimizer.init(weights), weights)[0]

    rows = jax.tree.map(lambda w: jnp.stack([w] * DEVICES), weights)
    updates = jax.eval_shape(jax.vmap(update, axis_name="i"), rows)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(updates)} == {dtype}
