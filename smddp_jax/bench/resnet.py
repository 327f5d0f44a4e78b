# SPDX-License-Identifier: Apache-2.0
"""The shapes of ResNet-50's parameters: the gradient tree that is reduced each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]

_BLOCKS = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4


def resnet50_shapes(classes: int = 1000) -> list[Shape]:
    """ResNet-50 v1 (He et al., 2016): 161 arrays, 25 557 032 parameters.

    Convolutions without bias (height, width, in, out), each with the scale and bias of
    its batch normalization, and the dense layer with its bias, in the order of use.
    """
    shapes = _convolution(7, 3, 64)
    channels = 64
    for blocks, width in _BLOCKS:
        for block in range(blocks):
            shapes += _convolution(1, channels, width)
            shapes += _convolution(3, width, width)
            shapes += _convolution(1, width, width * _EXPANSION)
            if block == 0:  # the projection of the shortcut
                shapes += _convolution(1, channels, width * _EXPANSION)
            channels = width * _EXPANSION
    return [*shapes, (channels, classes), (classes,)]


def split_leaves(shapes: Sequence[Shape], leaves: int) -> list[Shape]:
    """Cuts the largest arrays in two along their longest axis until there are `leaves`.

    The total number of parameters stays what it was. `leaves` of 0 cuts nothing.

    Raises:
      ValueError: there are more arrays than `leaves`.
    """
    if not leaves:
        return list(shapes)
    if leaves < len(shapes):
        raise ValueError(f"{len(shapes)} arrays can't become {leaves} by cutting")
    cut = list(shapes)
    while len(cut) < leaves:
        at = max(range(len(cut)), key=lambda n: math.prod(cut[n]))
        shape = cut[at]
        axis = shape.index(max(shape))
        half = shape[axis] // 2
        cut[at : at + 1] = [
            (*shape[:axis], part, *shape[axis + 1 :])
            for part in (half, shape[axis] - half)
        ]
    return cut


def _convolution(kernel: int, channels_in: int, channels_out: int) -> list[Shape]:
    weights = (kernel, kernel, channels_in, channels_out)
    return [weights, (channels_out,), (channels_out,)]
