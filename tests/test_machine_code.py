"""Blobs of kernels: the same machine code, loaded without LLVM."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bolt_numba.kernels import code_files, jit, machine_code
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, fill_bytes, vfloor, vload, vstore
from bolt_numba.kernels.instructions import processor
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.jit import I64, PTR, Native, native

only_x86 = pytest.mark.skipif(not target().is_x86 or sys.platform != "linux", reason="blobs are for x86-64 ELF")


@native(x=PTR, y=PTR, n=I64, kind=I64)
def mixed(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """Constants of its own, a call of the C library, and a loop."""
    x, y, n, kind = p.x, p.y, p.n, p.kind
    fill_bytes(y, np.uint8(0), 4 * n)
    for i in range(n // LANES):
        v = vfloor(vload(x + i * BYTES)) * np.float32(3.25)
        if kind > 3:
            v = v + np.float32(1e-3)
        vstore(y + i * BYTES, v)


def _run(kernel: Native) -> np.ndarray:
    x, y = np.linspace(-9, 9, 4 * LANES, dtype="f4"), np.ones(4 * LANES, "f4")
    kernel.run(x=x, y=y, n=x.size, kind=4)
    np.testing.assert_allclose(y, np.floor(x) * 3.25 + 1e-3, rtol=1e-6)
    return y


def _fresh(kernel: Native) -> Native:
    """The same kernel, not loaded yet."""
    return Native(kernel.body, kernel.name, kernel.fields, kernel.fastmath)


@only_x86
def test_a_blob_is_kept_and_runs_as_the_object_does(monkeypatch: pytest.MonkeyPatch) -> None:
    want = _run(_fresh(mixed))
    stored = jit.read_kernel(jit._path(mixed))
    assert stored is not None
    assert machine_code.is_blob(stored)
    monkeypatch.setattr(jit, "blob_of", lambda code, symbol: None)
    monkeypatch.setattr(jit, "_found", lambda kernel: None)
    monkeypatch.setattr(code_files, "write", lambda name, code: None)
    np.testing.assert_array_equal(_run(_fresh(mixed)), want)


@only_x86
def test_loading_imports_no_llvm() -> None:
    _run(mixed)
    code = (
        "import sys; from bolt_numba.kernels.cpu.executor import run_steps; assert run_steps.address; "
        "assert not {'llvmlite', 'numba', 'importlib.metadata'} & set(sys.modules), sys.modules.keys()"
    )
    for _ in range(2):  # the first may have to compile it
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@only_x86
@pytest.mark.parametrize("damage", ["short", "name"])
def test_a_blob_that_cannot_be_loaded_is_an_error_not_a_crash(damage: str) -> None:
    from bolt_numba.kernels.compiler import compile_object  # imports Numba

    made = machine_code.blob_of(compile_object(mixed), mixed.symbol)
    assert made is not None
    bad = made[:-1] if damage == "short" else made.replace(b"memset\0", b"memsat\0")
    assert bad != made
    with pytest.raises(OSError, match="blob: "):
        machine_code.load_blob(bad)


@pytest.mark.parametrize("code", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(60), bytes(100)])
def test_what_is_no_such_object_has_no_blob(code: bytes) -> None:
    assert machine_code.blob_of(code, "f") is None


def test_cut_off_objects_have_no_blob() -> None:
    from bolt_numba.kernels.compiler import compile_object

    made = compile_object(mixed)
    assert all(machine_code.blob_of(made[:n], mixed.symbol) is None for n in range(0, len(made) - 1, 97))


def test_versions_are_those_of_the_metadata() -> None:
    from importlib import metadata

    for name in ("numba", "llvmlite", "numpy"):
        assert processor.installed_version(name) == metadata.version(name)
