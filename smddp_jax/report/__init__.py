# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs that a table is made of, here or on hosts of their own; draws plots."""

from __future__ import annotations

from smddp_jax.report.hosts import measure_on_hosts
from smddp_jax.report.jobs import JobFailedError, measure
from smddp_jax.report.plot import plot

__all__ = ["JobFailedError", "measure", "measure_on_hosts", "plot"]
