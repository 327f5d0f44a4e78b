# SPDX-License-Identifier: Apache-2.0
"""Loads the native module and registers its XLA handlers, once per process."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

import jax
from jaxlib import xla_client

from smddp_jax import _env
from smddp_jax._errors import EngineUnavailableError

_MODULE = "smddp_jax._core"


@functools.cache
def load() -> ModuleType:
    """Returns `smddp_jax._core` with its FFI targets registered.

    Raises:
      EngineUnavailableError: the module is missing or does not load here.
    """
    try:
        core = importlib.import_module(_MODULE)
    except ImportError as error:
        raise EngineUnavailableError(
            f"smddp_jax's native module does not load ({error}): reinstall with "
            "`pip install --force-reinstall smddp-jax`, or set SMDDP_FALLBACK=1 to "
            "run on stock JAX"
        ) from error
    # XLA must know the handlers' state types first; jax would tell it in the other
    # order when the backend comes up, unless the way to tell it at once is set before.
    xla_client.register_custom_type_handler("cpu", xla_client._xla.register_custom_type)
    for name, registration in core.types().items():
        jax.ffi.register_ffi_type(name, registration, platform="cpu")
    for name, handlers in core.registrations().items():
        jax.ffi.register_ffi_target(name, handlers, platform="cpu")
    core.configure(settings(core, host_id="", local_size=1))
    return core


def settings(core: ModuleType, host_id: str, local_size: int) -> object:
    """The native settings struct, filled from the table in `_env`.

    Args:
      core: the native module.
      host_id: equal for the processes that can share memory.
      local_size: how many of them there are, to divide the cores among them.
    """
    values = core.Settings()
    values.timeout_seconds = _env.get("SMDDP_TIMEOUT")
    values.staging_bytes = _env.get("SMDDP_STAGING_BYTES")
    values.segment_bytes = _env.get("SMDDP_SEGMENT_BYTES")
    cores = len(os.sched_getaffinity(0))
    values.threads = _env.get("SMDDP_THREADS") or max(1, cores // local_size)
    values.huge_pages = _env.get("SMDDP_HUGE_PAGES")
    values.host_id = host_id
    return values
