# SPDX-License-Identifier: Apache-2.0
"""This process's membership in its job, from init() to shutdown().

One `Session` per process, made by init() and used by the main thread; what it holds
never changes afterwards, so that any thread may read it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import jax

from smddp_jax import _env, _jax_backend, _jax_compat, _native
from smddp_jax._errors import ClusterError, EngineUnavailableError
from smddp_jax.cluster import detect, gpus
from smddp_jax.cluster.agreement import make_card, trade
from smddp_jax.cluster.host import host_id
from smddp_jax.cluster.pool import make_room
from smddp_jax.cluster.service import CoordinationService
from smddp_jax.cluster.terms import Terms, check_again, make_terms, problem_between

_log = logging.getLogger(__name__)

# JAX takes a process for dead when it was mute for this long, or for twice our own
# deadline: a frozen peer must come up as our error, which names it, and not as JAX's.
_HEARTBEAT_SECONDS = 100.0


@dataclass(frozen=True)
class Session:
    """What init() found out.

    Attributes:
      rank: index of this process.
      size: number of processes.
      hosts: the host id of every process, by rank.
      pid: the process that called init(); a forked child is no member.
      terms: what init() was called on.
      gpu_problem: why no GPU of the job runs our collectives; None: all do.
      service: the coordination service, if this process started it.
      started_distributed: whether init() started `jax.distributed`.
    """

    rank: int
    size: int
    hosts: tuple[str, ...]
    pid: int
    terms: Terms
    gpu_problem: str | None
    service: CoordinationService | None = None
    started_distributed: bool = False

    @property
    def neighbours(self) -> list[int]:
        """Ranks on this host, ascending."""
        return [r for r, host in enumerate(self.hosts) if host == self.hosts[self.rank]]


_session: Session | None = None
_epoch = 0
_failure: str | None = None
_hooked = False


def init(*, reducers: Sequence[str] | None = None, wire_dtype: Any = None) -> None:
    """Joins this process to its job; call it before anything else uses JAX.

    Joins `jax.distributed` if that is up, else starts it where a launcher says that
    there are several processes (`smddp-jax run`, Open MPI, MPICH, Intel MPI, MVAPICH2,
    Slurm, SageMaker, Kubernetes), else stays a single process. Calling it again does
    nothing. Collective: returns when every process of the job has called it.

    Args:
      reducers: host:port of each dedicated reducer, the same in every process; none
        with (). Default: SMDDP_REDUCERS.
      wire_dtype: what float32 values are rounded to between hosts where a call does not
        say: bfloat16, float16, or float32 to leave them as they are. Default:
        SMDDP_WIRE_DTYPE.

    Raises:
      ClusterError: the other processes can't be found or reached, have other arguments
        or settings, or JAX has already made its backend, so that this process can't
        join them any more. Or init() was called before, with other arguments.
      SettingError: a variable or an argument has no usable value.
      EngineUnavailableError: the native engine is missing or this jax is untested, and
        SMDDP_FALLBACK is not set.
    """
    global _session
    if _session is not None and _session.pid == os.getpid():
        check_again(_session.terms, reducers, wire_dtype)
        return
    terms = make_terms(reducers, wire_dtype)
    problem = engine_problem()
    session = _join(terms, problem or _native.gpu_problem())
    if problem is None:
        _start_engine(session)
    if session.gpu_problem is None:
        tried = gpus.try_all(_epoch, session.rank, session.size)
        session = replace(session, gpu_problem=tried)
    _session = session
    _hook_into_exit()


def shutdown() -> None:
    """Leaves the job: waits for collectives in flight, then says goodbye to the peers.

    Runs by itself at the end of the process. Does nothing in a process that is no
    member, such as a forked child, or when called again.
    """
    session = _leave()
    if session is not None and session.started_distributed:
        jax.distributed.shutdown()
    if session is not None and session.service is not None:
        session.service.release()


def is_initialized() -> bool:
    """Whether init() was called and shutdown() was not."""
    return _session is not None and _session.pid == os.getpid()


def current() -> Session:
    """The session of this process.

    Raises:
      ClusterError: init() was not called.
    """
    if _session is None:
        raise ClusterError("call smddp_jax.init() first, before anything uses JAX")
    return _session


def engine_problem() -> str | None:
    """Says why stock JAX runs instead of the engine; None when the engine runs.

    Raises:
      EngineUnavailableError: the engine can't run and SMDDP_FALLBACK is not set.
    """
    problem = _jax_compat.version_problem()
    if problem is None:
        try:
            _native.load()
        except EngineUnavailableError as error:
            problem = str(error)
    if problem is None:
        make_room()
        return None
    if not _env.get("SMDDP_FALLBACK"):
        raise EngineUnavailableError(problem)
    warnings.warn(f"running on stock JAX: {problem}", RuntimeWarning, stacklevel=3)
    return problem


def group_problem(process_indices: Iterable[int]) -> str | None:
    """Says why the engine can't join these processes; None when it can."""
    session = current()
    strangers = sorted(r for r in set(process_indices) if not 0 <= r < session.size)
    if strangers:
        return f"processes {strangers} are not among the {session.size} that init() met"
    return None


def hosts_of(process_indices: Iterable[int]) -> list[str]:
    """What tells the hosts of these processes apart, one by one.

    Before init(), which processes of several have to call, there is one host.
    """
    indices = list(process_indices)
    return [_session.hosts[n] for n in indices] if _session else [""] * len(indices)


def gpu_problem() -> str | None:
    """Why collectives on GPUs are left to XLA; None: they are ours.

    All processes that called init() get the same answer. Others are asked when JAX has
    its backend.
    """
    return gpus.problem_alone() if _session is None else _session.gpu_problem


