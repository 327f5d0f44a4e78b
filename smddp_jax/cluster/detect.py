# SPDX-License-Identifier: Apache-2.0
"""Which launcher started this process, and what place it gave it.

Launchers that set rank and size in variables are rows of `LAUNCHERS`, in order of
precedence: an inner launcher (mpirun) comes before the outer one that it may run under
(Slurm, SageMaker). SageMaker and Kubernetes need a function each.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smddp_jax import _env
from smddp_jax._errors import ClusterError

_log = logging.getLogger(__name__)

Environment = Mapping[str, str]

# Coordinators that nobody chose a port for get one of these, by a hash of what tells
# jobs apart. Below Linux's range for outgoing connections, so that none is in the way.
_PORTS = range(20000, 32000)
_SAGEMAKER_PORT = 55529
_KUBERNETES_PORT = 55527


@dataclass(frozen=True)
class Membership:
    """A process's place in its job.

    Attributes:
      launcher: who said so.
      rank: index of the process.
      size: number of processes.
      local_rank: index on its host, if the launcher says so.
      local_size: number of processes on its host, if the launcher says so.
      coordinator: host:port where rank 0 opens the coordination service.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    coordinator: str


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str = ""
    needs: tuple[str, ...] = ()
    # What tells two jobs of one host apart: variables, or a process above us.
    job: tuple[str, ...] = ()
    parent: str | None = None


