# SPDX-License-Identifier: Apache-2.0
"""Joins what the ranks measured: medians, quartiles, bandwidths, ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from smddp_jax.bench.cases import Case
from smddp_jax.bench.network import Network


@dataclass(frozen=True)
class Side:
    """What one program took: a side's all-reduce, or the compute around it.

    Attributes:
      seconds: median over the calls; of one call the mean over the processes.
      quartiles: the first and the third of the same.
      cpu_seconds: median of the CPU time of one call, all processes together.
      minor_faults: median of the page faults of one call, all processes together.
      calls: how many were timed.
      wrong: elements that differ from NumPy's result; None if there is no such result.
      sent_bytes: of one call, by the interface that sent most; None if none counted.
      received_bytes: the same of what came in.
    """

    seconds: float
    quartiles: tuple[float, float]
    cpu_seconds: float
    minor_faults: float
    calls: int
    wrong: int | None
    sent_bytes: float | None = None
    received_bytes: float | None = None


@dataclass(frozen=True)
class Result:
    """One case, measured.

    Attributes:
      case: what was asked for.
      ranks: devices that took part.
      processes: processes that took part.
      platform: what the devices are, cpu or gpu.
      count: elements per device.
      size: bytes per device.
      sides: by name: `ours`, `peer`, `compute`, and more for an overlap.
      connections: TCP connections of the process that had most of them, both sides'.
      network: between the hosts, where several were asked for.
    """

    case: Case
    ranks: int
    processes: int
    platform: str
    count: int
    size: int
    sides: Mapping[str, Side]
    connections: int = 0
    network: Network | None = None

    def algbw(self, side: str) -> float:
        """Bytes reduced per second, in GB/s."""
        return self.size / self.sides[side].seconds / 1e9

    def busbw(self, side: str) -> float:
        """algbw x 2(n-1)/n, as nccl-tests has it, for comparison between libraries."""
        return self.algbw(side) * 2 * (self.ranks - 1) / self.ranks

    @property
    def ratio(self) -> float | None:
        """How many times as long as ours the peer takes; None without either."""
        if not {"ours", "peer"} <= self.sides.keys():
            return None
        return self.sides["peer"].seconds / self.sides["ours"].seconds

    @property
    def wrong(self) -> int:
        """Wrong elements of all sides."""
        return sum(side.wrong or 0 for side in self.sides.values())

    def overlap(self, side: str) -> float:
        """Time of compute and all-reduce together / of the longer one alone."""
        longer = max(self.sides["compute"].seconds, self.sides[f"{side}_alone"].seconds)
        return self.sides[side].seconds / longer

    def overlap_bound(self, side: str, cores: int) -> float:
        """The least that `overlap` can be where the CPU time must share the cores."""
        compute, alone = self.sides["compute"], self.sides[f"{side}_alone"]
        longer = max(compute.seconds, alone.seconds)
        shared = (compute.cpu_seconds + alone.cpu_seconds) / cores
        return max(longer, shared) / longer

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON, derived figures included."""
        fields: dict[str, Any] = {
            "case": self.case.as_dict(),
            "ranks": self.ranks,
            "processes": self.processes,
            "platform": self.platform,
            "count": self.count,
            "size": self.size,
            "ratio": self.ratio,
            "connections": self.connections,
            "sides": {},
        }
        if self.network is not None:
            fields["network"] = asdict(self.network) | {
                "bound": self.network.bound(self.size),
                "worker_bytes": self.network.worker_bytes(self.size),
                "reducer_bytes": self.network.reducer_bytes(self.size),
            }
        for name, side in self.sides.items():
            fields["sides"][name] = asdict(side)
            if side.wrong is not None:
                fields["sides"][name] |= {
                    "algbw": self.algbw(name),
                    "busbw": self.busbw(name),
                }
        return fields


def join_ranks(
    measured: Sequence[Mapping[str, Any]], network: Network | None = None
) -> Result:
    """One result from what each process measured of one case (`measure.measure`)."""
    first = measured[0]
    case = Case.from_dict(first["case"])
    sides = {
        name: _join_side(
            [rank["samples"][name] for rank in measured],
            [rank["wrong"].get(name) for rank in measured],
        )
        for name in first["samples"]
    }
    return Result(
        case=case,
        ranks=first["ranks"],
        processes=first["processes"],
        platform=first["platform"],
        count=first["count"],
        size=first["size"],
        sides=sides,
        connections=max(rank["connections"] for rank in measured),
        network=network,
    )


def _join_side(
    samples: Sequence[Mapping[str, Sequence[float]]], wrong: Sequence[int | None]
) -> Side:
    seconds = [
        statistics.fmean(call)
        for call in zip(*(s["seconds"] for s in samples), strict=True)
    ]
    return Side(
        seconds=statistics.median(seconds),
        quartiles=_quartiles(seconds),
        cpu_seconds=_median_of_sums([s["cpu_seconds"] for s in samples]),
        minor_faults=_median_of_sums([s["minor_faults"] for s in samples]),
        calls=len(seconds),
        wrong=None if wrong[0] is None else sum(n or 0 for n in wrong),
        sent_bytes=_largest_mean([s.get("sent_bytes") for s in samples]),
        received_bytes=_largest_mean([s.get("received_bytes") for s in samples]),
    )


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def _median_of_sums(per_rank: Sequence[Sequence[float]]) -> float:
    return statistics.median([sum(call) for call in zip(*per_rank, strict=True)])


def _largest_mean(per_rank: Sequence[Sequence[float] | None]) -> float | None:
    """The mean over the calls: what goes out late is counted by the next call."""
    return max((statistics.fmean(calls) for calls in per_rank if calls), default=None)
