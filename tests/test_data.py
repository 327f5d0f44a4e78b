# SPDX-License-Identifier: Apache-2.0
"""One shuffle per epoch, split among ranks: every sample once, whatever the numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.ours
data = pytest.importorskip("smddp_jax.data")

sizes = st.tuples(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5))


def every_rank(n: int, size: int, remainder: str, seed=0, epoch=0, **options):
    return [
        data.epoch_indices(seed, epoch, n, rank, size, remainder=remainder, **options)
        for rank in range(size)
    ]


@given(sizes, st.integers(0, 2**63), st.integers(0, 1000))
def test_padding_covers_every_sample(numbers, seed: int, epoch: int) -> None:
    n, size, batch = numbers
    ranks = every_rank(n, size, "pad", seed, epoch, batch_size=batch)
    steps = data.steps_per_epoch(n, size, remainder="pad", batch_size=batch)
    assert {len(indices) for indices in ranks} == {steps * batch}
    weights = [
        data.sample_weights(n, rank, size, batch_size=batch) for rank in range(size)
    ]
    real = np.concatenate(ranks)[np.concatenate(weights) == 1]
    assert sorted(real) == list(range(n))
    assert set(np.concatenate(ranks)) == set(range(n))


@given(sizes)
def test_dropping_repeats_no_sample(numbers) -> None:
    n, size, batch = numbers
    if n < size * batch:
        with pytest.raises(ValueError, match="make no batch of"):
            every_rank(n, size, "drop", batch_size=batch)
        return
    ranks = every_rank(n, size, "drop", batch_size=batch)
    assert {len(indices) for indices in ranks} == {n // (size * batch) * batch}
    seen = np.concatenate(ranks)
    assert len(set(seen)) == len(seen) > n - size * batch
    assert set(seen) <= set(range(n))


def test_global_batches_do_not_depend_on_the_number_of_ranks() -> None:
    def batches(size: int) -> list[set[int]]:
        ranks = every_rank(96, size, "drop", batch_size=24 // size)
        per_rank = [indices.reshape(4, -1) for indices in ranks]
        return [set(np.concatenate(rows)) for rows in zip(*per_rank, strict=True)]

    assert batches(1) == batches(4) == batches(8)


def test_shuffles_differ_by_seed_and_epoch_and_stay_what_they_are() -> None:
    first, again, epoch, seed = (
        data.epoch_indices(s, e, 10, 0, 1, remainder="drop")
        for s, e in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    np.testing.assert_array_equal(first, again)
    assert list(first) != list(epoch) != list(seed) != list(first)
    assert first.dtype == np.int64
    # Of every numpy and machine: raw bits of Philox are part of numpy's promise.
    assert list(first) == PINNED


PINNED = [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]


def test_an_epoch_is_resumed() -> None:
    whole = data.epoch_indices(3, 4, 50, 1, 4, remainder="pad")
    rest = data.epoch_indices(3, 4, 50, 1, 4, remainder="pad", start=5)
    np.testing.assert_array_equal(rest, whole[5:])
    weights = data.sample_weights(50, 3, 4, start=5)
    np.testing.assert_array_equal(weights, data.sample_weights(50, 3, 4)[5:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 10, 4, 4), "rank 4 is none of 4"),
        ((0, 0, 10, 0, 0), "size is 0: give 1 or more"),
        ((0, 0, 0, 0, 4), "n is 0: give 1 or more"),
    ],
)
def test_wrong_numbers_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.epoch_indices(*arguments, remainder="pad")


def test_the_remainder_must_be_said() -> None:
    with pytest.raises(TypeError, match="remainder"):
        data.epoch_indices(0, 0, 10, 0, 4)
    with pytest.raises(ValueError, match="give 'pad' or 'drop'"):
        data.epoch_indices(0, 0, 10, 0, 4, remainder="keep")


def batches(**changes):
    options = dict(n=50, batch_size=3, seed=7, rank=1, size=4, remainder="drop")
    return data.IndexBatches(**{**options, **changes})


def test_batches_go_on_from_epoch_to_epoch() -> None:
    iterator = batches(epochs=2)
    assert iterator.steps_per_epoch == 4
    got = list(iterator)
    assert [len(rows) for rows in got] == [3] * 8
    for epoch in range(2):
        want = data.epoch_indices(7, epoch, 50, 1, 4, remainder="drop", batch_size=3)
        rows = np.concatenate(got[4 * epoch : 4 * epoch + 4])
        np.testing.assert_array_equal(rows, want)
    assert list(iterator) == []


@pytest.mark.parametrize("stop", range(9))
def test_batches_are_resumed(stop: int) -> None:
    iterator, other = batches(), batches()
    for _ in range(stop):
        next(iterator)
    state = iterator.get_state()
    assert state == batches_after(stop, rank=3).get_state()
    other.set_state(state)
    for mine, theirs in itertools.islice(zip(iterator, other, strict=True), 6):
        np.testing.assert_array_equal(mine, theirs)


def batches_after(steps: int, **changes):
    iterator = batches(**changes)
    for _ in range(steps):
        next(iterator)
    return iterator


def test_other_ranks_go_on_with_the_same_global_batches() -> None:
    state = batches_after(2).get_state()
    resumed = [batches(rank=rank, size=2, batch_size=6) for rank in range(2)]
    for iterator in resumed:
        iterator.set_state(state)
    got = {row for iterator in resumed for row in next(iterator)}
    want = {row for rank in range(4) for row in next(batches_after(2, rank=rank))}
    assert got == want


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 51}, "has n 50, not 51"),
        ({"seed": 8}, "has seed 7, not 8"),
        ({"batch_size": 5}, "24 samples of the epoch are done, no multiple of 4"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches(**changes).set_state(batches_after(2).get_state())


# --- grain ----------------------------------------------------------------------------


def sampler(rank: int = 1, **changes):
    options = dict(n=50, seed=7, rank=rank, size=4, remainder="drop", batch_size=3)
    return data.GrainSampler(**{**options, **changes})


def test_grain_gets_the_same_samples() -> None:
    grain = pytest.importorskip("grain")
    loader = grain.DataLoader(
        data_source=np.arange(50) * 10,
        sampler=sampler(epochs=2),
        shard_options=grain.sharding.NoSharding(),
        operations=[grain.transforms.Batch(3, drop_remainder=True)],
        worker_count=0,
    )
    want = [rows * 10 for rows in batches(epochs=2)]
    np.testing.assert_array_equal(list(loader), want)


def test_grain_resumes() -> None:
    grain = pytest.importorskip("grain")

    loader = grain.DataLoader(
        data_source=np.arange(50),
        sampler=sampler(),
        shard_options=grain.sharding.NoSharding(),
    )
    iterator, other = iter(loader), iter(loader)
    for _ in range(17):
        next(iterator)
    other.set_state(iterator.get_state())
    assert [next(iterator) for _ in range(9)] == [next(other) for _ in range(9)]


def test_every_sample_has_random_numbers_of_its_own() -> None:
    pytest.importorskip("grain")
    seen = [
        float(sampler(rank)[index].rng.random())
        for rank in range(4)
        for index in range(30)
    ]
    assert len(set(seen)) == len(seen)
    assert float(sampler()[5].rng.random()) in seen


def test_a_sampler_ends_with_its_epochs() -> None:
    pytest.importorskip("grain")
    assert len(sampler(epochs=2)) == 24
    with pytest.raises(IndexError, match="sample 24 of 24"):
        sampler(epochs=2)[24]
