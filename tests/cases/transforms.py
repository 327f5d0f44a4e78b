# SPDX-License-Identifier: Apache-2.0
"""Rows about JAX's transformations: derivatives, loops, branches, remat."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from world import World, psum

from cases import case

RANKS = np.arange(8, dtype=np.float32)


def _varying(w: World, v):
    """A loop's carry must not change its type: a psum's result varies again."""
    return lax.pcast(v, "i", to="varying") if w.how == "checked" else v


def _squares(v):
    return psum(jnp.sum(v * v))


@case("B34")
def gradients_inside_the_map(w: World) -> None:
    # Without varying types the transpose of psum is psum: eight times the gradient.
    factor = 2 if w.how == "checked" else 16
    w.each(jax.grad(_squares), RANKS).equal(factor * RANKS)


@case("B34", "checked")
def gradients_outside_the_map(w: World) -> None:
    inner = w.shard_map(_squares, out_specs=P())
    w.take(jax.jit(jax.grad(lambda v: inner(v)))(w.put(RANKS))).equal(2 * RANKS)


@case("B34", "checked")
def gradients_of_replicated_weights_arrive_summed(w: World) -> None:
    f = w.shard_map(
        lambda weight, v: jax.grad(lambda weight: jnp.sum(weight * v))(weight),
        in_specs=(P(), P("i")),
        out_specs=P(),
    )
    assert np.asarray(jax.jit(f)(np.float32(2), w.put(RANKS))) == 28


@case("B34", "checked")
def gradients_of_a_mean_loss_are_means(w: World) -> None:
    def loss(weight, v):
        return lax.pmean(jnp.sum(weight * v), "i")

    f = w.shard_map(jax.grad(loss), in_specs=(P(), P("i")), out_specs=P())
    assert np.asarray(jax.jit(f)(np.float32(2), w.put(RANKS))) == 3.5


@case("B34", "checked")
def gradients_of_varying_weights_are_averaged_once(w: World) -> None:
    def step(weight, v):
        mine = lax.pcast(weight, "i", to="varying")
        return lax.pmean(jax.grad(lambda u: jnp.sum(u * v))(mine), "i")

    f = w.shard_map(step, in_specs=(P(), P("i")), out_specs=P())
    assert np.asarray(jax.jit(f)(np.float32(2), w.put(RANKS))) == 3.5


@case("B36")
def forward_derivatives(w: World) -> None:
    result = w.each(lambda v, t: jax.jvp(psum, (v,), (t,)), RANKS, np.ones_like(RANKS))
    result[0].equal([28] * 8)
    result[1].equal([8] * 8)


@case("B36")
def recomputed_forward_passes(w: World) -> None:
    loss = jax.checkpoint(lambda v: psum(jnp.sum(jnp.sin(v))))
    factor = 1 if w.how == "checked" else 8
    w.each(jax.grad(loss), RANKS).close(factor * np.cos(RANKS), rtol=1e-5, atol=1e-6)


@case("B36")
def psum_forward_identity_backward(w: World) -> None:
    @jax.custom_vjp
    def summed(v):
        return _varying(w, psum(v))

    summed.defvjp(lambda v: (summed(v), None), lambda _, g: (g,))
    w.each(jax.grad(lambda v: summed(v) * 3.0), RANKS).equal([3] * 8)


@case("B36")
def second_derivatives(w: World) -> None:
    def hessian(v):
        return jax.jvp(jax.grad(lambda u: psum(u**3)), (v,), (jnp.ones_like(v),))[1]

    factor = 6 if w.how == "checked" else 48
    w.each(hessian, RANKS).equal(factor * RANKS)


@case("B38")
def scan(w: World) -> None:
    def f(v):
        step = lambda c, _: (_varying(w, psum(c)) / 8 + 1, psum(c * 0 + 1))  # noqa: E731
        return lax.scan(step, v, None, length=5)

    result = w.each(f, RANKS)
    result[0].equal([8.5] * 8)
    result[1].equal(np.full((8, 5), 8))


@case("B38")
def a_sum_decides_when_a_loop_ends(w: World) -> None:
    f = lambda v: lax.while_loop(lambda c: psum(c) < 100, lambda c: c + 1, v)  # noqa: E731
    w.each(f, RANKS).equal(np.arange(9, 17))


@case("B38")
def sums_in_a_predicate_and_in_both_branches(w: World) -> None:
    f = lambda v: lax.cond(psum(v) > 3, psum, lambda u: psum(u * 0), v)  # noqa: E731
    w.each(f, RANKS).equal([28] * 8)
    w.each(f, RANKS / 100).equal([0] * 8)


@case("B38")
def loops_within_loops(w: World) -> None:
    def inner(_, c):
        return _varying(w, psum(c)) / 8

    def outer(k, c):
        return lax.fori_loop(0, k + 1, inner, c + _varying(w, psum(jnp.float32(k))))

    # Each outer round adds 8k, and averaging equal values changes nothing.
    w.each(lambda v: lax.fori_loop(0, 4, outer, v), RANKS).equal([3.5 + 8 * 6] * 8)


@case("B41", "checked", "unchecked")
def donated_arguments(w: World) -> None:
    f = jax.jit(w.shard_map(psum), donate_argnums=0)
    value = np.arange(8 * 1024, dtype=np.float32).reshape(8, 1024)
    wanted = np.broadcast_to(value.sum(0), value.shape)
    for _ in range(20):
        given = w.put(value)
        w.take(f(given)).equal(wanted)
        assert given.is_deleted()


@case("B41", "checked", "unchecked")
def an_argument_lives_on_after_the_sum(w: World) -> None:
    value = np.arange(8 * 1024, dtype=np.float32).reshape(8, 1024)
    f = w.mapped(lambda v: (psum(v), v + 1, psum(v) + v))
    given = w.put(value)
    total = np.broadcast_to(value.sum(0), value.shape)
    for _ in range(5):
        result = w.take(f(given))
        result[0].equal(total)
        result[1].equal(value + 1)
        result[2].equal(total + value)
    w.take(given).equal(value)


@case("B44")
def the_whole_vector_is_right_after_fifty_rounds(w: World) -> None:
    value = np.tile(np.linspace(1, 2, 120_000, dtype=np.float32), (8, 1))

    def f(v):
        step = lambda _, c: _varying(w, psum(c) * np.float32(0.99 / 8))  # noqa: E731
        return lax.fori_loop(0, 50, step, v)

    w.each(f, value).close(value * 0.99**50, rtol=2e-5)


@case("inner-jit")
def one_inner_function_called_twice(w: World) -> None:
    """Two independent calls of one lowered function: two instances of one op."""
    inner = jax.jit(lambda v: psum(jnp.sin(v)) * 2)

    def f(a, b):
        return inner(a), inner(b), inner(a + b)

    a = np.random.default_rng(3).standard_normal((8, 4097)).astype(np.float32)
    b = a[::-1] * 3 + 1
    result = w.each(f, a, b)
    for k, value in enumerate((a, b, a + b)):
        wanted = np.broadcast_to(2 * np.sin(value).sum(0), value.shape)
        result[k].close(wanted, rtol=1e-4, atol=1e-4)
