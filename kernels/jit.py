"""Kernels: how they are declared, found in the cache, loaded, and compiled by `kernels.compiler` when they are not.

A kernel is a Python function ``body(p, tid, nthreads)`` over a record ``p`` of addresses and numbers.  It becomes
``void f(i64 params, i64 tid, i64 nthreads)``, one self-contained object file that LLVM alone loads, so that a process
whose kernels are all cached never imports Numba.  The file is named by a digest of everything that the machine code
depends on: the byte code of the body and of every helper, the constants they see, and the sources of the language.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.base.digest import sha256
from bolt_numba.base.errors import KernelError
from bolt_numba.base.files.kept import cache_root, folders
from bolt_numba.base.forks import renew_after_fork, renew_cached_properties
from bolt_numba.base.types import Array
from bolt_numba.kernels import code_files
from bolt_numba.kernels.built_in import built_in
from bolt_numba.kernels.code_files import MachineCode, made_once, newest, read_kernel
from bolt_numba.kernels.compiles import LackingError, may_wait, on_compile
from bolt_numba.kernels.declare import (
    CODE,
    F32,
    F64,
    FASTMATH,
    I32,
    I64,
    PTR,
    PTR_OR_0,
    Body,
    Field,
    Inline,
    Late,
    Source,
    Word,
    digest_of,
    function_key,
    inline,
    inline_source,
)
from bolt_numba.kernels.extents import Extents, check_arrays
from bolt_numba.kernels.instructions.isa import lower_levels, on_x86, own, target
from bolt_numba.kernels.instructions.processor import installed_version
from bolt_numba.kernels.machine_code import blob_of, is_blob, load_blob
from bolt_numba.kernels.registry import MEMORY, Fault, Record

_LANGUAGE = (
    "jit.py", "declare.py", "compiler.py", "compiler_passes.py", "cpu/language/lang.py",
    *(f"instructions/{name}.py" for name in (
        "isa", "simd", "memory", "raw", "dots", "tiles", "tiles_bytes", "halves", "bits",
    )),
)  # fmt: skip

_lock = threading.RLock()
_engine: Any = None
_sources: dict[str, Native] = {}
_asked: dict[Any, Native] = {}


class Native(MachineCode):
    """A kernel: compiled, or loaded from the cache, when its address is first asked for.

    Attributes
    ----------
    name: for people: profiles, errors, cache listings.
    params: dtype of the parameter record; an address is an ``i8``.
    fields: name and kind of each parameter.  codes: names of those that are addresses of kernels.
    names, extents, pointers, references: see `kernels.registry.Kernel`.
    """

    def __init__(
        self,
        body: Body | Source,
        name: str,
        fields: dict[str, Field],
        fastmath: frozenset[str],
        extents: Extents | None = None,
    ) -> None:
        self.given, self.name, self.fields, self.fastmath, self.extents = body, name, fields, fastmath, extents
        self.pointers = {name: field.optional for name, field in fields.items() if field.kind == "ptr"}
        self.names = frozenset(fields)
        self.codes = tuple(name for name, field in fields.items() if field.kind == "code")
        self.references = {name: _KINDS[field.kind] for name, field in fields.items() if field.kind in _KINDS}
        self.params = np.dtype([(k, f.dtype) for k, f in fields.items()] or [("unused", "i8")], align=True)
        self._address, self._refused, self._places = 0, "", list[int]()
        self._call: Any = None

    def __repr__(self) -> str:
        return f"Native({self.name})"

    @functools.cached_property
    def body(self) -> Body:
        """The Python function."""
        body: Body = self.given.define() if isinstance(self.given, Source) else self.given
        return body

    @functools.cached_property
    def digest(self) -> str:
        """Names the machine code: equal digests, equal code."""
        head = repr((self.name, self.params, sorted(self.fastmath))).encode()
        code = self.given.key() if isinstance(self.given, Source) else function_key(self.given, set())
        return digest_of(itertools.chain((head,), code)).hex()[:24]

    @property
    def symbol(self) -> str:
        return f"bolt_{self.name}_{self.digest}"

    @property
    def address(self) -> int:
        """Address of the machine function."""
        if not self._address:
            self._address = self._loaded() or self._compiled()
        return self._address

    @property
    def folder(self) -> str:
        return version_name()

    @property
    def can_compile(self) -> bool:
        return bool(compiler_digest())

    @property
    def is_ready(self) -> bool:
        """Whether it has an address, or gets one now without being compiled."""
        if not self._address:
            self._address = self._loaded()
        return self._address != 0

    def take(self, code: bytes) -> None:
        """Have the code that another process compiled."""
        if not self._address:
            self._placed(code)

    def compile(self) -> None:
        self._address = self.address

    def code(self) -> bytes:
        return code_of(self)

    def _loaded(self) -> int:
        """Its address if the cache has it, else 0."""
        code = None if self._refused else _found(self)
        return 0 if code is None else self._placed(code)

    def _placed(self, code: bytes) -> int:
        """Its one address, the first: a thread may find the file while the one that compiled it places the code."""
        self._places.append(_executable(self, code))
        self._address = self._places[0]
        return self._address

    def _compiled(self) -> int:
        """Compile it; what cannot be compiled is refused at once from then on."""
        if not may_wait() and not self._refused:
            raise LackingError(self)
        with _lock:
            if self._address:
                return self._address
            if not self._refused:
                try:
                    return self._placed(code_of(self))
                except KernelError as error:
                    self._refused = str(error)
        raise KernelError(self._refused)

    def record(self, **values: Any) -> Array:
        """A filled parameter record; an array or a kernel stands for its address, None for 0 (keep the arrays alive).

        Arrays that end before the kernel's reach are refused.
        """
        if self.extents is not None:
            check_arrays(self, values)
        numbers = [_number_for(values.pop(name)) for name in self.fields]
        if values:
            raise TypeError(f"{self.name}: parameters: got {sorted(values)} beyond {sorted(self.fields)}")
        return np.array([tuple(numbers)], self.params)

    def call(self, record: Array, tid: int = 0, nthreads: int = 1) -> None:
        """Run on this thread with the GIL released."""
        self.call_at(record.ctypes.data, tid, nthreads)

    def call_at(self, record: int, tid: int = 0, nthreads: int = 1) -> None:
        """The same with the address of a record."""
        if self._call is None:
            self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(self.address)
        self._call(record, tid, nthreads)

    def run(self, nthreads: int = 1, **values: Any) -> None:
        """Fill a record and run every share of the work, one after the other: for tests and tools."""
        record = self.record(**values)
        for tid in range(nthreads):
            self.call(record, tid, nthreads)


def _number_for(value: Any) -> Any:
    """What stands for an argument in a record."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return 0 if value is None else getattr(value, "address", value)


