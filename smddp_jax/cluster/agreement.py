# SPDX-License-Identifier: Apache-2.0
"""What the processes of a job tell each other before they start, and must have alike.

Ranks with unlike settings would cut the same bytes into unlike parts. Each writes a
card into JAX's key-value store and reads all others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from smddp_jax import _env, _jax_compat
from smddp_jax._errors import ClusterError
from smddp_jax.cluster.terms import Terms


@dataclass(frozen=True)
class Card:
    """What one process says of itself.

    Attributes:
      host: its host id.
      alike: what must be the same everywhere, by name, as messages show it.
      gpu_problem: which process can't use its GPUs, and why; None: this one can.
    """

    host: str
    alike: Mapping[str, str]
    gpu_problem: str | None


def make_card(host: str, terms: Terms, gpu_problem: str | None) -> Card:
    """The card of this process, on this host and these terms."""
    given = {
        "SMDDP_REDUCERS": terms.reducers,
        "SMDDP_WIRE_DTYPE": terms.wire_dtype,
    }
    alike = {
        setting.name: _shown(given.get(setting.name, _env.get(setting.name)))
        for setting in _env.SETTINGS
        if setting.agreed
    }
    alike["SMDDP_SECRET"] = "set" if _env.get("SMDDP_SECRET") else "unset"
    alike["jax"] = jax.__version__
    return Card(host, alike, gpu_problem)


def trade(epoch: int, rank: int, size: int, mine: Card) -> list[Card]:
    """Tells every process our card and returns all of them, in rank order.

    Raises:
      ClusterError: a process did not come in time, or what must be alike is not. The
        latter every process finds, with the same message.
    """
    texts = exchange(f"smddp/{epoch}/card", rank, size, json.dumps(asdict(mine)))
    cards = [Card(**json.loads(text)) for text in texts]
    problem = difference(cards)
    if problem is not None:
        raise ClusterError(problem)
    return cards


def exchange(key: str, rank: int, size: int, mine: str) -> list[str]:
    """Tells every process our text and returns all of them, in rank order.

    Raises:
      ClusterError: a process did not come in time.
    """
    store = _jax_compat.coordination_store()
    store.set(f"{key}/{rank}", mine.encode())
    seconds = _env.get("SMDDP_INIT_TIMEOUT")
    deadline = time.monotonic() + seconds
    texts = []
    for other in range(size):
        left = max(0.1, deadline - time.monotonic())
        try:
            texts.append(store.get(f"{key}/{other}", left).decode())
        except _jax_compat.KeyTimeoutError:
            raise ClusterError(
                f"rank {other} did not call smddp_jax.init() within {seconds:g} s "
                "(SMDDP_INIT_TIMEOUT), or ended in it: every process of the job has to"
            ) from None
    return texts


def difference(cards: Sequence[Card]) -> str | None:
    """Says which rank has something else than rank 0 that must be alike, if any."""
    for rank, card in enumerate(cards):
        for name, value in cards[0].alike.items():
            other = card.alike.get(name, "unknown")
            if other != value:
                return (
                    f"{name} is {value} on rank 0 and {other} on rank {rank}: every "
                    f"process of the job needs the same; {_remedy(name)}"
                )
    return None


def _remedy(name: str) -> str:
    if name == "jax":
        return "install one version everywhere"
    return (
        f"set it for all of them (mpirun passes variables on with -x {name}), and give "
        "init() the same arguments"
    )


def _shown(value: Any) -> str:
    if value in (None, "", ()):
        return "unset"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
