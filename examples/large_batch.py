# SPDX-License-Identifier: Apache-2.0
"""How large may a batch be? The experiment of Goyal et al. (2017), section 5, in small.

    smddp-jax run --devices-per-process 8 examples/large_batch.py [--sweep]

A network of dense layers learns scikit-learn's digits on all devices: for as many
epochs with every batch size, by each of `METHODS`, with several seeds at once. Each
finished cell is a line of a file and is not done again. In the end there are a table of
errors in percent on the test images and a plot. Takes three minutes on two idle cores.

`--sweep` is how the rates in `Setup` were picked, on other images than the test's.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from tqdm import tqdm

import smddp_jax
from smddp_jax import data, optim

BASE_BATCH = 32
TRAIN, VALIDATION = 1024, 373  # images; the other 400 are for the test
SHIFTS = [(x, y) for x in range(3) for y in range(3)]  # by up to a pixel each way
BROKEN = 50.0  # percent of errors: such a training has learnt next to nothing


@dataclass(frozen=True)
class Setup:
    """What all cells have in common."""

    epochs: int = 90
    seeds: int = 5
    layers: int = 4
    width: int = 128
    sgd_rate: float = 0.04  # each for batches of BASE_BATCH, as picked by a sweep
    lars_trust: float = 0.05
    lamb_rate: float = 0.004
    decay: float = 1e-4


def make_rate(setup, batch, base, peak, warmup=optim.gradual_warmup_schedule):
    """The paper's schedule for 90 epochs, as long as this training is.

    The rate falls to a tenth after a third, two thirds and eight ninths of the
    training; the warmup is its first eighteenth.
    """
    steps = setup.epochs * TRAIN / batch
    falls = {round(steps * n / 9): 0.1 for n in (3, 6, 8)}
    whole = optax.piecewise_constant_schedule(peak, falls)
    return warmup(base, peak, round(steps / 18), whole) if warmup else whole


def sgd(setup, batch, scale=optim.linear_scaling, **options):
    """Nesterov momentum, as in the paper."""
    base = setup.sgd_rate
    peak = scale(base, BASE_BATCH, batch)
    return optax.chain(
        optax.add_decayed_weights(setup.decay, mask=optim.weight_decay_mask),
        optax.sgd(make_rate(setup, batch, base, peak, **options), 0.9, nesterov=True),
    )


def lars(setup, batch):
    """A rate per layer, scaled linearly; biases learn as with `sgd`."""
    peak = optim.linear_scaling(setup.sgd_rate, BASE_BATCH, batch)
    rate = make_rate(setup, batch, setup.sgd_rate, peak)
    return optim.lars(rate, setup.decay, trust_coefficient=setup.lars_trust)


def lamb(setup, batch):
    """Adam with a rate per layer, scaled by the square root."""
    peak = optim.sqrt_scaling(setup.lamb_rate, BASE_BATCH, batch)
    return optim.lamb(make_rate(setup, batch, setup.lamb_rate, peak), setup.decay)


def keep(base, *_):
    """No scaling."""
    return base


METHODS = {
    "no scaling": partial(sgd, scale=keep, warmup=None),
    "linear, no warmup": partial(sgd, warmup=None),
    "linear, constant warmup": partial(sgd, warmup=optim.constant_warmup_schedule),
    "linear, gradual warmup": sgd,
    "LARS, gradual warmup": lars,
    "LAMB, gradual warmup": lamb,
}
SGD = list(METHODS)[:4]
# What a sweep tries, one after the other: a field of `Setup`, by the method that it is
# for. What was picked holds for those behind it.
SWEEPS = {
    "sgd_rate": ("linear, gradual warmup", [0.005 * 2**n for n in range(7)]),
    "lars_trust": ("LARS, gradual warmup", [0.0125 * 2**n for n in range(6)]),
    "lamb_rate": ("LAMB, gradual warmup", [0.0005 * 2**n for n in range(6)]),
}
SWEEP_BATCHES = [
    BASE_BATCH,
    8 * BASE_BATCH,
]  # the second only to see what it does there


class Network(nn.Module):
    """Dense layers, each normalized, for images of 8 x 8 pixels."""

    layers: int
    width: int

    @nn.compact
    def __call__(self, pixels):
        """Scores of the ten digits."""
        for _ in range(self.layers):
            dense = nn.Dense(self.width, kernel_init=nn.initializers.he_normal())
            pixels = nn.relu(nn.LayerNorm()(dense(pixels)))
        return nn.Dense(10)(pixels)


def load_images():
    """Pixels and labels by their use, each image in all its `SHIFTS`."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = np.float32(digits.images / 16)[order]
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    shifted = np.stack([wide[:, x : x + 8, y : y + 8] for x, y in SHIFTS], 1)
    shifted = shifted.reshape(len(images), len(SHIFTS), -1)
    labels = np.int32(digits.target)[order, None].repeat(len(SHIFTS), 1)
    cuts = [TRAIN, TRAIN + VALIDATION]
    parts = (np.split(values, cuts) for values in (shifted, labels))
    flat = (
        (x.reshape(-1, x.shape[-1]), y.ravel()) for x, y in zip(*parts, strict=True)
    )
    return dict(zip(("train", "validation", "test"), flat, strict=True))


