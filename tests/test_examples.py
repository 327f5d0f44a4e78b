# SPDX-License-Identifier: Apache-2.0
"""The examples, cut short: same losses, same results wherever and however they run."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ranks import run_launched, run_ranks

from smddp_jax.launch import namespaces

pytestmark = [pytest.mark.ours, pytest.mark.any_jax]
for needed in ("flax", "matplotlib", "optax", "sklearn", "tqdm"):
    pytest.importorskip(needed)

EXAMPLES = Path(__file__).parents[1] / "examples"
WAYS = ("stock", "installed", "pieces")


def test_the_three_ways_learn_alike() -> None:
    said = {way: run_launched(EXAMPLES / f"migration/{way}.py") for way in WAYS}
    losses = {
        way: [float(found) for found in re.findall(r"loss (\d\S+)", text)]
        for way, text in said.items()
    }
    assert len(losses["stock"]) == 6 and losses["stock"][-1] < 0.5, said["stock"]
    for way in WAYS:
        assert losses[way] == pytest.approx(losses["stock"], rel=1e-3), way


@pytest.mark.parametrize("way", WAYS)
def test_each_way_is_short(way: str) -> None:
    lines = (EXAMPLES / "migration" / f"{way}.py").read_text().splitlines()
    assert len(lines) < 80


def metrics_of(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def learns(folder: Path) -> bool:
    epochs = metrics_of(folder)
    assert [line["epoch"] for line in epochs] == [1, 2]
    return epochs[1]["loss"] < epochs[0]["loss"] < 2.4 and epochs[1]["accuracy"] > 0.4


@pytest.fixture(scope="module")
def train(tmp_path_factory) -> Callable[..., None]:
    """Runs the ResNet's trainer; what one run has compiled, others take."""
    cache = tmp_path_factory.mktemp("cache")
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }

    def run(folder: Path, epochs: int, **layout: int) -> None:
        arguments = ("--epochs", epochs, "--folder", folder)
        run_launched(EXAMPLES / "resnet.py", *arguments, env=env, **layout)

    return run


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory) -> Path:
    """Two epochs at a stretch on eight devices."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, 2, devices=8)
    return folder


def test_the_resnet_learns_on_one_device(train, tmp_path: Path) -> None:
    train(tmp_path, 2, devices=1)
    assert learns(tmp_path)


def test_the_resnet_learns_on_eight_devices(whole: Path) -> None:
    assert learns(whole)


def test_the_resnet_goes_on_from_its_checkpoint(
    train, whole: Path, tmp_path: Path
) -> None:
    train(tmp_path, 1, devices=8)
    first = metrics_of(tmp_path)
    train(tmp_path, 2, devices=8)
    assert metrics_of(tmp_path)[:1] == first
    for one, other in zip(metrics_of(whole), metrics_of(tmp_path), strict=True):
        same = ("epoch", "loss", "accuracy", "test_error")
        assert [one[name] for name in same] == [other[name] for name in same]


def test_the_resnet_goes_on_from_four_processes_to_two_hosts(
    train, tmp_path: Path
) -> None:
    """Hosts without a common file system: each rank has a folder of its own.

    They are network namespaces where those can be made, else forced host ids. No line
    of the trainer differs; only rank 0 has the checkpoint.
    """
    train(tmp_path / "0" / "run", 1, processes=4, devices=2)
    with contextlib.ExitStack() as stack:
        spaces = None
        if namespaces.problem() is None:
            spaces = stack.enter_context(namespaces.Namespaces().up(2))
        job = run_ranks(
            "in_own_folder",
            EXAMPLES / "resnet.py",
            *("--epochs", 2, "--folder", "run"),
            hosts=2,
            devices=4,
            namespaces=spaces,
            logs=tmp_path / "logs",
            env={"FOLDERS": str(tmp_path)},
        )
        stack.enter_context(job).succeed(150)
    assert learns(tmp_path / "0" / "run")
    assert not list((tmp_path / "1").glob("run/*"))


def test_the_experiment_skips_what_is_done(tmp_path: Path) -> None:
    results, plot = tmp_path / "results.jsonl", tmp_path / "plot.svg"
    arguments = ["--epochs", 2, "--seeds", 2, "--batches", 256]
    arguments += ["--results", results, "--plot", plot]

    def lines() -> list[str]:
        return results.read_text().splitlines() if results.exists() else []

    example = EXAMPLES / "large_batch.py"
    folders = {"FOLDERS": str(tmp_path)}
    options = {"processes": 1, "devices": 8, "logs": tmp_path, "env": folders}
    with run_ranks("in_own_folder", example, *arguments, **options) as job:
        job.until(lambda: len(lines()) > 1, 120, "two cells")  # and kills it then
    killed = lines()
    said = run_launched(example, *arguments)
    assert lines()[: len(killed)] == killed and len(lines()) == 6
    table = [line for line in said.splitlines() if "±" in line]
    assert len(table) == 6
    for line in map(json.loads, lines()):
        assert len(line["errors"]) == 2 and all(0 <= e <= 95 for e in line["errors"])
    assert "<svg" in plot.read_text()


@pytest.fixture
def experiment():
    spec = importlib.util.spec_from_file_location("e", EXAMPLES / "large_batch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look there
        spec.loader.exec_module(module)
        yield module


def test_the_experiment_s_rates_are_picked_on_other_images_than_the_test_s(
    experiment, capsys
) -> None:
    """The smallest within a deviation (1) of the best, which has 5."""
    asked, by_rate = [], [9, 7, 5.5, 5, 5, 90, 90]

    class Known:
        def errors(self, setup, method, batch, part):
            asked.append(part)
            field, (_, values) = next(
                s for s in experiment.SWEEPS.items() if s[1][0] == method
            )
            middle = by_rate[values.index(getattr(setup, field))]
            return np.array([middle - 1.0, middle, middle + 1.0])

    picked = experiment.sweep(experiment.Setup(), Known(), lambda values, _: values)
    for field, (_, values) in experiment.SWEEPS.items():
        assert getattr(picked, field) == values[2]
    assert set(asked) == {"validation"}
    assert "sgd_rate: 0.02" in capsys.readouterr().out


def test_the_experiment_keeps_its_images_apart(experiment) -> None:
    images = experiment.load_images()
    counts = {part: len(labels) // 9 for part, (_, labels) in images.items()}
    assert counts == {"train": 1024, "validation": 373, "test": 400}
    assert sum(counts.values()) == len(experiment.load_digits().target)


def test_sgd_is_one_training_at_the_base_batch(experiment) -> None:
    """So it is trained once: nothing is scaled, and a warmup has nowhere to go."""
    weights, gradient = np.ones((2, 2), np.float32), np.full((2, 2), 0.5, np.float32)
    seen = []
    for method in experiment.SGD:
        optimizer = experiment.METHODS[method](experiment.Setup(), 32)
        state, updates = optimizer.init(weights), []
        for _ in range(3):
            update, state = optimizer.update(gradient, state, weights)
            updates.append(update)
        seen.append(np.array(updates))
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])
