# SPDX-License-Identifier: Apache-2.0
"""smddp_jax.optim.value_and_grad: JAX's gradients, reduced inside the backward pass."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_optim_reduction import replicated
from world import HOWS, World

pytestmark = pytest.mark.ours
optim = pytest.importorskip("smddp_jax.optim")

LAYERS = 5
WIDTH = 8
EVENTS = re.compile(r"custom_call @smddp_all_reduce_(\w+)|stablehlo\.dot_general")


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


def network() -> dict:
    random = np.random.default_rng(0)
    return {
        f"layer_{n}": {
            "kernel": random.normal(0, 0.4, (WIDTH, WIDTH)).astype(np.float32),
            "bias": random.normal(0, 0.1, WIDTH).astype(np.float32),
        }
        for n in range(LAYERS)
    }


def layer(weights, x):
    return jax.nn.relu(x @ weights["kernel"] + weights["bias"])


def plain(weights, x):
    for n in range(LAYERS):
        x = layer(weights[f"layer_{n}"], x)
    return jnp.mean(x**2)


def rematerialized(weights, x):
    for n in range(LAYERS):
        x = jax.checkpoint(layer)(weights[f"layer_{n}"], x)
    return jnp.mean(x**2)


def scanned(weights, x):
    stacked = jax.tree.map(lambda *layers: jnp.stack(layers), *weights.values())
    x, _ = lax.scan(lambda x, weights: (layer(weights, x), None), x, stacked)
    return jnp.mean(x**2)


def tied(weights, x):
    for n in (0, 1, 2, 1, 0, 3, 4):
        x = layer(weights[f"layer_{n}"], x)
    return jnp.mean(x**2)


def unused(weights, x):
    return jnp.mean(layer(weights["layer_3"], x) ** 2)


def jitted(weights, x):
    return jax.jit(plain)(weights, x)


def conditional(weights, x):
    layers = [partial(layer, weights[f"layer_{n}"]) for n in (0, 1)]
    return jnp.mean(lax.cond(x.sum() > 0, *layers, x) ** 2)


LOSSES = [
    *(plain, rematerialized, scanned, tied, unused, jitted, conditional),
    jax.checkpoint(plain),
]


@pytest.fixture(scope="module")
def batch() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 1, (8, 4, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("bucket_bytes", [1, 600, 25 << 20])
def test_gradients_are_those_of_the_whole_batch(
    world: World, batch, loss, bucket_bytes: int
) -> None:
    def whole(weights):
        return jnp.mean(jax.vmap(loss, (None, 0))(weights, batch))

    def step(weights, x):
        function = optim.value_and_grad(loss, "i", bucket_bytes=bucket_bytes)
        value, gradient = function(weights, x)
        return lax.pmean(value, "i"), gradient

    got = replicated(world, step)(network(), batch)
    want = jax.value_and_grad(whole)(network())
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), got, want)


def events(world: World, loss, weights, batch, **options) -> str:
    """Where the lowered step starts (S) and ends (E) reductions, and products (p)."""

    def step(weights, x):
        return optim.value_and_grad(loss, "i", **options)(weights, x)[1]

    text = replicated(world, step).lower(weights, batch).as_text()
    return "".join(
        {"start": "S", "done": "E", "": "p"}[e] for e in EVENTS.findall(text)
    )


@pytest.mark.parametrize("loss", [plain, rematerialized, jitted])
def test_reductions_stand_between_the_products_of_the_backward_pass(
    world: World, batch, loss
) -> None:
    size = 4 * (WIDTH * WIDTH + WIDTH)
    order = events(world, loss, network(), batch, bucket_bytes=size)
    assert order.count("S") == LAYERS
    backward = order[order.index("S") :]
    assert re.fullmatch(rf"(Sp+){{{LAYERS - 1}}}SE{{{LAYERS}}}", backward), order


def test_one_bucket_is_reduced_at_the_end(world: World, batch) -> None:
    order = events(world, plain, network(), batch)
    assert re.fullmatch(r"p+SE", order), order


def test_xla_computes_on_while_buckets_are_reduced(world: World, batch) -> None:
    """In the order in which the compiled program runs, too."""

    def step(weights, x):
        return optim.value_and_grad(plain, "i", bucket_bytes=1)(weights, x)[1]

    text = replicated(world, step).lower(network(), batch).compile().as_text()
    assert "is_scheduled=true" in text
    calls = re.findall(r'custom_call_target="smddp_all_reduce_(\w+)"', text)
    assert calls == ["start"] * 2 * LAYERS + ["done"] * 2 * LAYERS
    main = text[text.index("\nENTRY") :]
    between = main[main.index("_start") : main.rindex("_start")]
    assert len(re.findall(r" (?:dot|fusion)\(", between)) >= 2 * LAYERS
    assert " copy(" not in main


def test_buckets_follow_names_where_the_order_of_keys_may_differ(
    world: World, batch
) -> None:
    """Row B18: a loss that walks over an OrderedDict uses it in that order."""

    def loss(weights, x):
        return sum(jnp.mean((x[:, : len(w)] @ w) ** 2) for w in weights.values())

    def calls(names) -> list[str]:
        weights = OrderedDict((n, np.ones((int(n), 3), np.float32)) for n in names)

        def step(weights, x):
            gradient = optim.value_and_grad(loss, "i", bucket_bytes=1)
            return dict(gradient(weights, x)[1])

        text = replicated(world, step).lower(weights, batch).as_text()
        return re.findall(r"@smddp_all_reduce.*tensor<(\w+)xf32>\n", text)

    # From the second on with one number of the call before, which it waits for.
    want = ["2x3", "13", "16", "22"]
    assert calls("2547") == calls("7245") == want


def test_arguments_are_those_of_jax(world: World, batch) -> None:
    def loss(scale, weights, x, *, power):
        value = jnp.mean(jnp.abs(scale * layer(weights["layer_0"], x)) ** power)
        return value, {"largest": x.max()}

    def step(weights, x, gradient):
        (value, aux), (by_scale, by_weights) = gradient(
            loss, argnums=(0, 1), has_aux=True
        )(jnp.float32(1.5), weights, x, power=3)
        own = jnp.stack([value, aux["largest"]])
        return lax.pmean(own, "i"), by_scale, by_weights

    def ours(weights, x):
        return step(weights, x, partial(optim.value_and_grad, axis_name="i"))

    def stock(weights, x):
        own = optim.as_varying(weights, "i")
        value, by_scale, by_weights = step(own, x, jax.value_and_grad)
        summed = world.how == "checked"
        by_scale = by_scale / 8 if summed else lax.pmean(by_scale, "i")
        return value, by_scale, lax.pmean(by_weights, "i")

    got, want = (replicated(world, f)(network(), batch) for f in (ours, stock))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), got, want)


def test_integers_get_float0(world: World, batch) -> None:
    weights = {"w": np.float32(2), "n": np.int32(3)}

    def step(weights, row):
        def loss(weights):
            return weights["w"] * weights["n"] * row.sum()

        gradient = optim.value_and_grad(loss, "i", allow_int=True)(weights)[1]
        assert gradient["n"].dtype == jax.dtypes.float0
        return gradient["w"]

    got = replicated(world, step)(weights, batch)
    np.testing.assert_allclose(got, 3 * batch.sum() / 8, rtol=1e-5)


def test_it_works_inside_a_scan(world: World, batch) -> None:
    def step(weights, x):
        def descend(weights, row):
            gradient = optim.value_and_grad(plain, "i", bucket_bytes=600)
            value, gradient = gradient(weights, row[None])
            weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
            return weights, lax.pmean(value, "i")

        return lax.scan(descend, weights, x)

    def whole(weights):
        losses = []
        for n in range(batch.shape[1]):
            value, gradient = jax.value_and_grad(
                lambda w, n=n: jnp.mean(
                    jax.vmap(plain, (None, 0))(w, batch[:, n, None])
                )
            )(weights)
            weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
            losses.append(value)
        return weights, jnp.stack(losses)

    got, want = replicated(world, step)(network(), batch), whole(network())
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), got, want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_small_floats_keep_their_type(world: World, batch, dtype: str) -> None:
    weights = {"w": np.ones(3, dtype)}

    def step(weights, row):
        def loss(weights):
            return weights["w"].sum() * row.sum().astype(dtype)

        return optim.value_and_grad(loss, "i", pre_divide=True)(weights)[1]["w"]

    got = replicated(world, step)(weights, batch)
    assert got.dtype == dtype
    want = np.full(3, batch.sum() / 8)
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0.1, atol=0.1)


def test_a_weight_that_varies_gets_a_gradient_that_does(batch) -> None:
    def step(weight, row):
        own = lax.pcast(weight, "i", to="varying")
        gradient = optim.value_and_grad(lambda w: w * row.sum(), "i")(own)[1]
        assert jax.typeof(gradient).mat.varying == {"i"}
        return lax.pmax(gradient, "i")

    got = replicated(World("checked", jax.devices()), step)(jnp.float32(1), batch)
    np.testing.assert_allclose(got, batch.sum() / 8, rtol=1e-5)


def test_a_loss_that_is_averaged_already_is_refused(batch) -> None:
    def step(weights, x):
        mean = lambda w: lax.pmean(plain(w, x), "i")  # noqa: E731
        return optim.value_and_grad(mean, "i")(weights)[1]

    mapped = replicated(World("checked", jax.devices()), step)
    with pytest.raises(ValueError, match="the same on every device of axis 'i'"):
        mapped(network(), batch)
