# SPDX-License-Identifier: Apache-2.0
"""Hierarchical all-reduce for JAX: `lax.psum` without the rendezvous.

Importing this package does no work: each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smddp_jax import data as data
    from smddp_jax import optim as optim
    from smddp_jax._errors import (
        ClusterError,
        EngineUnavailableError,
        SettingError,
        SmddpError,
    )
    from smddp_jax.cluster import (
        init,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
    )
    from smddp_jax.collectives import (
        all_gather,
        broadcast,
        explain,
        install,
        is_installed,
        lowering,
        pmax,
        pmean,
        pmin,
        psum,
        psum_scatter,
        psum_start,
        uninstall,
    )

__all__ = [
    "ClusterError",
    "EngineUnavailableError",
    "SettingError",
    "SmddpError",
    "all_gather",
    "broadcast",
    "explain",
    "init",
    "install",
    "is_installed",
    "local_rank",
    "local_size",
    "lowering",
    "pmax",
    "pmean",
    "pmin",
    "psum",
    "psum_scatter",
    "psum_start",
    "rank",
    "shutdown",
    "size",
    "uninstall",
]

_HOME = {
    "_errors": {"ClusterError", "EngineUnavailableError", "SettingError", "SmddpError"},
    "cluster": {"init", "local_rank", "local_size", "rank", "shutdown", "size"},
}


# Not in __all__: `optim` needs optax, which is optional.
_MODULES = {"data", "optim"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((m for m, names in _HOME.items() if name in names), "collectives")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
