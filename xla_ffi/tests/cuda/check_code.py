# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the kernels: widths of their accesses, registers, spills.

`python check_code.py LIBRARY` reads compiled code with cuobjdump, which calls
nvdisasm, and needs no GPU. It fails if a kernel accesses the user's arrays or staging
in anything but vectors of 16 bytes, single bytes (at the ends of arrays) and the
protocol's words of 8, or uses local memory, which is where registers are spilled to.
"""

import collections
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FUNCTION = re.compile(r"Function : (\S+)")
ARCHITECTURE = re.compile(r"arch = (sm_\w+)")
ACCESS = re.compile(r"\b(LDG|STG|LD|ST|LDL|STL)\b(\S*)")
USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)\D+\d+ LOCAL:(\d+)")
LOAD, STORE = "load", "store"


def find_cuobjdump() -> str | None:
    """The tool, where a toolkit or the wheels from PyPI have put it."""
    here = [Path(p) / "nvidia" / "cu13" / "bin" for p in sys.path]
    return shutil.which("cuobjdump", path=os.pathsep.join(map(str, here))) or (
        shutil.which("cuobjdump")
    )


def dump(tool: str, option: str, library: str) -> str:
    """The output of cuobjdump, which looks for nvdisasm on the path."""
    path = os.pathsep.join([str(Path(tool).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        [tool, option, library],
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def width(modifiers: str) -> int:
    """Bytes of an access to memory, from what follows its opcode."""
    for bits in (128, 64, 32, 16, 8):
        if re.search(rf"(^|\.)[US]?{bits}(\.|$)", modifiers):
            return bits // 8
    return 4


class Kernel:
    """One kernel's code for one architecture."""

    def __init__(self) -> None:
        self.accesses: collections.Counter[tuple[str, int]] = collections.Counter()
        self.local_accesses = 0
        self.registers = 0
        self.local_bytes = 0

    def read(self, line: str) -> None:
        """Counts what a line of assembly does to memory."""
        found = ACCESS.search(line)
        if not found:
            return
        opcode, modifiers = found.groups()
        if opcode in {"LDL", "STL"}:
            self.local_accesses += 1
            return
        is_word = "STRONG" in modifiers
        kind = LOAD if opcode.startswith("LD") else STORE
        self.accesses[("word " if is_word else "") + kind, width(modifiers)] += 1

    def faults(self) -> list[str]:
        """What this kernel must not have, or lacks."""
        faults = []
        for (kind, size), times in sorted(self.accesses.items()):
            allowed = {8} if kind.startswith("word") else {1, 16}
            if size not in allowed:
                faults.append(f"{times} {kind}s of {size} bytes")
        for kind in (LOAD, STORE):
            if not self.accesses[kind, 16]:
                faults.append(f"no {kind} of 16 bytes")
        if self.local_accesses or self.local_bytes:
            faults.append(f"{self.local_bytes} bytes of local memory (spills)")
        return faults


def read_kernels(sass: str, usage: str) -> dict[tuple[str, str], Kernel]:
    """Every kernel by architecture and name."""
    kernels: dict[tuple[str, str], Kernel] = collections.defaultdict(Kernel)
    architecture = name = ""
    for line in sass.splitlines():
        if found := ARCHITECTURE.search(line):
            architecture = found.group(1)
        elif found := FUNCTION.search(line):
            name = found.group(1)
        elif name:
            kernels[architecture, name].read(line)
    # In the report of usage a function's figures stand on the line below its name.
    for line in re.sub(r":\n\s+REG", ": REG", usage).splitlines():
        if found := ARCHITECTURE.search(line):
            architecture = found.group(1)
        elif found := USAGE.search(line):
            kernel = kernels[architecture, found.group(1)]
            kernel.registers = int(found.group(2))
            kernel.local_bytes = int(found.group(3)) + int(found.group(4))
    return kernels


def main(library: str) -> int:
    """Prints a table by architecture and each kernel's faults."""
    tool = find_cuobjdump()
    if tool is None:
        print("cuobjdump was not found: the compiled code was NOT checked")
        return 1
    kernels = read_kernels(
        dump(tool, "-sass", library), dump(tool, "-res-usage", library)
    )
    print("| code for | kernels | registers | local memory | 16-byte accesses |")
    print("|---|---|---|---|---|")
    for architecture in sorted({key[0] for key in kernels}, key=lambda a: int(a[3:])):
        of_it = [kernels[key] for key in kernels if key[0] == architecture]
        registers = [kernel.registers for kernel in of_it]
        wide = sum(k.accesses[LOAD, 16] + k.accesses[STORE, 16] for k in of_it)
        local = max(kernel.local_bytes for kernel in of_it)
        span = f"{min(registers)} to {max(registers)}"
        print(f"| {architecture} | {len(of_it)} | {span} | {local} B | {wide} |")
    faults = [
        f"{architecture} {name}: {fault}"
        for (architecture, name), kernel in kernels.items()
        for fault in kernel.faults()
    ]
    print(*faults, sep="\n")
    return 1 if faults or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
