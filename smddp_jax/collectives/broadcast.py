# SPDX-License-Identifier: Apache-2.0
"""Gives everybody the values of one, exact to the bit.

A sum in which all but one contribute zeros of an unsigned type: adding floats instead
would turn -0.0 into 0.0 and could change the payload of a NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from smddp_jax.collectives.psum import AxisName, psum

_AXIS = "smddp_broadcast"


def broadcast(tree: Any, axis_name: AxisName | None = None, root: int = 0) -> Any:
    """Gives every device, or every process, the values that one of them has.

    Args:
      tree: a pytree of arrays, of one structure and of the same shapes everywhere.
      axis_name: inside `jax.shard_map` or `jax.pmap`, the axis (or axes) to go over;
        None outside of them, to go over the processes of the job.
      root: whose values are taken: an index along the axis, or of a process.

    Returns:
      The tree with root's values. Without an axis, arrays of this process's default
      device. A derivative with respect to `tree` reaches root alone.
    """
    if axis_name is None:
        return _between_processes(tree, root)
    axes = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
    size = lax.psum(1, axes)
    if not 0 <= root < size:
        raise ValueError(f"root is {root}, the axis {axis_name!r} has {size} indices")
    return _by_name(lambda leaves: _spread(leaves, axes, root), tree)


def _by_name(change: Callable[[list[Any]], list[Any]], tree: Any) -> Any:
    """Maps all leaves at once, ordered by name: places may differ among processes."""
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in named]
    order = sorted(range(len(named)), key=names.__getitem__)
    changed = change([jnp.asarray(named[n][1]) for n in order])
    at = dict(zip(order, changed, strict=True))
    return jax.tree.unflatten(structure, [at[n] for n in range(len(named))])


def _spread(leaves: list[Any], axes: tuple[Hashable, ...], root: int) -> list[Any]:
    """Splits off what can be differentiated, which bits can't."""
    smooth = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    floats = [leaf for leaf, is_smooth in zip(leaves, smooth, strict=True) if is_smooth]
    others = [x for x, is_smooth in zip(leaves, smooth, strict=True) if not is_smooth]
    done = iter(_spread_floats(floats, axes, root)) if floats else iter(())
    rest = iter(_spread_bits(others, axes, root))
    return [next(done) if is_smooth else next(rest) for is_smooth in smooth]


def _spread_bits(leaves: list[Any], axes: tuple[Hashable, ...], root: int) -> list[Any]:
    words = [_to_words(leaf) for leaf in leaves]
    mine = lax.axis_index(axes) == root
    masked = jax.tree.map(lambda word: jnp.where(mine, word, 0), words)
    summed = psum(masked, axes)
    return [_from_words(word, leaf) for word, leaf in zip(summed, leaves, strict=True)]


def _spread_floats(leaves: list[Any], axes: tuple[Hashable, ...], root: int) -> Any:
    @jax.custom_jvp
    def spread(leaves: list[Any]) -> list[Any]:
        return _spread_bits(leaves, axes, root)

    @spread.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        mine = lax.axis_index(axes) == root
        masked = [jnp.where(mine, t, jnp.zeros_like(t)) for t in tangents[0]]
        return spread(*primals), psum(masked, axes)

    return spread(leaves)


def _to_words(leaf: Any) -> Any:
    """The bits of an array as unsigned integers, two arrays of them for a complex."""
    dtype = leaf.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (_to_words(lax.real(leaf)), _to_words(lax.imag(leaf)))
    if dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    if dtype.itemsize * 8 != jax.dtypes.itemsize_bits(dtype):
        return lax.convert_element_type(leaf, jnp.int8)
    return lax.bitcast_convert_type(leaf, f"uint{8 * dtype.itemsize}")


def _from_words(words: Any, like: Any) -> Any:
    dtype = like.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(like))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.zeros((), dtype).real
        return lax.complex(*(_from_words(word, part) for word in words))
    if dtype == jnp.bool_:
        return words.astype(jnp.bool_)
    if words.dtype == jnp.int8 and dtype != jnp.int8:
        return lax.convert_element_type(words, dtype)
    return lax.bitcast_convert_type(words, dtype)


def _between_processes(tree: Any, root: int) -> Any:
    """Goes over one device of each process."""
    processes = jax.process_count()
    if not 0 <= root < processes:
        raise ValueError(f"root is {root}, there are {processes} processes")
    if processes == 1:
        return jax.tree.map(jnp.asarray, tree)
    mesh = Mesh(np.array(_first_devices()), (_AXIS,))

    def exchange(leaves: list[Any]) -> list[Any]:
        taken = _taking(mesh, root)([_stack(mesh, leaf) for leaf in leaves])
        own = [leaf.addressable_data(0) for leaf in taken]
        return [jax.device_put(leaf, jax.local_devices()[0]) for leaf in own]

    return _by_name(exchange, tree)


def _first_devices() -> Sequence[Any]:
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return [first[process] for process in sorted(first)]


def _stack(mesh: Mesh, leaf: Any) -> Any:
    """Every process's array as a row of one array."""
    mine = next(d for d in mesh.devices.flat if d.process_index == jax.process_index())
    row = jax.device_put(leaf[None], mine)
    shape = (mesh.size, *leaf.shape)
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    return jax.make_array_from_single_device_arrays(shape, sharding, [row])


def _taking(mesh: Mesh, root: int) -> Any:
    def take(rows: list[Any]) -> list[Any]:
        return broadcast([row[0] for row in rows], _AXIS, root)

    return jax.jit(
        jax.shard_map(
            take, mesh=mesh, in_specs=PartitionSpec(_AXIS), out_specs=PartitionSpec()
        )
    )
