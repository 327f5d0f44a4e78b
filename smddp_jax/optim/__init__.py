# SPDX-License-Identifier: Apache-2.0
"""What large-batch training needs around optax: reductions, schedules, recipes.

Each piece is an optax-style gradient transformation or schedule, and optax itself is
used wherever it has the piece. "Goyal et al." is arXiv 1706.02677, cited by section.
"""

try:
    import optax as _optax  # noqa: F401
except ImportError as error:
    raise ImportError(
        "smddp_jax.optim needs optax: pip install 'smddp-jax[optim]'"
    ) from error

from smddp_jax.optim.accumulation import multi_steps
from smddp_jax.optim.layerwise import lamb, lars
from smddp_jax.optim.loss import global_mean_loss
from smddp_jax.optim.masks import weight_decay_mask
from smddp_jax.optim.momentum import (
    MomentumCorrectionState,
    scale_by_momentum_correction,
)
from smddp_jax.optim.noise_scale import (
    GradientNoiseScaleState,
    gradient_noise_scale,
    suggested_batch,
)
from smddp_jax.optim.overlap import value_and_grad
from smddp_jax.optim.reduction import all_reduce_gradients, as_varying
from smddp_jax.optim.schedules import (
    constant_warmup_schedule,
    goyal_schedule,
    gradual_warmup_schedule,
    linear_scaling,
    sqrt_scaling,
)

__all__ = [
    "GradientNoiseScaleState",
    "MomentumCorrectionState",
    "all_reduce_gradients",
    "as_varying",
    "constant_warmup_schedule",
    "global_mean_loss",
    "goyal_schedule",
    "gradient_noise_scale",
    "gradual_warmup_schedule",
    "lamb",
    "lars",
    "linear_scaling",
    "multi_steps",
    "scale_by_momentum_correction",
    "sqrt_scaling",
    "suggested_batch",
    "value_and_grad",
    "weight_decay_mask",
]
