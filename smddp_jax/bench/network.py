# SPDX-License-Identifier: Apache-2.0
"""What the network allows: the least time of an all-reduce, and the bytes it moves.

The shares are the engine's own: `plan/shares.cc` computes them here, too.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

# Of a bit rate, what Ethernet leaves for TCP's payload with an MTU of 1500.
PAYLOAD_SHARE = 0.9565

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit", re.IGNORECASE)
_FACTOR = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class Network:
    """Hosts around one switch, all of them in one all-reduce.

    Attributes:
      hosts: with workers.
      reducers: hosts with a dedicated reducer.
      rate: of a link each way, in tc's words: `1gbit`. Where links differ: of each
        worker host's, then of each reducer's, with commas between.
      wire_dtype: what our float32 values are rounded to between hosts; "": not at all.
      weights: SMDDP_WEIGHTS; "": shares as if all links were alike.
    """

    hosts: int
    reducers: int
    rate: str
    wire_dtype: str = ""
    weights: str = ""

    @property
    def rates(self) -> list[str]:
        """The rate of every host's link, those of the workers first."""
        rates = self.rate.split(",")
        return rates * (self.hosts + self.reducers) if len(rates) == 1 else rates

    def wire_size(self, size: int) -> int:
        """What becomes of `size` bytes where they cross the network."""
        return size // 2 if self.wire_dtype else size

    def bound(self, size: int) -> float:
        """Seconds that links without any idle moment need to reduce `size` bytes.

        By the best shares for these links, whatever the weights are.
        """
        return self.wire_size(size) * self._plan(self._payload_rates())[1]

    def worker_bytes(self, size: int) -> float:
        """What a worker host sends to reduce `size` bytes, and as much receives.

        It sends its values but for the share that it sums itself, and the sums of that
        share to all others. Where shares differ, this is the largest one's.
        """
        share = max(self._shares()[self.reducers :])
        return self.wire_size(size) * (1 + (self.hosts - 2) * share)

    def reducer_bytes(self, size: int) -> float:
        """What a dedicated reducer's host sends, and as much receives."""
        share = max(self._shares()[: self.reducers], default=0.0)
        return self.wire_size(size) * self.hosts * share

    def _payload_rates(self) -> list[float]:
        """Bytes per second of TCP's payload that each host's link carries."""
        return [parse_rate(rate) / 8 * PAYLOAD_SHARE for rate in self.rates]

    def _shares(self) -> list[float]:
        """Of each reducer, then of each worker host, by the weights in use."""
        if self.weights == "measure":
            return self._plan(self._payload_rates())[0]
        weights = self.weights or ",".join("1" * (self.hosts + self.reducers))
        return self._plan([float(weight) for weight in weights.split(",")])[0]

    def _plan(self, nics: list[float]) -> tuple[list[float], float]:
        return _plan(tuple(nics[: self.hosts]), tuple(nics[self.hosts :]))


def parse_rate(text: str) -> float:
    """Bits per second of `1gbit`, `500mbit`.

    Raises:
      ValueError: the text is no rate.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is no rate such as 1gbit or 500mbit")
    return float(match[1]) * _FACTOR[match[2].lower()]


@functools.cache
def _plan(
    workers: tuple[float, ...], reducers: tuple[float, ...]
) -> tuple[list[float], float]:
    from smddp_jax import _core  # only who asks for hosts needs it here

    return _core.balanced_shares(workers, reducers)
