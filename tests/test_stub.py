# SPDX-License-Identifier: Apache-2.0
"""The committed stub of the native module is what nanobind generates from it."""

import importlib
from pathlib import Path

import pytest

STUB = Path(__file__).resolve().parent.parent / "smddp_jax" / "_core.pyi"


def test_stub_is_up_to_date() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    module = importlib.import_module("smddp_jax._core")
    generator = stubgen.StubGen(module, quiet=True)
    generator.put(module)
    assert generator.get() == STUB.read_text(), "run `make stub` and commit the result"
