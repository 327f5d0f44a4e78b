# SPDX-License-Identifier: Apache-2.0
"""Lowers reductions to our custom call: `install()`, and what the rules emit.

The rules wrap JAX's own and look at the mode when they run. The mode is a JAX
user context, part of the key of every trace and compile cache: a function compiled
before `install()` is lowered anew at its next call, and found again after
`uninstall()`. Everything here runs in the thread that lowers a program.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import numpy as np

from smddp_jax import _jax_compat, _native, cluster
from smddp_jax.collectives.numbering import TARGET, key_of, number_calls
from smddp_jax.collectives.placement import Groups, Placement, Refusal, place

_OP_CODES = {"sum": 0, "max": 1, "min": 2}
_NAMES = {"sum": "psum", "max": "pmax", "min": "pmin"}
_ON = "on"


@dataclass(frozen=True)
class Reduction:
    """One reduction met while lowering, and what was decided about it.

    Attributes:
      op: sum, max or min.
      avals: types of the arrays that are reduced, more than one where they are fused.
      axes: names of the axes it goes over.
      found: where we would run it, or why we don't.
      explicit: whether the program asked for us by name (`smddp_jax.psum`).
    """

    op: str
    avals: tuple[Any, ...]
    axes: tuple[Hashable, ...]
    found: Placement | Refusal
    explicit: bool


_mode = jax.make_user_context(None)
_observed: ContextVar[list[Reduction] | None] = ContextVar("observed", default=None)
_lock = threading.Lock()
_restorers: list[Callable[[], None]] = []
_users = 0
own_primitives: set[Any] = set()
_alias_results = False


def install() -> None:
    """Takes over `lax.psum`, `pmean`, `pmax` and `pmin` in this process, on CPU.

    Also the sums that differentiation puts in. What we can't take keeps JAX's own
    lowering; `smddp_jax.explain` tells which and why. Functions that are compiled
    already are compiled again at their next call. Called before JAX makes its backend,
    it also gives XLA's CPU client the threads that many steps in flight need; without
    them jax 0.10 can hang with some tens of steps queued, with or without us. With
    SMDDP_FALLBACK=1 nothing happens where the engine is not available.

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


def alias_results(enabled: bool) -> None:
    """Whether XLA may reduce in place: it spares fresh pages for a possible copy."""
    global _alias_results
    if enabled != _alias_results:
        _alias_results = enabled
        jax.clear_caches()


@contextlib.contextmanager
def observe(token: Hashable) -> Iterator[list[Reduction]]:
    """Collects every reduction that is lowered within, by JAX's own rules.

    `token` must be new each time, or programs come from a cache without being lowered.
    """
    found: list[Reduction] = []
    handle = _observed.set(found)
    try:
        with _rules(), _mode(("observe", token)):
            yield found
    finally:
        _observed.reset(handle)


def engine() -> ModuleType | None:
    """The native module, or None where SMDDP_FALLBACK=1 makes up for its lack.

    Raises:
      EngineUnavailableError: the native module or this JAX can't be used.
    """
    return None if cluster.engine_problem() is not None else _native.load()


def lower_reduction(
    ctx: Any,
    op: str,
    args: Sequence[Any],
    avals: Sequence[Any],
    axes: tuple[Hashable, ...],
    axis_index_groups: Groups | None,
    *,
    explicit: bool,
) -> list[Any] | None:
    """Emits our call for arrays of one dtype, or returns None to leave them to JAX."""
    found = place(ctx, op, avals, axes, axis_index_groups)
    observed = _observed.get()
    if observed is not None:
        observed.append(Reduction(op, tuple(avals), axes, found, explicit))
        return None
    if isinstance(found, Refusal) or engine() is None:
        return None
    return _emit(ctx, op, args, avals, axes, found)


def _emit(
    ctx: Any,
    op: str,
    args: Sequence[Any],
    avals: Sequence[Any],
    axes: tuple[Hashable, ...],
    placement: Placement,
) -> list[Any]:
    module = _jax_compat.module_name(ctx)
    label = f"{_NAMES[op]}({', '.join(map(_spell, axes))}) in {module}"
    # Numbered anew when the module is complete.
    key = key_of(label, f"emitted {_jax_compat.next_position(ctx)}")
    operands, avals_in = list(args), list(avals)
    if placement.exported:
        operands.append(_jax_compat.partition_id())
        avals_in.append(_jax_compat.scalar_type(np.dtype(np.uint32)))
    return _jax_compat.custom_call(
        ctx,
        TARGET,
        operands,
        avals_in,
        avals,
        {n: n for n in range(len(args))} if _alias_results else {},
        {
            "key": np.int64(key),
            "op": np.int64(_OP_CODES[op]),
            "exported": np.int64(placement.exported),
            "groups": _integers(n for group in placement.groups for n in group),
            "group_sizes": _integers(map(len, placement.groups)),
            "devices": _integers(placement.devices),
            "processes": _integers(placement.processes),
            "label": label,
        },
    )


def _spell(axis: Hashable) -> str:
    """The axis's name, alike in every process: the repr of an object may be not."""
    return repr(axis) if isinstance(axis, str | int) else type(axis).__name__


def _integers(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)


def _lower_stock_primitive(name: str, ctx: Any, arg: Any, **params: Any) -> list[Any]:
    """The rule of one of JAX's own primitives, which reduces one array."""
    primitive, op = _jax_compat.stock_reductions()[name]
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
        groups = params.get("axis_index_groups")
        reduced = lower_reduction(
            ctx, op, [local], [out], named, groups, explicit=False
        )
    return reduced if reduced is not None else [lower_stock(arg, params)]


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
        for name, stock in _jax_compat.stock_reductions().items():
            rule = functools.partial(_lower_stock_primitive, name)
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
    stock = _jax_compat.stock_reductions().values()
    return frozenset(own_primitives | {reduction.primitive for reduction in stock})


_jax_compat.tie_lowering_to_devices(_device_bound)
_jax_compat.when_lowered(number_calls)
_jax_compat.allow_in_exports(TARGET)
