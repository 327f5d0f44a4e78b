# SPDX-License-Identifier: Apache-2.0
"""The same shuffle as a sampler of `grain.DataLoader`; grain is imported on use."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import numpy as np

from smddp_jax.data.epochs import Remainder, epoch_indices, steps_per_epoch


class GrainSampler:
    """A `grain.samplers.Sampler`: a rank's samples, epoch after epoch.

    It splits the samples itself: the loader must not. The loader's iterators save and
    restore their place, and compare the sampler's `repr`.

    Example:
      >>> sampler = GrainSampler(len(source), seed=0, rank=0, size=8, remainder="drop")
      >>> loader = grain.DataLoader(
      ...     data_source=source,
      ...     sampler=sampler,
      ...     shard_options=grain.sharding.NoSharding(),
      ... )
    """

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
        steps = steps_per_epoch(n, size, remainder=remainder, batch_size=batch_size)
        self._seed, self._rank, self._size = seed, rank, size
        self._per_epoch = steps * batch_size
        self._shuffle = functools.partial(
            epoch_indices,
            seed=seed,
            n=n,
            rank=rank,
            size=size,
            remainder=remainder,
            batch_size=batch_size,
        )
        self._shuffled: tuple[int, np.ndarray] | None = None
        self._length = sys.maxsize if epochs is None else epochs * self._per_epoch

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        given = {**self._shuffle.keywords, "length": self._length}
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        return f"GrainSampler({listed})"

    def __getitem__(self, index: int) -> Any:
        grain = importlib.import_module("grain.python")
        if not 0 <= index < self._length:
            raise IndexError(f"sample {index} of {self._length}")
        epoch, place = divmod(index, self._per_epoch)
        row = int(self._rows(epoch)[place])
        return grain.RecordMetadata(index, row, self._random(index))

    def _rows(self, epoch: int) -> np.ndarray:
        found = self._shuffled
        if found is None or found[0] != epoch:
            found = epoch, self._shuffle(epoch=epoch)
            self._shuffled = found
        return found[1]

    def _random(self, index: int) -> np.random.Generator:
        """Other numbers for every sample of every rank, and than the shuffles'."""
        position = index * self._size + self._rank
        key = np.array([self._seed, position], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=1 << 128))