LAUNCHERS = (
    _Launcher(
        "smddp-jax",
        *("SMDDP_RANK", "SMDDP_SIZE", "SMDDP_LOCAL_RANK", "SMDDP_LOCAL_SIZE"),
        needs=("SMDDP_COORDINATOR",),
    ),
    _Launcher(
        "Open MPI",
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher(
        "MVAPICH2",
        *("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        job=("MPISPAWN_MPIRUN_ID", "PMI_PORT"),
        parent="hydra_pmi_proxy",
    ),
    _Launcher(
        "MPICH or Intel MPI",
        *("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        needs=("MPI_LOCALRANKID",),
        job=("PMI_PORT",),
        parent="hydra_pmi_proxy",
    ),
    _Launcher(
        "Slurm",
        *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        # Outside srun, in the batch script itself, there is no node list of the step.
        needs=("SLURM_JOB_ID", "SLURM_STEP_NODELIST"),
        job=("SLURM_JOB_ID",),
    ),
)


def detect(environment: Environment) -> Membership | None:
    """Finds this process's place in its job.

    Args:
      environment: the variables to look at.

    Returns:
      Its place, or None when no launcher is recognised or the job has one process.

    Raises:
      ClusterError: a launcher is recognised, but not where rank 0 is.
      SettingError: one of our own variables has no usable value.
    """
    wanted = _env.get("SMDDP_CLUSTER", environment).lower()
    if wanted == "none":
        return None
    for name, find in _FINDERS.items():
        if not name.lower().startswith(wanted):
            continue
        membership = find(environment)
        if membership is not None:
            return membership if membership.size > 1 else None
    if wanted:
        raise ClusterError(
            f"SMDDP_CLUSTER={wanted!r}, but no variables of such a launcher are set; "
            f"known: none, {', '.join(_FINDERS)}"
        )
    return None


def _from_variables(launcher: _Launcher, environment: Environment) -> Membership | None:
    if not {launcher.rank, launcher.size, *launcher.needs} <= environment.keys():
        return None
    rank, size = (int(environment[name]) for name in (launcher.rank, launcher.size))
    local_rank, local_size = (
        int(environment[name]) if name in environment else None
        for name in (launcher.local_rank, launcher.local_size)
    )
    if launcher.name == "Slurm" and environment.get("SLURM_STEP_NUM_NODES") == "1":
        local_size = size
    if not 0 <= rank < size:
        raise ClusterError(
            f"{launcher.name} says rank {rank} of {size} ({launcher.rank}, "
            f"{launcher.size}): check these variables"
        )
    coordinator = ""
    if size > 1:
        chosen = _env.get("SMDDP_COORDINATOR", environment)
        one_host = local_size == size
        coordinator = chosen or _coordinator(launcher, environment, one_host)
    return Membership(launcher.name, rank, size, local_rank, local_size, coordinator)


def _coordinator(launcher: _Launcher, environment: Environment, one_host: bool) -> str:
    jobs = [environment[name] for name in launcher.job if name in environment]
    job = jobs[0] if jobs else None
    if job is None and launcher.parent is not None and one_host:
        job = _ancestor(launcher.parent)
    host = "127.0.0.1" if one_host else _first_host(environment)
    if job is None or host is None:
        raise ClusterError(
            f"{launcher.name} started {environment[launcher.size]} processes but does "
            "not say where rank 0 is: set SMDDP_COORDINATOR=<host of rank 0>:<free "
            "port> for all of them"
        )
    # Of Open MPI 4's "job.0;tcp://addresses:port" every rank has the same text.
    return f"{host}:{_PORTS[zlib.crc32(job.encode()) % len(_PORTS)]}"


def _ancestor(name: str) -> str | None:
    """The process id of the nearest process above us that is called `name`."""
    pid = "self"
    while pid not in ("0", "1"):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if name.startswith(fields["Name"].strip()):
            return pid
        pid = fields["PPid"].strip()
    return None


def _first_host(environment: Environment) -> str | None:
    """The host of rank 0, where the launcher names it."""
    nodes = environment.get("SLURM_STEP_NODELIST")
    if nodes:
        # "node1,node2", "node[001-004,007]", "rack[1-2]n[1-4]": the first of each.
        first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
        return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else nodes)
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    address = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", uri)
    if address:
        return address[1] or f"[{address[2]}]"
    # Open MPI 5: "prterun-<host>-<pid>@<job>".
    namespace = re.match(r"prterun-(.+)-\d+@", environment.get("PMIX_NAMESPACE", ""))
    return namespace[1] if namespace else None


def _from_sagemaker(environment: Environment) -> Membership | None:
    """One process per machine of a SageMaker training job."""
    if not {"SM_HOSTS", "SM_CURRENT_HOST"} <= environment.keys():
        return None
    hosts = sorted(json.loads(environment["SM_HOSTS"]), key=_natural)
    coordinator = _env.get("SMDDP_COORDINATOR", environment)
    rank = hosts.index(environment["SM_CURRENT_HOST"])
    coordinator = coordinator or f"{hosts[0]}:{_SAGEMAKER_PORT}"
    return Membership("SageMaker", rank, len(hosts), 0, 1, coordinator)


def _natural(host: str) -> list[tuple[int, str]]:
    """Orders algo-2 before algo-10."""
    return [(int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", host)]


def _from_kubernetes(environment: Environment) -> Membership | None:
    """A pod of an indexed Job; SMDDP_SIZE has to say how many there are."""
    index = environment.get("JOB_COMPLETION_INDEX")
    if "KUBERNETES_SERVICE_HOST" not in environment or index is None:
        return None
    size = _env.get("SMDDP_SIZE", environment)
    if size is None:
        _log.warning(
            "this is pod %s of an indexed Job, run as a single process: set SMDDP_SIZE "
            "to the Job's parallelism to join its pods",
            index,
        )
        return None
    coordinator = _env.get("SMDDP_COORDINATOR", environment)
    if coordinator is None:
        # Pods of an indexed Job are called <job>-<index>, in the Job's subdomain.
        name, _, subdomain = _full_name(environment).partition(".")
        if not subdomain or not name.endswith(f"-{index}"):
            raise ClusterError(
                "the pods of this Job have no names to find each other by: give the "
                "Job a headless service and a subdomain, or set SMDDP_COORDINATOR"
            )
        first = name.removesuffix(index) + "0"
        coordinator = f"{first}.{subdomain}:{_KUBERNETES_PORT}"
    return Membership("Kubernetes", int(index), size, None, None, coordinator)


def _full_name(environment: Environment) -> str:
    """The pod's name with its subdomain, as the kubelet writes it into /etc/hosts."""
    host = environment.get("HOSTNAME", "")
    try:
        hosts = Path("/etc/hosts").read_text()
    except OSError:
        return host
    found = re.search(rf"(?<=\s){re.escape(host)}\.\S+", hosts) if host else None
    return found[0] if found else host


def _finder(launcher: _Launcher) -> Callable[[Environment], Membership | None]:
    return lambda environment: _from_variables(launcher, environment)


_FINDERS: dict[str, Callable[[Environment], Membership | None]] = {
    **{launcher.name: _finder(launcher) for launcher in LAUNCHERS},
    "SageMaker": _from_sagemaker,
    "Kubernetes": _from_kubernetes,
}
