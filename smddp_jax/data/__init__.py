# SPDX-License-Identifier: Apache-2.0
"""One global shuffle per epoch, split among the ranks, for numpy and for grain."""

from smddp_jax.data.batches import IndexBatches
from smddp_jax.data.epochs import epoch_indices, sample_weights, steps_per_epoch
from smddp_jax.data.grain_sampler import GrainSampler

__all__ = [
    "GrainSampler",
    "IndexBatches",
    "epoch_indices",
    "sample_weights",
    "steps_per_epoch",
]
