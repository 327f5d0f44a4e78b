# SPDX-License-Identifier: Apache-2.0
"""`smddp-jax reducer`: sums for the workers of a job, on a host that has no worker.

Imports neither jax nor anything that does: such a host needs no more than this package.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from smddp_jax import _env
from smddp_jax._errors import ClusterError, EngineUnavailableError, SettingError
from smddp_jax.cli.arguments import positive

if TYPE_CHECKING:
    from smddp_jax import _core

# How long a signal or the end of a job may wait until it is noticed.
_TURN_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    # No abbreviation: `--secret TEXT` must not pass for a file's name.
    parser.allow_abbrev = False
    parser.epilog = (
        "The secret of the jobs comes from SMDDP_SECRET or a file, never from the "
        "command line, which others can read. SIGUSR1 prints statistics."
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="HOST:PORT",
        help="where workers connect to, as in their SMDDP_REDUCERS; port 0: a free one",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        default=0,
        metavar="N",
        help="at most (default: one per core); each serves one of the workers' "
        "SMDDP_CONNECTIONS, or several",
    )
    parser.add_argument(
        "--staging-bytes",
        type=_bytes,
        default=1 << 30,
        metavar="SIZE",
        help="most memory for shards under way (default: 1GiB)",
    )
    parser.add_argument("--once", action="store_true", help="end with the first job")
    parser.add_argument(
        "--secret-file", type=Path, metavar="FILE", help="holds what peers must know"
    )


def run(args: argparse.Namespace) -> int:
    """Serves until a signal, or the end of the first job; returns 0."""
    wanted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        wanted.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, note)
    server = _serve(args)
    print(f"listening on {server.address}", flush=True)
    jobs = 0
    ended = False
    while not ended:
        ended = server.wait(_TURN_SECONDS)
        asked, wanted[:] = wanted[:], []
        stats = server.stats()
        if signal.SIGUSR1 in asked or stats["jobs"] > jobs:
            print(_line(stats), file=sys.stderr, flush=True)
        jobs = stats["jobs"]
        if signal.SIGTERM in asked or signal.SIGINT in asked:
            server.stop()
    return 0


def _serve(args: argparse.Namespace) -> _core.ReducerServer:
    try:
        core = importlib.import_module("smddp_jax._core")
    except ImportError as error:
        raise EngineUnavailableError(
            f"smddp_jax's native module does not load ({error}): reinstall with "
            "`pip install --force-reinstall smddp-jax`"
        ) from error
    try:
        return core.ReducerServer(
            args.listen,
            _secret(args.secret_file),
            args.threads,
            args.staging_bytes,
            args.once,
            _env.get("SMDDP_SILENCE"),
        )
    except RuntimeError as error:
        raise ClusterError(f"no reducer at {args.listen}: {error}") from None


def _secret(file: Path | None) -> str:
    if file is None:
        secret = _env.get("SMDDP_SECRET")
        if not secret:
            raise SettingError(
                "a reducer needs the secret of its jobs: set SMDDP_SECRET, or name a "
                "file by --secret-file"
            )
        return secret
    try:
        text = file.read_text().strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--secret-file {file} can't be read: {error}") from None
    if not text:
        raise SettingError(f"--secret-file {file} is empty: write the secret into it")
    if mode & 0o077:
        print(
            f"smddp-jax: warning: others can read {file}: chmod 600 {file}",
            file=sys.stderr,
        )
    return _env.parse("SMDDP_SECRET", text, f"--secret-file {file}")


def _line(stats: dict[str, float]) -> str:
    gigabytes = stats["bytes"] / 1e9
    cost = f"{stats['cpu_seconds'] / gigabytes:.3f}" if gigabytes else "-"
    return (
        f"smddp-jax reducer: {stats['jobs']} jobs ended, "
        f"{stats['connections']} connections, {stats['refused']} refused; "
        f"{stats['segments']} shards, {gigabytes:.3f} GB summed, "
        f"{cost} s of CPU per GB, {stats['stale']} stale frames; "
        f"{stats['staging_bytes'] / 2**20:.1f} MiB of staging, "
        f"{stats['memory_bytes'] / 2**20:.1f} MiB in all"
    )


def _bytes(text: str) -> int:
    try:
        return _env.parse("SMDDP_STAGING_BYTES", text)
    except SettingError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of bytes, such as 1048576, 256MiB or 2GiB"
        ) from None