def default_wire_dtype() -> str | None:
    """The wire dtype that init() was given or found; None without one or init()."""
    return _session.terms.wire_dtype if _session is not None else None


def _join(terms: Terms, gpu_problem: str | None) -> Session:
    """Finds the job, starts `jax.distributed` if need be, and meets the others."""
    membership = _jax_compat.distributed_membership()
    if membership is not None:
        return _meet(*membership, terms, gpu_problem)
    place = detect.detect(os.environ)
    if place is None:
        return Session(0, 1, (host_id(),), os.getpid(), terms, gpu_problem)
    if _jax_backend.backend_exists():
        raise ClusterError(
            f"JAX made its backend before smddp_jax.init(), so rank {place.rank} can't "
            f"join the {place.size} processes that {place.launcher} started: call "
            "init() before jax.devices(), jax.device_put() and any computation"
        )
    if gpu_problem is None:
        gpus.check_one_each(place)
    service = _start(place)
    session = _meet(place.rank, place.size, terms, gpu_problem)
    return replace(session, service=service, started_distributed=True)


def _start(place: detect.Membership) -> CoordinationService | None:
    seconds = _env.get("SMDDP_INIT_TIMEOUT")
    heartbeat = max(_HEARTBEAT_SECONDS, 2 * _env.get("SMDDP_TIMEOUT"))
    service = None
    if place.rank == 0:
        service = CoordinationService.start(
            place.coordinator, place.size, heartbeat, seconds
        )
    devices = None
    if (place.local_size or 2) > 1 and place.local_rank is not None:
        # One accelerator per process, as JAX does it. Means nothing for CPUs.
        devices = [place.local_rank]
    try:
        _jax_compat.start_distributed(
            place.coordinator,
            place.size,
            place.rank,
            init_seconds=seconds,
            heartbeat_seconds=heartbeat,
            local_device_ids=None if "JAX_LOCAL_DEVICE_IDS" in os.environ else devices,
            # Else JAX would catch SIGTERM, and a blocked process would live on.
            preemption_service="JAX_ENABLE_PREEMPTION_SERVICE" in os.environ
            and jax.config.read("jax_enable_preemption_service"),
        )
    except TimeoutError as error:
        raise ClusterError(
            f"rank {place.rank} of {place.size} ({place.launcher}) did not meet the "
            f"others at {place.coordinator} within {seconds:g} s (SMDDP_INIT_TIMEOUT): "
            f"check that all processes run and that this is rank 0's address{error}"
        ) from None
    return service


def _meet(rank: int, size: int, terms: Terms, gpu_problem: str | None) -> Session:
    """Compares terms with every process, and learns where they are."""
    global _epoch
    _epoch += 1
    card = make_card(host_id(), terms, gpus.signed(gpu_problem, rank))
    cards = trade(_epoch, rank, size, card)
    hosts = tuple(card.host for card in cards)
    problem = problem_between(len(set(hosts)), terms)
    if problem is not None:
        raise ClusterError(problem)
    agreed = gpus.first(card.gpu_problem for card in cards)
    return Session(rank, size, hosts, os.getpid(), terms, agreed)


def _start_engine(session: Session) -> None:
    """Joins the engine to those of the other processes of this host."""
    engine = _native.load()
    if session.size > 1:
        host, local_size = session.hosts[session.rank], len(session.neighbours)
        store = _jax_compat.coordination_store()
        prefix = f"smddp/{_epoch}/engine/"
        try:
            engine.connect(
                session.rank,
                session.size,
                lambda key, value: store.set(prefix + key, value),
                lambda key, seconds: store.get(prefix + key, seconds),
                _native.settings(
                    *(engine, host, local_size, session.terms.reducers),
                    _jax_compat.coordinator_address(),
                ),
            )
        except RuntimeError as error:
            raise ClusterError(
                f"rank {session.rank} of {session.size}: {error}"
            ) from error
    if threading.current_thread() is threading.main_thread():
        engine.watch_interrupts()


def _leave() -> Session | None:
    """Takes the engine out of the job; returns the session that this ended, if any."""
    global _session
    session = _session
    if session is None or session.pid != os.getpid():
        return None
    _session = None
    try:
        engine = _native.load()
    except EngineUnavailableError:
        return session
    if _failure is None:
        engine.drain(_env.get("SMDDP_TIMEOUT"))
        engine.disconnect("it has ended")
    else:
        engine.disconnect(f"it raised {_failure}")
    if untold := engine.untold_gpu_error():
        warnings.warn(
            f"a collective on a GPU failed, and no later one raised it: {untold}; what "
            "came out of it is wrong",
            RuntimeWarning,
            stacklevel=3,
        )
    return session


def _hook_into_exit() -> None:
    global _hooked
    if _hooked:
        return
    _hooked = True
    # Handlers run last in, first out: ours before JAX's, which destroys the backend.
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_jax_compat.forget_jax_in_forked_child)
    previous = sys.excepthook

    def remember(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        global _failure
        if not hasattr(sys, "ps1"):
            text = (str(error).splitlines() or [""])[0]
            _failure = f"{kind.__name__}: {text}" if text else kind.__name__
        previous(kind, error, trace)

    sys.excepthook = remember


def _at_exit() -> None:
    session = _leave()
    # JAX's own handler shuts jax.distributed down next. After a failure that may take
    # minutes: a service that the program started itself waits for all processes, also
    # for dead ones, and ours may be on a host that is cut off.
    if session is None or session.size == 1:
        return
    if _failure is not None or _collectives_failed():
        _jax_compat.abandon_distributed()


def _collectives_failed() -> bool:
    try:
        stats = _native.load().stats()
        return stats["failed"] + stats["gpu_failed"] > 0
    except EngineUnavailableError:
        return False
