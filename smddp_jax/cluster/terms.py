# SPDX-License-Identifier: Apache-2.0
"""The terms that init() may be called on, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from smddp_jax import _env
from smddp_jax._errors import ClusterError


@dataclass(frozen=True)
class Terms:
    """Arguments of init(), or the settings that stand for them.

    Attributes:
      reducers: host:port of each dedicated reducer.
      wire_dtype: what float32 is rounded to between hosts by default; None: nothing.
    """

    reducers: tuple[str, ...] = ()
    wire_dtype: str | None = None


def make_terms(reducers: Sequence[str] | None, wire_dtype: Any) -> Terms:
    """The terms of a call of init(); what is None comes from its variable.

    Raises:
      SettingError: an argument or a variable has no usable value.
    """
    return Terms(_reducers(reducers), wire_dtype_name(wire_dtype))


def check_again(terms: Terms, reducers: Sequence[str] | None, wire_dtype: Any) -> None:
    """Refuses arguments of init() that come too late to matter.

    Raises:
      ClusterError: `terms` hold, and the arguments ask for something else.
    """
    wanted = make_terms(reducers, wire_dtype)
    for name, argument in (("reducers", reducers), ("wire_dtype", wire_dtype)):
        old, new = getattr(terms, name), getattr(wanted, name)
        if argument is not None and old != new:
            raise ClusterError(
                f"init() was called before with {name}={old!r}, now with {new!r}: "
                "give the first call the arguments, or call shutdown() in between"
            )


def wire_dtype_name(wire_dtype: Any) -> str | None:
    """The name of a wire dtype, SMDDP_WIRE_DTYPE for None; None where it is float32.

    Args:
      wire_dtype: a dtype, its name or a short form such as bf16.

    Raises:
      SettingError: float32 is never sent as this.
    """
    if wire_dtype is None:
        name = _env.get("SMDDP_WIRE_DTYPE")
    else:
        is_name = isinstance(wire_dtype, str)
        text = wire_dtype if is_name else jnp.dtype(wire_dtype).name
        name = _env.parse("SMDDP_WIRE_DTYPE", text, "wire_dtype")
    return None if name in ("", "float32") else name


def problem_between(hosts: int, terms: Terms) -> str | None:
    """What is wrong with the terms for this many hosts; alike on every rank."""
    count = len(terms.reducers)
    if hosts > 1 and count and not _env.get("SMDDP_SECRET"):
        return (
            f"{count} reducers are given and no SMDDP_SECRET, which they can learn "
            "from nobody else: set the same one for them and for every process"
        )
    return None


def _reducers(reducers: Sequence[str] | None) -> tuple[str, ...]:
    if reducers is None:
        return _env.get("SMDDP_REDUCERS")
    text = reducers if isinstance(reducers, str) else ",".join(reducers)
    return _env.parse("SMDDP_REDUCERS", text, "reducers") if text else ()