def native(
    *, fastmath: frozenset[str] | set[str] | None = None, extents: Any = None, **fields: Field
) -> Callable[[Body], Native]:
    """Make a kernel of ``body(p, tid, nthreads)``; keywords declare the fields of ``p`` in order.

    extents: how far it reaches from each address, see `kernels.extents`.
    """

    def wrap(body: Body) -> Native:
        return Native(body, body.__name__, fields, FASTMATH if fastmath is None else frozenset(fastmath), extents)

    return wrap


def native_source(
    text: str,
    name: str,
    fields: dict[str, Field],
    fastmath: frozenset[str] | set[str] | None = None,
    extents: Extents | None = None,
    **scope: Any,
) -> Native:
    """Make a kernel of generated source that defines ``name(p, tid, nthreads)``.

    extents: how far it reaches from each address, see `kernels.extents`; it follows from the text.
    scope: what the text may name: helpers, words of the language, int and float constants.  The same text with the
    same scope gives the same kernel.
    """
    freedoms = FASTMATH if fastmath is None else frozenset(fastmath)
    # Planning asks for the same kernels again and again; a digest of all that they name takes a fifth of a millisecond.
    asked = (text, name, tuple(fields.items()), freedoms, tuple((k, type(v), _as_key(v)) for k, v in scope.items()))
    known = _asked.get(asked)
    if known is None:
        made = Native(Source(text, name, scope), name, dict(fields), freedoms, extents)
        with _lock:
            known = _asked[asked] = _sources.setdefault(made.digest, made)
    return known


def _as_key(value: Any) -> Any:
    """Equal only where the compiled constant is: 0.0 is not -0.0."""
    return repr(value) if isinstance(value, float) else value


# --------------------------------------------------------------------------------------------------------------- cache


@functools.cache
def language_digest() -> str:
    """Digest of the language's own sources; byte code, and with it a kernel's digest, is Python's of this version."""
    state = sha256(repr(sys.version_info[:2]).encode())
    for name in _LANGUAGE:
        state.update((Path(__file__).parent / name).read_bytes())
    return state.hexdigest()[:16]


@functools.cache
def compiler_digest() -> str:
    """Digest of the versions of the compiler; "" where there is none."""
    numba, llvm = installed_version("numba"), installed_version("llvmlite")
    return sha256(f"{numba} {llvm}".encode()).hexdigest()[:8] if numba and llvm else ""


def cache_dir() -> Path:
    """Folder of machine code for this version and this instruction set, of those that are written."""
    return cache_root() / version_name()


