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


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
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


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not 0 < int(port) < 65536:
        raise ValueError
    return text


@dataclass(frozen=True)
class Setting:
    """One variable.

    Attributes:
      name: the environment variable.
      parse: turns its text into the value; raises ValueError.
      form: what a usable value looks like, for messages and documentation.
      default: the value when the variable is unset; None if there is none.
      doc: one sentence for users.
    """

    name: str
    parse: Callable[[str], Any]
    form: str
    default: Any
    doc: str


_SECONDS = (_seconds, "a positive number of seconds, such as 300")
_BYTES = (_bytes, "a number of bytes, such as 1048576, 256KiB or 64MiB")
_COUNT = (_count, "a whole number, 0 or more")
_FLAG = (_flag, "1 or 0")
_TEXT = (_text, "any text")
_ADDRESS = (_address, "host:port, such as 10.0.0.1:4321 or [::1]:4321")

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
        "Upper bound of the shared memory that one process provides.",
    ),
    Setting(
        "SMDDP_SEGMENT_BYTES",
        *_BYTES,
        128 << 10,
        "The largest unit in flight between processes of one host.",
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
    if text is None or text == "":
        return setting.default
    try:
        return setting.parse(text)
    except ValueError:
        raise SettingError(
            f"{name}={text!r} is not usable: set it to {setting.form}, or unset it"
            + ("" if setting.default is None else f" for {setting.default}")
        ) from None


def as_markdown() -> str:
    """The table of settings for the documentation."""
    rows = ["| variable | value | default | meaning |", "| --- | --- | --- | --- |"]
    for s in SETTINGS:
        default = "-" if s.default in (None, "") else str(s.default)
        rows.append(f"| `{s.name}` | {s.form} | {default} | {s.doc} |")
    return "\n".join(rows) + "\n"
