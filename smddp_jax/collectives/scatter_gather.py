# SPDX-License-Identifier: Apache-2.0
"""psum_scatter and all_gather over pytrees: `jax.lax`'s, run by the engine.

The two halves of a `psum`, each the transpose of the other. What is special, or wrong,
is handed to `jax.lax`, whose rules and errors hold everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from smddp_jax import _jax_compat
from smddp_jax.collectives import blocks
from smddp_jax.collectives.psum import (
    AxisName,
    IndexGroups,
    are_usual,
    axes_of,
    frozen,
)
from smddp_jax.collectives.wire import checked_wire


def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: IndexGroups | None = None,
    tiled: bool = False,
    wire_dtype: Any = None,
) -> Any:
    """Sums every leaf of `x` over the mapped axis and keeps this device's block of it.

    Args:
      x: a pytree of arrays of numbers.
      axis_name: the name of the axis, or several names.
      scatter_dimension: the dimension that is cut into one block per device.
      axis_index_groups: positions along the axis that are reduced with each other, in
        groups of one size; all of them by default.
      tiled: whether the dimension stays, with a block's size, the number of devices
        dividing its own; else it goes, its size being the number of devices.
      wire_dtype: as in `psum`.

    Returns:
      The tree with this device's block of each leaf's sum.

    Raises:
      ValueError: a leaf's sum can't be sent as `wire_dtype`, or can't be cut so.
    """
    wire = checked_wire(wire_dtype, x)

    def scatter(leaf: Any) -> Any:
        params = _params(leaf, axis_name, axis_index_groups, scatter_dimension, 0)
        if params is not None:
            leaf = _jax_compat.make_varying(leaf, params["axis_name"])
            return blocks.reduce_scatter_p.bind(leaf, tiled=tiled, wire=wire, **params)
        return lax.psum_scatter(
            leaf,
            axis_name,
            scatter_dimension=scatter_dimension,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )

    return _by_name(scatter, x)


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: IndexGroups | None = None,
    axis: int = 0,
    tiled: bool = False,
) -> Any:
    """Gives every device the blocks of all devices, in the order of the axis.

    Args:
      x: a pytree of arrays of any type.
      axis_name: the name of the axis, or several names.
      axis_index_groups: positions along the axis that gather from each other, in groups
        of one size; all of them by default.
      axis: the dimension of the result along which the blocks lie.
      tiled: whether that dimension is one of `x`, along which blocks are joined; else
        it is a new one, its size the number of devices.

    Returns:
      The tree with all blocks of each leaf, exact to the bit. Where `jax.shard_map`
      checks types, they vary over the axis, as those of `jax.lax.all_gather` do.
    """

    def gather(leaf: Any) -> Any:
        new = 0 if tiled else 1
        params = _params(leaf, axis_name, axis_index_groups, axis, new)
        if params is not None:
            leaf = _jax_compat.make_varying(leaf, params["axis_name"])
            return blocks.all_gather_p.bind(leaf, tiled=tiled, wire=None, **params)
        return lax.all_gather(
            leaf,
            axis_name,
            axis_index_groups=axis_index_groups,
            axis=axis,
            tiled=tiled,
        )

    return _by_name(gather, x)


def _params(
    leaf: Any,
    axis_name: AxisName,
    axis_index_groups: IndexGroups | None,
    dimension: int,
    new: int,
) -> dict[str, Any] | None:
    """What our primitives want to know, or None where they don't take the leaf.

    `dimension` counts in an array of as many dimensions as the leaf, and `new` more.
    """
    axes, groups = axes_of(axis_name), frozen(axis_index_groups)
    rank = np.ndim(leaf) + new
    if not are_usual(axes, groups) or not -rank <= dimension < rank:
        return None
    if groups is not None and len(set(map(len, groups))) != 1:
        return None
    if not _jax_compat.varies_alike(leaf, axes):
        return None
    size = lax.axis_size(axes) if groups is None else len(groups[0])
    return {
        "dimension": dimension % rank,
        "axis_name": axes,
        "axis_index_groups": groups,
        "axis_size": size,
    }


def _by_name(change: Callable[[Any], Any], tree: Any) -> Any:
    """Maps leaves by name, not place: an OrderedDict's order may differ by process."""
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in named]
    order = sorted(range(len(named)), key=names.__getitem__)
    changed = {n: change(named[n][1]) for n in order}
    return jax.tree.unflatten(structure, [changed[n] for n in range(len(named))])
