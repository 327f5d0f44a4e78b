# SPDX-License-Identifier: Apache-2.0
"""XLA's compiler for GPUs takes our calls, on a machine without a GPU.

Needs JAX's CUDA plugin, of jaxlib's version: `pip install jax-cuda13-plugin
jax-cuda13-pjrt`. JAX's packages with CUDA itself are not needed.
"""

from __future__ import annotations

import itertools
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


def scheduled(program: str) -> list[str]:
    """What the GPU's stream gets, in order: fusions' names and our calls' targets.

    Our sums are written where they are wanted, those that are started, too: no copies.
    """
    text = run_alone("compiled_for_gpus", program, devices=1)
    entry = text[text.index("ENTRY") :]
    assert " copy(" not in entry and " all-reduce" not in entry
    found = re.findall(r'%(\S+) = .* fusion\(|custom_call_target="(\w+)"', entry)
    return [fusion or target for fusion, target in found]


def test_xla_compiles_our_calls_for_gpus() -> None:
    assert sorted(op for op in scheduled("calls") if op.startswith("smddp")) == [
        "smddp_all_reduce",
        "smddp_all_reduce",
        "smddp_all_reduce_done",
        "smddp_all_reduce_start",
    ]


def test_reductions_of_gradients_start_in_the_backward_pass() -> None:
    pytest.importorskip("smddp_jax.optim")
    order = scheduled("gradients")
    starts, dones, products = (
        [n for n, op in enumerate(order) if text in op]
        for text in ("reduce_start", "reduce_done", "gemm")
    )
    assert len(starts) == len(dones) == 4
    assert all(
        any(start < n < later for n in products)
        for start, later in itertools.pairwise(starts)
    )
    assert max(starts + products) < min(dones)
