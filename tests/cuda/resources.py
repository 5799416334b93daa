"""The table of what each CUDA kernel takes of a GPU, and the classes of instructions that it has.

``python -m tests.cuda.resources`` compiles the samples of all kernel modules, for each architecture that has their
instructions, and writes `resources.json` anew; names of modules as arguments (``products.simt``) write their part only.
``--check`` writes nothing: it holds all of that to the table, and fails where a kernel takes more or spills registers.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bolt_numba.kernels import common, cuda
from bolt_numba.kernels.cuda import code, elements
from bolt_numba.kernels.cuda.code import CUBIN
from bolt_numba.kernels.cuda.declare import SM_80, SM_90A, CudaKernel
from tests.cuda.cubin import resources
from tests.cuda.samples import SAMPLES

TABLE = Path(__file__).parent / "resources.json"
ARCHITECTURES = (SM_80, "sm_89", SM_90A)
CLASSES = {
    "HMMA": "tensor cores on halves", "IMMA": "on bytes", "BMMA": "on bits", "HGMMA": "of a warp group", "IGMMA": "",
    "BGMMA": "", "LDSM": "ldmatrix", "LDGSTS": "cp.async", "UTMALDG": "TMA", "IDP": "dp4a", "CALL": "a function",
}  # fmt: skip
"""Instructions whose presence the table tells."""
_F64 = ("DADD", "DMUL", "DFMA", "DSETP")
IN_F64 = {
    "elementwise.chains: Sin": "large angles lose their multiples of pi / 2 in f64",
    "reductions.arg: argmin_rows256_f64": "its operand is f64",
}
"""Kernels that compute in f64, which GPUs for graphics do at a 64th of the speed; elsewhere it is a mistake."""
ROOM = 8
"""Registers by which versions of the linker differ."""
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_]+)", re.MULTILINE)


def modules() -> Iterator[str]:
    """Names below `kernels.cuda` of modules with kernels, and of those below `kernels` that all devices share."""
    for found in pkgutil.walk_packages(cuda.__path__, f"{cuda.__name__}."):
        name = found.name.removeprefix(f"{cuda.__name__}.")
        if not found.ispkg and "." in name and not name.startswith("language."):
            yield name
    yield from (f"common.{found.name}" for found in pkgutil.iter_modules(common.__path__))


def samples(module: str) -> dict[str, CudaKernel]:
    """The kernels that a module offers; of those of a list that share a name the second is "name 2", and so on."""
    if module not in SAMPLES:
        return {}
    is_common = module.startswith("common.")
    place = importlib.import_module(f"bolt_numba.kernels.{module}" if is_common else f"{cuda.__name__}.{module}")
    given = SAMPLES[module](place, elements.PARTS) if is_common else SAMPLES[module](place)
    if isinstance(given, dict):
        return given
    found: dict[str, CudaKernel] = {}
    for kernel in given:
        count = sum(each.name == kernel.name for each in found.values())
        found[f"{kernel.name} {count + 1}" if count else kernel.name] = kernel
    return found


def unnamed() -> list[str]:
    """Modules with kernels of which no sample is one."""
    known = {kernel.body.__module__ for module in modules() for kernel in samples(module).values()}
    folder = Path(cuda.__path__[0])
    own = [module for module in modules() if not module.startswith("common.")]
    texts = {module: (folder / f"{module.replace('.', '/')}.py").read_text() for module in own}
    return [m for m, text in texts.items() if "@cuda_kernel(" in text and f"{cuda.__name__}.{m}" not in known]


def disassembler() -> str | None:
    """NVIDIA's, of the path or of its wheel."""
    places = [Path(p) / "nvidia" / "cu13" / "bin" for p in sys.path]
    found = (shutil.which("nvdisasm", path=str(place)) for place in places)
    return shutil.which("nvdisasm") or next((file for file in found if file), None)


def instructions(cubin: bytes) -> set[str] | None:
    """Names of instructions in machine code; None where no disassembler is installed."""
    tool = disassembler()
    if tool is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
    return set(_INSTRUCTION.findall(done.stdout))


def row(kernel: CudaKernel, arch: str) -> dict[str, Any]:
    """What the table says of a kernel for an architecture."""
    machine = code.cubin(kernel, arch)
    found = resources(machine)
    names = instructions(machine)
    made: dict[str, Any] = {"registers": found.registers, "stack": found.stack, "shared": found.shared}
    if isinstance(kernel.shared, int) and kernel.shared:
        made["dynamic"] = kernel.shared
    if names is not None:
        made["has"] = sorted(names & CLASSES.keys()) + ["F64"] * bool(names & set(_F64))
    return made


def table_of(module: str, every: bool = True) -> dict[str, Any]:
    """Rows of a module's kernels for all architectures that have their instructions, or for their own alone."""
    found = samples(module)

    def wanted(kernel: CudaKernel) -> list[str]:
        return [arch for arch in ARCHITECTURES if arch == kernel.arch or (every and arch >= kernel.arch)]

    for arch in ARCHITECTURES:
        code.prepare([kernel for kernel in found.values() if arch in wanted(kernel)], arch, CUBIN)
    return {name: {arch: row(kernel, arch) for arch in wanted(kernel)} for name, kernel in found.items()}


def faults(module: str, made: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    """Where the rows of a module are not as the table's."""
    remedy = f"python -m tests.cuda.resources {module} writes the table anew"
    apart = sorted(made.keys() ^ stored.keys())
    found = [f"{module}: {name}: is in the code or in the table alone: {remedy}" for name in apart]
    for name, rows in made.items():
        for arch, row in rows.items():
            wanted = stored.get(name, {}).get(arch, row)
            found += [f"{module}: {name} for {arch}: {what}" for what in _faults(f"{module}: {name}", row, wanted)]
    return found


def _faults(which: str, row: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    if row["stack"]:
        yield f"has {row['stack']} bytes of local memory: registers are spilled"
    if "F64" in row.get("has", ()) and which not in IN_F64:
        yield "computes in f64"
    if row["registers"] > wanted["registers"] + ROOM:
        yield f"got {row['registers']} registers, wanted at most {ROOM} beside the table's {wanted['registers']}"
    for key in ("shared", "dynamic", "has"):
        if row.get(key, wanted.get(key)) != wanted.get(key):
            yield f"{key}: got {row[key]}, wanted {wanted.get(key)} as in the table"


def main() -> None:
    arguments, known, began = sys.argv[1:], list(modules()), time.perf_counter()
    checks = "--check" in arguments
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    wrong, count = [], 0
    for module in [name for name in arguments if name != "--check"] or known:
        made = table_of(module)
        wrong += faults(module, made, table.get(module, {}) if checks else made)
        table[module] = made
        for name, rows in made.items():
            count += len(rows)
            sys.stdout.writelines(f"{module} {name} {arch}: {each}\n" for arch, each in rows.items())
            sys.stdout.flush()
    sys.stdout.writelines(f"WRONG: {text}\n" for text in wrong)
    sys.stdout.write(f"{count} kernels in {time.perf_counter() - began:.0f} s, {len(wrong)} wrong\n")
    if not checks:
        TABLE.write_text(_text({module: rows for module, rows in sorted(table.items()) if rows and module in known}))
    sys.exit(bool(wrong))


def _text(table: dict[str, Any]) -> str:
    """One line for each row, so that changes of several kernels meet seldom."""
    lines = []
    for module, rows in table.items():
        each = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
        lines.append(f" {json.dumps(module)}: {{\n" + ",\n".join(each) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
