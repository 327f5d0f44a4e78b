# SPDX-License-Identifier: Apache-2.0
"""What is to be measured: one case, as the command writes it for the ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_SIZE = re.compile(r"(\d+)([KMG]?)(?:i?B)?", re.IGNORECASE)
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30}

KINDS = ("all_reduce", "tree", "overlap", "in_flight")
FORMS = ("argument", "intermediate")
OPS = ("sum", "max", "min")


@dataclass(frozen=True)
class Case:
    """One line of a table.

    Attributes:
      kind: `all_reduce` of one array; `tree` of many as one psum; `overlap` of an
        all-reduce with compute; `in_flight` steps that nobody waits for.
      bytes: per device; of the whole tree where it is one.
      dtype: by NumPy's (or ml_dtypes') name.
      op: sum, max or min.
      form: whether an `argument` of the program is reduced or an `intermediate` value,
        as gradients are.
      alias: whether XLA may let our result take the operand's buffer.
      peer: whether XLA's own all-reduce is measured beside ours.
      ours: whether ours is.
      iterations: timed calls of each side.
      warmup: calls before that, the first of which is checked.
      leaves: number of arrays of a tree.
      busy: how many devices of the job compute beside an `overlap`.
      wire_dtype: what our float32 values are rounded to between hosts; "": not at all.
      interface: network interface whose bytes are counted; "": none.
    """

    kind: str = "all_reduce"
    bytes: int = 1 << 20
    dtype: str = "float32"
    op: str = "sum"
    form: str = "argument"
    alias: bool = False
    peer: bool = True
    ours: bool = True
    iterations: int = 20
    warmup: int = 3
    leaves: int = 0
    busy: int = 1
    wire_dtype: str = ""
    interface: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Case:
        """The case that `as_dict` described."""
        return cls(**fields)


def parse_size(text: str) -> int:
    """Bytes of `4K`, `16MiB`, `1048576`.

    Raises:
      ValueError: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{text!r} is no size such as 4096, 4K or 16M")
    return int(match[1]) << _SHIFT[match[2].upper()]


def default_iterations(size: int) -> int:
    """Timed calls that settle a median without taking long: 15 to 200."""
    return min(200, max(15, (512 << 20) // size))


def default_iterations_between_hosts(size: int) -> int:
    """The same where links are slow: 5 to 100."""
    return min(100, max(5, (256 << 20) // size))
