# SPDX-License-Identifier: Apache-2.0
"""The devices that a case runs on, and the three ways of mapping a function over them.

A case is written once, per device: row k of each argument goes to device k of the mesh,
and row k of the result comes from there. `World.each` runs it by pmap or by shard_map
with or without type checking, on the devices of one process or of many, and `Rows`
holds what this process can see of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOWS = ("pmap", "checked", "unchecked")

psum = partial(lax.psum, axis_name="i")


@dataclass(frozen=True)
class Rows:
    """The rows of a result that live in this process, and their numbers."""

    tree: Any
    mine: list[int]

    def __getitem__(self, key: Any) -> Rows:
        return Rows(self.tree[key], self.mine)

    @property
    def dtype(self) -> np.dtype:
        return self.tree.dtype

    def _wanted(self, want: Any) -> np.ndarray:
        return np.asarray(want)[self.mine]

    def equal(self, want: Any, dtype: Any = None) -> None:
        """Every visible row equals the wanted one (NaN equals NaN)."""
        if dtype is not None:
            assert self.tree.dtype == dtype, (self.tree.dtype, dtype)
        got = self.tree
        if not np.issubdtype(got.dtype, np.number):  # bfloat16 is not NumPy's own
            got = got.astype(np.float32)
        np.testing.assert_array_equal(got, self._wanted(want))

    def close(self, want: Any, rtol: float, atol: float = 0) -> None:
        np.testing.assert_allclose(self.tree, self._wanted(want), rtol=rtol, atol=atol)

    def same_bits(self) -> bytes:
        """All visible rows have the same bits: returns them."""
        rows = [np.ascontiguousarray(row).tobytes() for row in self.tree]
        assert all(row == rows[0] for row in rows)
        return rows[0]


class World:
    """Eight devices, wherever their processes are."""

    def __init__(self, how: str, devices: Sequence[jax.Device]):
        assert how in HOWS and len(devices) == 8
        self.how = how
        self.devices = np.array(devices)
        self.line = Mesh(self.devices, ("i",))
        self.grid = Mesh(self.devices.reshape(4, 2), ("x", "y"))

    def mesh(self, order: Sequence[int], shape: Sequence[int] = (), names="i") -> Mesh:
        picked = self.devices[list(order)]
        return Mesh(picked.reshape(shape) if shape else picked, tuple(names))

    def takes_part(self, mesh: Mesh) -> bool:
        return bool(self._mine(mesh))

    @staticmethod
    def _mine(mesh: Mesh) -> list[int]:
        here = jax.process_index()
        return [k for k, d in enumerate(mesh.devices.flat) if d.process_index == here]

    def put(self, rows: Any, mesh: Mesh | None = None) -> Any:
        """Global arrays, one row a device."""
        mesh = mesh or self.line
        sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

        def place(value: Any) -> jax.Array:
            value = np.asarray(value)
            return jax.make_array_from_callback(
                value.shape, sharding, lambda index: value[index]
            )

        return jax.tree.map(place, rows)

    def take(self, tree: Any, mesh: Mesh | None = None) -> Rows:
        """What this process sees of global arrays with one row a device."""

        mine = self._mine(mesh or self.line)

        def visible(array: jax.Array) -> np.ndarray:
            if array.size == 0:  # XLA may give its shards the shape of the whole
                return np.empty((len(mine), *array.shape[1:]), array.dtype)
            shards = {s.index[0].start or 0: s.data for s in array.addressable_shards}
            return np.concatenate([np.asarray(shards[k]) for k in sorted(shards)])

        return Rows(jax.tree.map(visible, tree), mine)

    def shard_map(
        self, f: Callable, mesh: Mesh | None = None, **specs: Any
    ) -> Callable:
        """`jax.shard_map` on one of our meshes, checked or not as this world says."""
        mesh = mesh or self.line
        rows = PartitionSpec(mesh.axis_names)
        checked = {
            "in_specs": rows,
            "out_specs": rows,
            "check_vma": self.how == "checked",
        }
        return jax.shard_map(f, mesh=mesh, **{**checked, **specs})

    def mapped(self, f: Callable, mesh: Mesh | None = None) -> Callable:
        """The jitted function of global arrays that runs f once on each device."""

        def block(*args: Any) -> Any:
            result = f(*jax.tree.map(lambda v: v[0], args))
            return jax.tree.map(lambda v: jnp.asarray(v)[None], result)

        return jax.jit(self.shard_map(block, mesh))

    def each(self, f: Callable, *args: Any, mesh: Mesh | None = None) -> Rows:
        """Runs f on each device of the mesh and returns the rows visible here."""
        if self.how != "pmap":
            return self.take(self.mapped(f, mesh)(*self.put(args, mesh)), mesh)
        assert mesh is None, "pmap has one axis over all devices"
        mine = self._mine(self.line)
        local = jax.tree.map(lambda v: np.asarray(v)[mine], args)
        # pmap takes and gives this process's own rows only.
        one_process = len(mine) == len(self.devices)
        devices = list(self.devices) if one_process else None
        out = jax.pmap(f, axis_name="i", devices=devices)(*local)
        visible = lambda v: np.asarray(v) if v.size else np.empty(v.shape, v.dtype)  # noqa: E731
        return Rows(jax.tree.map(visible, out), mine)
