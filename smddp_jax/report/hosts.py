# SPDX-License-Identifier: Apache-2.0
"""Measures between hosts: network namespaces of this machine, with limited links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smddp_jax import bench
from smddp_jax.launch import Host, Job
from smddp_jax.launch.namespaces import Namespaces, NamespacesError, problem
from smddp_jax.launch.reducers import Reducers
from smddp_jax.report.jobs import measure

_INTERFACE = "eth0"


def measure_on_hosts(
    cases: Sequence[bench.Case], job: Job, networks: Sequence[bench.Network]
) -> tuple[list[bench.Result], list[str]]:
    """Measures all cases on each network, one after the other.

    Reducers and wire dtype are fixed when a job begins, so each network is a job, on
    fresh hosts.

    Args:
      cases: what to measure.
      job: processes, devices and allocator; hosts and program are put in here.
      networks: where.

    Returns:
      The results, and a line about each dedicated reducer.

    Raises:
      NamespacesError: there can't be such hosts on this machine.
      JobFailedError: a rank failed.
    """
    reason = problem()
    if reason is not None:
        raise NamespacesError(f"can't make hosts on this machine: {reason}")
    results: list[bench.Result] = []
    notes: list[str] = []
    for network in networks:
        measured, told = _measure(cases, job, network)
        results += measured
        notes += told
    return results, notes


def _measure(
    cases: Sequence[bench.Case], job: Job, network: bench.Network
) -> tuple[list[bench.Result], list[str]]:
    cases = [
        replace(case, wire_dtype=network.wire_dtype, interface=_INTERFACE)
        for case in cases
    ]
    with Namespaces() as cluster:
        cluster.up(network.hosts + network.reducers)
        for host, rate in enumerate(network.rates):
            cluster.rate(host, rate)
        hosts = [
            Host(cluster.name(host), cluster.address(host), cluster.prefix(host))
            for host in range(len(cluster))
        ]
        with Reducers(hosts[network.hosts :]) as reducers:
            variables = {
                **job.variables,
                **reducers.variables(),
                "SMDDP_WIRE_DTYPE": network.wire_dtype or "float32",
                "SMDDP_WEIGHTS": network.weights,
            }
            placed = replace(job, hosts=hosts[: network.hosts], variables=variables)
            results = measure(cases, placed, network)
            notes = [
                _about(cluster, reducers, network, index)
                for index in range(network.reducers)
            ]
    return results, notes


def _about(
    cluster: Namespaces, reducers: Reducers, network: bench.Network, index: int
) -> str:
    """What a dedicated reducer moved and took, over the whole job."""
    use = reducers.use(index)
    traffic = cluster.counters(network.hosts + index)
    received, sent = traffic.received / 1e9, traffic.sent / 1e9
    return (
        f"reducer {index + 1} of {network.reducers}, wire "
        f"{network.wire_dtype or 'float32'}: received {received:.2f} GB, sent "
        f"{sent:.2f} GB, {use.cpu_seconds / max(received, 1e-9):.2f} s of CPU per GB "
        f"received, at most {use.peak_resident_bytes / (1 << 20):.0f} MiB resident"
    )
