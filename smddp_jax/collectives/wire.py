# SPDX-License-Identifier: Apache-2.0
"""The type in which the contributions to a sum travel between hosts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from smddp_jax import cluster

# As in xla_ffi/base/dtype.h; float32 asks for nothing, not even for the default.
CODES = {None: -1, "float32": -1, "float16": 8, "bfloat16": 9}
_SUMS = frozenset({"sum", "sum_scatter"})
_HINT = "give 'bfloat16', 'float16', 'float32' or None"


def checked_wire(wire_dtype: Any, tree: Any) -> str | None:
    """The name of what a caller asks for, for sums of this tree; None: nothing.

    Raises:
      ValueError: sums are never sent as this, or those of a leaf can't be.
    """
    if wire_dtype is None:
        return None
    try:
        wire = cluster.wire_dtype_name(wire_dtype) or "float32"
    except (TypeError, ValueError) as error:
        raise ValueError(f"wire_dtype is {wire_dtype!r}: {_HINT}") from error
    for leaf in jax.tree.leaves(tree):
        _check(wire, jnp.result_type(leaf).name)
    return wire


def _check(wire: str, dtype: str) -> None:
    if dtype in ("float32", wire):
        return
    if wire == "float32" and dtype in ("float16", "bfloat16"):
        return
    raise ValueError(
        f"a sum of {dtype} can't be sent as {wire}: wire_dtype is for float32, and for "
        "float16 and bfloat16 as they are; sum the others in a call without it"
    )


def wire_of(op: str, wire: str | None, dtype: Any) -> str | None:
    """What a call's contributions are rounded to between hosts; None: nothing."""
    if op not in _SUMS:
        return None
    if wire is None and dtype == jnp.float32:
        wire = cluster.default_wire_dtype()
    return None if wire == "float32" else wire
