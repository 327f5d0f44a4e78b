# SPDX-License-Identifier: Apache-2.0
"""Trains a small ResNet on scikit-learn's digits wherever it is started.

    python examples/resnet.py                                              # 1 device
    smddp-jax run --devices-per-process 8 examples/resnet.py               # 8 devices
    smddp-jax run -n 4 --devices-per-process 2 examples/resnet.py          # 4 processes
    srun -N 4 --ntasks-per-node 2 python examples/resnet.py                # 4 hosts

Everywhere it takes the same images in the same batches. Rank 0 shows the progress and
writes `metrics.jsonl` and a checkpoint after each epoch; started again, it goes on from
the checkpoint. It follows Goyal et al. (2017): linear scaling, gradual warmup, batch
statistics of each device, and residual blocks that begin as the identity.
"""

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax
from flax import serialization
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from tqdm import tqdm

import smddp_jax
from smddp_jax import data, optim

TEST_IMAGES = 360


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        """The sum of both ways."""
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, self.features, use_bias=False)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv((3, 3), strides)(x)))
        y = norm(scale_init=nn.initializers.zeros)(conv((3, 3))(y))
        if x.shape != y.shape:
            x = norm()(conv((1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Three stages of residual blocks for images of 8 x 8 pixels."""

    blocks: int = 1
    features: int = 16

    @nn.compact
    def __call__(self, images, train=True):
        """Scores of the ten digits."""
        x = nn.Conv(self.features, (3, 3), use_bias=False)(images)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        for stage in range(3):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(self.features << stage, stride)(x, train)
        logits = nn.Dense(10, kernel_init=nn.initializers.normal(0.01))
        return logits(x.mean((1, 2)))


def make_step(mesh, network, optimizer):
    """One update; gradients are reduced while the backward pass still runs."""

    def loss(weights, stats, images, labels):
        variables = {"params": weights, "batch_stats": stats}
        logits, changed = network.apply(variables, images, mutable=["batch_stats"])
        costs = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        right = (logits.argmax(-1) == labels).mean()
        return costs.mean(), (changed["batch_stats"], right)

    gradient = optim.value_and_grad(loss, "batch", has_aux=True)

    def step(state, images, labels):
        (cost, rest), gradients = gradient(
            state["weights"], state["stats"], images, labels
        )
        # Each device normalizes by its own statistics; the kept ones are their mean.
        cost, (stats, right) = smddp_jax.pmean((cost, rest), "batch")
        updates, moments = optimizer.update(
            gradients, state["optimizer"], state["weights"]
        )
        weights = optax.apply_updates(state["weights"], updates)
        new = {"weights": weights, "stats": stats, "optimizer": moments}
        return new, {"loss": cost, "accuracy": right}

    specs = (P(), P("batch"), P("batch"))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P())
    return jax.jit(mapped)


def make_optimizer(args, steps_per_epoch):
    """Nesterov momentum at a rate that grows with the batch, after a warmup."""
    rate = optim.goyal_schedule(
        *(args.rate, 32, args.batch, steps_per_epoch),
        warmup_epochs=2,
        decay_epochs=(8, 12, 14),
    )
    return optax.chain(
        optax.add_decayed_weights(1e-4, mask=optim.weight_decay_mask),
        optax.sgd(rate, momentum=0.9, nesterov=True),
    )


class Checkpoint:
    """A file of rank 0, from which all ranks go on."""

    def __init__(self, folder):
        if smddp_jax.rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "checkpoint.msgpack"

    def save(self, state, epoch):
        """Replaces the file, or leaves the old one whole."""
        if smddp_jax.rank() == 0:
            fresh = self.file.with_suffix(".new")
            kept = {"state": jax.device_get(state), "epoch": epoch}
            fresh.write_bytes(serialization.to_bytes(kept))
            os.replace(fresh, self.file)

    def load(self, state):
        """The saved state and the number of epochs it has seen, or `state` and 0."""
        kept = {"state": jax.device_get(state), "epoch": 0}
        if smddp_jax.rank() == 0 and self.file.exists():
            kept = serialization.from_bytes(kept, self.file.read_bytes())
        kept = jax.device_get(smddp_jax.broadcast(kept))
        return kept["state"], int(kept["epoch"])


def train_epoch(step, state, batches, bar):
    """Goes through the batches once; returns the state and the means of the metrics."""
    seen, start = [], time.perf_counter()
    for batch in batches:
        state, metrics = step(state, *batch)
        seen.append(jax.device_get(metrics))
        bar.set_postfix(loss=f"{seen[-1]['loss']:.4f}", refresh=False)
        bar.update()
    means = {name: float(np.mean([m[name] for m in seen])) for name in seen[0]}
    return state, {**means, "seconds": time.perf_counter() - start}


def count_wrong(network, state, images, labels):
    """How many images get another label than theirs."""
    variables = {"params": state["weights"], "batch_stats": state["stats"]}
    logits = network.apply(variables, images, train=False)
    return (logits.argmax(-1) != labels).sum()


def make_batches(args, epoch, mesh, images, labels):
    """This process's share of each batch of an epoch, placed on its devices."""
    rank, size = smddp_jax.rank(), smddp_jax.size()
    share = args.batch // size
    mine = data.epoch_indices(
        *(args.seed, epoch, len(images), rank, size),
        remainder="drop",
        batch_size=share,
    )
    place = partial(
        jax.make_array_from_process_local_data, NamedSharding(mesh, P("batch"))
    )
    for rows in mine.reshape(-1, share):
        yield place(images[rows]), place(labels[rows])


def load_images():
    """Images to learn from, images for the test, and the labels of either."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = np.float32(digits.images / 16)[order, :, :, None]
    labels = np.int32(digits.target)[order]
    train, test = slice(TEST_IMAGES, None), slice(TEST_IMAGES)
    return images[train], images[test], labels[train], labels[test]


def parse_arguments():
    """What may be set; the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128, help="over all devices")
    parser.add_argument("--rate", type=float, default=0.025, help="for batches of 32")
    parser.add_argument("--blocks", type=int, default=1, help="in each of three stages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("resnet-run"))
    return parser.parse_args()


def main():
    """Trains from the start or from the checkpoint."""
    args = parse_arguments()
    smddp_jax.init()
    smddp_jax.install()
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    if args.batch % mesh.size:
        raise SystemExit(f"--batch {args.batch} can't be split on {mesh.size} devices")
    train_x, test_x, train_y, test_y = load_images()
    steps_per_epoch = len(train_x) // args.batch
    network = ResNet(blocks=args.blocks)
    optimizer = make_optimizer(args, steps_per_epoch)
    variables = network.init(jax.random.key(args.seed), train_x[:1])
    weights = variables["params"]
    state = {
        "weights": weights,
        "stats": variables["batch_stats"],
        "optimizer": optimizer.init(weights),
    }
    checkpoint = Checkpoint(args.folder)
    state, first = checkpoint.load(state)
    state = jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, P()))(state)
    step = make_step(mesh, network, optimizer)
    evaluate = jax.jit(partial(count_wrong, network))
    total = args.epochs * steps_per_epoch
    done = first * steps_per_epoch
    silent = smddp_jax.rank() > 0
    with tqdm(desc="steps", total=total, initial=done, disable=silent) as bar:
        for epoch in range(first, args.epochs):
            batches = make_batches(args, epoch, mesh, train_x, train_y)
            state, metrics = train_epoch(step, state, batches, bar)
            checkpoint.save(state, epoch + 1)
            if silent:
                continue
            wrong = evaluate(jax.device_get(state), test_x, test_y)
            speed = steps_per_epoch * args.batch / metrics.pop("seconds")
            metrics = {
                "epoch": epoch + 1,
                **metrics,
                "test_error": float(wrong) / len(test_x),
                "images_per_second": speed,
            }
            with (args.folder / "metrics.jsonl").open("a") as log:
                log.write(json.dumps(metrics) + "\n")
            bar.write(
                "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            )


if __name__ == "__main__":
    main()
