# SPDX-License-Identifier: Apache-2.0
"""A little cluster on one machine: each host is a network namespace. Linux, root.

The hosts hang on one bridge, which sits in a namespace of its own: the machine's own
network stays as it is, and nothing leads out. Needs iproute2 (`ip`, `tc`) and a kernel
with veth, bridge and tbf; `loss` needs cls_bpf and mirred on top.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from smddp_jax._errors import SmddpError

_MOST_HOSTS = 200
_STEM = "smddp"
_FILES = Path("/etc/netns")  # `ip netns exec` lays what is here over /etc
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
# What a switch lets pass at once, and how long a packet may queue before it is dropped.
_SHAPER = ("burst", "128kb", "latency", "20ms")
# A bridge that is never up: what is sent there is lost.
_NOWHERE = "nowhere"
_CLUSTER = re.compile(_STEM + r"(\d+)n\d+")
_numbers = itertools.count()


class NamespacesError(SmddpError):
    """The machine refused to make, change or use a network namespace."""


class Traffic(NamedTuple):
    """Bytes that a host's interface counted."""

    sent: int
    received: int


class Namespaces:
    """Hosts 0 to n-1 at SUBNET.1 to SUBNET.n. Use as a context manager.

    Several clusters can be up at once, also with the same addresses. What a killed
    process left behind is removed when the next cluster comes up.

    Args:
      name: what the namespaces' names begin with; a free one by default.
      subnet: the first three numbers of the hosts' IPv4 addresses.
    """

    def __init__(self, name: str | None = None, subnet: str = "10.77.0"):
        self._name = name or _free_name()
        self._subnet = subnet
        self._count = 0

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def __len__(self) -> int:
        return self._count

    def up(
        self,
        hosts: int,
        rate: str | None = None,
        congestion: str = "cubic",
        mtu: int = 1500,
    ) -> Namespaces:
        """Makes the hosts; undoes it all if that fails.

        Args:
          hosts: how many, up to 200.
          rate: of every host's link, each way, in tc's words: `1gbit`; None: no limit.
          congestion: TCP's congestion control. The machine is told to allow it to all.
          mtu: of every interface.

        Returns:
          The cluster itself, for `with Namespaces().up(4) as hosts`.

        Raises:
          NamespacesError: the machine refuses; see `problem`.
        """
        if not 1 <= hosts <= _MOST_HOSTS:
            raise NamespacesError(f"{hosts} hosts asked for: 1 to {_MOST_HOSTS} can be")
        if self._count:
            raise NamespacesError(f"the {self._count} hosts of {self._name} are up")
        _remove_abandoned()
        try:
            self._count = hosts
            self._make(mtu)
            for host in range(hosts):
                self._set_congestion(host, congestion)
                if rate is not None:
                    self.rate(host, rate)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Removes the hosts. What still runs on them is left without a network."""
        _remove(self._name)
        self._count = 0

    def name(self, host: int) -> str:
        """The name of a host's namespace."""
        return f"{self._name}h{host}"

    def address(self, host: int) -> str:
        """A host's IPv4 address."""
        return f"{self._subnet}.{host + 1}"

    def address6(self, host: int) -> str:
        """A host's IPv6 address, where the kernel has IPv6."""
        return f"fd77::{host + 1:x}"

    def prefix(self, host: int) -> list[str]:
        """What to put before a command that is to run on a host."""
        return ["ip", "netns", "exec", self.name(host)]

    def rate(self, host: int, rate: str | None) -> None:
        """Limits a host's link each way, or lifts the limit with None."""
        for space, device in self._ends(host):
            if rate is None:
                _quietly("tc", "-n", space, "qdisc", "del", "dev", device, "root")
            else:
                change = ("qdisc", "replace", "dev", device, "root", "tbf")
                _run("tc", "-n", space, *change, "rate", rate, *_SHAPER)

    def loss(self, host: int, percent: float) -> None:
        """Drops this share of the packets that reach a host, at random; 0: none.

        The kernel hands up to 64 KiB of one stream across a veth pair as one packet; it
        is lost as a whole.
        """
        tc = ("tc", "-n", self.name(host))
        _quietly(*tc, "qdisc", "del", "dev", "eth0", "ingress")
        if percent <= 0:
            return
        _run(*tc, "qdisc", "add", "dev", "eth0", "ingress")
        below = min(round(percent / 100 * 2**32), 2**32 - 1)
        # BPF: load a random word, and match (return -1) if it is less.
        program = f"4,32 0 0 4294963256,53 0 1 {below},6 0 0 0,6 0 0 4294967295"
        match = ("protocol", "all", "bpf", "bytecode", program, "flowid", "1:1")
        action = ("action", "mirred", "ingress", "redirect", "dev", _NOWHERE)
        _run(*tc, "filter", "add", "dev", "eth0", "parent", "ffff:", *match, *action)

    def cut(self, host: int) -> None:
        """Pulls a host's cable."""
        _run("ip", "-n", self._switch, "link", "set", f"p{host}", "down")

    def heal(self, host: int) -> None:
        """Puts a host's cable back."""
        _run("ip", "-n", self._switch, "link", "set", f"p{host}", "up")

    def counters(self, host: int) -> Traffic:
        """What went through a host's interface so far."""
        shown = _run("ip", "-n", self.name(host), "-s", "-j", "link", "show", "eth0")
        counted = json.loads(shown)[0]["stats64"]
        return Traffic(counted["tx"]["bytes"], counted["rx"]["bytes"])

    @property
    def _switch(self) -> str:
        return f"{self._name}switch"

    def _ends(self, host: int) -> tuple[tuple[str, str], tuple[str, str]]:
        """Both ends of a host's cable: its own, and its port at the switch."""
        return (self.name(host), "eth0"), (self._switch, f"p{host}")

    def _make(self, mtu: int) -> None:
        _run("ip", "netns", "add", self._switch)
        _batch(self._switch, ["link add br0 type bridge", "link set br0 up"])
        for host in range(self._count):
            _run("ip", "netns", "add", self.name(host))
            peer = f"peer name p{host} mtu {mtu} netns {self._switch}"
            lines = [
                "link set lo up",
                f"link add eth0 address {_hardware(host)} mtu {mtu} type veth {peer}",
                f"link add {_NOWHERE} type bridge",
                f"addr add {self.address(host)}/24 dev eth0",
                "link set eth0 up",
            ]
            if _has_ipv6():
                lines.append(f"addr add {self.address6(host)}/64 dev eth0 nodad")
            _batch(self.name(host), lines + self._neighbours(host))
            self._write_names(host)
        ports = range(self._count)
        lines = [f"link set p{port} master br0" for port in ports]
        _batch(self._switch, lines + [f"link set p{port} up" for port in ports])

    def _neighbours(self, host: int) -> list[str]:
        """Tells a host the others' hardware addresses.

        The kernel's table of those that it finds out is one for all namespaces, and
        holds 1024: those of 32 hosts.
        """
        lines = []
        for other in range(self._count):
            addresses = [self.address(other)]
            if _has_ipv6():
                addresses.append(self.address6(other))
            lines += [
                f"neigh add {address} lladdr {_hardware(other)} dev eth0 nud permanent"
                for address in addresses
                if other != host
            ]
        return lines

    def _write_names(self, host: int) -> None:
        """Lets a host know the others, and itself by the address that they know.

        Gloo listens where gethostname() resolves to.
        """
        lines = ["127.0.0.1 localhost", f"{self.address(host)} {socket.gethostname()}"]
        lines += [f"{self.address(other)} h{other}" for other in range(self._count)]
        folder = _FILES / self.name(host)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("\n".join(lines) + "\n")

    def _set_congestion(self, host: int, algorithm: str) -> None:
        # A namespace may choose only from what the machine allows to all.
        allowed = _ALLOWED.read_text().split()
        if algorithm not in allowed:
            try:
                _ALLOWED.write_text(" ".join([*allowed, algorithm]))
            except OSError as error:
                raise NamespacesError(
                    f"this kernel has no congestion control {algorithm!r}, only "
                    f"{', '.join(allowed)}: {error.strerror}"
                ) from None
        target = "/proc/sys/net/ipv4/tcp_congestion_control"
        _run(*self.prefix(host), "sh", "-c", f"echo {algorithm} > {target}")