def version_name() -> str:
    """What such a folder is called in every folder that is read: level, sources of the language, compiler.

    The level alone says for which processors.  Where no compiler is installed, what another one made serves.
    """
    name, compiler = f"{package_name()}-", compiler_digest()
    return name + (compiler or newest(name, folders().read))


def package_name() -> str:
    """What a file of kernels that came with the package is called, but for its suffix.

    Kernels for another kind of processor are compiled for this one where they are run here, to pack weights.
    """
    level = target().level if target().is_x86 == on_x86() else f"{target().level}.{own().level}"
    return f"{level}-{language_digest()}"


TUNED = "tuned.json"
"""File in `cache_dir` that holds measured choices."""


def cache_entries(root: Path | None = None) -> list[tuple[str, int]]:
    """Name and size in bytes of every kernel for this version and instruction set in a folder; None: the own one."""
    return code_files.entries((root or cache_root()) / version_name())


def clear_cache() -> int:
    """Remove the user's kernels of all versions, and measured choices; returns how many files went."""
    count, root = 0, cache_root()
    for file in itertools.chain(root.glob("*-*/*.kernel"), root.glob(f"*-*/{TUNED}"), root.glob("*-*/.*.tmp")):
        with suppress(OSError):
            file.unlink()
            count += not file.name.startswith(".")
    for folder in root.glob("*-*"):
        with suppress(OSError):
            folder.rmdir()
    return count


def _path(kernel: Native) -> Path:
    return cache_root() / _name(kernel)


def _name(kernel: Native) -> str:
    return f"{version_name()}/{kernel.name}-{kernel.digest}.kernel"


def _built_in(kernel: Native) -> bytes | None:
    found = (built_in(name, f"{kernel.name}-{kernel.digest}") for name in _package_names())
    return next((code for code in found if code is not None), None)


@functools.cache
def _package_names() -> tuple[str, ...]:
    """Of the own level; without a compiler also of lower ones with the same vectors, whose code may be slower."""
    if compiler_digest():
        return (package_name(),)
    return (package_name(), *(f"{isa.level}-{language_digest()}" for isa in lower_levels(target())))


def _found(kernel: Native) -> bytes | None:
    """Blob that came with the package, or blob or object code of the first folder that has it."""
    made = _built_in(kernel)
    if made is not None:
        return made
    return code_files.found(_name(kernel))


def code_of(kernel: Native) -> bytes:
    """Blob or object code of a kernel: from the cache, else compiled now, here or by who began before, and kept."""
    return made_once(_name(kernel), kernel.name, lambda: _found(kernel), lambda: _made(kernel))


def _made(kernel: Native) -> bytes:
    """Blob or object code, compiled now; raises KernelError where no compiler is installed."""
    if not compiler_digest():
        wanted = "wanted it with the package or in a cache, or numba, which compiles it: pip install bolt-numba"
        raise KernelError(f"kernel '{kernel.name}': machine code for {target().level}: got none, {wanted}")
    from bolt_numba.kernels.compiler import compile_object

    made = compile_object(kernel)
    return blob_of(made, kernel.symbol) or made


def _executable(kernel: Native, code: bytes) -> int:
    """Address of code, made executable."""
    if is_blob(code):
        try:
            return load_blob(code)
        except OSError:  # memory may not be made executable here, or not so
            from bolt_numba.kernels.compiler import compile_object

            code = compile_object(kernel)
    with _lock:
        return _link(kernel, code)


def _link(kernel: Native, code: bytes) -> int:
    """Address of a kernel whose object file LLVM links."""
    import llvmlite.binding as llvm

    engine = _execution_engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = int(engine.get_function_address(kernel.symbol))
    if not address:
        raise RuntimeError(f"{kernel.name}: object code: got no symbol {kernel.symbol}")
    return address


def _execution_engine() -> Any:
    """The one engine that holds all machine code of this process."""
    global _engine
    if _engine is None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        _engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    return _engine


renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)
renew_cached_properties(Native)
_KINDS: dict[str, frozenset[type]] = {"ptr": MEMORY, "code": frozenset((Native, Record)), "fault": frozenset((Fault,))}
"""Fields that are addresses, and what steps give for them."""

__all__ = [
    "CODE", "F32", "F64", "FASTMATH", "I32", "I64", "PTR", "PTR_OR_0", "Field", "Inline", "Late", "Native", "Source",
    "Word", "cache_dir", "cache_entries", "cache_root", "clear_cache", "inline", "inline_source", "native",
    "native_source", "on_compile", "read_kernel",
]  # fmt: skip
