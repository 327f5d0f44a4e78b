# SPDX-License-Identifier: Apache-2.0
"""What we need of JAX's inside, in functions of our own: a new jax is met here.

With `_jax_backend.py` all that touches `jax._src` or asks for a version of jax.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import config, core, dispatch, sharding_impls
from jax._src.interpreters import mlir
from jax._src.lib.mlir.dialects import hlo
from jax._src.mesh import get_concrete_mesh
from jaxlib import xla_client

OLDEST_TESTED = (0, 10)
FIRST_UNTESTED = (0, 13)


def version_problem(version: str = jax.__version__) -> str | None:
    """Says in one line why this jax is not supported, or returns None."""
    release = tuple(int(part) for part in version.split(".")[:2])
    if OLDEST_TESTED <= release < FIRST_UNTESTED:
        return None
    oldest, untested = (".".join(map(str, v)) for v in (OLDEST_TESTED, FIRST_UNTESTED))
    return (
        f"smddp_jax is tested with jax >= {oldest}, < {untested} and found jax "
        f"{version}: install a jax of that range, or set SMDDP_FALLBACK=1 to run on "
        "stock JAX"
    )


def register_ffi_types_at_once() -> None:
    """Lets `jax.ffi.register_ffi_type` reach XLA before the targets do.

    JAX would otherwise wait until the backend comes up, and then tell XLA of the
    targets first.
    """
    xla_client.register_custom_type_handler("cpu", xla_client._xla.register_custom_type)


# --- cluster: JAX's distributed runtime -----------------------------------------------


class KeyTimeoutError(Exception):
    """A key did not appear in JAX's key-value store in time."""


class CoordinationStore:
    """JAX's coordination service as a key-value store of bytes. Thread-safe."""

    def __init__(self, client: Any):
        self._client = client

    def set(self, key: str, value: bytes) -> None:
        """Sets a key that is not set yet."""
        self._client.key_value_set_bytes(key, value)

    def get(self, key: str, seconds: float) -> bytes:
        """Waits until somebody has set `key`.

        Raises:
          KeyTimeoutError: nobody did within `seconds`.
        """
        try:
            return self._client.blocking_key_value_get_bytes(key, int(seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            raise KeyTimeoutError(f"no key {key!r} within {seconds:g} s") from None


def distributed_membership() -> tuple[int, int] | None:
    """(process index, process count) of `jax.distributed`, or None if it isn't up."""
    from jax._src import distributed

    state = distributed.global_state
    return None if state.client is None else (state.process_id, state.num_processes)


def coordinator_address() -> str:
    """host:port of the coordination service of `jax.distributed`, which must be up."""
    from jax._src import distributed

    return distributed.global_state.coordinator_address or ""


def coordination_store() -> CoordinationStore:
    """The key-value store of `jax.distributed`, which must be up."""
    from jax._src import distributed

    assert distributed.global_state.client is not None
    return CoordinationStore(distributed.global_state.client)


class _ServiceElsewhere:
    """Stands for `jaxlib._jax` while `jax.distributed` starts.

    Rank 0 must not open a service of its own. And clients get a callback for errors:
    without one, jaxlib ends the process when the others don't come in time. With one
    it raises, if only because it can't convert its status for Python.
    """

    class _NoService:
        def shutdown(self) -> None:
            pass

    def __init__(self, module: Any):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def get_distributed_runtime_service(self, *_: Any, **__: Any) -> Any:
        return self._NoService()

    def get_distributed_runtime_client(self, *args: Any, **options: Any) -> Any:
        options["missed_heartbeat_callback"] = lambda status: None
        return self._module.get_distributed_runtime_client(*args, **options)


@contextlib.contextmanager
def _service_elsewhere() -> Iterator[None]:
    from jax._src import distributed

    module = distributed._jax
    distributed._jax = _ServiceElsewhere(module)
    try:
        yield
    finally:
        distributed._jax = module


def start_distributed(
    coordinator: str,
    size: int,
    rank: int,
    *,
    init_seconds: float,
    heartbeat_seconds: float,
    local_device_ids: Sequence[int] | None,
    preemption_service: bool,
) -> None:
    """Starts `jax.distributed` as a client of a coordination service that is up.

    Args:
      coordinator: host:port of the service.
      size: number of processes.
      rank: index of this process.
      init_seconds: how long to wait for the service and for the other processes.
      heartbeat_seconds: after how long JAX takes a mute process for dead.
      local_device_ids: the accelerators of this process; None for all.
      preemption_service: whether JAX catches SIGTERM to announce a preemption.

    Raises:
      TimeoutError: the service or another process did not come in time.
    """
    jax.config.update("jax_enable_preemption_service", preemption_service)
    try:
        with _service_elsewhere():
            jax.distributed.initialize(
                coordinator,
                size,
                rank,
                local_device_ids=local_device_ids,
                cluster_detection_method="deactivate",
                initialization_timeout=max(1, int(init_seconds)),
                heartbeat_timeout_seconds=int(heartbeat_seconds),
            )
    except RuntimeError as error:
        abandon_distributed()
        why = str(error)
        raise TimeoutError("" if why == "std::bad_cast" else f" ({why})") from None


def abandon_distributed() -> None:
    """Makes the end of this process skip the shutdown barrier of `jax.distributed`.

    The barrier waits for every process of the job, up to 300 s, also for dead ones. The
    client is kept alive to the end on purpose: destroying it runs the same barrier.
    """
    from jax._src import distributed

    state = distributed.global_state
    for name in ("preemption_sync_manager", "client", "service"):
        handle = getattr(state, name)
        if handle is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
            setattr(state, name, None)


def forget_jax_in_forked_child() -> None:
    """Makes the end of a forked child skip JAX's clean-up, which would hang there.

    It waits for threads and connections that only the parent has.
    """
    from jax._src import api, dispatch, xla_bridge

    atexit.unregister(api.clean_up)
    atexit.unregister(dispatch.wait_for_tokens)
    for backend in xla_bridge._backends.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))
    abandon_distributed()


