# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax run`: what the ranks get, what comes out, and that nothing stays."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import PROGRAMS

from smddp_jax._errors import ClusterError
from smddp_jax.launch import Host, Job

pytestmark = pytest.mark.any_jax

WORKER = str(PROGRAMS / "worker.py")
RUN = [sys.executable, "-m", "smddp_jax", "run"]


def launch(
    *arguments: str, options: tuple[str, ...] = ("-n", "2"), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *options, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


@contextmanager
def launched(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        launcher = subprocess.Popen([*RUN, *arguments], stdout=out, stderr=out)
    try:
        yield launcher
    finally:
        launcher.kill()
        launcher.wait()


def until(condition: Callable[[], bool], seconds: float) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds
        time.sleep(0.02)
    return time.monotonic() - start


def pids(log: Path) -> list[int]:
    return [int(p) for p in re.findall(r"(?:pid|child) (\d+)", log.read_text())]


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_ranks_get_their_place_and_their_arguments() -> None:
    names = "SMDDP_RANK,SMDDP_SIZE,SMDDP_LOCAL_RANK,SMDDP_LOCAL_SIZE,SMDDP_COORDINATOR"
    names += ",JAX_NUM_CPU_DEVICES,SMDDP_TIMEOUT"
    options = ("-n", "3", "--devices-per-process", "2", "--timeout", "7")
    done = launch(WORKER, f"variables={names}", "say=-n 5 --timeout 3", options=options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for rank in range(3):
        for line in (
            f"SMDDP_RANK={rank}",
            "SMDDP_SIZE=3",
            f"SMDDP_LOCAL_RANK={rank}",
            "SMDDP_LOCAL_SIZE=3",
            "JAX_NUM_CPU_DEVICES=2",
            "SMDDP_TIMEOUT=7.0",
            "-n 5 --timeout 3",
        ):
            assert f"[{rank}] {line}" in lines
    assert len(set(re.findall(r"COORDINATOR=(127\.0\.0\.1:\d+)", done.stdout))) == 1


ON_TWO_HOSTS = """
import sys
from smddp_jax.launch import Host, Job, run_job
hosts = [Host(n, "127.0.0.1", ("env", f"WHERE={n}")) for n in ("left", "right")]
sys.exit(run_job(Job(sys.argv[1:], processes=4, hosts=hosts)))
"""


def on_two_hosts(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ON_TWO_HOSTS, WORKER, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_ranks_are_dealt_to_hosts_in_blocks() -> None:
    names = "WHERE,SMDDP_RANK,SMDDP_SIZE,SMDDP_LOCAL_RANK,SMDDP_LOCAL_SIZE"
    done = on_two_hosts(f"variables={names},SMDDP_COORDINATOR")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for rank in range(4):
        for line in (
            f"WHERE={'left' if rank < 2 else 'right'}",
            f"SMDDP_RANK={rank}",
            "SMDDP_SIZE=4",
            f"SMDDP_LOCAL_RANK={rank % 2}",
            "SMDDP_LOCAL_SIZE=2",
        ):
            assert f"[{rank}] {line}" in lines
    assert len(set(re.findall(r"COORDINATOR=(127\.0\.0\.1:\d+)", done.stdout))) == 1


def test_a_failure_names_its_host() -> None:
    done = on_two_hosts("@2", "exit=7", "sleep=100")
    assert done.returncode == 7
    assert "smddp-jax: rank 2 on right failed first: exit code 7\n" in done.stderr
    assert "rank 1 on left ended by SIGTERM" in done.stderr


def test_hosts_get_equally_many_ranks() -> None:
    hosts = [Host(name, "::1", ()) for name in "abc"]
    assert re.fullmatch(r"\[::1\]:\d+", Job([], 3, hosts=hosts).coordinator())
    with pytest.raises(ClusterError, match="4 processes can't be dealt evenly to 3"):
        Job([], 4, hosts=hosts)


def test_ranks_share_a_secret() -> None:
    def secrets(**environment: str) -> list[str]:
        done = launch(WORKER, "variables=SMDDP_SECRET", **environment)
        assert done.returncode == 0, done.stderr
        return re.findall(r"SMDDP_SECRET=(.*)", done.stdout)

    first, other = secrets(SMDDP_SECRET="")
    assert first == other and re.fullmatch("[0-9a-f]{64}", first)
    assert secrets(SMDDP_SECRET="") != [first, first]
    mine = "a secret of the user's"
    assert secrets(SMDDP_SECRET=mine) == [mine, mine]
    # Reducers that run already know the user's secret, or none.
    assert secrets(SMDDP_SECRET="", SMDDP_REDUCERS="h:1") == ["", ""]
    assert "secret" not in repr(Job([], 1))


def test_options_between_hosts_set_variables() -> None:
    names = "SMDDP_REDUCERS,SMDDP_WEIGHTS,SMDDP_WIRE_DTYPE,SMDDP_SECRET"
    between = ("--reducers", "h:1,[::1]:2", "--weights", "measure")
    options = ("-n", "2", *between, "--wire-dtype", "bf16")
    done = launch(WORKER, f"variables={names}", options=options, SMDDP_SECRET="")
    assert done.returncode == 0, done.stderr
    for line in (
        "SMDDP_REDUCERS=h:1,[::1]:2",
        "SMDDP_WEIGHTS=measure",
        "SMDDP_WIRE_DTYPE=bf16",
        "SMDDP_SECRET=",  # none is made that the reducers could not know
    ):
        assert f"[1] {line}" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--reducers", "h", "--reducers='h' is not usable: set it to host:port"),
        ("--weights", "1,-1", "--weights='1,-1' is not usable"),
        ("--wire-dtype", "int8", "--wire-dtype='int8' is not usable"),
    ],
)
def test_unusable_options_are_refused(option: str, value: str, says: str) -> None:
    done = launch(WORKER, options=("-n", "2", f"{option}={value}"))
    assert done.returncode == 2
    assert says in done.stderr


def test_variables_pass_byte_for_byte() -> None:
    odd = b"a=b \"c\" 'd' $e \\ \xff\xfe \xc3\xa9"
    name = "-O1 --xla_dump_to=/tmp/x y"
    done = subprocess.run(
        [*RUN, "-n", "2", "-x", "MORE=c=d e", WORKER, "variables=ODD,XLA_FLAGS,MORE"],
        env={**os.environ, "XLA_FLAGS": name} | {"ODD": os.fsdecode(odd)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    for rank in (b"[0] ", b"[1] "):
        assert rank + b"ODD=" + odd + b"\n" in done.stdout
        assert rank + b"XLA_FLAGS=" + name.encode() + b"\n" in done.stdout
        assert rank + b"MORE=c=d e\n" in done.stdout


def test_a_module_runs_too() -> None:
    done = launch("-m", "platform", "--terse")
    assert done.returncode == 0
    assert re.search(r"^\[1\] Linux", done.stdout, re.MULTILINE)


def test_allocator_settings_yield_to_the_users() -> None:
    options = ("-n", "2", "--allocator", "huge")
    done = launch(WORKER, "variables=GLIBC_TUNABLES", options=options)
    assert done.stdout.count("GLIBC_TUNABLES=glibc.malloc.hugetlb=1") == 2
    mine = "glibc.malloc.arena_max=1"
    done = launch(
        WORKER, "variables=GLIBC_TUNABLES", options=options, GLIBC_TUNABLES=mine
    )
    assert done.stdout.count(f"GLIBC_TUNABLES={mine}\n") == 2


def test_more_ranks_than_cores_run() -> None:
    options = ("-n", str(4 * (os.cpu_count() or 1)))
    assert launch(WORKER, "say=hello", options=options).returncode == 0


def test_the_first_failure_gives_code_and_message() -> None:
    done = launch(WORKER, "@1", "raise=bad batch", "sleep=100", options=("-n", "3"))
    assert done.returncode == 1
    _, found, end = done.stderr.partition(
        "smddp-jax: rank 1 failed first: exit code 1\n"
    )
    assert found
    assert "    ValueError: bad batch\n" in end
    assert "rank 0 ended by SIGTERM, sent by the launcher" in end


@pytest.mark.parametrize(
    ("action", "code", "says"),
    [
        ("exit=7", 7, "exit code 7"),
        ("kill=9", 137, "ended by SIGKILL"),
        ("kill=11", 139, "ended by SIGSEGV"),
    ],
)
def test_exit_codes_and_signals_are_passed_on(action, code, says) -> None:
    start = time.monotonic()
    done = launch(WORKER, "@1", action, "sleep=100")
    assert done.returncode == code
    assert f"smddp-jax: rank 1 failed first: {says}\n" in done.stderr
    assert time.monotonic() - start < 15


def test_who_raised_is_first_although_the_other_ended_before() -> None:
    # As in a job: rank 1 raises, rank 0's collective fails, rank 1 is slow to end.
    script = (
        "import atexit, os, sys, time; "
        "r = os.environ['SMDDP_RANK']; "
        "atexit.register(time.sleep, 1.5 if r == '1' else 0); "
        "time.sleep(0 if r == '1' else 0.5); raise RuntimeError('from ' + r)"
    )
    program = f"exec({script!r})"
    done = subprocess.run(
        [*RUN, "-n", "2", "--", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "smddp-jax: rank 1 failed first" in done.stderr, done.stderr


def test_an_early_leaver_is_no_failure() -> None:
    done = launch(WORKER, "@0", "exit=0", "sleep=1", "say=late")
    assert done.returncode == 0
    assert "[1] late" in done.stdout


def test_lines_come_out_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with launched(log, "-n", "2", WORKER, "say=now", "sleep=60"):
        until(lambda: log.read_text().count("now") == 2, 20)


def test_a_progress_bar_becomes_one_line() -> None:
    done = launch(WORKER, "bar", "say=after")
    assert sorted(done.stderr.splitlines()) == ["[0] 100%|", "[1] 100%|"]


def test_a_progress_bar_stays_live_on_a_terminal() -> None:
    leader, follower = pty.openpty()
    launcher = subprocess.Popen(
        [*RUN, "-n", "2", WORKER, "bar"], stdout=follower, stderr=follower
    )
    os.close(follower)
    output = b""
    while True:
        try:
            output += os.read(leader, 4096)
        except OSError:
            break
    os.close(leader)
    assert launcher.wait(20) == 0
    assert b"\r\x1b[K[0] 60%|" in output
    assert b"[0] 100%|\r\n" in output and b"[1] 100%|\r\n" in output


@pytest.mark.parametrize(
    ("signum", "temper", "code", "within"),
    [
        (signal.SIGINT, "", 130, 5),
        (signal.SIGINT, "deaf", 130, 10),
        (signal.SIGINT, "kill=19", 130, 10),
        (signal.SIGTERM, "", 143, 5),
        (signal.SIGTERM, "kill=19", 143, 10),
        (signal.SIGKILL, "", -9, 30),
        (signal.SIGKILL, "deaf", -9, 30),
        (signal.SIGKILL, "kill=19", -9, 30),
    ],
)
def test_nothing_outlives_the_launcher(tmp_path, signum, temper, code, within) -> None:
    log = tmp_path / "log"
    actions = ["child", "pid", *filter(None, [temper]), "sleep=300"]
    with launched(log, "-n", "2", WORKER, *actions) as launcher:
        until(lambda: len(pids(log)) == 4, 20)
        time.sleep(0.2)
        started = pids(log)
        assert all(map(alive, started))
        launcher.send_signal(signum)
        assert launcher.wait(within) == code
        until(lambda: not any(map(alive, started)), within)


def test_a_restart_at_once_works_after_sigkill(tmp_path: Path) -> None:
    for attempt in range(5):
        log = tmp_path / f"log{attempt}"
        with launched(log, "-n", "2", WORKER, "pid", "sleep=300") as launcher:
            until(lambda log=log: len(pids(log)) == 2, 20)
            launcher.kill()
    assert launch(WORKER, "say=again").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name a script"),
        (("-n", "0", "x.py"), "must be 1 or more"),
        (("-x", "FOO", "x.py"), "is not NAME=VALUE"),
        (("-x", "SMDDP_SECRET=0123456789abcdef", "x.py"), "set it in the environment"),
    ],
)
def test_wrong_arguments_are_explained(arguments, says) -> None:
    done = subprocess.run(
        [*RUN, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert "0123456789abcdef" not in done.stderr


def test_the_settings_are_listed() -> None:
    command = [sys.executable, "-m", "smddp_jax", "env"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
    assert "| `SMDDP_TIMEOUT` |" in done.stdout


def test_who_was_killed_is_first_although_another_noticed_before() -> None:
    script = (
        "import os, time; r = os.environ['SMDDP_RANK']; "
        "time.sleep(1 if r == '1' else 0); "
        "r == '1' and os.kill(os.getpid(), 9); raise RuntimeError('peer lost')"
    )
    done = launch("--", "-c", script)
    assert done.returncode == 137
    assert "smddp-jax: rank 1 failed first: ended by SIGKILL" in done.stderr