def pick_rows(setup, batch, devices):
    """Rows of the training images: of each step, seed, and device one after the other.

    The order is the one that `devices` workers would have: each epoch is shuffled as a
    whole and split among them. Every image comes in one of its shifts, by chance.
    """
    steps = setup.epochs * TRAIN // batch
    rows = np.empty((steps, setup.seeds, devices, batch // devices), np.int32)
    for seed in range(setup.seeds):
        for device in range(devices):
            epochs = [
                data.epoch_indices(
                    seed, epoch, TRAIN, device, devices, remainder="drop"
                )
                for epoch in range(setup.epochs)
            ]
            images = np.concatenate(epochs)[: rows[:, seed, device].size]
            pick = np.random.default_rng((seed, device))
            chosen = images * len(SHIFTS) + pick.integers(len(SHIFTS), size=len(images))
            rows[:, seed, device] = chosen.reshape(steps, -1)
    return rows.reshape(steps, setup.seeds, batch)


def make_training(network, optimizer, mesh):
    """A whole training as one program: all steps, all seeds, each device its rows."""
    reduce = optim.all_reduce_gradients("batch")

    def loss(weights, pixels, labels):
        logits = network.apply(weights, pixels)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def train(weights, pixels, labels, rows):
        def step(carry, rows):
            weights, state = carry
            own = optim.as_varying(weights, "batch")
            both = jax.vmap(jax.value_and_grad(loss))
            value, gradients = both(own, pixels[rows], labels[rows])
            # All seeds' gradients at once: one reduction in each step.
            gradients, _ = reduce.update(gradients, reduce.init(weights))
            updates, state = jax.vmap(optimizer.update)(gradients, state, weights)
            return (optax.apply_updates(weights, updates), state), value

        state = jax.vmap(optimizer.init)(weights)
        (weights, _), losses = lax.scan(step, (weights, state), rows)
        return weights, smddp_jax.pmean(losses, "batch")

    specs = (P(), P(), P(), P(None, None, "batch"))
    return jax.jit(jax.shard_map(train, mesh=mesh, in_specs=specs, out_specs=P()))


def run_cell(setup, method, batch, part, mesh):
    """Trains one cell; returns what its line says of the images of a part."""
    start = time.perf_counter()
    images = load_images()
    train, (pixels, labels) = images["train"], images[part]
    network = Network(setup.layers, setup.width)
    keys = jax.random.split(jax.random.key(0), setup.seeds)
    weights = jax.vmap(network.init, (0, None))(keys, pixels[:1])
    rows = pick_rows(setup, batch, mesh.size)
    spread = NamedSharding(mesh, P(None, None, "batch"))
    rows = jax.make_array_from_callback(rows.shape, spread, rows.__getitem__)
    training = make_training(network, METHODS[method](setup, batch), mesh)
    weights, losses = jax.device_get(training(*jax.device_get((weights, *train)), rows))
    logits = jax.vmap(network.apply, (0, None))(weights, pixels)
    errors = 100 * (logits.argmax(-1) != labels).mean(-1)
    return {
        "setup": asdict(setup),
        "method": method,
        "batch": batch,
        "part": part,
        "errors": [round(float(error), 3) for error in errors],
        "last_losses": [float(loss) for loss in losses[-1]],
        "seconds": round(time.perf_counter() - start, 1),
    }


class Results:
    """The cells of a file, which grows as more are asked for."""

    def __init__(self, file, mesh):
        self.file, self.mesh = file, mesh
        lines = file.read_text().splitlines() if file.exists() else []
        self.cells = [json.loads(line) for line in lines]

    def errors(self, setup, method, batch, part="test"):
        """Of each seed, in percent; trained now if the file does not know them."""
        if batch == BASE_BATCH and method in SGD:
            method = SGD[0]  # Nothing to scale, nothing to warm up: the same training.
        asked = dict(setup=asdict(setup), method=method, batch=batch, part=part)
        known = (cell for cell in self.cells if asked.items() <= cell.items())
        cell = next(known, None)
        if cell is None:
            cell = run_cell(setup, method, batch, part, self.mesh)
            self.cells.append(cell)
            if smddp_jax.rank() == 0:
                with self.file.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
        return np.array(cell["errors"])


def as_text(errors):
    """Mean and deviation over the seeds; how many seeds broke, if any."""
    broke = int((errors > BROKEN).sum())
    text = f"{errors.mean():.2f} ± {errors.std(ddof=1):.2f}"
    return f"{text} ({broke} broke)" if broke else text


def as_table(rows, batches):
    """Markdown of rows of errors, by their names."""
    lines = [["", *map(str, batches)], ["---"] * (len(batches) + 1)]
    lines += [[str(name), *map(as_text, errors)] for name, errors in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sweep(setup, results, progress):
    """Picks what `SWEEPS` names by the validation images; returns that setup.

    The smallest value whose mean is within a deviation of the best one at `BASE_BATCH`:
    as large as needed there, and no larger, since scaling multiplies it.
    """
    for field, (method, values) in SWEEPS.items():
        rows = {}
        for value in progress(values, field):
            tried = replace(setup, **{field: value})
            rows[value] = [
                results.errors(tried, method, batch, "validation")
                for batch in SWEEP_BATCHES
            ]
        best = min((errors[0] for errors in rows.values()), key=np.mean)
        enough = best.mean() + best.std(ddof=1)
        pick = next(value for value in values if rows[value][0].mean() <= enough)
        setup = replace(setup, **{field: pick})
        if smddp_jax.rank() == 0:
            print(as_table(rows, SWEEP_BATCHES), f"{field}: {pick}", sep="\n\n")
    return setup


def draw(rows, batches, target):
    """Errors over batch sizes. Like figures give the same file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    for method, errors in rows.items():
        middle, spread = np.mean(errors, 1), np.std(errors, 1, ddof=1)
        axes.errorbar(batches, middle, spread, marker="o", markersize=3, label=method)
    axes.set_xticks(batches, [str(batch) for batch in batches], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("images per batch")
    axes.set_ylabel("test error, percent")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "smddp-jax"}):
        metadata = {"Date": None} if target.suffix == ".svg" else None
        figure.savefig(target, metadata=metadata)


def main():
    """Does the cells that are not done yet, then shows all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sizes = [BASE_BATCH << doubled for doubled in range(7)]
    parser.add_argument("--batches", type=int, nargs="+", default=sizes)
    parser.add_argument("--epochs", type=int, default=Setup.epochs)
    parser.add_argument("--seeds", type=int, default=Setup.seeds)
    parser.add_argument("--results", type=Path, default=Path("large_batch.jsonl"))
    parser.add_argument("--plot", type=Path, default=Path("large_batch.svg"))
    parser.add_argument("--sweep", action="store_true", help="pick rates, no more")
    args = parser.parse_args()

    smddp_jax.init()
    smddp_jax.install()
    results = Results(args.results, Mesh(np.array(jax.devices()), ("batch",)))
    setup = Setup(epochs=args.epochs, seeds=args.seeds)
    progress = partial(tqdm, disable=smddp_jax.rank() > 0)
    if args.sweep:
        sweep(setup, results, progress)
        return
    cells = {}
    for batch in progress(args.batches, "batches"):
        for method in METHODS:
            cells.setdefault(method, []).append(results.errors(setup, method, batch))
    if smddp_jax.rank() == 0:
        print(as_table(cells, args.batches))
        draw(cells, args.batches, args.plot)


if __name__ == "__main__":
    main()
