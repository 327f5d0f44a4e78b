# SPDX-License-Identifier: Apache-2.0
"""Trains a small Flax network on scikit-learn's digits, data-parallel on CPU.

    smddp-jax run -n 4 --devices-per-process 2 examples/digits.py

The one changed line is `smddp_jax.install()`. The same training then runs on stock JAX:
the loss curves must agree, and the last lines compare the speed.
"""

import argparse
import time

import flax.linen as nn
import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import smddp_jax

BATCH = 256  # images per step, over all devices


class Network(nn.Module):
    """64 pixels in, 10 digits out."""

    @nn.compact
    def __call__(self, pixels):
        """Scores of the ten digits."""
        hidden = pixels
        for width in (512, 512):
            hidden = nn.relu(nn.Dense(width)(hidden))
        return nn.Dense(10)(hidden)


network = Network()


def make_step(mesh, optimizer):
    """One step of training. Each device sees its own part of the batch."""

    def loss(weights, images, labels):
        logits = network.apply(weights, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(weights, state, images, labels):
        # Replicated weights would get gradients that are summed over the devices
        # already, one array at a time, and pmean would leave them so. Seen as this
        # device's own copies they get its own gradients, and pmean averages those.
        own = jax.tree.map(lambda w: lax.pcast(w, "batch", to="varying"), weights)
        value, gradients = jax.value_and_grad(loss)(own, images, labels)
        value, gradients = lax.pmean((value, gradients), "batch")
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), P(), P("batch"), P("batch")),
        out_specs=P(),
    )
    return jax.jit(mapped)


class Batches:
    """The images of each step, of which a process holds its own share."""

    def __init__(self, mesh, images, labels, steps):
        self.data = NamedSharding(mesh, P("batch"))
        share = BATCH // jax.process_count()
        mine = slice(jax.process_index() * share, (jax.process_index() + 1) * share)
        order = np.random.default_rng(0)
        picked = [order.permutation(len(images))[:BATCH][mine] for _ in range(steps)]
        self.local = [(images[rows], labels[rows]) for rows in picked]

    def __iter__(self):
        for images, labels in self.local:
            place = jax.make_array_from_process_local_data
            yield place(self.data, images), place(self.data, labels)


def train(step, weights, state, batches, title):
    """Returns the weights, the losses and images per second, the first step aside."""
    losses = []
    bar = tqdm(batches, title, len(batches.local), disable=smddp_jax.rank() > 0)
    for images, labels in bar:
        weights, state, value = step(weights, state, images, labels)
        losses.append(float(value))
        bar.set_postfix(loss=f"{losses[-1]:.4f}")
        if len(losses) == 1:
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    return weights, np.array(losses), BATCH * (len(losses) - 1) / seconds


def main():
    """Trains twice and compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="of each training")
    steps = parser.parse_args().steps

    smddp_jax.init()
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        (digits.data / 16).astype(np.float32),
        digits.target.astype(np.int32),
        test_size=360,
        random_state=0,
        stratify=digits.target,
    )
    batches = Batches(mesh, train_x, train_y, steps)
    weights = network.init(jax.random.key(0), test_x[:1])
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, steps))
    everywhere = NamedSharding(mesh, P())
    weights, state = jax.device_get((weights, optimizer.init(weights)))
    start = jax.jit(lambda t: t, out_shardings=everywhere)((weights, state))
    step = make_step(mesh, optimizer)

    smddp_jax.install()  # the one line
    table = smddp_jax.explain(step, *start, *next(iter(batches)))
    trained, ours, our_speed = train(step, *start, batches, "smddp-jax")
    smddp_jax.uninstall()
    _, stock, stock_speed = train(step, *start, batches, "stock JAX")

    guesses = network.apply(jax.device_get(trained), test_x).argmax(-1)
    accuracy = float((guesses == test_y).mean())
    difference = float(np.abs(ours - stock).max())
    if smddp_jax.rank() == 0:
        print(f"\n{table}\n")
        print(f"{smddp_jax.size()} processes, {mesh.size} devices, {steps} steps")
        print(f"test accuracy {accuracy:.3f}, last loss {ours[-1]:.4f}")
        print(f"loss curves differ by at most {difference:.1e}")
        print(f"images per second: {our_speed:,.0f}, stock JAX {stock_speed:,.0f}")
    if difference > 1e-4:
        raise SystemExit("the loss curves of smddp-jax and of stock JAX differ")
    if steps >= 100 and accuracy < 0.97:
        raise SystemExit("the test accuracy is below 0.97")


if __name__ == "__main__":
    main()
