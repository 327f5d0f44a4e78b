# SPDX-License-Identifier: Apache-2.0
"""A training step in stock JAX. `installed.py` and `pieces.py` are the same training.

JAX_NUM_CPU_DEVICES=8 python examples/migration/stock.py
"""

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import smddp_jax
from smddp_jax import optim

BATCH, STEPS, WARMUP = 256, 60, 20
BASE_RATE, BASE_BATCH = 0.02, 32


def loss(weights, images, labels):
    """The mean loss over the images of one device."""
    hidden = jax.nn.relu(images @ weights["hidden"] + weights["bias"])
    logits = hidden @ weights["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def make_step(mesh, optimizer):
    """One update from the images of all devices."""
    gradient = optim.value_and_grad(loss, "batch")

    def step(weights, state, images, labels):
        value, gradients = gradient(weights, images, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, lax.pmean(value, "batch")

    specs = (P(), P(), P("batch"), P("batch"))
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P()))


def first_weights():
    """Small random ones."""
    pick = np.random.default_rng(0)
    weights = {
        "hidden": pick.normal(0, 0.15, (64, 256)),
        "bias": np.zeros(256),
        "out": pick.normal(0, 0.1, (256, 10)),
    }
    return jax.tree.map(np.float32, weights)


def main():
    """Trains, and prints the loss of some steps."""
    smddp_jax.install()
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    digits = load_digits()
    images, labels = np.float32(digits.data / 16), np.int32(digits.target)
    rate = optim.linear_scaling(BASE_RATE, BASE_BATCH, BATCH)
    rise = optim.gradual_warmup_schedule(BASE_RATE, rate, WARMUP)
    optimizer = optax.sgd(rise, momentum=0.9, nesterov=True)
    step = make_step(mesh, optimizer)
    weights = first_weights()
    state = optimizer.init(weights)
    spread = NamedSharding(mesh, P("batch"))
    for number in range(STEPS):
        rows = np.random.default_rng(number).permutation(len(images))[:BATCH]
        batch = (jax.device_put(part[rows], spread) for part in (images, labels))
        weights, state, value = step(weights, state, *batch)
        if number % 10 == 9:
            print(f"step {number + 1}: loss {value:.6f}")


if __name__ == "__main__":
    main()
