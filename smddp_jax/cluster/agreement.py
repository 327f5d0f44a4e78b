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
    """

    host: str
    alike: Mapping[str, str]


def make_card(host: str, terms: Terms) -> Card:
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
    return Card(host, alike)


def trade(epoch: int, rank: int, size: int, mine: Card) -> list[Card]:
    """Tells every process our card and returns all of them, in rank order.

    Raises:
      ClusterError: a process did not come in time, or what must be alike is not. The
        latter every process finds, with the same message.
    """
    store = _jax_compat.coordination_store()
    store.set(f"smddp/{epoch}/card/{rank}", json.dumps(asdict(mine)).encode())
    seconds = _env.get("SMDDP_INIT_TIMEOUT")
    deadline = time.monotonic() + seconds
    cards = []
    for other in range(size):
        left = max(0.1, deadline - time.monotonic())
        try:
            text = store.get(f"smddp/{epoch}/card/{other}", left)
        except _jax_compat.KeyTimeoutError:
            raise ClusterError(
                f"rank {other} did not call smddp_jax.init() within {seconds:g} s "
                "(SMDDP_INIT_TIMEOUT): every process of the job has to"
            ) from None
        cards.append(Card(**json.loads(text)))
    problem = difference(cards)
    if problem is not None:
        raise ClusterError(problem)
    return cards


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
