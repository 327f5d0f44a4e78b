# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces: real ones, where this machine lets us make them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smddp_jax.launch import namespaces
from smddp_jax.launch.namespaces import Namespaces, NamespacesError

pytestmark = pytest.mark.any_jax

needs_root = pytest.mark.skipif(
    namespaces.problem() is not None, reason=f"no hosts here: {namespaces.problem()}"
)

PORT = 4321
# Accepts one connection and says how many bytes came by it.
SINK = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("listening", flush=True)
connection, _ = listener.accept()
count = 0
while data := connection.recv(1 << 16):
    count += len(data)
print(count, flush=True)
"""
SOURCE = """
import socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start = time.monotonic()
with socket.create_connection((host, port), timeout=5) as connection:
    connection.settimeout(60)
    connection.sendall(bytes(count))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(time.monotonic() - start)
"""
DATAGRAMS_SINK = """
import socket, sys
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind((sys.argv[1], int(sys.argv[2])))
print("listening", flush=True)
count = 0
while receiver.recv(64) != b"end":
    count += 1
print(count)
"""
DATAGRAMS_SOURCE = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(int(sys.argv[3]) + 100):
    sender.sendto(b"end" if number >= int(sys.argv[3]) else b"x",
                  (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.0005)
"""


def spawn(
    cluster: Namespaces, host: int, program: str, *arguments: object
) -> subprocess.Popen[str]:
    interpreter = [sys.executable, "-S", "-E", "-c", program]
    return subprocess.Popen(
        [*cluster.prefix(host), *interpreter, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def listening(
    cluster: Namespaces, host: int, address: str, program: str = SINK
) -> Iterator[subprocess.Popen[str]]:
    sink = spawn(cluster, host, program, address, PORT)
    try:
        assert sink.stdout is not None
        assert sink.stdout.readline() == "listening\n"
        yield sink
    finally:
        sink.kill()
        sink.communicate()


def send(cluster: Namespaces, count: int, address: str | None = None) -> float:
    """Seconds that TCP takes for `count` bytes from host 0 to host 1."""
    target = address or cluster.address(1)
    with listening(cluster, 1, target) as sink:
        source = spawn(cluster, 0, SOURCE, target, PORT, count)
        out, error = source.communicate(timeout=90)
        assert source.returncode == 0, error
        assert sink.stdout is not None
        assert int(sink.stdout.readline()) == count
        return float(out)


def spaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout


@needs_root
def test_hosts_reach_each_other_and_go_without_a_trace() -> None:
    with Namespaces() as cluster:
        cluster.up(3)
        assert len(cluster) == 3
        names = [cluster.name(host) for host in range(3)]
        assert all(name in spaces() for name in names)
        send(cluster, 1000)
        if Path("/proc/net/if_inet6").exists():
            send(cluster, 1000, cluster.address6(1))
    assert not any(name in spaces() for name in names)
    assert not any((Path("/etc/netns") / name).exists() for name in names)


@needs_root
def test_a_host_finds_itself_by_the_address_that_others_know() -> None:
    ask = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    with Namespaces().up(2) as cluster:
        told, _ = spawn(cluster, 1, ask).communicate()
        assert told.strip() == cluster.address(1)
        peer, _ = spawn(
            cluster, 1, "import socket; print(socket.gethostbyname('h0'))"
        ).communicate()
        assert peer.strip() == cluster.address(0)
    assert socket.gethostbyname("localhost") == "127.0.0.1"


@needs_root
def test_hosts_use_the_congestion_control_of_most_clusters() -> None:
    ask = "print(open('/proc/sys/net/ipv4/tcp_congestion_control').read())"
    with Namespaces().up(1) as cluster:
        told, _ = spawn(cluster, 0, ask).communicate()
        assert told.strip() == "cubic"
        with pytest.raises(NamespacesError, match="no congestion control 'none-such'"):
            Namespaces().up(1, congestion="none-such")


@needs_root
def test_two_clusters_are_apart_though_their_addresses_are_equal() -> None:
    with Namespaces() as one, Namespaces() as other:
        one.up(2)
        other.up(2)
        assert one.address(1) == other.address(1)
        with listening(one, 1, one.address(1)):
            source = spawn(other, 0, SOURCE, other.address(1), PORT, 1)
            _, error = source.communicate(timeout=30)
            assert "ConnectionRefusedError" in error
        one.down()
        send(other, 1000)


@needs_root
def test_a_link_carries_what_its_rate_says() -> None:
    count = 1_000_000  # a second at this rate, less what the shaper lets pass at once
    with Namespaces().up(2, "8mbit") as cluster:
        assert send(cluster, count) > 0.7
        cluster.rate(0, None)
        cluster.rate(1, None)
        assert send(cluster, count) < 0.7
        cluster.rate(1, "8mbit")  # the way to a host is limited, too
        assert send(cluster, count) > 0.7


@needs_root
def test_packets_are_lost_as_often_as_asked() -> None:
    sent = 2000
    with Namespaces().up(2) as cluster:
        for percent, least, most in ((20, 1400, 1800), (0, sent, sent)):
            cluster.loss(1, percent)
            with listening(cluster, 1, cluster.address(1), DATAGRAMS_SINK) as sink:
                arguments = (cluster.address(1), PORT, sent)
                spawn(cluster, 0, DATAGRAMS_SOURCE, *arguments).communicate()
                assert sink.stdout is not None
                assert least <= int(sink.stdout.readline()) <= most
        cluster.loss(1, 1)
        send(cluster, 3_000_000)  # TCP makes up for it


@needs_root
def test_a_cut_cable_stops_bytes_until_it_is_healed() -> None:
    with Namespaces().up(2) as cluster:
        cluster.cut(1)
        with listening(cluster, 1, cluster.address(1)) as sink:
            source = spawn(cluster, 0, SOURCE, cluster.address(1), PORT, 1000)
            time.sleep(0.5)
            assert source.poll() is None
            cluster.heal(1)
            _, error = source.communicate(timeout=30)
            assert source.returncode == 0, error
            assert sink.stdout is not None
            assert sink.stdout.readline() == "1000\n"


@needs_root
def test_hosts_need_no_room_in_the_table_of_neighbours_of_all_hosts() -> None:
    with Namespaces().up(3) as cluster:
        send(cluster, 1000)
        command = ["ip", "-n", cluster.name(0), "neigh", "show", "dev", "eth0"]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
    known = dict((line.split()[0], line.split()[-1]) for line in shown.splitlines())
    assert known.keys() >= {cluster.address(1), cluster.address(2)}
    assert set(known.values()) == {"PERMANENT"}


@needs_root
def test_interfaces_count_bytes() -> None:
    count = 3_000_000
    with Namespaces().up(2) as cluster:
        before = [cluster.counters(host) for host in range(2)]
        send(cluster, count)
        after = [cluster.counters(host) for host in range(2)]
    assert count <= after[0].sent - before[0].sent < 1.1 * count
    assert count <= after[1].received - before[1].received < 1.1 * count
    assert after[1].sent - before[1].sent < 0.1 * count


@needs_root
def test_an_error_removes_the_hosts() -> None:
    cluster = Namespaces()
    with pytest.raises(NamespacesError, match="`tc .* failed"):
        cluster.up(2, "fast")
    assert cluster.name(0) not in spaces()
    with pytest.raises(ZeroDivisionError), cluster.up(1):
        raise ZeroDivisionError
    assert cluster.name(0) not in spaces()


@needs_root
def test_what_a_killed_process_left_goes_when_the_next_comes_up() -> None:
    program = (
        "from smddp_jax.launch.namespaces import Namespaces; import time\n"
        "cluster = Namespaces().up(1); print(cluster.name(0), flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert name in spaces()
    with Namespaces().up(1):
        assert name not in spaces()
    assert not (Path("/etc/netns") / name).exists()


def test_how_many_hosts_there_can_be() -> None:
    for count in (0, 201):
        with pytest.raises(NamespacesError, match=f"{count} hosts asked for: 1 to 200"):
            Namespaces().up(count)


def test_without_root_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.problem.__wrapped__() == "network namespaces need root"


def test_without_the_tools_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None)
    assert "install iproute2" in namespaces.problem.__wrapped__()
