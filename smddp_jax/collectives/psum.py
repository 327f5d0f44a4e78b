# SPDX-License-Identifier: Apache-2.0
"""psum, pmean, pmax and pmin over whole pytrees: `jax.lax`'s, fused.

All arrays of one dtype in the tree are reduced by one call of the engine. Whatever is
special about a leaf (a constant, a positional axis, a partly reduced type) is handed to
`jax.lax`, whose rules and errors hold everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from smddp_jax import _jax_compat
from smddp_jax.collectives import primitive
from smddp_jax.collectives.placement import Groups

AxisName = Hashable | Sequence[Hashable]
IndexGroups = Sequence[Sequence[int]]


def psum(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """Sums every leaf of `x` over the mapped axis, all of one dtype in one call.

    Args:
      x: a pytree of arrays; bool leaves become int32, None stays None.
      axis_name: the name of the axis, or several names.
      axis_index_groups: positions along the axis that are reduced with each other
        (not in `jax.shard_map` with `check_vma=True`); all of them by default.

    Returns:
      The tree with each leaf's sum, the same bits on every device of a group.
    """
    kind = primitive.psum_p
    if _jax_compat.checks_varying_axes():
        kind = primitive.psum_invariant_p
    return _reduce(lax.psum, kind, x, axis_name, axis_index_groups)


def pmean(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """The mean over the mapped axis; integers give floats. Arguments as in `psum`."""
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    count = lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.map(lambda leaf: leaf / count, total)


def pmax(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """The maximum over the mapped axis. Arguments as in `psum`."""
    return _reduce(lax.pmax, primitive.pmax_p, x, axis_name, axis_index_groups)


def pmin(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """The minimum over the mapped axis. Arguments as in `psum`."""
    return _reduce(lax.pmin, primitive.pmin_p, x, axis_name, axis_index_groups)


def _reduce(
    stock: Callable[..., Any],
    kind: Any,
    x: Any,
    axis_name: AxisName,
    axis_index_groups: IndexGroups | None,
) -> Any:
    axes = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
    named, tree = jax.tree_util.tree_flatten_with_path(x)
    leaves = [leaf for _, leaf in named]
    usual = _is_usual(axes, axis_index_groups)
    fused = [n for n, leaf in enumerate(leaves) if usual and _is_plain(leaf, axes)]
    # By name, not by place: an OrderedDict's order may differ between processes.
    fused.sort(key=lambda n: jax.tree_util.keystr(named[n][0]))
    results: dict[int, Any] = {}
    if fused:
        operands = [_prepare(kind, leaves[n], axes) for n in fused]
        params: dict[str, Any] = {"axes": axes}
        if kind is not primitive.psum_invariant_p:
            params["axis_index_groups"] = _frozen(axis_index_groups)
        results = dict(zip(fused, kind.bind(*operands, **params), strict=True))
    for n, leaf in enumerate(leaves):
        if n not in results:
            results[n] = stock(leaf, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.unflatten(tree, [results[n] for n in range(len(leaves))])


def _is_usual(axes: tuple[Hashable, ...], groups: IndexGroups | None) -> bool:
    """Whether the axes and groups are such that our primitives take them."""
    if not axes or any(isinstance(axis, int) for axis in axes):
        return False
    if _jax_compat.drops_axes_of_size_one():
        return False
    if groups is None:
        return True
    members = sorted(n for group in groups for n in group)
    covered = members == list(range(len(members)))
    return covered and not _jax_compat.checks_varying_axes()


def _is_plain(leaf: Any, axes: tuple[Hashable, ...]) -> bool:
    return _jax_compat.is_tracer(leaf) and _jax_compat.varies_alike(leaf, axes)


def _prepare(kind: Any, leaf: Any, axes: tuple[Hashable, ...]) -> Any:
    is_sum = kind is primitive.psum_p or kind is primitive.psum_invariant_p
    if is_sum and leaf.dtype == jnp.bool_:
        leaf = lax.convert_element_type(leaf, jnp.int32)
    return _jax_compat.make_varying(leaf, axes)


def _frozen(groups: IndexGroups | None) -> Groups | None:
    return None if groups is None else tuple(map(tuple, groups))
