# SPDX-License-Identifier: Apache-2.0
"""Collectives over mapped axes, and how `jax.lax`'s become ours."""

from smddp_jax.collectives.broadcast import broadcast
from smddp_jax.collectives.calls import alias_results
from smddp_jax.collectives.explain import Explanation, explain
from smddp_jax.collectives.lowering import (
    install,
    is_installed,
    lowering,
    uninstall,
)
from smddp_jax.collectives.psum import pmax, pmean, pmin, psum
from smddp_jax.collectives.scatter_gather import all_gather, psum_scatter
from smddp_jax.collectives.start import Started, psum_start

__all__ = [
    "Explanation",
    "Started",
    "alias_results",
    "all_gather",
    "broadcast",
    "explain",
    "install",
    "is_installed",
    "lowering",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "psum_scatter",
    "psum_start",
    "uninstall",
]
