# SPDX-License-Identifier: Apache-2.0
"""An endless, resumable iterator of index batches, for arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smddp_jax.data.epochs import Remainder


class IndexBatches(Iterator[np.ndarray]):
    """Batches of a rank's indices, epoch after epoch.

    Example:
      >>> batches = IndexBatches(len(images), 32, seed=0, rank=0, size=8,
      ...                        remainder="drop")
      >>> for rows in batches:
      ...     step(images[rows], labels[rows])

    Attributes:
      epoch: the epoch of the next batch, from 0.
      steps_per_epoch: batches per epoch.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        seed: int,
        rank: int,
        size: int,
        remainder: Remainder,
        epochs: int | None = None,
    ):
        """Arguments as in `epoch_indices`; `epochs` ends the iteration, None never."""
        raise NotImplementedError

    def __next__(self) -> np.ndarray:
        raise NotImplementedError

    def get_state(self) -> dict[str, int]:
        """Where the iteration stands, to be saved with the weights."""
        raise NotImplementedError

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on where `get_state` was called, also with other ranks or batches."""
        raise NotImplementedError
