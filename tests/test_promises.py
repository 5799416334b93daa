"""What docs/promises.md promises: kept files are read for ever, the C header keeps its ABI, windows are as it says.

``python -m tests.test_promises`` writes files of the versions of today beside those that are kept, and the ABI.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.export import layout
from bolt_numba.export.c_library import SOURCES
from bolt_numba.ir import store
from tests.native.c_programs import CSession, library, needs_cc, on_this_machine, program_bytes
from tests.native.nets import ranged

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests" / "golden" / "kept"
ABI = KEPT / "abi.txt"
X = np.linspace(-1, 1, 3 * 24, dtype=np.float32).reshape(3, 24)
OUTPUTS = ("y", "turned", "same")


def header() -> str:
    """The public header without comments."""
    return re.sub(r"/\*.*?\*/", "", (SOURCES / "bolt_numba.h").read_text(), flags=re.DOTALL)


def declared() -> list[str]:
    """Functions, as the header declares them, and all numbers that programs have in them: sizes, offsets, constants."""
    text = header()
    functions = [" ".join(each.split()) for each in re.findall(r"BN_API ([^;{]*\));", text)]
    lines = []
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        lines.append(f'printf("sizeof {name} %zu\\n", sizeof({name}));')
        fields = re.findall(r"(\w+);", body)
        lines += [f'printf("offsetof {name}.{field} %zu\\n", offsetof({name}, {field}));' for field in fields]
    lines += [f'printf("{name} %d\\n", {name});' for name in re.findall(r"\b(BN_[A-Z0-9_]+) = ", text)]
    program = '#include "bolt_numba.h"\n#include <stdio.h>\nint main(void) {' + "\n".join(lines) + "return 0;}\n"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.c").write_text(program)
        subprocess.run(["cc", "-w", f"-I{SOURCES}", "-o", "main", "main.c"], cwd=folder, check=True)
        numbers = subprocess.run([Path(folder, "main")], capture_output=True, text=True, check=True).stdout
    return [*functions, *numbers.splitlines()]


@needs_cc
@on_this_machine
def test_the_header_keeps_its_abi() -> None:
    """Programs that were compiled against it link and run with each later library of the same major version."""
    kept, now = ABI.read_text().splitlines(), declared()
    assert [line for line in kept if line not in now] == [], "this breaks programs: it wants another major version"
    assert [line for line in now if line not in kept] == [], "new: python -m tests.test_promises adds it"
    assert sum(line.startswith("offsetof") for line in kept) > 10
    assert sum("(" in line for line in kept) > 30


@pytest.mark.parametrize("file", sorted(KEPT.glob("*.bolt")), ids=lambda file: file.name)
def test_models_of_earlier_versions_run(file: Path) -> None:
    outputs = bn.compile(file)(x=X)
    with np.load(KEPT / "ranged.npz") as wanted:
        for name in OUTPUTS:
            np.testing.assert_allclose(outputs[name], wanted[name], rtol=1e-5, atol=1e-6)


@needs_cc
@on_this_machine
@pytest.mark.parametrize("file", sorted(KEPT.glob("*.bnprog")), ids=lambda file: file.name)
def test_programs_of_earlier_versions_run(file: Path) -> None:
    kept = re.findall(r"(\w+)\(", ABI.read_text())
    assert [name for name in kept if not hasattr(library(), name)] == []
    with CSession(file.read_bytes()) as session, np.load(KEPT / "ranged.npz") as wanted:
        session.resize([X.shape])
        outputs = session.run({"x": X})
        for name in OUTPUTS:
            np.testing.assert_allclose(outputs[name], wanted[name], rtol=1e-5, atol=1e-6)


def test_files_of_the_versions_of_today_are_kept() -> None:
    """Who raises a version keeps a file of it, and the files of those before go on to run."""
    assert {f"ranged-{store.VERSION}.bolt", f"ranged-{layout.VERSION}.bnprog"} <= {f.name for f in KEPT.iterdir()}


def test_the_page_says_which_versions_are_served() -> None:
    page = (ROOT / "docs" / "promises.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minors = [c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert f"| Python | {minors[0]} to {minors[-1]} |" in page
    needs = dict(re.findall(r"^(numba|numpy)(\S+)$", "\n".join(project["dependencies"]), re.MULTILINE))
    least, below = re.fullmatch(r">=([\d.]+),<(\d+\.\d+)", needs["numba"]).groups()  # type: ignore[union-attr]
    newest = f"{below.partition('.')[0]}.{int(below.partition('.')[2]) - 1}"
    assert f"| Numba | {least} to {newest} |" in page
    assert f"| NumPy | {needs['numpy'].removeprefix('>=')} and later |" in page


def main() -> None:
    """Write what is kept of today."""
    KEPT.mkdir(exist_ok=True)
    graph = ranged()
    (KEPT / f"ranged-{store.VERSION}.bolt").write_bytes(store.to_bytes(graph))
    program = program_bytes(graph, shapes=[{"x": X.shape}], threads=1, target="x86-64")
    (KEPT / f"ranged-{layout.VERSION}.bnprog").write_bytes(program)
    outputs = bn.compile(graph)(x=X)
    if not (KEPT / "ranged.npz").exists():
        np.savez_compressed(KEPT / "ranged.npz", **{name: outputs[name] for name in OUTPUTS})
    ABI.write_text("\n".join(declared()) + "\n")


if __name__ == "__main__":
    assert shutil.which("cc"), "this wants a C compiler"
    main()
