# SPDX-License-Identifier: Apache-2.0
"""Whether a job uses its GPUs: what a process finds, and what all agree on.

No GPU is needed: what the module `_cuda` and the trial say is made up.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from ranks import run_ranks

from smddp_jax import _jax_backend, _native
from smddp_jax._errors import ClusterError
from smddp_jax.cluster import gpus, session
from smddp_jax.cluster.detect import Membership

pytestmark = pytest.mark.ours

START = 60


@pytest.fixture
def _looks_anew(monkeypatch) -> Iterator[None]:
    """JAX has its plugin for GPUs, and nobody looked for them yet."""
    monkeypatch.setattr(_jax_backend, "uses_gpus", lambda: True)
    _native._gpu_module_problem.cache_clear()
    yield
    _native._gpu_module_problem.cache_clear()


@pytest.mark.parametrize(
    ("platforms", "plugin", "uses"),
    [
        ("", True, True),
        ("", False, False),
        ("cpu", True, False),
        ("cuda", True, True),
        ("gpu,cpu", True, True),
        ("cuda", False, False),
        ("rocm", True, False),
    ],
)
def test_jax_uses_gpus_with_its_plugin_where_platforms_allow(
    monkeypatch, platforms, plugin, uses
) -> None:
    before = jax.config.jax_platforms
    monkeypatch.setattr(_jax_backend, "backend_exists", lambda: False)
    monkeypatch.setattr(_jax_backend, "_has_plugin", lambda: plugin)
    jax.config.update("jax_platforms", platforms)
    try:
        assert _jax_backend.uses_gpus() == uses
    finally:
        jax.config.update("jax_platforms", before)


def test_a_backend_without_gpus_is_believed(monkeypatch) -> None:
    monkeypatch.setattr(_jax_backend, "_has_plugin", lambda: True)
    assert jax.devices() and not _jax_backend.uses_gpus()
    assert _native.gpu_problem() == _native.NO_GPUS
    assert _jax_backend.gpu_ids() == {}


def test_jaxs_plugin_is_found_by_its_name(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # one may be installed
    monkeypatch.delitem(sys.modules, "jax_plugins", raising=False)
    assert not _jax_backend._has_plugin()
    for plugin, found in (("xla_rocm7", False), ("xla_cuda13", True)):
        (tmp_path / "jax_plugins" / plugin).mkdir(parents=True)
        (tmp_path / "jax_plugins" / plugin / "__init__.py").touch()
        assert _jax_backend._has_plugin() == found


def test_without_gpus_their_module_is_not_even_loaded(monkeypatch) -> None:
    monkeypatch.setattr(_native, "_cuda", lambda: pytest.fail("loaded"))
    assert _native.gpu_problem() == _native.NO_GPUS


@pytest.mark.usefixtures("_looks_anew")
def test_a_build_without_a_cuda_part_says_how_to_get_one(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "smddp_jax._cuda", None)
    problem = _native.gpu_problem()
    assert problem is not None
    assert "no CUDA part" in problem and "nvcc" in problem


@pytest.mark.usefixtures("_looks_anew")
def test_what_the_driver_says_is_passed_on(monkeypatch) -> None:
    cuda = SimpleNamespace(problem=lambda: "no driver")
    monkeypatch.setattr(_native, "_cuda", lambda: cuda)
    assert _native.gpu_problem() == "no driver"


@pytest.mark.usefixtures("_looks_anew")
def test_gpus_are_brought_to_the_engine_once_and_types_come_first(monkeypatch) -> None:
    done = []
    core = SimpleNamespace(
        use_gpus=lambda gpus: done.append(("use", gpus)),
        cuda_types=lambda: {"state": {}},
        cuda_registrations=lambda: {"all_reduce": {}},
        try_gpus=lambda ordinals: done.append(("try", ordinals)) or "",
        name_gpus=lambda ids: done.append(("name", ids)),
    )
    cuda = SimpleNamespace(problem=lambda: "", gpus=lambda: "gpus", count=lambda: 3)
    monkeypatch.setattr(_native, "load", lambda: core)
    monkeypatch.setattr(_native, "_cuda", lambda: cuda)
    for kind in ("type", "target"):
        note = lambda name, _, platform, kind=kind: done.append((kind, name, platform))  # noqa: E731
        monkeypatch.setattr(jax.ffi, f"register_ffi_{kind}", note)
    for _ in range(2):
        assert _native.gpu_problem() is None
    registered = [("type", "state", "CUDA"), ("target", "all_reduce", "CUDA")]
    assert done == [("use", "gpus"), *registered]
    done.clear()
    assert _native.try_gpus() is None
    monkeypatch.setattr(_jax_backend, "gpu_ordinals", lambda: [2])
    assert _native.try_gpus() is None
    _native.name_gpus()  # there are none to name
    monkeypatch.setattr(_jax_backend, "gpu_ids", lambda: {2: 5})
    _native.name_gpus()
    assert done == [("try", [0, 1, 2]), ("try", [2]), ("name", {2: 5})]


def test_shutdown_warns_of_an_error_that_nobody_raised(monkeypatch) -> None:
    core = SimpleNamespace(
        drain=lambda seconds: True,
        disconnect=lambda reason: None,
        untold_gpu_error=lambda: "rank 1 (on node1) was lost",
    )
    monkeypatch.setattr(_native, "load", lambda: core)
    monkeypatch.setattr(session, "_session", session.current())  # and put it back
    with pytest.warns(RuntimeWarning, match=r"on a GPU failed.*rank 1 \(on node1\)"):
        session.shutdown()
    assert not session.is_initialized()


def place(local_rank: int | None, local_size: int | None) -> Membership:
    return Membership("Slurm", 5, 8, local_rank, local_size, "h:1")


@pytest.mark.parametrize(
    ("local_rank", "local_size", "enough"),
    [(0, 2, True), (1, 2, True), (1, 4, False), (2, None, False), (None, 4, True)],
)
def test_more_ranks_than_gpus(monkeypatch, local_rank, local_size, enough) -> None:
    monkeypatch.delenv("JAX_LOCAL_DEVICE_IDS", raising=False)
    monkeypatch.setattr(_native, "gpu_count", lambda: 2)
    if enough:
        gpus.check_one_each(place(local_rank, local_size))
        return
    wanted = local_size or local_rank + 1
    says = f"rank 5 sees 2 GPUs for {wanted} processes .* start 2 processes per host"
    with pytest.raises(ClusterError, match=says):
        gpus.check_one_each(place(local_rank, local_size))
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "0")
    gpus.check_one_each(place(local_rank, local_size))


@pytest.mark.parametrize(
    ("each", "tried", "agreed"),
    [
        (["none", "none", "none"], [], r"rank 0 \(on .*\): JAX has no NVIDIA GPU"),
        (["good", "good", "none"], [], r"rank 2 \(on .*\): JAX has no NVIDIA GPU"),
        (["good", "look:no driver", "good"], [], r"rank 1 \(on .*\): no driver"),
        (["good", "trial:x", "trial:y"], [0, 1, 2], r"rank 1 \(on .*\): x"),
        (["good", "good", "good"], [0, 1, 2], None),
    ],
)
def test_all_processes_decide_alike(tmp_path: Path, each, tried, agreed) -> None:
    with run_ranks("agreed_gpus", *each, processes=3, logs=tmp_path) as job:
        outputs = job.succeed(START)
    said = [re.findall(r"^agreed: (.+)$", output, re.MULTILINE) for output in outputs]
    assert said[0] == said[1] == said[2] and len(said[0]) == 1
    assert re.fullmatch(f"GPUs of {agreed}.*" if agreed else "None", said[0][0])
    assert [n for n, output in enumerate(outputs) if "tried" in output] == tried
    ran = "XLA's" if agreed else "ours"
    assert all(ran in output.splitlines() for output in outputs)
