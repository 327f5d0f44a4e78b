# SPDX-License-Identifier: Apache-2.0
"""smddp_jax.optim's reductions: all_reduce_gradients, micro-batches, the loss."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from ranks import run_ranks
from world import HOWS, World

pytestmark = pytest.mark.ours
optim = pytest.importorskip("smddp_jax.optim")

RANKS = np.arange(8, dtype=np.float32)
CALL = re.compile(r"custom_call @smddp_all_reduce\w*\(.*?:\s*\((.*?)\)")


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


def replicated(world: World, step):
    """`step(weights, row)` on every device, with the same weights and results."""
    if world.how == "pmap":
        mapped = jax.pmap(step, axis_name="i", in_axes=(None, 0), out_axes=None)
        return mapped

    def block(weights, rows):
        return step(weights, jax.tree.map(lambda v: v[0], rows))

    specs = {"in_specs": (P(), P("i")), "out_specs": P()}
    return jax.jit(world.shard_map(block, **specs))


def reduce_rows(world: World, rows, **options):
    transform = optim.all_reduce_gradients("i", **options)
    return world.each(lambda g: transform.update(g, transform.init(g))[0], rows)


@pytest.mark.parametrize(("op", "want"), [("mean", 3.5), ("sum", 28.0)])
def test_local_gradients_are_reduced(world: World, op: str, want: float) -> None:
    reduce_rows(world, RANKS, op=op).equal([want] * 8)


@pytest.mark.parametrize(("op", "want"), [("mean", 3.5), ("sum", 28.0)])
def test_gradients_that_arrive_summed_are_not_summed_again(
    world: World, op: str, want: float
) -> None:
    """Row B107: in a checked shard_map they are 28 before anybody reduces them."""
    transform = optim.all_reduce_gradients("i", op=op)

    def step(weight, row):
        gradient = jax.grad(lambda w: w * row)(weight)
        return transform.update(gradient, transform.init(weight))[0]

    assert replicated(world, step)(jnp.float32(1), RANKS) == want


def test_own_copies_have_local_gradients(world: World) -> None:
    def step(weight, row):
        own = optim.as_varying({"w": weight}, "i")["w"]
        gradient = jax.grad(lambda w: w * row)(own)
        return lax.pmax(gradient, "i")  # 28 if it were summed

    assert replicated(world, step)(jnp.float32(1), RANKS) == 7.0


def test_each_axis_is_reduced_once() -> None:
    world = World("checked", jax.devices())
    transform = optim.all_reduce_gradients(("x", "y"))

    def step(weight, row):
        over_y = lax.pcast(weight, "x", to="varying")  # not over y
        gradient = jax.grad(lambda w: w * row[0, 0])(over_y)
        assert jax.typeof(gradient).mat.varying == {"x"}
        return transform.update(gradient, transform.init(weight))[0]

    mapped = world.shard_map(
        step, world.grid, in_specs=(P(), P("x", "y")), out_specs=P()
    )
    assert jax.jit(mapped)(jnp.float32(1), RANKS.reshape(4, 2)) == 3.5


def test_clipping_follows_the_reduction(world: World) -> None:
    """Row B104: clipped first, the mean would be (0.5, 0.5)."""
    rows = np.array([[2, 0], [0, 2]] * 4, np.float32)
    chain = optax.chain(optim.all_reduce_gradients("i"), optax.clip_by_global_norm(1.0))
    clipped = world.each(lambda g: chain.update(g, chain.init(g))[0], rows)
    clipped.close(np.full((8, 2), 0.70711), rtol=1e-5)


def test_leaves_without_gradient_pass() -> None:
    transform = optim.all_reduce_gradients("i")
    zero = np.zeros((3,), jax.dtypes.float0)

    def step(row):
        tree = {"none": None, "zero": zero, "w": row, "masked": optax.MaskedNode()}
        reduced = transform.update(tree, transform.init(tree))[0]
        assert reduced["none"] is None
        assert reduced["zero"] is zero
        assert reduced["masked"] == optax.MaskedNode()
        return reduced["w"]

    World("checked", jax.devices()).each(step, RANKS).equal([3.5] * 8)


def test_float16_can_be_divided_first(world: World) -> None:
    rows = np.full((8, 2), 60000, np.float16)
    reduce_rows(world, rows, pre_divide=True).equal(rows, np.float16)
    with np.errstate(over="ignore"):
        reduce_rows(world, rows).equal(np.full((8, 2), np.inf), np.float16)


def test_dtypes_are_kept_beside_each_other(world: World) -> None:
    names = ("float32", "bfloat16", "float16", "complex64")
    rows = {name: RANKS.astype(name) for name in names}
    reduced = reduce_rows(world, rows, wire_dtype="bfloat16")
    for name in names:
        reduced[name].equal([3.5] * 8, rows[name].dtype)


def call_types(world: World, rows, **options) -> list[str]:
    """What each of the reducing calls takes, in the order of the program."""
    transform = optim.all_reduce_gradients("i", **options)

    def update(gradients):
        return transform.update(gradients, transform.init(gradients))[0]

    if world.how == "pmap":
        lowered = jax.pmap(update, axis_name="i").lower(rows)
    else:
        lowered = world.mapped(update).lower(rows)
    return CALL.findall(lowered.as_text())


def test_buckets_are_filled_up_to_their_size(world: World) -> None:
    rows = {f"layer_{n}": np.zeros((8, 100), np.float32) for n in range(10)}
    assert len(call_types(world, rows)) == 1
    assert len(call_types(world, rows, bucket_bytes=1200)) == 4
    assert len(call_types(world, rows, bucket_bytes=1)) == 10


def test_buckets_follow_names_whatever_the_order_of_keys(world: World) -> None:
    """Row B18: equal collectives on processes that disagree about the order."""
    names = [f"layer_{n}" for n in (10, 9, 1, 2)]
    sizes = {"layer_1": 11, "layer_2": 12, "layer_9": 13, "layer_10": 14}
    seen = [
        call_types(
            world,
            OrderedDict((n, np.zeros((8, sizes[n]), np.float32)) for n in order),
            bucket_bytes=1,
        )
        for order in (names, names[::-1], sorted(names))
    ]
    assert seen[0] == seen[1] == seen[2]
    assert [re.findall(r"tensor<(?:1x)?(\d+)xf32>", call) for call in seen[0]] == [
        [str(size)]
        for size in (11, 12 + 1, 13 + 1, 14 + 1)  # each waits for the one before
    ]


@pytest.mark.parametrize("kind", ["dict", "ordered"])
@pytest.mark.parametrize("reducer", ["all_reduce_gradients", "value_and_grad"])
def test_B18_processes_may_disagree_about_the_order_of_keys(
    tmp_path: Path, kind: str, reducer: str
) -> None:
    env = {"SMDDP_TIMEOUT": "20"}
    with run_ranks("gradients", kind, reducer, logs=tmp_path, env=env) as job:
        assert all("AVERAGED" in output for output in job.succeed(60))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": "max"}, "op is 'max': give 'mean' or 'sum'"),
        ({"op": "sum", "pre_divide": True}, "pre_divide is for op='mean'"),
        ({"bucket_bytes": 0}, "bucket_bytes is 0: give 1 or more"),
    ],
)
def test_wrong_arguments_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        optim.all_reduce_gradients("i", **options)
    with pytest.raises(ValueError, match=message):
        optim.value_and_grad(lambda w: w, "i", **options)


def test_hyperparameters_can_be_injected_behind_the_reduction(world: World) -> None:
    def make(learning_rate):
        return optax.chain(
            optim.all_reduce_gradients("i"),
            optax.masked(optax.add_decayed_weights(0.5), {"w": True, "b": False}),
            optax.sgd(learning_rate),
        )

    optimizer = optax.inject_hyperparams(make)(learning_rate=lambda step: 0.1 * step)
    weights = {"w": jnp.float32(2), "b": jnp.float32(2)}

    def step(weights, row):
        state = optimizer.init(weights)
        for _ in range(2):  # the rates are 0 and 0.1
            gradients = jax.grad(lambda w: (w["w"] + w["b"]) * row)(weights)
            updates, state = optimizer.update(gradients, state, weights)
            weights = optax.apply_updates(weights, updates)
        return weights

    trained = replicated(world, step)(weights, RANKS)
    np.testing.assert_allclose(trained["w"], 2 - 0.1 * (3.5 + 1), rtol=1e-6)
    np.testing.assert_allclose(trained["b"], 2 - 0.1 * 3.5, rtol=1e-6)


# --- micro-batches --------------------------------------------------------------------


def counting(counter: list[int]) -> optax.GradientTransformation:
    def update(updates, state, params=None):
        jax.debug.callback(lambda: counter.append(1))
        return updates, state

    return optax.GradientTransformation(optax.init_empty_state, update)


def test_micro_batches_are_reduced_once_per_update(world: World) -> None:
    counter: list[int] = []
    inner = optax.chain(
        counting(counter), optim.all_reduce_gradients("i"), optax.sgd(0.1, 0.9)
    )
    optimizer = optim.multi_steps(inner, 4)
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)

    def step(weight, row):
        state = optimizer.init(weight)
        state = state._replace(acc_grads=optim.as_varying(state.acc_grads, "i"))

        def micro_step(carry, value):
            weight, state = carry
            own = optim.as_varying(weight, "i")
            gradient = jax.grad(lambda w: w * value)(own)
            updates, state = optimizer.update(gradient, state, weight)
            return (optax.apply_updates(weight, updates), state), updates

        (weight, state), updates = lax.scan(micro_step, (weight, state), row)
        return weight, updates, state.gradient_step

    weight, updates, done = replicated(world, step)(jnp.float32(1), rows)
    jax.effects_barrier()
    first, second = rows[:, :4].mean(), rows[:, 4:].mean()
    want = np.zeros(8, np.float32)
    want[3], want[7] = -0.1 * first, -0.1 * (second + 0.9 * first)
    np.testing.assert_allclose(updates, want, rtol=1e-6)
    np.testing.assert_allclose(weight, 1 + want.sum(), rtol=1e-5)
    assert done == 2
    assert len(counter) == 2 * 8, "updates times devices"


def test_the_micro_steps_of_pmap_may_be_calls_of_their_own() -> None:
    optimizer = optim.multi_steps(
        optax.chain(optim.all_reduce_gradients("i"), optax.sgd(1.0)),
        lambda update: jnp.where(update == 0, 1, 2),
    )

    @jax.pmap
    def start(weight):
        return optimizer.init(weight)

    def step(weight, state, row):
        gradient = jax.grad(lambda w: w * row)(weight)
        updates, state = optimizer.update(gradient, state, weight)
        return optax.apply_updates(weight, updates), state

    mapped = jax.pmap(step, axis_name="i")
    weight = jnp.zeros(8)
    state, seen = start(weight), []
    for scale in (1, 1, 3):
        weight, state = mapped(weight, state, scale * RANKS)
        seen.append(np.unique(weight).tolist())
    assert seen == [[-3.5], [-3.5], [-3.5 - 7.0]]


# --- the loss of the global batch -----------------------------------------------------


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_the_loss_is_divided_by_the_global_batch_once(world: World, op: str) -> None:
    losses = np.arange(24, dtype=np.float32).reshape(8, 3)

    def step(weight, row):
        def loss(w):
            return optim.global_mean_loss(w * row, "i", op=op)

        return optim.value_and_grad(loss, "i", op=op)(weight)[1]

    got = replicated(world, step)(jnp.float32(1), losses)
    np.testing.assert_allclose(got, losses.mean(), rtol=1e-6)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_examples_count_alike_where_devices_have_unlike_numbers(
    world: World, op: str
) -> None:
    losses = np.arange(24, dtype=np.float32).reshape(8, 3)
    weights = (losses % 5 != 0).astype(np.float32)
    weights[6] = 0

    def step(weight, rows):
        losses, weights = rows

        def loss(w):
            return optim.global_mean_loss(w * losses, "i", weights=weights, op=op)

        return optim.value_and_grad(loss, "i", op=op)(weight)[1]

    got = replicated(world, step)(jnp.float32(1), (losses, weights))
    np.testing.assert_allclose(got, losses[weights > 0].mean(), rtol=1e-6)
