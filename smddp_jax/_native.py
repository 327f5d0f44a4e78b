# SPDX-License-Identifier: Apache-2.0
"""Loads the native module and registers its XLA handlers, once per process."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from types import ModuleType

import jax

from smddp_jax import _env, _jax_compat
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
    # XLA must know the handlers' state types first.
    _jax_compat.register_ffi_types_at_once()
    for name, registration in core.types().items():
        jax.ffi.register_ffi_type(name, registration, platform="cpu")
    for name, handlers in core.registrations().items():
        jax.ffi.register_ffi_target(name, handlers, platform="cpu")
    core.configure(settings(core, host_id="", local_size=1))
    return core


def settings(
    core: ModuleType,
    host_id: str,
    local_size: int,
    reducers: Sequence[str] = (),
    coordinator: str = "",
) -> object:
    """The native settings struct, filled from the table in `_env`.

    Args:
      core: the native module.
      host_id: equal for the processes that can share memory.
      local_size: how many of them there are, to divide the cores among them.
      reducers: host:port of each dedicated reducer.
      coordinator: host:port of JAX's coordination service.
    """
    values = core.Settings()
    values.timeout_seconds = _env.get("SMDDP_TIMEOUT")
    values.staging_bytes = _env.get("SMDDP_STAGING_BYTES")
    values.gpu_staging_bytes = _env.get("SMDDP_GPU_STAGING_BYTES")
    values.segment_bytes = _env.get("SMDDP_SEGMENT_BYTES")
    cores = len(os.sched_getaffinity(0))
    values.threads = _env.get("SMDDP_THREADS") or max(1, cores // local_size)
    values.huge_pages = _env.get("SMDDP_HUGE_PAGES")
    values.host_id = host_id
    values.reducers = list(reducers)
    weights = _env.get("SMDDP_WEIGHTS")
    values.measure_weights = weights == _env.MEASURE
    values.weights = [] if values.measure_weights else list(weights)
    values.shard_bytes = _env.get("SMDDP_SHARD_BYTES")
    values.connections = _env.get("SMDDP_CONNECTIONS")
    values.interface = _env.get("SMDDP_INTERFACE")
    values.port = _env.get("SMDDP_PORT")
    values.silence_seconds = _env.get("SMDDP_SILENCE")
    values.secret = _env.get("SMDDP_SECRET")
    values.coordinator = coordinator
    return values