# --- lowering: primitives, lowering rules, what a rule knows --------------------------


class StockCollective(NamedTuple):
    """One of JAX's own primitives and what it computes: see `numbering.TARGETS`."""

    primitive: Any
    op: str


@functools.cache
def stock_collectives() -> dict[str, StockCollective]:
    """JAX's primitives of this release that we have an equal of, by name."""
    from jax._src.lax import parallel

    known = {
        "psum": "sum",
        "psum_invariant": "sum",
        "unreduced_psum": "sum",
        "pmax": "max",
        "unreduced_pmax": "max",
        "pmin": "min",
        "unreduced_pmin": "min",
        "reduce_scatter": "sum_scatter",
        "unreduced_reduce_scatter": "sum_scatter",
        "all_gather": "gather",
        "all_gather_invariant": "gather",
        "all_gather_reduced": "gather",
    }
    found = {name: getattr(parallel, f"{name}_p", None) for name in known}
    return {
        name: StockCollective(primitive, known[name])
        for name, primitive in found.items()
        if primitive is not None
    }


def register_rule(primitive: Any, rule: Callable[..., Any]) -> Callable[[], None]:
    """Puts `rule` in the place of those that lower `primitive`, on every platform.

    The rule runs once per equation: JAX must not call the function that one equation
    was lowered to from another, since each of them gets a key of its own. It is the
    only one: with rules for some platforms beside it, jax 0.10 to 0.12 can't lower an
    uncacheable primitive for several platforms at once.

    Returns:
      What puts the old rules back.
    """
    stock = _stock_rules(primitive)
    was_cacheable = primitive not in mlir._uncacheable_primitives
    for platform in stock:
        _rules_for(platform).pop(primitive)
    _replaced[primitive] = stock
    mlir.register_lowering(primitive, rule, cacheable=False)

    def restore() -> None:
        del _replaced[primitive], mlir._lowerings[primitive]
        for platform, entry in stock.items():
            _rules_for(platform)[primitive] = entry
        if was_cacheable:
            mlir._uncacheable_primitives.discard(primitive)

    return restore


