# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job and sees to their end. Imports no jax."""

from smddp_jax.launch.allocator import ALLOCATORS, DEFAULT_ALLOCATOR
from smddp_jax.launch.job import Host, Job
from smddp_jax.launch.supervise import run_job

__all__ = ["ALLOCATORS", "DEFAULT_ALLOCATOR", "Host", "Job", "run_job"]
