# SPDX-License-Identifier: Apache-2.0
"""Who may knock at the port of a job without belonging to it.

`prove` speaks the handshake of transport/handshake.cc as a peer with a secret would.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct

_MAGIC = 0x786A7064646D73
_VERSION = 1
_GREETING = 8 + 4 + 28 + 32
_VERDICT = 4 + 4 + 256 + 32
_WORKER = 0


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=10)


def babble(address: str, size: int = 100_000) -> None:
    """Random bytes, as far as they are taken."""
    with connect(address) as connection:
        try:
            connection.sendall(os.urandom(size))
            while connection.recv(4096):
                pass
        except OSError:
            pass  # The answer that we want: the other side is gone.


def hello(process: int, processes: int, job: int) -> bytes:
    identity = struct.pack("<IIIIIQ", _WORKER, process, processes, 0, 1, job)
    return struct.pack("<QI", _MAGIC, _VERSION) + identity + os.urandom(32)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def prove(address: str, secret: str, process: int, processes: int, job: int) -> str:
    """Goes through the handshake; returns the verdict's text.

    It is "" for one that is let in, and "closed" where no verdict came.
    """
    with connect(address) as connection:
        said = hello(process, processes, job)
        connection.sendall(said)
        said += _read(connection, _GREETING)
        mac = hmac.new(secret.encode(), b"smddp connector" + said, hashlib.sha256)
        connection.sendall(mac.digest())
        verdict = _read(connection, _VERDICT)
    if len(verdict) < _VERDICT:
        return "closed"
    _, length = struct.unpack_from("<II", verdict)
    return verdict[8 : 8 + length].decode()


def listeners(pid: int) -> list[str]:
    """The addresses at which a process listens, IPv4."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        links = [os.readlink(entry.path) for entry in entries]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    found = []
    for fields in rows:
        if fields[3] != "0A" or fields[9] not in inodes:
            continue
        host, port = fields[1].split(":")
        packed = struct.pack("<I", int(host, 16))
        found.append(f"{socket.inet_ntoa(packed)}:{int(port, 16)}")
    return found
