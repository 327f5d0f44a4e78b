# SPDX-License-Identifier: Apache-2.0
"""Which weights are decayed and adapted layer by layer, and which are not."""

from __future__ import annotations

from typing import Any


def weight_decay_mask(params: Any) -> Any:
    """True for weights, False for biases and the scales and shifts of norms.

    A mask for `optax.add_decayed_weights`, `optax.adamw` and the like (Goyal et al. 5.1
    decay no BatchNorm parameter). Left out is what has at most one dimension, and what
    is called bias, scale, beta, gamma or offset, or stands in something called a norm,
    also when layers are stacked.
    """
    raise NotImplementedError
