# SPDX-License-Identifier: Apache-2.0
"""Eight host devices, and our lowering for every test.

`SMDDP_TEST_STOCK=1` leaves JAX's own collectives in place and skips what only we have,
which shows that the wanted values are JAX's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

STOCK = os.environ.get("SMDDP_TEST_STOCK") == "1"

hypothesis.settings.register_profile("repo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repo")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ours: needs smddp_jax, not only JAX")
    config.addinivalue_line(
        "markers", "any_jax: what another jax can't change; CI runs it with one"
    )
    # A shell's background jobs ignore SIGINT, and so would the ranks that we start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not STOCK:
        import smddp_jax

        # Before a test module makes JAX's backend: init() sizes its thread pool.
        smddp_jax.init()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if STOCK and item.get_closest_marker("ours"):
        pytest.skip("SMDDP_TEST_STOCK=1 runs what JAX alone can do")


@pytest.fixture(autouse=True, scope="session")
def _installed() -> Iterator[None]:
    if STOCK:
        yield
        return
    import smddp_jax

    smddp_jax.install()
    yield
    smddp_jax.uninstall()


@pytest.fixture(autouse=True)
def _eight_devices() -> None:
    assert jax.local_device_count() == 8
