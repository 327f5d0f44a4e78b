# SPDX-License-Identifier: Apache-2.0
"""The layout's rules, read from the sources: nothing here imports the package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "xla_ffi"
PACKAGE = ROOT / "smddp_jax"

# A file includes or imports from its own folder and from lower floors only.
NATIVE_FLOORS = {
    "base": 0,
    "reduce": 1,
    "plan": 1,
    "wire": 1,
    "device": 1,
    "transport": 2,
    "host": 2,
    "comm": 3,
    "reducer": 3,
    "collective": 4,
    "gpu": 5,
    "ffi": 6,
}
# `_errors` is the cellar: also the settings, on floor 0 beside it, must raise.
PYTHON_FLOORS = {
    "_errors": -1,
    "_env": 0,
    "_core": 0,
    "_cuda": 0,
    "_jax_backend": 0,
    "_jax_compat": 0,
    "_native": 1,
    "cluster": 2,
    "collectives": 3,
    "optim": 4,
    "data": 4,
    "launch": 4,
    "bench": 4,
    "monitor": 4,
    "storage": 4,
    "planner": 4,
    "report": 5,
    "cli": 6,
    "__init__": 7,
    "__main__": 8,
}
MODULE_FLOOR = 7

CC_SUFFIXES = {".cc", ".h", ".cu", ".cuh"}
CMAKE_NAMES = {"CMakeLists.txt"}
FORBIDDEN_NAMES = {
    *("util", "utils", "common", "misc", "helper", "helpers", "impl", "v2"),
}
GENERATED = {PACKAGE / "_core.pyi", PACKAGE / "_cuda.pyi"}
MAY_TOUCH_PRIVATE_JAX = ("_jax_backend.py", "_jax_compat.py")
MAY_READ_ENVIRONMENT = ("_env.py", "launch", "cluster")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def _sources() -> list[Path]:
    """Every source file of ours, whether or not git knows it yet."""
    folders = (NATIVE, PACKAGE, ROOT / "tests", ROOT / "examples", ROOT / "benchmarks")
    files = [
        file
        for folder in folders
        for file in folder.rglob("*")
        if file.suffix in {".py", ".pyi", ".cmake", *CC_SUFFIXES}
        or file.name in CMAKE_NAMES
    ]
    files += [ROOT / "Makefile", ROOT / ".ci" / "run"]
    return sorted(file for file in files if file not in GENERATED)


def _native_files() -> list[Path]:
    return [
        file
        for file in _sources()
        if file.is_relative_to(NATIVE) and file.suffix in CC_SUFFIXES
    ]


def _python_files() -> list[Path]:
    return [file for file in _sources() if file.is_relative_to(PACKAGE)]


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _native_place(file: Path) -> tuple[str, int]:
    """The folder (or "module") whose rules a native file follows, and its floor."""
    parts = file.relative_to(NATIVE).parts
    if len(parts) == 1:
        return "module", MODULE_FLOOR
    folder = parts[1] if parts[0] == "tests" else parts[0]
    return folder, NATIVE_FLOORS.get(folder, MODULE_FLOOR)


def _module(file: Path) -> str:
    first = file.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").removesuffix(".pyi")


def _imported_modules(file: Path) -> Iterator[tuple[str, int]]:
    """Full names of what a Python file imports, wherever in the file it does."""
    tree = ast.parse(file.read_text(), str(file))
    package = ["smddp_jax", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", node.lineno


def _imported_from_us(name: str) -> str | None:
    """The module of ours that `name` belongs to, or None if it is not ours."""
    first, *rest = name.split(".")
    if first != "smddp_jax":
        return None
    return rest[0] if rest and rest[0] in PYTHON_FLOORS else "__init__"


def test_every_folder_has_a_floor() -> None:
    native = {file.parent.name for file in NATIVE.glob("*/*.cc")}
    python = {_module(file) for file in _python_files()}
    assert native <= set(NATIVE_FLOORS)
    assert python <= set(PYTHON_FLOORS)


def test_native_code_includes_only_lower_floors() -> None:
    wrong = []
    for file in _native_files():
        folder, floor = _native_place(file)
        for include in INCLUDE.findall(file.read_text()):
            target = include.split("/")[0]
            if target == folder or target not in NATIVE_FLOORS:
                continue
            if NATIVE_FLOORS[target] >= floor:
                wrong.append(f"{_name(file)} includes {include}")
    assert not wrong


def test_targets_link_only_lower_floors() -> None:
    wrong = []
    for folder, floor in NATIVE_FLOORS.items():
        lists = NATIVE / folder / "CMakeLists.txt"
        if not lists.exists():
            continue
        found = re.search(r"\bDEPS\b([^)]*)\)", lists.read_text())
        deps = found.group(1).split() if found else []
        wrong += [
            f"{folder} links {dep}" for dep in deps if NATIVE_FLOORS[dep] >= floor
        ]
    assert not wrong


@pytest.mark.parametrize(
    ("prefix", "folders"),
    [
        ("xla/", {"ffi"}),
        ("nanobind/", {"module"}),
        ("Python.h", {"module"}),
        ("cuda", {"device", "cuda"}),  # tests/cuda/, the latter
    ],
)
def test_foreign_headers_stay_in_their_place(prefix: str, folders: set[str]) -> None:
    wrong = [
        f"{_name(file)} includes {include}"
        for file in _native_files()
        for include in INCLUDE.findall(file.read_text())
        if include.startswith(prefix) and _native_place(file)[0] not in folders
    ]
    assert not wrong


def test_native_sources_are_listed_in_cmake() -> None:
    missing = []
    for file in _native_files():
        if file.suffix not in {".cc", ".cu"}:
            continue
        parts = file.relative_to(NATIVE).parts
        top = NATIVE / (parts[0] if len(parts) > 1 else "")
        lists = [folder / "CMakeLists.txt" for folder in (top, file.parent)]
        text = "".join(each.read_text() for each in lists if each.exists())
        if not re.search(rf"\b{re.escape(file.name)}", text):
            missing.append(_name(file))
    assert not missing


def test_python_imports_only_lower_floors() -> None:
    wrong = []
    for file in _python_files():
        module = _module(file)
        for name, line in _imported_modules(file):
            target = _imported_from_us(name)
            if target is None or target == module:
                continue
            if PYTHON_FLOORS[target] >= PYTHON_FLOORS[module]:
                wrong.append(f"{_name(file)}:{line} imports {name}")
    assert not wrong


def test_launch_imports_no_jax() -> None:
    wrong = [
        f"{_name(file)}:{line} imports {name}"
        for file in _python_files()
        if _module(file) == "launch"
        for name, line in _imported_modules(file)
        if name.split(".")[0] in {"jax", "jaxlib"}
    ]
    assert not wrong


def test_private_jax_is_touched_in_its_place() -> None:
    wrong = []
    for file in _python_files():
        if file.name in MAY_TOUCH_PRIVATE_JAX:
            continue
        wrong += [
            f"{_name(file)}:{line} imports {name}"
            for name, line in _imported_modules(file)
            if name.startswith("jax._src")
        ]
        wrong += [
            f"{_name(file)}:{node.lineno} reads jax._src"
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and node.attr == "_src"
        ]
    assert not wrong


def test_environment_is_read_in_its_place() -> None:
    wrong = []
    for file in _python_files():
        if file.relative_to(PACKAGE).parts[0] in MAY_READ_ENVIRONMENT:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            attribute = node.attr if isinstance(node, ast.Attribute) else None
            if attribute in {"environ", "getenv"}:
                wrong.append(f"{_name(file)}:{node.lineno} reads os.{attribute}")
        wrong += [
            f"{_name(file)}:{line} imports {name}"
            for name, line in _imported_modules(file)
            if name in {"os.environ", "os.getenv"}
        ]
    wrong += [
        f"{_name(file)} calls getenv"
        for file in _native_files()
        if "getenv(" in file.read_text() and "tests" not in file.parts
    ]
    assert not wrong


def test_files_are_short() -> None:
    lengths = {
        _name(file): len(file.read_text().splitlines())
        for file in _sources()
        if file.suffix in {".py", *CC_SUFFIXES}
    }
    too_long = {name: length for name, length in lengths.items() if length > 500}
    long = {name: length for name, length in lengths.items() if length >= 350}
    assert not too_long
    assert len(long) * 10 <= len(lengths), long


def test_file_names_say_what_is_inside() -> None:
    wrong = [
        _name(file)
        for file in _sources()
        if FORBIDDEN_NAMES & set(file.stem.strip("_").split("_"))
    ]
    assert not wrong


def test_every_source_file_names_its_licence() -> None:
    wrong = [
        _name(file)
        for file in _sources()
        if "SPDX-License-Identifier: Apache-2.0"
        not in "\n".join(file.read_text().splitlines()[:2])
    ]
    assert not wrong