@functools.cache
def problem() -> str | None:
    """Says in a line why there can't be hosts on this machine; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} is missing: install iproute2"
    try:
        with Namespaces().up(1, "1gbit"):
            return None
    except (NamespacesError, OSError) as error:
        return str(error)


def _hardware(host: int) -> str:
    """A hardware address of the kind that anybody may make up."""
    return f"02:00:00:00:00:{host + 1:02x}"


def _has_ipv6() -> bool:
    return Path("/proc/net/if_inet6").exists()


def _free_name() -> str:
    taken = _existing()  # perhaps by an earlier process with our id
    names = (f"{_STEM}{os.getpid()}n{number}" for number in _numbers)
    return next(n for n in names if not any(space.startswith(n) for space in taken))


def _existing() -> list[str]:
    return [line.split()[0] for line in _quietly("ip", "netns", "list").splitlines()]


def _remove(name: str) -> None:
    """Removes the namespaces of a cluster, as far as they were made."""
    own = re.compile(re.escape(name) + r"(h\d+|switch)")
    for space in filter(own.fullmatch, _existing()):
        _quietly("ip", "netns", "del", space)  # takes the cable with it
    for folder in filter(lambda found: own.fullmatch(found.name), _FILES.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        _FILES.rmdir()  # unless somebody else has files there


def _remove_abandoned() -> None:
    """Removes the clusters of processes that were killed."""
    found = {match[0]: match[1] for match in map(_CLUSTER.match, _existing()) if match}
    for name, pid in found.items():
        if not Path(f"/proc/{pid}").exists():
            _remove(name)


def _batch(space: str, lines: Sequence[str]) -> None:
    """Runs lines of `ip` inside a namespace."""
    _run("ip", "-n", space, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NamespacesError(f"`{' '.join(command)}` failed: {said}")
    return done.stdout


def _quietly(*command: str) -> str:
    """Runs what may fail because there is nothing to undo."""
    with contextlib.suppress(NamespacesError, OSError):
        return _run(*command)
    return ""
