"""Code of CUDA kernels: from the cache, else compiled now and kept.

PTX is for the simulated GPU and cubins are for real ones; the digest of a kernel, the architecture, the sources of the
language and the versions of the compilers name both.  A process that finds its code in the cache imports no compiler,
and a machine without one runs what another made.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import KernelError
from bolt_numba.base.files.kept import cache_root, folders
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.kernels import code_files, precompile
from bolt_numba.kernels.code_files import MachineCode, made_once, newest
from bolt_numba.kernels.compiles import LackingError, may_wait
from bolt_numba.kernels.cuda.declare import CudaKernel
from bolt_numba.kernels.cuda.needs import REMEDY, check_compiler, is_known, lacking_compiler, versions

PTX, CUBIN = "ptx", "cubin"
_SOURCES = (
    *("declare.py", "compiler_passes.py"),
    *("cuda/declare.py", "cuda/compiler.py", "cuda/compiler_passes.py", "cuda/language/*.py"),
)

_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)


class CudaCode(MachineCode):
    """PTX or a cubin of a kernel for one architecture.  kind: `PTX` or `CUBIN`."""

    def __init__(self, kernel: CudaKernel, arch: str, kind: str) -> None:
        self.kernel, self.arch, self.kind, self.name = kernel, arch, kind, kernel.name
        self._data, self._refused = b"", ""

    def __reduce__(self) -> tuple[Any, ...]:
        return CudaCode, (self.kernel, self.arch, self.kind)

    @property
    def digest(self) -> str:
        return self.kernel.digest

    @property
    def folder(self) -> str:
        return version_name()

    @property
    def can_compile(self) -> bool:
        return not lacking_compiler()

    @property
    def file(self) -> str:
        """Name in the cache."""
        return f"{self.folder}/{self.name}-{self.digest}-{self.arch}-{self.kind}{code_files.SUFFIX}"

    @property
    def is_ready(self) -> bool:
        if not self._data and not self._refused:
            self._data = self._found() or b""
        return bool(self._data)

    def take(self, code: bytes) -> None:
        self._data = code

    def compile(self) -> None:
        """What cannot be compiled is refused at once from then on."""
        if self.is_ready:
            return
        if not may_wait() and not self._refused:
            raise LackingError(self)
        with _lock:
            if not self._data and not self._refused:
                try:
                    self._data = self.code()
                except KernelError as error:
                    self._refused = str(error)
        if self._refused:
            raise KernelError(self._refused)

    def code(self) -> bytes:
        return made_once(self.file, self.name, self._found, self._made)

    def _found(self) -> bytes | None:
        code = code_files.found(self.file)
        if code is None and not is_known():
            codes = (code_files.found(f"{folder}/{Path(self.file).name}") for folder in _made_by_others())
            code = next((code for code in codes if code is not None), None)
        return code

    def _made(self) -> bytes:
        check_compiler(self.name)
        try:
            from bolt_numba.kernels.cuda.compiler import cubin_of, ptx_of
        except (ImportError, AttributeError) as error:
            got = ", ".join(f"{package} {version or 'missing'}" for package, version in versions().items())
            what = f"kernel '{self.name}': compiler: got {got} ({error})"
            raise KernelError(f"{what}, wanted it to start: {REMEDY}") from error
        return ptx_of(self.kernel, self.arch).encode() if self.kind == PTX else cubin_of(self.kernel, self.arch)

    @property
    def data(self) -> bytes:
        """The code."""
        self.compile()
        return self._data


_known: dict[tuple[str, str, str], CudaCode] = {}


def code_of(kernel: CudaKernel, arch: str, kind: str) -> CudaCode:
    """The code of a kernel, of which equal ones share it."""
    return _known.setdefault((kernel.digest, arch, kind), CudaCode(kernel, arch, kind))


def ptx(kernel: CudaKernel, arch: str) -> str:
    """PTX text for one architecture; raises KernelError, which names the line, for a body that is no kernel code."""
    return code_of(kernel, arch, PTX).data.decode()


def cubin(kernel: CudaKernel, arch: str) -> bytes:
    """Machine code for one architecture; raises KernelError, which names the line, for what is no kernel code."""
    return code_of(kernel, arch, CUBIN).data


def prepare(kernels: Iterable[CudaKernel], arch: str, kind: str) -> None:
    """Have the code of all these kernels, compiled by several processes at once where no cache has it."""
    precompile.prepare([code_of(kernel, arch, kind) for kernel in kernels])


def lacking(kernels: Iterable[CudaKernel], arch: str, kind: str) -> list[CudaCode]:
    """The code that would have to be compiled."""
    return [code for kernel in kernels if not (code := code_of(kernel, arch, kind)).is_ready]


# --------------------------------------------------------------------------------------------------------------- cache


def version_name() -> str:
    """Folder of the code of this version of the language and these compilers, in every folder that is read."""
    name, compiler = f"cuda-{language_digest()}-", _compiler_digest()
    return name + (compiler or newest(name, folders().read))


@functools.cache
def _made_by_others() -> tuple[str, ...]:
    """Folders of code for this version of the language: better than what compilers that were never tried make."""
    start = f"cuda-{language_digest()}-"
    names = (name for place in folders().read if place.is_dir() for name in os.listdir(place))
    return tuple(dict.fromkeys(name for name in names if name.startswith(start)))


def cache_entries(root: Path | None = None) -> list[tuple[str, int]]:
    """Name and size in bytes of all code for this version in a folder; None: the own one."""
    return code_files.entries((root or cache_root()) / version_name())


@functools.cache
def language_digest() -> str:
    """Digest of the sources of the language; byte code, and with it a kernel's digest, is Python's of this version."""
    state, folder = sha256(repr(sys.version_info[:2]).encode()), Path(__file__).parent.parent
    for file in sorted(file for pattern in _SOURCES for file in folder.glob(pattern)):
        state.update(file.read_bytes())
    return state.hexdigest()[:16]


@functools.cache
def _compiler_digest() -> str:
    """Of the versions of the compilers; "" where there is none."""
    found = versions()
    return sha256(repr(found).encode()).hexdigest()[:8] if found["numba-cuda"] else ""
