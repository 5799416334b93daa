"""Kernels for other instruction sets than the process's own: the package `kernels.cpu` made again for a target.

Kernel files take what they know of the processor from `kernels.instructions.isa.target` when they are imported: lanes,
registers, features, and the tables and constants that follow.  A *twin* is a package of the same sources in which that
function gives another `Isa`: ``twin("avx2").products.sweep.sweep`` is a kernel for AVX2; makers are registered for the
device ``cpu_avx2``.  The sources differ in one thing, the names by which they import each other.  A process that needs
no other instruction set imports nothing of this.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from bolt_numba.base.errors import DeviceError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.kernels import data_sized as data_sized
from bolt_numba.kernels import registry
from bolt_numba.kernels.code_files import found, made_once
from bolt_numba.kernels.instructions.isa import LEVELS, Isa, levels_of, lower_levels, on_x86, own
from bolt_numba.kernels.machine_code import blob_of
from bolt_numba.kernels.maker_index import COMMON

TARGETS = {
    "avx512": LEVELS["x86-64-v4"],
    "avx2": LEVELS["x86-64-v3"],
    "avxvnni": LEVELS["x86-64-v3-vnni"],
    "generic": LEVELS["x86-64"],
    "aarch64": LEVELS["aarch64"],
    "aarch64_dot": LEVELS["aarch64-dot"],
    "aarch64_i8mm": LEVELS["aarch64-i8mm"],
}
"""What kernels can be compiled for, whatever the process runs on; any processor of that name has no less."""

_ROOT, _FOLDER = "bolt_numba.kernels", Path(__file__).parent
_OWN, _PREFIX = f"{_ROOT}.cpu", f"{_ROOT}.cpu_"
_LANGUAGE = frozenset(("jit", "declare", "compiler", "geometry.scalars", "geometry.elements"))
"""Files beside ``cpu/`` that know the target, too, or declare helpers of kernels; so do all of `_WHOLE`."""
_WHOLE = (COMMON, "instructions")
_BOUND = frozenset(("instructions.isa", "registry", "data_sized"))
"""Modules that a twin has without a file: those of the same name, bound to the target or to its device."""

_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)


def device_of(name: str) -> str:
    """The device for which the makers of a target's twin are registered."""
    return f"cpu_{name}"


def is_foreign(name: str) -> bool:
    """Whether a target is another kind of processor than this one, whatever its level."""
    return TARGETS[name].is_x86 != on_x86()


def packs_here(name: str) -> bool:
    """Whether this processor runs what packs weights for a target: it has the vectors, or is of another kind.

    Products of bytes may be lacking, as no packing uses them.
    """
    from bolt_numba.kernels.instructions.processor import processor

    has = {LEVELS[level].name for level in levels_of(processor()[1], on_x86())}
    return is_foreign(name) or TARGETS[name].name in has


def twin(name: str) -> Any:
    """The package of kernels for a target, with all its modules as attributes.

    Raises DeviceError for a name that is not in `TARGETS`.
    """
    if name not in TARGETS:
        raise DeviceError(f"target: got {name!r}, wanted one of {', '.join(TARGETS)}")
    with _lock:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        registry.load(device_of(name))
    return sys.modules[_PREFIX + name]


def object_code(kernel: Any) -> bytes:
    """Position-independent object file of a kernel for its own target; it defines ``kernel.symbol``."""
    return bytes(_module_of(kernel, "compiler").compile_for_target(kernel))


def target_code(kernel: Any) -> bytes:
    """Blob of a kernel for its own target, else object code: from the cache, else compiled now and kept.

    Raises KernelError where it cannot be compiled.
    """
    jit = _module_of(kernel, "jit")
    level: Isa = jit.target()
    if level.is_x86 == on_x86():
        return bytes(kernel.code())

    def make() -> bytes:
        made = object_code(kernel)
        return blob_of(made, kernel.symbol) or made

    name = f"{level.level}-{jit.language_digest()}-{jit.compiler_digest()}/{kernel.name}-{kernel.digest}.kernel"
    return made_once(name, kernel.name, lambda: found(name), make)


def assembly(kernel: Any) -> str:
    """The machine code of a kernel for its own target, as text."""
    return str(_module_of(kernel, "compiler").assembly(kernel))


def _module_of(kernel: Any, name: str) -> Any:
    """The compiler, or the declarations, of a kernel's twin."""
    return importlib.import_module(f"{type(kernel).__module__.rpartition('.')[0]}.{name}")


def _knows_target(inner: str) -> bool:
    return inner in _LANGUAGE or inner.partition(".")[0] in _WHOLE


class _Finder:
    """Finds the modules of twins; before others, which would take their files as they are."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name, _, inner = fullname.removeprefix(_PREFIX).partition(".")
        if not fullname.startswith(_PREFIX) or name not in TARGETS:
            return None
        is_beside = inner == "geometry" or _knows_target(inner)
        place = (_FOLDER if is_beside else _FOLDER / "cpu").joinpath(*filter(None, inner.split(".")))
        is_package = place.is_dir()
        file = place / "__init__.py" if is_package else place.with_suffix(".py")
        if inner not in _BOUND and not file.is_file():
            return None
        loader: Any = _Loader(name, inner, file)
        spec = ModuleSpec(fullname, loader, origin=str(file), is_package=is_package)
        spec.has_location = inner not in _BOUND
        if is_package:
            spec.submodule_search_locations = [str(place)]
        return spec


class _Loader:
    """Runs the source of a module under the names of a twin."""

    def __init__(self, name: str, inner: str, file: Path) -> None:
        self.name, self.inner, self.file = name, inner, file

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self.inner in _BOUND:
            vars(module).update(self._bound())
            return
        tree = _Renamed(_PREFIX + self.name).visit(ast.parse(self.file.read_bytes(), str(self.file)))
        exec(compile(tree, str(self.file), "exec", dont_inherit=True), vars(module))

    def _bound(self) -> dict[str, Any]:
        """Names of a module without a file."""
        isa, device = TARGETS[self.name], device_of(self.name)
        if self.inner == "instructions.isa":
            given = {"Isa": Isa, "lower_levels": lower_levels, "on_x86": on_x86, "own": own}
            return {**given, "target": lambda: isa}
        module: Any = registry if self.inner == "registry" else data_sized
        bound = ("kernel", "select", "candidates", "data_sized", "select_data_sized", "sized", "select_sized")
        names = {k: v for k, v in vars(module).items() if not k.startswith("__")}
        return names | {k: partial(names[k], device=device) for k in bound if callable(names.get(k))}


class _Renamed(ast.NodeTransformer):
    """Imports of modules that a twin has become imports of its own."""

    def __init__(self, package: str) -> None:
        self.package = package

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        own, made = node.module or "", self.package
        inner = own.removeprefix(f"{_ROOT}.")
        if own == _OWN or own.startswith(f"{_OWN}."):
            node.module = made + own.removeprefix(_OWN)
        elif own.startswith(f"{_ROOT}.") and (inner in _BOUND or _knows_target(inner)):
            node.module = f"{made}.{inner}"
        return node