_replaced: dict[Any, dict[str | None, Any]] = {}


def _rules_for(platform: str | None) -> dict[Any, Any]:
    """JAX's table of rules for one platform, or for all that have none of their own."""
    return mlir._platform_specific_lowerings[platform] if platform else mlir._lowerings


def _stock_rules(primitive: Any) -> dict[str | None, Any]:
    """The rules that `primitive` has without us, by platform; the one for all: None."""
    if primitive in _replaced:
        return _replaced[primitive]
    tables = {p: _rules_for(p) for p in (None, *mlir._platform_specific_lowerings)}
    return {p: table[primitive] for p, table in tables.items() if primitive in table}


def allow_in_exports(target: str) -> None:
    """Lets `jax.export` serialize calls of `target` without asking each time."""
    from jax._src.export import _export

    # Missing in a later jax, `disabled_checks` of jax.export still lets them through.
    getattr(_export, "_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE", set()).add(target)


def apply_primitive(primitive: Any, *args: Any, **params: Any) -> Any:
    """Runs one primitive by itself, as JAX runs its own outside of a trace."""
    return dispatch.apply_primitive(primitive, *args, **params)


def lower_stock(
    ctx: Any, primitive: Any, aval: Any, out: Any, arg: Any, params: Mapping[str, Any]
) -> Any:
    """Emits what JAX would emit for one collective; returns its one result."""
    inner = ctx.replace(primitive=primitive, avals_in=[aval], avals_out=[out])
    rules, platforms = _stock_rules(primitive), lowering_platforms(ctx)
    entry = rules.get(platforms[0]) if len(platforms) == 1 else None
    (result,) = (entry or rules[None]).rule(inner, arg, **params)
    return result


def checks_varying_axes() -> bool:
    """Whether the types of this trace tell which mesh axes a value varies over."""
    return config._check_vma.value


def drops_axes_of_size_one() -> bool:
    """Whether JAX leaves mesh axes of size one out of its types."""
    return config.remove_size_one_mesh_axis_from_type.value


def make_varying(value: Any, axes: Sequence[Hashable]) -> Any:
    """Casts `value` to vary over `axes`, where types are checked and it does not."""
    if not (config.auto_pcast.value and config._check_vma.value):
        return value
    return core.pvary(value, tuple(a for a in axes if a not in varying_axes(value)))


def varying_axes(value: Any) -> frozenset[Hashable]:
    """The mesh axes that `value` varies over, where types are checked."""
    return core.typeof(value).mat.varying


def varies_alike(value: Any, axes: Sequence[Hashable]) -> bool:
    """Whether `value` varies over all of `axes` or none, and is not reduced in part."""
    kind = core.typeof(value).mat
    if any(axis in kind.unreduced or axis in kind.reduced for axis in axes):
        return False
    return len({axis in kind.varying for axis in axes}) == 1


class MeshContext(NamedTuple):
    """What a lowering rule knows of the devices its program will run on.

    Attributes:
      axes: names and sizes of the mesh's axes, in order; empty outside of a mesh.
      manual: the axes that the program spells out, device by device.
      devices: the devices in logical order, or None if they are not known.
    """

    axes: tuple[tuple[Hashable, int], ...]
    manual: frozenset[Hashable]
    devices: tuple[Any, ...] | None


def mesh_context(ctx: Any) -> MeshContext | None:
    """The mesh of the equation being lowered, or None outside of a device mesh."""
    context = ctx.module_context.axis_context
    if not isinstance(context, sharding_impls.SPMDAxisContext):
        return None
    mesh = context.mesh
    known = isinstance(mesh, jax.sharding.Mesh)
    return MeshContext(
        tuple(mesh.shape.items()),
        frozenset(context.manual_axes),
        tuple(mesh.devices.flat) if known else None,
    )


