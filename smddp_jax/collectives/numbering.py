# SPDX-License-Identifier: Apache-2.0
"""Gives each of our calls in a lowered module a key that no other call of it has.

A jitted function that is called twice is lowered once, so a call of ours in it would
stand for two. Processes could tell the two apart only by the order in which XLA loads
them, which is not the same everywhere: one process may have lowered or compiled more
than another. So such functions are copied, one for each place that calls them (XLA
would inline them there anyway), and the calls are numbered in the order of the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from jax.interpreters.mlir import ir

# What a collective computes, and the custom call that does it.
TARGETS = {
    "sum": "smddp_all_reduce",
    "max": "smddp_all_reduce",
    "min": "smddp_all_reduce",
    "sum_scatter": "smddp_reduce_scatter",
    "gather": "smddp_all_gather",
}
# The halves of a sum that psum_start starts.
START, DONE = "smddp_all_reduce_start", "smddp_all_reduce_done"
_NUMBERED = frozenset({*TARGETS.values(), START})
CONFIG = "mhlo.backend_config"


def children(op: Any) -> Iterator[Any]:
    """The operations directly in the regions of `op`, in their order."""
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation


def number_calls(module: Any) -> None:
    """Sets `key` of every call of ours in `module`."""
    with module.context, ir.Location.unknown(module.context):
        _Numbering(module).run()


def key_of(label: str, position: int | str) -> int:
    """A key that is alike in every process and run: no pointer, no global counter."""
    digest = hashlib.sha256(f"{label}|{position}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


class _Numbering:
    def __init__(self, module: Any):
        self._module = module
        self._functions: dict[str, Any] = {
            op.attributes["sym_name"].value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self._has_calls: dict[str, bool] = {}
        self._met: set[str] = set()
        self._next = 0

    def run(self) -> None:
        for name, function in list(self._functions.items()):
            attributes = function.attributes
            visibility = "sym_visibility"
            if visibility in attributes and attributes[visibility].value == "public":
                self._met.add(name)
                self._walk(function)

    def _walk(self, op: Any) -> None:
        for child in children(op):
            if child.name == "func.call":
                self._enter(child)
            elif _is_ours(child):
                self._number(child)
            else:
                self._walk(child)

    def _enter(self, call: Any) -> None:
        name = call.attributes["callee"].value
        if not self._reaches_ours(name):
            return
        if name in self._met:
            name = self._copy(name)
            call.attributes["callee"] = ir.FlatSymbolRefAttr.get(name)
        self._met.add(name)
        self._walk(self._functions[name])

    def _reaches_ours(self, name: str) -> bool:
        if name not in self._has_calls:
            self._has_calls[name] = self._holds_ours(self._functions[name])
        return self._has_calls[name]

    def _holds_ours(self, op: Any) -> bool:
        for child in children(op):
            if child.name == "func.call":
                if self._reaches_ours(child.attributes["callee"].value):
                    return True
            elif _is_ours(child) or self._holds_ours(child):
                return True
        return False

    def _copy(self, name: str) -> str:
        number = 1
        while (fresh := f"{name}_call_{number}") in self._functions:
            number += 1
        with ir.InsertionPoint(self._module.body):
            copy = self._functions[name].clone().operation
        copy.attributes["sym_name"] = ir.StringAttr.get(fresh)
        self._functions[fresh] = copy
        self._has_calls[fresh] = True
        return fresh

    def _number(self, call: Any) -> None:
        config = {entry.name: entry.attr for entry in call.attributes[CONFIG]}
        # Steps are counted by key on each device. On the devices of one mesh they
        # agree; a program of the same name on some of them would put them out of step.
        # The operator is left out: ranks that disagree about it must find each other.
        place = config["label"].value.partition("(")[2]
        key = key_of(f"{place}|{config['devices']}", self._next)
        self._next += 1
        integer = ir.IntegerType.get_signless(64)
        config["key"] = ir.IntegerAttr.get(integer, key)
        call.attributes[CONFIG] = ir.DictAttr.get(config)
        if target_of(call) == START:
            done = next(iter(call.results[0].uses)).owner
            done.attributes[CONFIG] = call.attributes[CONFIG]


def target_of(op: Any) -> str | None:
    """What a custom call calls; None of any other operation."""
    if op.name != "stablehlo.custom_call":
        return None
    return op.attributes["call_target_name"].value


def _is_ours(op: Any) -> bool:
    return target_of(op) in _NUMBERED
