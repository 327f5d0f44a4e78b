# SPDX-License-Identifier: Apache-2.0
"""What the README says of settings and files is what there is."""

import re
from pathlib import Path

from smddp_jax import _env

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_settings_table_is_the_one_of_the_code() -> None:
    table = README.split("<!-- settings", 1)[1].split("-->\n", 1)[1]
    table = table.split("<!-- end of settings -->", 1)[0]
    assert table == _env.as_markdown(), f"the README needs:\n{_env.as_markdown()}"


def test_every_path_it_names_exists() -> None:
    linked = re.findall(r"\]\(([^):#]+)\)", README)
    quoted = re.findall(r"`((?:smddp_jax|xla_ffi|examples|benchmarks)/[^` ]*)`", README)
    missing = [name for name in {*linked, *quoted} if not (ROOT / name).exists()]
    assert not missing
