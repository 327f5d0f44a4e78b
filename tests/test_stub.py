# SPDX-License-Identifier: Apache-2.0
"""The committed stubs of the native modules are what nanobind generates from them."""

import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "smddp_jax"


@pytest.mark.parametrize("name", ["_core", "_cuda"])
def test_stub_is_up_to_date(name: str) -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    try:
        module = importlib.import_module(f"smddp_jax.{name}")
    except ModuleNotFoundError:
        if name != "_cuda":
            raise
        pytest.skip("_cuda was not built: there is no nvcc, or SMDDP_CUDA is OFF")
    generator = stubgen.StubGen(module, quiet=True)
    generator.put(module)
    stub = (PACKAGE / f"{name}.pyi").read_text()
    assert generator.get() == stub, "run `make stub` and commit the result"
