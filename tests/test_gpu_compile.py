# SPDX-License-Identifier: Apache-2.0
"""XLA's compiler for GPUs takes our calls, on a machine without a GPU.

Needs JAX's CUDA plugin, of jaxlib's version: `pip install jax-cuda13-plugin
jax-cuda13-pjrt`. JAX's packages with CUDA itself are not needed.
"""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from ranks import run_alone


def _plugin() -> str | None:
    """The version of JAX's CUDA plugin that is installed, if any."""
    for cuda in (13, 12):
        try:
            return metadata.version(f"jax-cuda{cuda}-plugin")
        except metadata.PackageNotFoundError:
            continue
    return None


pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(
        _plugin() != metadata.version("jaxlib"),
        reason=f"JAX's CUDA plugin is {_plugin() or 'not installed'}, jaxlib is "
        f"{metadata.version('jaxlib')}",
    ),
]


def test_xla_compiles_our_calls_for_gpus() -> None:
    text = run_alone("compiled_for_gpus", devices=1)
    entry = text[text.index("ENTRY") :]
    calls = re.findall(r'custom_call_target="(smddp_\w+)"', entry)
    assert sorted(calls) == [
        "smddp_all_reduce",
        "smddp_all_reduce",
        "smddp_all_reduce_done",
        "smddp_all_reduce_start",
    ]
    # Sums are written where they are wanted, those that are started, too.
    assert " copy(" not in entry and " all-reduce" not in entry
