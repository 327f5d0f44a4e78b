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
from jax.core import Tracer

from smddp_jax import _jax_compat
from smddp_jax.collectives import primitive
from smddp_jax.collectives.placement import Groups
from smddp_jax.collectives.wire import checked_wire

AxisName = Hashable | Sequence[Hashable]
IndexGroups = Sequence[Sequence[int]]

# Those whose results are known not to vary over the axes.
_INVARIANT = {primitive.psum_invariant_p, primitive.psum_start_invariant_p}
_SUMS = {primitive.psum_p, primitive.psum_start_p, *_INVARIANT}


def psum(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: IndexGroups | None = None,
    wire_dtype: Any = None,
) -> Any:
    """Sums every leaf of `x` over the mapped axis, all of one dtype in one call.

    Args:
      x: a pytree of arrays; bool leaves become int32, None stays None.
      axis_name: the name of the axis, or several names.
      axis_index_groups: positions along the axis that are reduced with each other
        (not in `jax.shard_map` with `check_vma=True`); all of them by default.
      wire_dtype: "bfloat16" ("bf16") or "float16" ("f16"), or such a dtype, halves what
        travels between hosts: each host's contribution and the result are rounded,
        which adds an error of at most u * (sum|x| + |result|), where u is 2**-8 for
        bfloat16 and 2**-11 for float16, whose range ends at 65504 and whose precision
        falls below 6e-5. Nothing changes within a host, or where XLA runs the sum. It
        is for float32; sums of a 16-bit float may travel as that float. "float32"
        rounds nothing; None takes the `wire_dtype` of `smddp_jax.init()` for float32
        and rounds nothing else.

    Returns:
      The tree with each leaf's sum, the same bits on every device of a group.

    Raises:
      ValueError: a leaf's sum can't be sent as `wire_dtype`.
    """
    kind = primitive.psum_p
    if _jax_compat.checks_varying_axes():
        kind = primitive.psum_invariant_p
    wire = checked_wire(wire_dtype, x)
    return reduce_tree(lax.psum, kind, x, axis_name, axis_index_groups, wire=wire)


def pmean(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: IndexGroups | None = None,
    wire_dtype: Any = None,
) -> Any:
    """The mean over the mapped axis; integers give floats. Arguments as in `psum`."""
    total = psum(
        x, axis_name, axis_index_groups=axis_index_groups, wire_dtype=wire_dtype
    )
    count = lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.map(lambda leaf: leaf / count, total)


def pmax(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """The maximum over the mapped axis. Arguments as in `psum`."""
    return reduce_tree(lax.pmax, primitive.pmax_p, x, axis_name, axis_index_groups)


def pmin(
    x: Any, axis_name: AxisName, *, axis_index_groups: IndexGroups | None = None
) -> Any:
    """The minimum over the mapped axis. Arguments as in `psum`."""
    return reduce_tree(lax.pmin, primitive.pmin_p, x, axis_name, axis_index_groups)


def reduce_tree(
    stock: Callable[..., Any],
    kind: Any,
    x: Any,
    axis_name: AxisName,
    axis_index_groups: IndexGroups | None,
    **options: Any,
) -> Any:
    """Binds `kind` to all usual leaves, and leaves the others to `stock`."""
    axes = axes_of(axis_name)
    named, tree = jax.tree_util.tree_flatten_with_path(x)
    leaves = [leaf for _, leaf in named]
    usual = are_usual(axes, axis_index_groups) and (
        axis_index_groups is None or not _jax_compat.checks_varying_axes()
    )
    fused = [n for n, leaf in enumerate(leaves) if usual and _is_plain(leaf, axes)]
    # By name, not by place: an OrderedDict's order may differ between processes.
    fused.sort(key=lambda n: jax.tree_util.keystr(named[n][0]))
    results: dict[int, Any] = {}
    if fused:
        operands = [_prepare(kind, leaves[n], axes) for n in fused]
        params: dict[str, Any] = {"axes": axes, **options}
        if kind not in _INVARIANT:
            params["axis_index_groups"] = frozen(axis_index_groups)
        results = dict(zip(fused, kind.bind(*operands, **params), strict=True))
    for n, leaf in enumerate(leaves):
        if n not in results:
            results[n] = stock(leaf, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.unflatten(tree, [results[n] for n in range(len(leaves))])


def axes_of(axis_name: AxisName) -> tuple[Hashable, ...]:
    """One name or several as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)


def are_usual(axes: tuple[Hashable, ...], groups: IndexGroups | None) -> bool:
    """Whether the axes and groups are such that our primitives take them."""
    if not axes or any(isinstance(axis, int) for axis in axes):
        return False
    if _jax_compat.drops_axes_of_size_one():
        return False
    if groups is None:
        return True
    members = sorted(n for group in groups for n in group)
    return members == list(range(len(members)))


def _is_plain(leaf: Any, axes: tuple[Hashable, ...]) -> bool:
    return isinstance(leaf, Tracer) and _jax_compat.varies_alike(leaf, axes)


def _prepare(kind: Any, leaf: Any, axes: tuple[Hashable, ...]) -> Any:
    if kind in _SUMS and leaf.dtype == jnp.bool_:
        leaf = lax.convert_element_type(leaf, jnp.int32)
    return _jax_compat.make_varying(leaf, axes)


def frozen(groups: IndexGroups | None) -> Groups | None:
    """Groups that can be a parameter of a primitive."""
    return None if groups is None else tuple(map(tuple, groups))
