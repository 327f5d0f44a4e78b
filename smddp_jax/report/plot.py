# SPDX-License-Identifier: Apache-2.0
"""Draws time over size, with matplotlib, which nothing else here needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from smddp_jax._errors import SmddpError
from smddp_jax.bench import Network, Result

_Line = list[tuple[int, float]]


def plot(results: Sequence[Result], target: str | Path) -> None:
    """Writes a plot of what was measured between hosts, as its name's ending says.

    One line of each number of reducers and wire dtype with its bound, and Gloo's.

    Raises:
      SmddpError: matplotlib is missing, or nothing was measured between hosts.
    """
    networks = list(dict.fromkeys(r.network for r in results if r.network is not None))
    if not networks:
        raise SmddpError("a plot shows times between hosts: measure with --hosts")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SmddpError(
            f"a plot needs matplotlib: pip install 'smddp-jax[plot]' ({error})"
        ) from None
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    first = networks[0]
    gloo = _line(results, first, lambda r: _seconds(r, "peer"))
    if gloo:
        axes.plot(*zip(*gloo, strict=True), "k--o", markersize=3, label="Gloo")
    for number, network in enumerate(networks):
        color = f"C{number}"
        bound = _line(results, network, _bound)
        axes.plot(*zip(*bound, strict=True), ":", linewidth=1, color=color)
        ours = _line(results, network, lambda r: _seconds(r, "ours"))
        if ours:
            points = zip(*ours, strict=True)
            axes.plot(*points, "-o", markersize=3, color=color, label=_label(network))
    axes.set_xlabel("bytes per device")
    axes.set_ylabel("seconds")
    axes.set_title(f"All-reduce, {first.hosts} hosts at {first.rate} (dotted: bound)")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    # Text stays text, and the file is the same for the same figures.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "smddp-jax"}):
        metadata = {"Date": None} if str(target).endswith(".svg") else None
        figure.savefig(target, metadata=metadata)


def _line(
    results: Sequence[Result],
    network: Network,
    value: Callable[[Result], float | None],
) -> _Line:
    points = [(r.size, value(r)) for r in results if r.network == network]
    return sorted((size, seconds) for size, seconds in points if seconds is not None)


def _seconds(result: Result, side: str) -> float | None:
    return result.sides[side].seconds if side in result.sides else None


def _bound(result: Result) -> float | None:
    return result.network and result.network.bound(result.size)


def _label(network: Network) -> str:
    label = {0: "co-located reducers", 1: "1 reducer"}.get(
        network.reducers, f"{network.reducers} reducers"
    )
    return f"{label}, {network.wire_dtype} wire" if network.wire_dtype else label
