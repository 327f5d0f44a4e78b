# SPDX-License-Identifier: Apache-2.0
"""Settings, launchers' variables, and joining a job of real processes."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from ranks import environment, free_port, run_alone, run_ranks

from smddp_jax import _env, _jax_compat, _native, cluster
from smddp_jax._errors import ClusterError, SettingError
from smddp_jax.cluster.detect import Membership, detect
from smddp_jax.cluster.terms import Terms, make_terms, problem_between

START = 60
SECRET = "a secret that nobody may see"

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
ORTE = "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "node[003-004,9]",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
}
PMI = {
    "PMI_RANK": "0",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
    "PMI_PORT": "n1:4000",
}
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "MPISPAWN_MPIRUN_ID": "99",
}
SAGEMAKER = {
    "SM_HOSTS": json.dumps(["algo-10", "algo-2", "algo-1"]),
    "SM_CURRENT_HOST": "algo-10",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3"}
OURS = {"SMDDP_RANK": "1", "SMDDP_SIZE": "2", "SMDDP_COORDINATOR": "127.0.0.1:4000"}


@pytest.mark.parametrize(
    ("variables", "launcher", "rank", "size", "local_rank", "host"),
    [
        (OURS, "smddp-jax", 1, 2, None, "127.0.0.1"),
        (OPEN_MPI | {"PMIX_NAMESPACE": "p@1"}, "Open MPI", 1, 4, 1, "127.0.0.1"),
        (
            OPEN_MPI
            | {"PMIX_NAMESPACE": "prterun-a-b-12@1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            *("Open MPI", 1, 4, 1, "a-b"),
        ),
        (
            OPEN_MPI
            | {"OMPI_MCA_orte_hnp_uri": ORTE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            *("Open MPI", 1, 4, 1, "10.96.0.1"),
        ),
        (
            OPEN_MPI | SLURM | {"PMIX_NAMESPACE": "p@1"},
            "Open MPI",
            1,
            4,
            1,
            "127.0.0.1",
        ),
        (MVAPICH2, "MVAPICH2", 1, 2, 1, "127.0.0.1"),
        (PMI, "MPICH or Intel MPI", 0, 2, 0, "127.0.0.1"),
        (SLURM, "Slurm", 2, 4, 0, "node003"),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1"}, "Slurm", 2, 4, 0, "127.0.0.1"),
        (SAGEMAKER, "SageMaker", 2, 3, 0, "algo-1"),
        (
            KUBERNETES | {"SMDDP_SIZE": "4", "SMDDP_COORDINATOR": "job-0.svc:1234"},
            *("Kubernetes", 3, 4, None, "job-0.svc"),
        ),
    ],
)
def test_launchers_are_recognised(variables, launcher, rank, size, local_rank, host):
    found = detect(variables)
    assert isinstance(found, Membership)
    assert (found.launcher, found.rank, found.size) == (launcher, rank, size)
    assert found.local_rank == local_rank
    assert found.coordinator.rpartition(":")[0] == host
    assert 0 < int(found.coordinator.rpartition(":")[2]) < 65536
    # Every rank must look for rank 0 in the same place.
    assert detect(dict(variables)) == found


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SMDDP_RANK": "0", "SMDDP_SIZE": "1", "SMDDP_COORDINATOR": "h:1"},
        # The batch script itself, outside srun.
        {k: v for k, v in SLURM.items() if k != "SLURM_STEP_NODELIST"},
        {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
        KUBERNETES,
        OURS | {"SMDDP_CLUSTER": "none"},
    ],
)
def test_one_process_stays_alone(variables) -> None:
    assert detect(variables) is None


def test_an_address_of_the_user_wins() -> None:
    found = detect(SLURM | {"SMDDP_COORDINATOR": "[::1]:99"})
    assert found is not None and found.coordinator == "[::1]:99"


def test_an_unknown_place_of_rank_0_is_an_error() -> None:
    apart = PMI | {"MPI_LOCALNRANKS": "1"}
    with pytest.raises(ClusterError, match="set SMDDP_COORDINATOR"):
        detect(apart)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("SMDDP_TIMEOUT", "soon", "a positive number of seconds"),
        ("SMDDP_TIMEOUT", "-1", "a positive number of seconds"),
        ("SMDDP_STAGING_BYTES", "64 apples", "a number of bytes"),
        ("SMDDP_GPU_STAGING_BYTES", "64KiB", "a number of bytes from 1MiB on"),
        ("SMDDP_THREADS", "two", "a whole number"),
        ("SMDDP_FALLBACK", "maybe", "1 or 0"),
        ("SMDDP_COORDINATOR", "nowhere", "host:port"),
        ("SMDDP_REDUCERS", "10.0.0.1:99,nowhere", "host:port,..."),
        ("SMDDP_REDUCERS", "10.0.0.1:99,10.0.0.1:99", "no address twice"),
        ("SMDDP_WEIGHTS", "1,0", "positive numbers"),
        ("SMDDP_CONNECTIONS", "17", "from 1 to 16"),
        ("SMDDP_PORT", "65536", "a port number"),
        ("SMDDP_WIRE_DTYPE", "int8", "bfloat16"),
    ],
)
def test_an_unusable_value_is_named_with_its_remedy(name, text, says) -> None:
    with pytest.raises(SettingError) as caught:
        _env.get(name, {name: text})
    assert name in str(caught.value)
    assert repr(text) in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("256KiB", 1 << 18), ("64 MiB", 1 << 26), ("2g", 2 << 30)],
)
def test_sizes_have_units(text, value) -> None:
    assert _env.get("SMDDP_STAGING_BYTES", {"SMDDP_STAGING_BYTES": text}) == value


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("SMDDP_REDUCERS", "h:1, [::1]:2", ("h:1", "[::1]:2")),
        ("SMDDP_WEIGHTS", "1,2.5", (1.0, 2.5)),
        ("SMDDP_WEIGHTS", "measure", "measure"),
        ("SMDDP_WIRE_DTYPE", "bf16", "bfloat16"),
        ("SMDDP_WIRE_DTYPE", "float16", "float16"),
    ],
)
def test_lists_and_dtypes_are_read(name, text, value) -> None:
    assert _env.get(name, {name: text}) == value


def test_the_secret_is_never_shown(monkeypatch) -> None:
    with pytest.raises(SettingError, match="16 characters") as caught:
        _env.get("SMDDP_SECRET", {"SMDDP_SECRET": "short one"})
    assert "short one" not in str(caught.value)
    monkeypatch.setenv("SMDDP_SECRET", SECRET)
    monkeypatch.setenv("SMDDP_INTERFACE", "eth7")
    monkeypatch.delenv("SMDDP_PORT", raising=False)
    here = _env.as_markdown(here=True)
    assert SECRET not in here
    assert re.search(r"`SMDDP_SECRET`.* set \|$", here, re.MULTILINE)
    assert re.search(r"`SMDDP_INTERFACE`.* eth7 \|$", here, re.MULTILINE)
    assert re.search(r"`SMDDP_PORT`.* unset \|$", here, re.MULTILINE)


@pytest.mark.ours
def test_every_setting_reaches_the_engine(monkeypatch) -> None:
    given = {
        "SMDDP_TIMEOUT": ("5", "timeout_seconds", 5.0),
        "SMDDP_STAGING_BYTES": ("1MiB", "staging_bytes", 1 << 20),
        "SMDDP_GPU_STAGING_BYTES": ("2MiB", "gpu_staging_bytes", 1 << 21),
        "SMDDP_SEGMENT_BYTES": ("64KiB", "segment_bytes", 1 << 16),
        "SMDDP_THREADS": ("3", "threads", 3),
        "SMDDP_HUGE_PAGES": ("0", "huge_pages", False),
        "SMDDP_WEIGHTS": ("1,2,3", "weights", [1.0, 2.0, 3.0]),
        "SMDDP_SHARD_BYTES": ("16KiB", "shard_bytes", 1 << 14),
        "SMDDP_CONNECTIONS": ("4", "connections", 4),
        "SMDDP_INTERFACE": ("eth7", "interface", "eth7"),
        "SMDDP_PORT": ("4321", "port", 4321),
        "SMDDP_SILENCE": ("7", "silence_seconds", 7.0),
        "SMDDP_SECRET": (SECRET, "secret", SECRET),
    }
    for name, (text, _, _) in given.items():
        monkeypatch.setenv(name, text)
    arguments = ("here", 2, ("r:1", "r:2"), "c:3")
    values = _native.settings(_native.load(), *arguments)
    wanted = {field: value for _, field, value in given.values()}
    wanted |= {"host_id": "here", "reducers": ["r:1", "r:2"], "coordinator": "c:3"}
    wanted |= {"measure_weights": False}
    fields = [name for name in dir(values) if not name.startswith("_")]
    assert {name: getattr(values, name) for name in fields} == wanted
    monkeypatch.setenv("SMDDP_WEIGHTS", "measure")
    values = _native.settings(_native.load(), *arguments)
    assert (values.weights, values.measure_weights) == ([], True)


def test_unset_and_empty_mean_the_default() -> None:
    assert _env.get("SMDDP_TIMEOUT", {}) == 300.0
    assert _env.get("SMDDP_TIMEOUT", {"SMDDP_TIMEOUT": ""}) == 300.0


@pytest.mark.parametrize(
    ("version", "tested"),
    [("0.9.2", False), ("0.10.0", True), ("0.12.0.1", True), ("0.13.0", False)],
)
def test_the_range_of_jax_is_checked(version, tested) -> None:
    problem = _jax_compat.version_problem(version)
    assert (problem is None) == tested
    if problem is not None:
        assert version in problem and "\n" not in problem
        assert "SMDDP_FALLBACK=1" in problem


@pytest.mark.ours
def test_a_job_knows_its_members(tmp_path: Path) -> None:
    with run_ranks("membership", processes=3, devices=2, logs=tmp_path) as job:
        outputs = job.succeed(START)
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 3, local {rank} of 3, devices 2 of 6" in output
        assert "hosts 1" in output


@pytest.mark.ours
def test_hosts_are_told_apart(tmp_path: Path) -> None:
    def host(rank: int) -> dict[str, str]:
        return {"SMDDP_HOST_ID": "left" if rank < 2 else "right"}

    with run_ranks("membership", processes=3, env_of=host, logs=tmp_path) as job:
        outputs = job.succeed(START)
    assert "rank 1 of 3, local 1 of 2" in outputs[1]
    assert "rank 2 of 3, local 0 of 1" in outputs[2]
    assert all("hosts 2" in output for output in outputs)


@pytest.mark.ours
def test_ranks_are_dealt_to_hosts_in_blocks(tmp_path: Path) -> None:
    with run_ranks("membership", processes=4, hosts=2, logs=tmp_path) as job:
        outputs = job.succeed(START)
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 4, local {rank % 2} of 2" in output
        assert "hosts 2" in output


@pytest.mark.ours
@pytest.mark.parametrize(
    ("name", "text", "first", "other"),
    [
        ("SMDDP_REDUCERS", "10.0.0.9:4000", "unset", "10.0.0.9:4000"),
        ("SMDDP_WIRE_DTYPE", "bf16", "unset", "bfloat16"),
        ("SMDDP_SHARD_BYTES", "64KiB", "24576", "65536"),
        ("SMDDP_SECRET", SECRET, "unset", "set"),
    ],
)
def test_unlike_settings_are_an_error_everywhere(
    tmp_path: Path, name, text, first, other
) -> None:
    def env_of(rank: int) -> dict[str, str]:
        return {name: text} if rank == 1 else {}

    with run_ranks("membership", processes=3, env_of=env_of, logs=tmp_path) as job:
        job.until_ended(START)
    for rank in job.ranks:
        assert rank.code == 1, job.logs()
        assert f"{name} is {first} on rank 0 and {other} on rank 1" in rank.output()
        assert f"-x {name}" in rank.output()
        assert SECRET not in rank.output()


@pytest.mark.ours
def test_arguments_of_init_win_over_variables(monkeypatch) -> None:
    monkeypatch.setenv("SMDDP_REDUCERS", "a:1,b:2")
    monkeypatch.setenv("SMDDP_WIRE_DTYPE", "f16")
    assert make_terms(None, None) == Terms(("a:1", "b:2"), "float16")
    assert make_terms(["c:3"], jnp.bfloat16) == Terms(("c:3",), "bfloat16")
    assert make_terms((), "float32") == Terms((), None)
    for arguments, says in (((["c"], None), "reducers='c'"), ((None, "i4"), "'i4'")):
        with pytest.raises(SettingError, match=says):
            make_terms(*arguments)


@pytest.mark.ours
def test_arguments_that_come_too_late_are_refused() -> None:
    cluster.init(reducers=(), wire_dtype="float32")  # what holds already
    with pytest.raises(ClusterError, match="before with wire_dtype=None, now with"):
        cluster.init(wire_dtype="bf16")
    with pytest.raises(ClusterError, match="before with reducers"):
        cluster.init(reducers=["h:1"])


@pytest.mark.ours
def test_the_default_wire_dtype_is_the_one_of_init() -> None:
    program = (
        "import smddp_jax; from smddp_jax import cluster; "
        "print(cluster.default_wire_dtype()); smddp_jax.init(wire_dtype='bf16'); "
        "print(cluster.default_wire_dtype())"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "bfloat16"]


def test_reducers_need_a_secret_of_the_user(monkeypatch) -> None:
    monkeypatch.delenv("SMDDP_SECRET", raising=False)
    assert problem_between(1, Terms(("h:1",))) is None
    assert problem_between(2, Terms()) is None
    assert "no SMDDP_SECRET" in (problem_between(2, Terms(("h:1",))) or "")
    monkeypatch.setenv("SMDDP_SECRET", SECRET)
    assert problem_between(2, Terms(("h:1",))) is None


@pytest.mark.ours
def test_a_process_that_init_did_not_meet_is_refused() -> None:
    assert cluster.group_problem([0]) is None
    assert cluster.group_problem([5, 0]) == (
        "processes [5] are not among the 1 that init() met"
    )


@pytest.mark.ours
@pytest.mark.parametrize(("hosts", "where"), [(1, "one host"), (2, "2 hosts")])
def test_groups_across_hosts_are_ours(tmp_path: Path, hosts: int, where: str) -> None:
    shape = {"processes": 4, "hosts": hosts, "devices": 2}
    with run_ranks("explained", **shape, logs=tmp_path) as job:
        outputs = job.succeed(START)
    for output in outputs:
        assert f"psum ours 4 processes of {where}" in output


@pytest.mark.ours
def test_a_job_that_is_up_is_joined(tmp_path: Path) -> None:
    with run_ranks("membership", "joined", logs=tmp_path) as job:
        outputs = job.succeed(START)
    assert "rank 1 of 2, local 1 of 2" in outputs[1]


@pytest.mark.ours
def test_init_after_the_backend_is_refused(tmp_path: Path) -> None:
    with run_ranks("membership", "late", logs=tmp_path) as job:
        job.until_ended(START)
    for rank in job.ranks:
        assert rank.code == 1
        assert "JAX made its backend before smddp_jax.init()" in rank.output()


@pytest.mark.ours
def test_a_missing_rank_is_an_error_in_time(tmp_path: Path) -> None:
    env = {"SMDDP_INIT_TIMEOUT": "4", "SMDDP_SIZE": "3"}
    with run_ranks("membership", env=env, logs=tmp_path) as job:
        job.until_ended(START)
    for rank in job.ranks:
        assert rank.code not in (0, None)
        assert "SMDDP_INIT_TIMEOUT" in rank.output()


@pytest.mark.ours
def test_an_occupied_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        env = {"SMDDP_COORDINATOR": address, "SMDDP_RANK": "0", "SMDDP_SIZE": "2"}
        with pytest.raises(AssertionError) as caught:
            run_alone("membership", env=env, seconds=START)
    assert f"can't listen on {address}" in str(caught.value)
    assert "SMDDP_COORDINATOR" in str(caught.value)


@pytest.mark.ours
def test_the_loopback_of_ipv6_works(tmp_path: Path) -> None:
    env = {"SMDDP_COORDINATOR": f"[::1]:{free_port()}"}
    with run_ranks("membership", env=env, logs=tmp_path) as job:
        job.succeed(START)


@pytest.mark.ours
def test_no_launcher_means_one_process() -> None:
    output = run_alone("membership", devices=4)
    assert "rank 0 of 1, local 0 of 1, devices 4 of 4" in output


MISSING = "import sys; sys.modules['smddp_jax._core'] = None; import smddp_jax; "


@pytest.mark.ours
def test_a_missing_engine_is_one_clear_line() -> None:
    program = MISSING + "smddp_jax.init()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert "smddp_jax's native module does not load" in last
    assert "SMDDP_FALLBACK=1" in last


@pytest.mark.ours
def test_a_missing_engine_can_be_fallen_back_from() -> None:
    program = MISSING + (
        "smddp_jax.init(); smddp_jax.install(); import jax; "
        "print(jax.pmap(lambda x: jax.lax.psum(x, 'i'), 'i')(jax.numpy.ones(8))[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(8, {"SMDDP_FALLBACK": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "8.0\n", done.stderr
    assert "running on stock JAX" in done.stderr
