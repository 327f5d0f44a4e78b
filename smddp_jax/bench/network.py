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
    """Hosts with equal links, all of them in one all-reduce.

    Attributes:
      hosts: with workers.
      reducers: hosts with a dedicated reducer.
      rate: of a link each way, in tc's words: `1gbit`.
      wire_dtype: what our float32 values are rounded to between hosts; "": not at all.
    """

    hosts: int
    reducers: int
    rate: str
    wire_dtype: str = ""

    def wire_size(self, size: int) -> int:
        """What becomes of `size` bytes where they cross the network."""
        return size // 2 if self.wire_dtype else size

    def bound(self, size: int) -> float:
        """Seconds that links without any idle moment need to reduce `size` bytes."""
        payload = parse_rate(self.rate) / 8 * PAYLOAD_SHARE
        return self.wire_size(size) * _plan(self.hosts, self.reducers)[1] / payload

    def worker_bytes(self, size: int) -> float:
        """What a worker host sends to reduce `size` bytes, and as much receives.

        It sends its values but for the share that it sums itself, and the sums of that
        share to all others.
        """
        share = _plan(self.hosts, self.reducers)[0][-1]
        return self.wire_size(size) * (1 + (self.hosts - 2) * share)

    def reducer_bytes(self, size: int) -> float:
        """What a dedicated reducer's host sends, and as much receives."""
        share = _plan(self.hosts, self.reducers)[0][0] if self.reducers else 0.0
        return self.wire_size(size) * self.hosts * share


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
def _plan(hosts: int, reducers: int) -> tuple[list[float], float]:
    from smddp_jax import _core  # only who asks for hosts needs it here

    return _core.balanced_shares([1.0] * hosts, [1.0] * reducers)
