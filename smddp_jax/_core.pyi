from collections.abc import Callable, Mapping, Sequence


class Settings:
    """Settings of the native engine; see _env.py."""

    def __init__(self) -> None: ...

    @property
    def timeout_seconds(self) -> float: ...

    @timeout_seconds.setter
    def timeout_seconds(self, arg: float, /) -> None: ...

    @property
    def staging_bytes(self) -> int: ...

    @staging_bytes.setter
    def staging_bytes(self, arg: int, /) -> None: ...

    @property
    def gpu_staging_bytes(self) -> int: ...

    @gpu_staging_bytes.setter
    def gpu_staging_bytes(self, arg: int, /) -> None: ...

    @property
    def segment_bytes(self) -> int: ...

    @segment_bytes.setter
    def segment_bytes(self, arg: int, /) -> None: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def huge_pages(self) -> bool: ...

    @huge_pages.setter
    def huge_pages(self, arg: bool, /) -> None: ...

    @property
    def host_id(self) -> str: ...

    @host_id.setter
    def host_id(self, arg: str, /) -> None: ...

    @property
    def reducers(self) -> list[str]: ...

    @reducers.setter
    def reducers(self, arg: Sequence[str], /) -> None: ...

    @property
    def weights(self) -> list[float]: ...

    @weights.setter
    def weights(self, arg: Sequence[float], /) -> None: ...

    @property
    def measure_weights(self) -> bool: ...

    @measure_weights.setter
    def measure_weights(self, arg: bool, /) -> None: ...

    @property
    def shard_bytes(self) -> int: ...

    @shard_bytes.setter
    def shard_bytes(self, arg: int, /) -> None: ...

    @property
    def connections(self) -> int: ...

    @connections.setter
    def connections(self, arg: int, /) -> None: ...

    @property
    def interface(self) -> str: ...

    @interface.setter
    def interface(self, arg: str, /) -> None: ...

    @property
    def port(self) -> int: ...

    @port.setter
    def port(self, arg: int, /) -> None: ...

    @property
    def silence_seconds(self) -> float: ...

    @silence_seconds.setter
    def silence_seconds(self, arg: float, /) -> None: ...

    @property
    def secret(self) -> str: ...

    @secret.setter
    def secret(self, arg: str, /) -> None: ...

    @property
    def coordinator(self) -> str: ...

    @coordinator.setter
    def coordinator(self, arg: str, /) -> None: ...

def registrations() -> dict[str, dict[str, object]]:
    """XLA FFI targets of platform "cpu": name to the handlers of each stage."""

def types() -> dict[str, dict[str, object]]:
    """XLA FFI state types, to be registered before the targets."""

def cuda_registrations() -> dict[str, dict[str, object]]:
    """The same of platform "CUDA"; _cuda has the GPUs."""

def cuda_types() -> dict[str, dict[str, object]]:
    """The same of platform "CUDA"."""

def use_gpus(gpus: object) -> None:
    """Takes what _cuda.gpus() gives. Before the first collective on a GPU."""

def name_gpus(ids: Mapping[int, int]) -> None:
    """Says which global device id each local ordinal is."""

def try_gpus(ordinals: Sequence[int]) -> str:
    """
    Why these GPUs of this process, or all if none is given, and those of the host's other processes cannot use each other's memory; empty if they can. Collective over the processes of this host, once, after connect().
    """

def untold_gpu_error() -> str:
    """An error on a GPU that no collective has returned to XLA, or nothing."""

def connect(process_index: int, process_count: int, kv_set: Callable[[str, bytes], None], kv_get: Callable[[str, float], bytes], settings: Settings) -> None:
    """Joins the job's other processes; collective. Raises RuntimeError."""

def configure(settings: Settings) -> None:
    """Sets what the engine is made with at its first use."""

def disconnect(reason: str) -> None:
    """Leaves the job: tells the peers why, fails what is in flight."""

def drain(seconds: float) -> bool:
    """Waits until no collective is in flight; False at the deadline."""

def abort(reason: str) -> None:
    """Fails every collective that is in flight."""

def watch_interrupts() -> None:
    """Lets Ctrl-C end a wait for a collective. Main thread only."""

def stats() -> dict[str, int]:
    """Counters of this process's engine."""

def balanced_shares(worker_nics: Sequence[float], reducer_nics: Sequence[float]) -> tuple[list[float], float]:
    """
    Share of each dedicated reducer, then of each worker host; and seconds per byte.
    """

def instruction_set() -> str:
    """"avx512", "avx2" or "generic"."""

class ReducerServer:
    """A dedicated reducer; see cli/reducer.py."""

    def __init__(self, listen: str, secret: str, threads: int, staging_bytes: int, once: bool, silence_seconds: float) -> None:
        """Listens and serves, on threads of its own. Raises RuntimeError."""

    @property
    def address(self) -> str:
        """host:port where it listens."""

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; waits for that."""

    def stop(self) -> None:
        """Tells the workers and ends; returns at once."""

    def stats(self) -> dict[str, float]:
        """Counters of all jobs so far, and of the process."""
