# SPDX-License-Identifier: Apache-2.0
"""The one table of settings: every variable we read, its type, default and meaning.

Values are read when they are asked for, never at import. The native engine reads no
environment itself: `cluster.init()` hands it the values from here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from smddp_jax._errors import SettingError

# The value of SMDDP_WEIGHTS that asks for a measurement.
MEASURE = "measure"

_UNITS = {"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30}
_SIZE = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError
    value = int(match[1]) << _UNITS[match[2].lower()]
    if value == 0:
        raise ValueError
    return value


def _gpu_bytes(text: str) -> int:
    value = _bytes(text)
    if value < 1 << 20:
        raise ValueError
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 65536:
        raise ValueError
    return value


def _connections(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 16:
        raise ValueError
    return value


def _flag(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False, "": False}
    try:
        return known[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _text(text: str) -> str:
    return text


def _secret(text: str) -> str:
    # Who records one handshake may try out secrets at leisure.
    if len(text) < 16:
        raise ValueError
    return text


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError
    return text


def _addresses(text: str) -> tuple[str, ...]:
    addresses = tuple(_address(part.strip()) for part in text.split(","))
    if len(set(addresses)) < len(addresses):
        raise ValueError
    return addresses


def _weights(text: str) -> tuple[float, ...] | str:
    if text == MEASURE:
        return MEASURE
    weights = tuple(float(part) for part in text.split(","))
    if not all(0 < weight < float("inf") for weight in weights):
        raise ValueError
    return weights


def _wire_dtype(text: str) -> str:
    short = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    name = short.get(text, text)
    if name not in short.values():
        raise ValueError
    return name


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes:
      name: the environment variable.
      parse: turns its text into the value; raises ValueError.
      form: what a usable value looks like, for messages and documentation.
      default: the value when the variable is unset; None if there is none.
      doc: one sentence for users.
      agreed: whether it must be the same in every process of a job.
      secret: whether its value must never be shown.
    """

    name: str
    parse: Callable[[str], Any]
    form: str
    default: Any
    doc: str
    agreed: bool = False
    secret: bool = False

    def shown(self, text: str) -> str:
        """`text` as a message may show it."""
        return "(not shown)" if self.secret else repr(text)


