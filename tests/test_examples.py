# SPDX-License-Identifier: Apache-2.0
"""The examples, cut short: same losses, same results wherever and however they run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ranks import run_launched, run_ranks

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


@pytest.mark.parametrize(("processes", "devices"), [(1, 1), (1, 8), (4, 2)])
def test_the_resnet_learns(processes: int, devices: int, tmp_path: Path) -> None:
    arguments = ("--epochs", 2, "--folder", tmp_path)
    run_launched(
        EXAMPLES / "resnet.py", *arguments, processes=processes, devices=devices
    )
    epochs = metrics_of(tmp_path)
    assert [line["epoch"] for line in epochs] == [1, 2]
    assert epochs[1]["loss"] < epochs[0]["loss"] < 2.4
    assert epochs[1]["accuracy"] > 0.4


def test_the_resnet_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run_launched(EXAMPLES / "resnet.py", "--epochs", 2, "--folder", whole, devices=4)
    run_launched(EXAMPLES / "resnet.py", "--epochs", 1, "--folder", halves, devices=4)
    first = metrics_of(halves)
    run_launched(EXAMPLES / "resnet.py", "--epochs", 2, "--folder", halves, devices=4)
    assert metrics_of(halves)[:1] == first
    for one, other in zip(metrics_of(whole), metrics_of(halves), strict=True):
        same = ("epoch", "loss", "accuracy", "test_error")
        assert [one[name] for name in same] == [other[name] for name in same]


def test_only_rank_0_needs_the_checkpoint(tmp_path: Path) -> None:
    """Two hosts without a common file system: each rank has a folder of its own."""
    for epochs in (1, 2):
        with run_ranks(
            "in_own_folder",
            EXAMPLES / "resnet.py",
            *("--epochs", epochs, "--folder", "run"),
            processes=4,
            hosts=2,
            logs=tmp_path / f"logs{epochs}",
            env={"FOLDERS": str(tmp_path)},
        ) as job:
            job.succeed(150)
    assert [line["epoch"] for line in metrics_of(tmp_path / "0" / "run")] == [1, 2]
    assert not list((tmp_path / "1").glob("run/*"))


def test_the_experiment_skips_what_is_done(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("results.jsonl", "plot.svg")}
    arguments = ["--epochs", 2, "--seeds", 2, "--results", files["results.jsonl"]]
    arguments += ["--plot", files["plot.svg"], "--batches", 256]
    run_launched(EXAMPLES / "large_batch.py", *arguments)
    first = files["results.jsonl"].read_text().splitlines()
    assert len(first) == 6
    said = run_launched(EXAMPLES / "large_batch.py", *arguments, 512)
    lines = files["results.jsonl"].read_text().splitlines()
    assert lines[:6] == first and len(lines) == 12
    table = [line for line in said.splitlines() if "±" in line]
    assert len(table) == 6
    for line in map(json.loads, lines):
        assert len(line["errors"]) == 2 and all(0 <= e <= 95 for e in line["errors"])
    assert "<svg" in files["plot.svg"].read_text()
