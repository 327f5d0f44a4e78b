# SPDX-License-Identifier: Apache-2.0
"""Loads the native modules and registers their XLA handlers, once per process.

`_core` is the engine. `_cuda` brings the GPUs to it; it is not in every build, and is
loaded only where JAX will use GPUs.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

from smddp_jax import _env, _jax_backend, _jax_compat
from smddp_jax._errors import EngineUnavailableError

_MODULE = "smddp_jax._core"
_CUDA_MODULE = "smddp_jax._cuda"

NO_GPUS = "JAX has no NVIDIA GPU here"


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
    _jax_compat.register_ffi_types_at_once()
    _register("cpu", core.types(), core.registrations())
    core.configure(settings(core, host_id="", local_size=1))
    return core


def gpu_problem() -> str | None:
    """Says why the engine can't use GPUs in this process; None when it can.

    Makes no backend of JAX, and no more of CUDA than it takes to see whether there is a
    GPU.
    """
    return _gpu_module_problem() if _jax_backend.uses_gpus() else NO_GPUS


def gpu_count() -> int:
    """How many GPUs this process sees; there is no `gpu_problem()`."""
    return _cuda().count()


def try_gpus() -> str | None:
    """Says why the GPUs of this host can't reach each other; None when they can.

    Collective over this host's processes of the job, in none of which there may be a
    `gpu_problem()`.
    """
    ordinals = _jax_backend.gpu_ordinals() or list(range(gpu_count()))
    return load().try_gpus(ordinals) or None


def name_gpus() -> None:
    """Tells the engine which device of JAX each GPU is, once JAX knows it itself."""
    if ids := _jax_backend.gpu_ids():
        load().name_gpus(ids)


@functools.cache
def _gpu_module_problem() -> str | None:
    """Brings the GPUs to the engine, or says why not."""
    try:
        core, cuda = load(), _cuda()
    except EngineUnavailableError as error:
        return str(error)
    except ImportError as error:
        return (
            f"this build of smddp_jax has no CUDA part that loads ({error}): build it "
            "where nvcc is on the PATH, with `pip install .` in a clone"
        )
    if problem := cuda.problem():
        return problem
    core.use_gpus(cuda.gpus())
    _register("CUDA", core.cuda_types(), core.cuda_registrations())
    return None


def _cuda() -> Any:
    return importlib.import_module(_CUDA_MODULE)


def _register(
    platform: str, types: Mapping[str, Any], targets: Mapping[str, Any]
) -> None:
    # XLA must know the handlers' state types first.
    for name, registration in types.items():
        jax.ffi.register_ffi_type(name, registration, platform=platform)
    for name, handlers in targets.items():
        jax.ffi.register_ffi_target(name, handlers, platform=platform)


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
