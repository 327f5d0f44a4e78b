# SPDX-License-Identifier: Apache-2.0
"""Which samples a rank sees in an epoch (Goyal et al. 3, remark 4)."""

from __future__ import annotations

from typing import Literal

import numpy as np

Remainder = Literal["pad", "drop"]


def epoch_indices(
    seed: int,
    epoch: int,
    n: int,
    rank: int,
    size: int,
    *,
    remainder: Remainder,
    batch_size: int = 1,
    start: int = 0,
) -> np.ndarray:
    """The samples of one rank in one epoch: its part of one global shuffle.

    Together the ranks see every sample once, up to the remainder. Position k of rank r
    is position k * size + r of the shuffle, so that the global batches are the same
    whatever the number of ranks that share them.

    Args:
      seed: of the whole training.
      epoch: number of the epoch; each has its own shuffle.
      n: number of samples.
      rank: which part.
      size: number of ranks, or of devices.
      remainder: what happens to the samples that make no full batch on every rank:
        "drop" leaves them out in this epoch, "pad" repeats the shuffle from its start.
      batch_size: samples per step of one rank; every rank gets a multiple of it.
      start: how many of this rank's indices are done already: a resumed epoch.

    Returns:
      int64 indices, equally many on every rank.
    """
    count = steps_per_epoch(n, size, remainder=remainder, batch_size=batch_size)
    _check_rank(rank, size)
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(n)
    order = np.argsort(keys, kind="stable")
    positions = np.arange(start, count * batch_size, dtype=np.int64) * size + rank
    return order[positions % n]


def sample_weights(
    n: int, rank: int, size: int, *, batch_size: int = 1, start: int = 0
) -> np.ndarray:
    """1 for a rank's own samples and 0 for what "pad" repeats, in float32.

    In the order of `epoch_indices(..., remainder="pad")`, for sums over every sample
    exactly once: see `smddp_jax.optim.global_mean_loss`.
    """
    _check_rank(rank, size)
    count = steps_per_epoch(n, size, remainder="pad", batch_size=batch_size)
    positions = np.arange(start, count * batch_size, dtype=np.int64) * size + rank
    return (positions < n).astype(np.float32)


def steps_per_epoch(
    n: int, size: int, *, remainder: Remainder, batch_size: int = 1
) -> int:
    """How many batches every rank gets in an epoch."""
    for name, value in (("n", n), ("size", size), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} is {value}: give 1 or more")
    if remainder not in ("pad", "drop"):
        raise ValueError(f"remainder is {remainder!r}: give 'pad' or 'drop'")
    full, rest = divmod(n, size * batch_size)
    steps = full + (remainder == "pad" and rest > 0)
    if steps == 0:
        raise ValueError(
            f"{n} samples make no batch of {batch_size} on each of {size} ranks: give "
            "smaller batches, or remainder='pad'"
        )
    return steps


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is none of {size}")
