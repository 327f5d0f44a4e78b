# SPDX-License-Identifier: Apache-2.0
"""One rank of a benchmark: `python -m smddp_jax.bench CASES FOLDER`.

CASES is a JSON file with a list of cases; the rank writes what it measured to
`FOLDER/<rank>.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from smddp_jax import cluster
from smddp_jax.bench.cases import Case
from smddp_jax.bench.measure import measure


def main(cases_file: str, folder: str) -> None:
    """Measures all cases, one after the other, together with the other ranks."""
    cases = [
        Case.from_dict(fields) for fields in json.loads(Path(cases_file).read_text())
    ]
    cluster.init()
    measured = []
    for case in cases:
        start = time.monotonic()
        measured.append(measure(case))
        if cluster.rank() == 0:
            seconds = time.monotonic() - start
            what = f"{case.kind} of {case.bytes} B, {case.form}"
            print(f"{what}: took {seconds:.1f} s", file=sys.stderr, flush=True)
    target = Path(folder) / f"{cluster.rank()}.json"
    target.write_text(json.dumps(measured))


if __name__ == "__main__":
    main(*sys.argv[1:])
