# SPDX-License-Identifier: Apache-2.0
"""Rows about what the compiler may do, ahead-of-time use, and much at once."""

from __future__ import annotations

import threading

import jax
import numpy as np
from world import World, psum

from cases import case

RANKS = np.arange(8, dtype=np.float32)


@case("B46")
def equal_and_unused_sums(w: World) -> None:
    def f(v):
        first, second = psum(v), psum(v)
        psum(v * 2)  # its result is not used
        return first + second

    for _ in range(20 if w.how == "checked" else 3):
        w.each(f, RANKS).equal([56] * 8)


@case("B46")
def chained_sums_keep_their_order(w: World) -> None:
    def f(v):
        first = psum(v)
        return first, psum(first * (v + 1)), psum(v * v)

    result = w.each(f, RANKS)
    result[0].equal([28] * 8)
    result[1].equal([28 * 36] * 8)
    result[2].equal([140] * 8)


@case("B50", "checked", "unchecked")
def compiled_ahead_of_time(w: World) -> None:
    given = w.put(RANKS)
    f = w.mapped(psum)
    compiled = f.lower(given).compile()
    direct = f(given)
    for _ in range(3):
        again = compiled(given)
        assert type(again) is type(direct) and again.sharding == direct.sharding
        w.take(again).equal([28] * 8)


@case("B50", "pmap")
def a_compiled_pmap(w: World) -> None:
    if jax.process_count() > 1:
        return  # the rows of one process are not the whole argument there
    f = jax.pmap(psum, axis_name="i", devices=list(w.devices))
    compiled, direct = f.lower(RANKS).compile(), f(RANKS)
    for _ in range(3):
        again = compiled(RANKS)
        assert type(again) is type(direct)
        np.testing.assert_array_equal(again, direct)


@case("B53", "checked", "unchecked", ours=True)
def a_thousand_steps_queued(w: World) -> None:
    """Two sums that depend on nothing, and no wait between the steps."""
    f = w.mapped(lambda a, b: (psum(a), psum(b)))
    a, b = w.put(RANKS), w.put(np.ones((8, 4096), np.float32))
    results = [f(a, b) for _ in range(1000)]
    for step in (0, 500, 999):
        w.take(results[step][0]).equal([28] * 8)
        w.take(results[step][1]).equal(np.full((8, 4096), 8))


@case("programs", ours=True)
def many_programs_in_turn(w: World) -> None:
    """Different programs interleaved: none may take another's contribution."""
    fs = [lambda v, k=k: psum(v * k) for k in range(1, 6)]
    if w.how == "pmap":
        for k, f in enumerate(fs, 1):
            w.each(f, RANKS).equal([28 * k] * 8)
        return
    given, mapped = w.put(RANKS), [w.mapped(f) for f in fs]
    queued = [(k, f(given)) for _ in range(20) for k, f in enumerate(mapped, 1)]
    for k, result in queued:
        w.take(result).equal([28 * k] * 8)


def _on_two_meshes_at_once(w: World, orders: list[list[int]]) -> None:
    """One thread each, 200 steps, on meshes that share no device."""
    errors: list[BaseException] = []

    def work(k: int) -> None:
        mesh = w.mesh(orders[k])
        if not w.takes_part(mesh):
            return
        try:
            f, given = w.mapped(psum, mesh), w.put(RANKS[:4] + k, mesh)
            results = [f(given) for _ in range(200)]
            for result in results[::50]:
                w.take(result, mesh).equal([6 + 4 * k] * 4)
        except BaseException as error:  # shown below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not errors, errors


@case("B55", "checked", "unchecked", ours=True)
def two_halves_at_once(w: World) -> None:
    _on_two_meshes_at_once(w, [[0, 1, 2, 3], [4, 5, 6, 7]])


@case("B55", "checked", "unchecked", ours=True)
def two_interleaved_halves_at_once(w: World) -> None:
    # XLA runs all programs of a process in the order of their launch. Where both halves
    # span the same processes, their threads would have to agree about that order.
    if jax.process_count() == 1:
        _on_two_meshes_at_once(w, [[0, 2, 4, 6], [1, 3, 5, 7]])
