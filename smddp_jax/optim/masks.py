# SPDX-License-Identifier: Apache-2.0
"""Which weights are decayed and adapted layer by layer, and which are not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax


def weight_decay_mask(params: Any) -> Any:
    """True for weights, False for biases and the scales and shifts of norms.

    A mask for `optax.add_decayed_weights`, `optax.adamw` and the like (Goyal et al. 5.1
    decay no BatchNorm parameter). Left out is what has at most one dimension, and what
    is called bias, scale, beta, gamma or offset, or stands in something called a norm,
    also when layers are stacked.

    Args:
      params: weights as nested dicts, lists, `flax.nnx` states and the like: arrays, or
        what else has `ndim`.

    Returns:
      A bool for every leaf, in the same tree.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.ndim > 1 and not _NOT_WEIGHTS.search(_words(path)),
        params,
    )


_NOT_WEIGHTS = re.compile(
    r"(^|[/_ ])(bias|biases|scale|beta|gamma|offset)$|norm|(^|[/_])bn\d*([/_]|$)"
)


def _words(path: Sequence[Any]) -> str:
    """Names of a path such as encoder/layernorm_0/scale, in small letters."""
    names = [getattr(key, "key", getattr(key, "name", None)) for key in path]
    # flax.nnx keeps the array of a variable under such a last name.
    named = [str(name) for name in names if name not in (None, "value", "raw_value")]
    return "/".join(named).lower()