def lowering_platforms(ctx: Any) -> tuple[str, ...]:
    """The platforms that the equation is lowered for at once."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def is_exporting(ctx: Any) -> bool:
    """Whether the module is made by `jax.export`, to run on devices not known yet."""
    return ctx.module_context.lowering_parameters.for_export


def module_name(ctx: Any) -> str:
    """The name of the module being lowered, such as jit_step."""
    return ctx.module_context.module.operation.attributes["sym_name"].value


def next_position(ctx: Any) -> int:
    """Counts up from 0 within the module being lowered."""
    # Every context of one module shares this dictionary, and no two modules do.
    shared = ctx.module_context.cached_primitive_lowerings
    position = shared.get(_POSITION, -1) + 1
    shared[_POSITION] = position
    _emitted.count = getattr(_emitted, "count", 0) + 1
    return position


_POSITION = "smddp_position"


def when_lowered(finish: Callable[[Any], None]) -> None:
    """Calls `finish` on every module whose lowering called `next_position`.

    Also on those with a program of `jax.export` in them.
    """
    stock = mlir.lower_jaxpr_to_module
    if hasattr(stock, "smddp"):
        return

    @functools.wraps(stock)
    def lower(name: str, jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_emitted, "count", 0)
        result = stock(name, jaxpr, *args, **kwargs)
        emitted = getattr(_emitted, "count", 0) != before
        if emitted or _contains(jaxpr, lambda p: p.name == "call_exported"):
            finish(result.module)
        return result

    setattr(lower, "smddp", True)  # noqa: B010 - pyright knows no such attribute
    mlir.lower_jaxpr_to_module = lower


_emitted = threading.local()


def partition_id() -> Any:
    """Emits the logical id of the device that runs the program, an u32 scalar."""
    return hlo.partition_id()


def custom_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    aliases: Mapping[int, int],
    attributes: Mapping[str, Any],
) -> list[Any]:
    """Emits a call of the FFI target; returns its results."""
    rule = jax.ffi.ffi_lowering(
        target, has_side_effect=False, operand_output_aliases=dict(aliases)
    )
    inner = ctx.replace(avals_in=list(avals_in), avals_out=list(avals_out))
    return list(rule(inner, *operands, **attributes))


def move_axis(value: Any, rank: int, source: int, destination: int) -> Any:
    """Emits a transpose that moves one axis of an array, if it moves at all."""
    if source == destination:
        return value
    order = [axis for axis in range(rank) if axis != source]
    order.insert(destination, source)
    return hlo.transpose(value, mlir.dense_int_array(order))


def is_static(shape: Sequence[Any]) -> bool:
    """Whether every dimension is a number, none a symbol of `jax.export`."""
    return core.is_constant_shape(shape)


def tie_lowering_to_devices(primitives: Callable[[], frozenset[Any]]) -> None:
    """Keeps lowered reductions of two meshes of one shape apart under `jax.set_mesh`.

    There the jaxpr holds no devices and jax shares one lowered module between meshes of
    equal shape, unless the jaxpr has a primitive that asks for devices. We ask for them
    only where a concrete mesh is set: the set in `dispatch` would also forbid programs
    with meshes of two shapes, and abstract meshes.
    """
    stock = dispatch.jaxpr_has_prim_requiring_devices
    if hasattr(stock, "smddp"):
        return

    def requires_devices(jaxpr: Any) -> bool:
        if stock(jaxpr):
            return True
        wanted = primitives()
        return not get_concrete_mesh().empty and _contains(jaxpr, wanted.__contains__)

    setattr(requires_devices, "smddp", True)  # noqa: B010 - as above
    dispatch.jaxpr_has_prim_requiring_devices = requires_devices


def _contains(jaxpr: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a primitive that is wanted stands anywhere in `jaxpr`."""
    seen: set[int] = set()
    stack = [getattr(jaxpr, "jaxpr", jaxpr)]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if any(wanted(eqn.primitive) for eqn in current.eqns):
            return True
        stack.extend(core.subjaxprs(current))
    return False
