# SPDX-License-Identifier: Apache-2.0
"""What JAX runs on, or will run on: asked without making a backend.

A process that has a backend can't join a job any more, so nobody may make one just to
look. Beside `_jax_compat.py` the only file that touches `jax._src`.
"""

from __future__ import annotations

import importlib.util
import pkgutil

from jax._src import config, xla_bridge

_CUDA = "cuda"


def backend_exists() -> bool:
    """Whether JAX has made a backend, after which a process can't join a job."""
    return xla_bridge.backends_are_initialized()


def uses_gpus() -> bool:
    """Whether JAX has, or will have, a backend for NVIDIA GPUs, if there are any.

    It needs JAX's plugin for CUDA, and no JAX_PLATFORMS that leaves it out.
    """
    if backend_exists():
        return _CUDA in xla_bridge.backends()
    chosen = config.jax_platforms.value
    platforms = chosen.split(",") if chosen else ["gpu"]
    wanted = [p for name in platforms for p in xla_bridge.expand_platform_alias(name)]
    return _CUDA in wanted and _has_plugin()


def gpu_ordinals() -> list[int]:
    """The GPUs that JAX gives this process, as CUDA counts them; empty for all."""
    chosen = xla_bridge.CUDA_VISIBLE_DEVICES.value
    return [] if chosen == "all" else [int(n) for n in chosen.split(",")]


def gpu_ids() -> dict[int, int]:
    """The global device id of each GPU of this process; empty without a backend.

    Keys are local hardware ids, by which XLA's handlers know the GPUs.
    """
    if not backend_exists() or _CUDA not in xla_bridge.backends():
        return {}
    devices = xla_bridge.backends()[_CUDA].local_devices()
    return {device.local_hardware_id: device.id for device in devices}


def _has_plugin() -> bool:
    """Whether JAX's plugin for NVIDIA GPUs is installed: `jax_plugins.xla_cuda13`."""
    found = importlib.util.find_spec("jax_plugins")
    places = found.submodule_search_locations if found is not None else None
    return any(
        module.name.startswith("xla_cuda")
        for module in pkgutil.iter_modules(places or ())
    )
