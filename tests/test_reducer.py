# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax reducer`: how it starts and ends, and that a job can use it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ranks import run_ranks

from smddp_jax.cli import main

pytestmark = pytest.mark.any_jax

REDUCER = [sys.executable, "-m", "smddp_jax", "reducer"]
SECRET = "known to all of the job"


class Reducer:
    """A running one, and what it has written."""

    def __init__(self, process: subprocess.Popen[str]):
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.errors = process.stderr
        said = process.stdout.readline()
        found = re.fullmatch(r"listening on (\S+)\n", said)
        assert found, said + process.stderr.read()
        self.address = found[1]

    def end(self, signum: int = signal.SIGTERM) -> str:
        """Ends it; returns what it wrote to stderr and had not been read."""
        self.process.send_signal(signum)
        return self.ended()

    def ended(self) -> str:
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


@contextmanager
def reducer(*arguments: str, command: list[str] = REDUCER) -> Iterator[Reducer]:
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *arguments],
        env={**os.environ, "SMDDP_SECRET": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reducer(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(signum: int) -> None:
    with reducer() as started:
        assert started.end(signum) == ""


def test_sigusr1_asks_for_statistics() -> None:
    with reducer("--threads", "1", "--staging-bytes", "8MiB") as started:
        started.process.send_signal(signal.SIGUSR1)
        line = started.errors.readline()
        assert re.match(r"smddp-jax reducer: 0 jobs ended, 0 connections, 0 ref", line)
        assert started.process.poll() is None


def test_it_does_without_jax() -> None:
    program = (
        "import sys; from smddp_jax.cli import main; code = main(sys.argv[1:]);"
        "print([name for name in ('jax', 'jaxlib', 'numpy') if name in sys.modules],"
        " file=sys.stderr); sys.exit(code)"
    )
    with reducer(command=[sys.executable, "-c", program, "reducer"]) as started:
        assert started.end() == "[]\n"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["reducer", *arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture
def _signals() -> Iterator[None]:
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.mark.usefixtures("_signals")
def test_what_it_needs_to_start(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("SMDDP_SECRET", raising=False)
    here = ("--listen", "127.0.0.1:0")
    assert "set SMDDP_SECRET, or name a file" in refused(capsys, *here)
    file = tmp_path / "secret"
    at = ("--secret-file", str(file))
    assert "can't be read" in refused(capsys, *here, *at)
    file.write_text("\n")
    assert f"{file} is empty" in refused(capsys, *here, *at)
    file.write_text("too short\n")
    assert "--secret-file" in (said := refused(capsys, *here, *at))
    assert "too short" not in said

    file.write_text(SECRET + "\n")
    file.chmod(0o644)
    said = refused(capsys, "--listen", "nowhere", *at)
    assert f"chmod 600 {file}" in said
    assert "no reducer at nowhere" in said
    file.chmod(0o600)
    assert "chmod" not in refused(capsys, "--listen", "nowhere", *at)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--listen"),
        (("--listen", "a:1", "--threads", "0"), "--threads"),
        (("--listen", "a:1", "--staging-bytes", "much"), "no number of bytes"),
        (("--listen", "a:1", "--secret", "x"), "--secret"),
    ],
)
def test_arguments_are_checked(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["reducer", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_address_in_use_is_named() -> None:
    with reducer() as started:
        done = subprocess.run(
            [*REDUCER, "--listen", started.address],
            env={**os.environ, "SMDDP_SECRET": SECRET},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert started.address in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_uses_it(tmp_path: Path) -> None:
    with reducer("--once") as started:
        env = {"SMDDP_REDUCERS": started.address, "SMDDP_SECRET": SECRET}
        with run_ranks("sums", hosts=2, logs=tmp_path, env=env) as job:
            job.succeed(120)
        said = started.ended()
    summed = re.search(r"1 jobs ended, 0 connections.*; (\d+) shards", said)
    assert summed, said
    assert int(summed[1]) > 0
