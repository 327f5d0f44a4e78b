# SPDX-License-Identifier: Apache-2.0
"""Reductions over mapped axes, and how `jax.lax`'s become ours."""

from smddp_jax.collectives.broadcast import broadcast
from smddp_jax.collectives.explain import Explanation, explain
from smddp_jax.collectives.lowering import (
    alias_results,
    install,
    is_installed,
    lowering,
    uninstall,
)
from smddp_jax.collectives.psum import pmax, pmean, pmin, psum

__all__ = [
    "Explanation",
    "alias_results",
    "broadcast",
    "explain",
    "install",
    "is_installed",
    "lowering",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "uninstall",
]
