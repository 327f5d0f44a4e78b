# SPDX-License-Identifier: Apache-2.0
"""Values to reduce, and the check of results against NumPy.

Each rank's values are small whole numbers, so that the right result is exact in every
dtype and one missing, doubled or misplaced contribution shows. They repeat after a
prime number of elements, which no segment or shard size is a multiple of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_PERIOD = 65521
_VALUES = 31
_OPS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda rows: rows.sum(0),
    "max": lambda rows: rows.max(0),
    "min": lambda rows: rows.min(0),
}


def values(rank: int, count: int, dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """What one rank contributes; `offset` tells the leaves of a tree apart."""
    return _repeat(_pattern(rank).astype(dtype), count, offset)


def expected(
    ranks: int, count: int, dtype: Any, op: str, offset: int = 0
) -> np.ndarray[Any, Any]:
    """What the reduction of all ranks' values must be: whole numbers wrap."""
    return _repeat(_reduced(ranks, dtype, op), count, offset)


def sharded(
    mesh: Mesh, shape: tuple[int, ...], dtype: Any, offset: int = 0
) -> jax.Array:
    """An array whose row k lies on device k and holds rank k's values."""
    count = int(np.prod(shape, dtype=np.int64))
    return place_rows(
        mesh, shape, lambda rank: values(rank, count, dtype, offset).reshape(shape)
    )


def place_rows(
    mesh: Mesh,
    shape: tuple[int, ...],
    row: Callable[[int], np.ndarray[Any, Any]],
) -> jax.Array:
    """An array whose row k, of this shape, lies on device k of the mesh."""

    def local_row(index: Any) -> np.ndarray[Any, Any]:
        return row(index[0].start or 0)[None]

    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.make_array_from_callback(
        (mesh.devices.size, *shape), sharding, local_row
    )


def count_wrong(
    result: jax.Array,
    ranks: int,
    dtype: Any,
    op: str,
    offset: int = 0,
    wire_dtype: str = "",
) -> int:
    """Elements that differ from NumPy's, over all devices of this process.

    With a `wire_dtype` NumPy's are rounded to it: the values are exact in it, also the
    sums of a host's, and reducers round once.
    """
    wrong = 0
    want: np.ndarray[Any, Any] | None = None
    for shard in result.addressable_shards:
        got = np.asarray(shard.data).reshape(-1)
        if want is None:
            want = expected(ranks, got.size, dtype, op, offset)
            if wire_dtype:
                want = want.astype(jnp.dtype(wire_dtype)).astype(dtype)
        wrong += int(np.count_nonzero(got != want))
    return wrong


def resolve_dtype(name: str) -> Any:
    """The dtype of a name, bfloat16 included; switches on 64 bits where it has them."""
    dtype = jnp.dtype(name)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        jax.config.update("jax_enable_x64", True)
    return dtype


@functools.cache
def _pattern(rank: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    mixed = (np.arange(_PERIOD, dtype=np.uint32) * np.uint32(2654435761)) >> 15
    own = mixed.astype(np.int64) * (2 * rank + 1) + 7 * rank
    return own % _VALUES - _VALUES // 2


@functools.cache
def _reduced(ranks: int, dtype: Any, op: str) -> np.ndarray[Any, Any]:
    # Each value as its dtype holds it (it may wrap), in a type that sums exactly.
    exact = np.int64 if np.issubdtype(dtype, np.integer) else np.float64
    rows = [_pattern(rank).astype(dtype).astype(exact) for rank in range(ranks)]
    return _OPS[op](np.stack(rows)).astype(dtype)


def _repeat(
    pattern: np.ndarray[Any, Any], count: int, offset: int
) -> np.ndarray[Any, Any]:
    """`count` values of the endless repetition, from `offset` on."""
    return np.resize(np.roll(pattern, -offset), count)
