# SPDX-License-Identifier: Apache-2.0
"""The same shuffle as a sampler of `grain.DataLoader`. Imports grain when it is used."""

from __future__ import annotations

from typing import Any

from smddp_jax.data.epochs import Remainder


class GrainSampler:
    """A `grain.samplers.Sampler`: a rank's samples, epoch after epoch."""

    def __init__(
        self,
        n: int,
        *,
        seed: int,
        rank: int,
        size: int,
        remainder: Remainder,
        batch_size: int = 1,
        epochs: int | None = None,
    ):
        """Arguments as in `epoch_indices`; `epochs` None never ends."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError
