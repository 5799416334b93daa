"""Machine code for a GPU that is elsewhere: all kernels of the parts are compiled here, into a folder that travels.

A GPU without a network then needs no compiler.  Names in the folder hold digests of byte code, so the Python that
fills it must be of the version that reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu import ours
from bench.gpu.cases import cases
from bench.gpu.checks import DEVICE, ROOT, files
from bench.gpu.launches import nothing
from bolt_numba import devices
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.kernels.cuda import code
from bolt_numba.kernels.cuda.code import CUBIN
from bolt_numba_simulator.gpu import SimulatedGpu

NAME = "compiles-only"
CUBINS = "BOLT_NUMBA_TEST_CUBINS"
"""Environment variable by which `tests/cuda/harness.py` compiles what it runs for a real GPU, too."""


class _Compiling(SimulatedGpu):
    """A GPU whose plans are made and never run."""

    kind = CUBIN

    def __init__(self, arch: str) -> None:
        super().__init__(NAME, arch)
        self.kind = CUBIN


def prepare(folder: Path, arch: str, parts: Sequence[str], models: Sequence[Path], small: bool) -> dict[str, Any]:
    """Fill a folder with the code that these parts need; what could not be compiled, and how much there is."""
    os.environ["BOLT_NUMBA_CACHE_DIR"] = str(folder.resolve())
    folder.mkdir(parents=True, exist_ok=True)
    devices.register(NAME, lambda: Cuda(NAME, _Compiling(arch)))
    code.prepare([nothing], arch, CUBIN)
    wrong: list[str] = []
    for case in cases(small):
        if case.family in parts:
            _try(case.name, wrong, lambda case=case: _warm_case(case))
    for path in models if "models" in parts or "launches" in parts else ():
        _try(path.stem, wrong, lambda path=path: _warm_model(path))
    if "checks" in parts:
        _try("checks", wrong, lambda: _warm_checks(arch, small))
    found = list(folder.rglob("*-cubin.kernel"))
    return {"python": sys.version.split()[0], "cubins": len(found), "bytes": sum(f.stat().st_size for f in found),
            "errors": wrong}  # fmt: skip


def _try(name: str, wrong: list[str], work: Any) -> None:
    try:
        work()
    except Exception as error:
        wrong.append(f"{name}: {type(error).__name__}: {error}"[:400])


def _warm_case(case: Any) -> None:
    with ours.only(case):
        ours.session_of(case, case.arrays(), NAME)[0].warmup()


def _warm_model(path: Path) -> None:
    import bolt_numba as bn

    bn.compile(path, device=NAME, precision="f16").warmup()
    bn.compile(path).warmup()  # the CPU's results are what those of the GPU are compared with


def _warm_checks(arch: str, small: bool) -> None:
    """Go through the tests on the simulator, each of whose kernels is compiled for the GPU as well."""
    environment = {**os.environ, DEVICE: f"cuda-sim:{arch}", CUBINS: arch, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files(small)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode > 1:
        raise RuntimeError((done.stdout + done.stderr)[-400:])