_SECONDS = (_seconds, "a positive number of seconds, such as 300")
_BYTES = (_bytes, "a number of bytes, such as 1048576, 256KiB or 64MiB")
_GPU_BYTES = (_gpu_bytes, "a number of bytes from 1MiB on, such as 64MiB")
_COUNT = (_count, "a whole number, 0 or more")
_FLAG = (_flag, "1 or 0")
_TEXT = (_text, "any text")
_ADDRESS = (_address, "host:port, such as 10.0.0.1:4321 or [::1]:4321")
_ADDRESSES = (_addresses, "host:port,... with no address twice")
_WEIGHTS = (_weights, "positive numbers, such as 1,1,2.5, or measure")
_CONNECTIONS = (_connections, "a whole number from 1 to 16")
_PORT = (_port, "a port number, or 0")
_SECRET = (_secret, "any text of 16 characters or more")
_WIRE_DTYPE = (_wire_dtype, "bfloat16 (bf16), float16 (f16) or float32 (f32)")

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "SMDDP_TIMEOUT",
        *_SECONDS,
        300.0,
        "How long a collective waits for its peers before it raises.",
    ),
    Setting(
        "SMDDP_INIT_TIMEOUT",
        *_SECONDS,
        300.0,
        "How long init() waits for all processes of the job.",
    ),
    Setting(
        "SMDDP_STAGING_BYTES",
        *_BYTES,
        64 << 20,
        "Upper bound of the shared memory that one process provides, and again of what "
        "it keeps for other hosts.",
    ),
    Setting(
        "SMDDP_GPU_STAGING_BYTES",
        *_GPU_BYTES,
        64 << 20,
        "Upper bound of the memory that a GPU gives to each group that it reduces in.",
        agreed=True,
    ),
    Setting(
        "SMDDP_SEGMENT_BYTES",
        *_BYTES,
        128 << 10,
        "The largest unit in flight between processes of one host.",
        agreed=True,
    ),
    Setting(
        "SMDDP_THREADS",
        *_COUNT,
        0,
        "Worker threads per process; 0 divides the cores among the processes.",
    ),
    Setting(
        "SMDDP_HUGE_PAGES",
        *_FLAG,
        True,
        "Ask the kernel for huge pages under large result buffers.",
    ),
    Setting(
        "SMDDP_HOST_ID",
        *_TEXT,
        "",
        "Overrides what tells hosts apart; equal for processes that share memory.",
    ),
    Setting(
        "SMDDP_REDUCERS",
        *_ADDRESSES,
        (),
        "Dedicated reducers (`smddp-jax reducer`) that help the workers' own.",
        agreed=True,
    ),
    Setting(
        "SMDDP_WEIGHTS",
        *_WEIGHTS,
        (),
        "Relative speed of the network interface of each worker host in rank order, "
        "then of each reducer; measure: found out when the job starts; unset: all "
        "alike.",
        agreed=True,
    ),
    Setting(
        "SMDDP_WIRE_DTYPE",
        *_WIRE_DTYPE,
        "",
        "What float32 values are rounded to between hosts, unless a call says.",
        agreed=True,
    ),
    Setting(
        "SMDDP_SHARD_BYTES",
        *_BYTES,
        24 << 10,
        "About what one reducer gets of a segment.",
        agreed=True,
    ),
    Setting(
        "SMDDP_CONNECTIONS",
        *_CONNECTIONS,
        1,
        "Connections between two processes of different hosts; each has a thread.",
        agreed=True,
    ),
    Setting(
        "SMDDP_INTERFACE",
        *_TEXT,
        "",
        "Network interface to listen on; unset: the one that reaches rank 0.",
    ),
    Setting(
        "SMDDP_PORT",
        *_PORT,
        0,
        "Port to listen on for other hosts; 0: any free one.",
    ),
    Setting(
        "SMDDP_SILENCE",
        *_SECONDS,
        30.0,
        "After how long a mute peer on another host is lost.",
    ),
    Setting(
        "SMDDP_SECRET",
        *_SECRET,
        "",
        "What peers on other hosts must prove to know; never shown. Set by `smddp-jax "
        "run`, else made by rank 0.",
        secret=True,
    ),
    Setting(
        "SMDDP_FALLBACK",
        *_FLAG,
        False,
        "Run stock JAX, with a warning, where the native engine can't run.",
    ),
    Setting(
        "SMDDP_CLUSTER",
        *_TEXT,
        "",
        "Use only this launcher's variables; 'none' for a single process.",
    ),
    Setting(
        "SMDDP_COORDINATOR",
        *_ADDRESS,
        None,
        "Where rank 0 opens the coordination service. Set by `smddp-jax run`.",
    ),
    Setting(
        "SMDDP_RANK", *_COUNT, None, "This process's rank. Set by `smddp-jax run`."
    ),
    Setting(
        "SMDDP_SIZE", *_COUNT, None, "Number of processes. Set by `smddp-jax run`."
    ),
    Setting(
        "SMDDP_LOCAL_RANK",
        *_COUNT,
        None,
        "Rank among the processes of this host. Set by `smddp-jax run`.",
    ),
    Setting(
        "SMDDP_LOCAL_SIZE",
        *_COUNT,
        None,
        "Number of processes on this host. Set by `smddp-jax run`.",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def get(name: str, environment: Mapping[str, str] | None = None) -> Any:
    """Returns the value of one setting.

    Args:
      name: a name from `SETTINGS`.
      environment: where to look; the process's own by default.

    Raises:
      SettingError: the variable is set to something unusable.
      KeyError: there is no such setting.
    """
    setting = _BY_NAME[name]
    text = (os.environ if environment is None else environment).get(name)
    return parse(name, text) if text else setting.default


def parse(name: str, text: str, source: str | None = None) -> Any:
    """Returns the value that `text` means for one setting.

    Args:
      name: a name from `SETTINGS`.
      text: what was given.
      source: what the message calls it where it did not come from the variable.

    Raises:
      SettingError: `text` is not usable.
    """
    setting = _BY_NAME[name]
    try:
        return setting.parse(text)
    except ValueError:
        default = _shown_default(setting)
        raise SettingError(
            f"{source or name}={setting.shown(text)} is not usable: set it to "
            f"{setting.form}, or unset it" + (f" for {default}" if default else "")
        ) from None


def is_secret(name: str) -> bool:
    """Whether this variable's value must never be shown."""
    return name in _BY_NAME and _BY_NAME[name].secret


def as_markdown(*, here: bool = False) -> str:
    """The table of settings for the documentation.

    Args:
      here: whether a column tells what is set in this process.
    """
    columns = ["variable", "value", "default", "meaning"]
    rows = [[f"`{s.name}`", s.form, _shown_default(s) or "-", s.doc] for s in SETTINGS]
    if here:
        columns.append("here")
        for row, setting in zip(rows, SETTINGS, strict=True):
            row.append(_shown_here(setting))
    rows = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _shown_default(setting: Setting) -> str:
    return "" if setting.default in (None, "", ()) else str(setting.default)


def _shown_here(setting: Setting) -> str:
    text = os.environ.get(setting.name)
    if not text:
        return "unset"
    return "set" if setting.secret else text
