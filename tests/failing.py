# SPDX-License-Identifier: Apache-2.0
"""What the tests of faults ask of a job: who failed when and why, and what is left."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from ranks import Job, Rank


def raised(rank: Rank) -> tuple[float, str]:
    """When a rank's collective failed, and with which message."""
    found = re.search(r"^RAISED (\S+) (.*)$", rank.output(), re.MULTILINE)
    assert found, f"rank {rank.index} raised no error:\n{rank.output()[-4000:]}"
    return float(found[1]), found[2]


def all_raise(
    job: Job, ranks: Sequence[Rank], since: float, within: float
) -> list[str]:
    """Each rank fails in time and ends by itself, non-zero; returns the messages."""
    job.until_ended(within + 10, ranks)
    messages = []
    for rank in ranks:
        when, message = raised(rank)
        assert when - since < within, (rank.index, when - since, message)
        assert rank.code not in (None, 0) and rank.code > 0, (rank.index, rank.code)
        messages.append(message)
    return messages


def group_members(leader: int) -> list[int]:
    """The processes of a rank's process group, zombies left out."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat[2]) == leader and stat[0] != "Z":
            members.append(int(entry.name))
    return members


def nothing_lingers(job: Job) -> None:
    job.until(
        lambda: not any(group_members(rank.pid) for rank in job.ranks),
        5,
        f"no process left: {[group_members(rank.pid) for rank in job.ranks]}",
    )


def steps_right(rank: Rank) -> int:
    """How many steps of `programs/in_flight.py` have been right so far."""
    output = rank.output()
    assert "WRONG" not in output, output[-4000:]
    return output.count("\nright ") + output.startswith("right ")


def goes_on(job: Job, ranks: Sequence[Rank], seconds: float, steps: int = 5) -> float:
    """Waits until each rank has that many more right results; returns the seconds."""
    before = [steps_right(rank) for rank in ranks]

    def moved() -> bool:
        assert all(rank.code is None for rank in ranks), job.logs()
        pairs = zip(before, ranks, strict=True)
        return all(steps_right(rank) >= n + steps for n, rank in pairs)

    return job.until(moved, seconds, f"{steps} more steps")


def every_result(rank: Rank) -> dict[str, int]:
    """What became of all that a rank launched: right, or an error; nothing else."""
    found = re.search(r"^ENDED (.*)$", rank.output(), re.MULTILINE)
    assert found, f"rank {rank.index} judged nothing:\n{rank.output()[-4000:]}"
    count = ast.literal_eval(found[1])
    assert "wrong" not in count, rank.output()[-4000:]
    assert count["launched"] == count.get("right", 0) + count.get("errors", 0), count
    return count


def statistics(rank: Rank) -> dict[str, int]:
    """The counters of a rank's engine at its end."""
    found = re.search(r"^STATS (.*)$", rank.output(), re.MULTILINE)
    assert found, rank.output()[-4000:]
    return ast.literal_eval(found[1])
