# SPDX-License-Identifier: Apache-2.0
"""Gradients over the devices of a mapped axis, as an optax transformation."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax
from jax import lax

from smddp_jax import _jax_compat
from smddp_jax.collectives import psum

AxisName = Hashable | Sequence[Hashable]
Op = Literal["mean", "sum"]
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Reduction:
    """How the gradients of each device become one for all of them."""

    axis_name: AxisName
    op: Op = "mean"
    wire_dtype: Any = None
    pre_divide: bool = False

    def __post_init__(self) -> None:
        if self.op not in ("mean", "sum"):
            raise ValueError(f"op is {self.op!r}: give 'mean' or 'sum'")
        if self.pre_divide and self.op == "sum":
            raise ValueError("pre_divide is for op='mean': a sum is not divided")

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Reduces the leaves, by one call for all that have equal dtype and axes."""
        return [
            leaf if self.op == "sum" or self._divides_first(leaf) else leaf / self.count
            for leaf in self._sum(leaves)
        ]

    @property
    def count(self) -> int:
        """Number of devices that take part, known while tracing."""
        return lax.psum(1, self.axis_name)

    @property
    def axes(self) -> tuple[Hashable, ...]:
        """The names of the axes."""
        return axes_of(self.axis_name)

    def kind(self, leaf: Any) -> tuple[Any, tuple[Hashable, ...]]:
        """Leaves of one kind can share a call."""
        return jax.numpy.result_type(leaf), pending_axes(leaf, self.axes)

    def _sum(self, leaves: Sequence[Any]) -> list[Any]:
        results = list(leaves)
        by_kind: dict[Any, list[int]] = {}
        for n, leaf in enumerate(leaves):
            by_kind.setdefault(self.kind(leaf), []).append(n)
        for (dtype, axes), members in by_kind.items():
            if not axes:  # summed already
                continue
            values = [leaves[n] for n in members]
            if self.pre_divide:
                values = [value / self.count for value in values]
            wire = self.wire_dtype if dtype == jax.numpy.float32 else None
            total = psum(values, axes, wire_dtype=wire)
            for n, value in zip(members, total, strict=True):
                results[n] = value
        return results
