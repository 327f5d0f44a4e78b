# SPDX-License-Identifier: Apache-2.0
"""An endless, resumable iterator of index batches, for arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from smddp_jax.data.epochs import Remainder, epoch_indices, steps_per_epoch


class IndexBatches(Iterator[np.ndarray]):
    """Batches of a rank's indices, epoch after epoch.

    Example:
      >>> batches = IndexBatches(len(images), 32, seed=0, rank=0, size=8,
      ...                        remainder="drop")
      >>> for rows in batches:
      ...     step(images[rows], labels[rows])

    Attributes:
      epoch: the epoch of the last batch, from 0.
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
        self.epoch = 0
        self.steps_per_epoch = steps_per_epoch(
            n, size, remainder=remainder, batch_size=batch_size
        )
        self._n, self._batch_size = n, batch_size
        self._seed, self._rank, self._size = seed, rank, size
        self._remainder: Remainder = remainder
        self._epochs = epochs
        self._step = 0
        self._rows = self._shuffled()

    def __next__(self) -> np.ndarray:
        if self._step == self.steps_per_epoch:
            self.epoch, self._step = self.epoch + 1, 0
            self._rows = self._shuffled()
        if self.epoch == self._epochs:
            raise StopIteration
        first = self._step * self._batch_size
        self._step += 1
        return self._rows[first : first + self._batch_size]

    def get_state(self) -> dict[str, int]:
        """Where the iteration stands, to be saved with the weights.

        It counts samples over all ranks, and is the same on all of them.
        """
        done = self._step * self._batch_size * self._size
        return {"n": self._n, "seed": self._seed, "epoch": self.epoch, "done": done}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on where `get_state` was called, also with other ranks or batches.

        Raises:
          ValueError: the state is of other data or another seed, or stands inside of a
            global batch.
        """
        for name, own in (("n", self._n), ("seed", self._seed)):
            if state[name] != own:
                raise ValueError(f"the saved state has {name} {state[name]}, not {own}")
        step, inside = divmod(state["done"], self._batch_size * self._size)
        if inside or step > self.steps_per_epoch:
            raise ValueError(
                f"{state['done']} samples of the epoch are done, no multiple of "
                f"{self._size} ranks x {self._batch_size}: resume with a global batch "
                "that divides it, or at the end of an epoch"
            )
        self.epoch, self._step = state["epoch"], step
        self._rows = self._shuffled()

    def _shuffled(self) -> np.ndarray:
        return epoch_indices(
            self._seed,
            self.epoch,
            self._n,
            self._rank,
            self._size,
            remainder=self._remainder,
            batch_size=self._batch_size,
        )
