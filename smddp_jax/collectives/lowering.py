# SPDX-License-Identifier: Apache-2.0
"""Lowers JAX's collectives to our custom calls: `install()`, and its rules.

The rules wrap JAX's own and look at the mode when they run. The mode is a JAX
user context, part of the key of every trace and compile cache: a function compiled
before `install()` is lowered anew at its next call, and found again after
`uninstall()`. Everything here runs in the thread that lowers a program.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax

from smddp_jax import _jax_compat
from smddp_jax.collectives.calls import (
    Collective,
    Met,
    engine,
    lower_blocks,
    lower_reduction,
    observed,
)
from smddp_jax.collectives.numbering import DONE, START, TARGETS, number_calls
from smddp_jax.collectives.pairs import settle_starts

_ON = "on"
# How JAX's primitives that scatter or gather call the dimension they do it along.
DIMENSIONS = {"sum_scatter": "scatter_dimension", "gather": "all_gather_dimension"}

_mode = jax.make_user_context(None)
_lock = threading.Lock()
_restorers: list[Callable[[], None]] = []
_users = 0
own_primitives: set[Any] = set()


def install() -> None:
    """Takes over `lax.psum`, `pmean`, `pmax`, `pmin`, `psum_scatter`, `all_gather`.

    In this process, on CPU; also the sums that differentiation puts in. What we can't
    take keeps JAX's own lowering; `smddp_jax.explain` tells which and why. Functions
    that are compiled already are compiled again at their next call. Called before JAX
    makes its backend, it also gives XLA's CPU client the threads that many steps in
    flight need; without them jax 0.10 can hang with some tens of steps queued, with or
    without us. With SMDDP_FALLBACK=1 nothing happens where the engine is not available.

    Raises:
      EngineUnavailableError: the native engine or this JAX can't be used.
    """
    if engine() is not None and not is_installed():
        _acquire()
        _mode.set_global(_ON)


def uninstall() -> None:
    """Gives `lax.psum` and the others back to JAX. Harmless if not installed."""
    if is_installed():
        _mode.set_global(None)
        _release()


def is_installed() -> bool:
    """Whether `install()` holds, in every thread."""
    return _mode.get_global() is not None


@contextlib.contextmanager
def lowering() -> Iterator[None]:
    """`install()` for the programs that this thread calls within the context."""
    if engine() is None:
        yield
        return
    with _rules(), _mode(_ON):
        yield


def is_active() -> bool:
    """Whether `lax.psum` of a program lowered now, in this thread, is ours."""
    return _mode.value == _ON


@contextlib.contextmanager
def observe(token: Hashable) -> Iterator[list[Met]]:
    """Collects every collective that is lowered within, by JAX's own rules.

    `token` must be new each time, or programs come from a cache without being lowered.
    """
    found: list[Met] = []
    handle = observed.set(found)
    try:
        with _rules(), _mode(("observe", token)):
            yield found
    finally:
        observed.reset(handle)


def _lower_stock_reduction(name: str, ctx: Any, arg: Any, **params: Any) -> list[Any]:
    """The rule of one of JAX's all-reduce primitives, which reduces one array."""
    primitive, op = _jax_compat.stock_collectives()[name]
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    lower_stock = functools.partial(_jax_compat.lower_stock, ctx, primitive, aval, out)
    axes = params["axes"]
    named = tuple(axis for axis in axes if not isinstance(axis, int))
    reduced = None
    if named and _mode.value is not None:
        local = arg
        if len(named) < len(axes):  # vmap's axes, which the device reduces by itself
            inside = tuple(axis for axis in axes if isinstance(axis, int))
            local = lower_stock(arg, {**params, "axes": inside})
        collective = Collective(op, named, params.get("axis_index_groups"))
        reduced = lower_reduction(ctx, collective, [local], [out])
    return reduced if reduced is not None else [lower_stock(arg, params)]


def _lower_stock_blocks(name: str, ctx: Any, arg: Any, **params: Any) -> list[Any]:
    """The rule of one of JAX's primitives that scatter or gather."""
    primitive, op = _jax_compat.stock_collectives()[name]
    (aval,), (out,) = ctx.avals_in, ctx.avals_out
    moved = None
    if _mode.value is not None:
        axes = params["axis_name"]
        axes = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
        collective = Collective(op, axes, params.get("axis_index_groups"))
        # JAX takes negative ones up to here, in psum_scatter.
        dimension = params[DIMENSIONS[op]] % max(aval.ndim, out.ndim)
        moved = lower_blocks(ctx, collective, arg, dimension, tiled=params["tiled"])
    if moved is not None:
        return moved
    return [_jax_compat.lower_stock(ctx, primitive, aval, out, arg, params)]


@contextlib.contextmanager
def _rules() -> Iterator[None]:
    _acquire()
    try:
        yield
    finally:
        _release()


def _acquire() -> None:
    """Registers the rules for the first who needs them."""
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for name, stock in _jax_compat.stock_collectives().items():
            in_blocks = stock.op in DIMENSIONS
            lower = _lower_stock_blocks if in_blocks else _lower_stock_reduction
            rule = functools.partial(lower, name)
            _restorers.append(_jax_compat.register_rule(stock.primitive, rule))


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        while _users == 0 and _restorers:
            _restorers.pop()()


def _device_bound() -> frozenset[Any]:
    """The primitives whose lowering names devices, in the mode of this thread."""
    if _mode.value is None:
        return frozenset(own_primitives)
    stock = _jax_compat.stock_collectives().values()
    return frozenset(own_primitives | {each.primitive for each in stock})


_jax_compat.tie_lowering_to_devices(_device_bound)


def _complete(module: Any) -> None:
    settle_starts(module)
    number_calls(module)


_jax_compat.when_lowered(_complete)
for _target in {*TARGETS.values(), START, DONE}:
    _jax_compat.allow_in_exports(_target)
