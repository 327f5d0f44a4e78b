# SPDX-License-Identifier: Apache-2.0
"""A rank for the launcher's tests. Uses no JAX, so that it starts at once.

Arguments: what to do, in order; `@<rank>` limits the next action to one rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

rank = os.environ["SMDDP_RANK"]
actions = sys.argv[1:]
mine = True
while actions:
    action, _, value = actions.pop(0).partition("=")
    if action.startswith("@"):
        mine = action == f"@{rank}"
        continue
    if not mine:
        mine = True
        continue
    mine = True
    if action == "say":
        print(value)
    elif action == "variables":
        for name in value.split(","):
            os.write(1, b"%s=%s\n" % (name.encode(), os.environb[name.encode()]))
    elif action == "child":
        child = subprocess.Popen(["sleep", "300"])
        print("child", child.pid)
    elif action == "pid":
        print("pid", os.getpid())
    elif action == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif action == "bar":
        for percent in range(0, 101, 20):
            sys.stderr.write(f"\r{percent}%|")
            sys.stderr.flush()
            time.sleep(0.01)
        sys.stderr.write("\n")
    elif action == "raise":
        raise ValueError(value)
    elif action == "exit":
        sys.exit(int(value))
    elif action == "kill":
        os.kill(os.getpid(), int(value))
    elif action == "sleep":
        time.sleep(float(value))
    else:
        raise SystemExit(f"unknown action {action!r}")
