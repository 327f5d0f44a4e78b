# SPDX-License-Identifier: Apache-2.0
"""All-reduces timed side by side: ours and XLA's, in the columns of nccl-tests.

A rank of the job runs `python -m smddp_jax.bench`, which measures cases and writes what
it saw; `summary` joins the ranks' files and `tables` prints them. Starting the ranks is
the work of `report/`, since the launcher is on this package's floor.
"""

from __future__ import annotations

from smddp_jax.bench.cases import (
    Case,
    default_iterations,
    default_iterations_between_hosts,
    parse_size,
)
from smddp_jax.bench.machine import cores, describe
from smddp_jax.bench.network import Network, parse_rate
from smddp_jax.bench.resnet import resnet50_shapes, split_leaves
from smddp_jax.bench.summary import Result, Side, join_ranks
from smddp_jax.bench.tables import as_json, as_markdown, as_text

__all__ = [
    "Case",
    "Network",
    "Result",
    "Side",
    "as_json",
    "as_markdown",
    "as_text",
    "cores",
    "default_iterations",
    "default_iterations_between_hosts",
    "describe",
    "join_ranks",
    "parse_rate",
    "parse_size",
    "resnet50_shapes",
    "split_leaves",
]
