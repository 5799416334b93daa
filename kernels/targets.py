"""Kernels for other instruction sets than the process's own: the package `kernels.cpu` made again for a target.

Kernel files take what they know of the processor from `kernels.cpu.isa.target` when they are imported: lanes,
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

from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.records import record
from bolt_numba.errors import DeviceError
from bolt_numba.kernels import data_sized as data_sized
from bolt_numba.kernels import registry
from bolt_numba.kernels.cpu.isa import LEVELS, Isa, lower_levels


@record(frozen=True)
class Target:
    """isa: what kernels may ask of the processor.  triple: what LLVM calls the machine, "" for this one's system."""

    isa: Isa
    triple: str = ""


def _aarch64(level: str) -> Target:
    return Target(LEVELS[level], "aarch64-unknown-linux-gnu")


TARGETS = {
    "avx512": Target(LEVELS["x86-64-v4"]),
    "avx2": Target(LEVELS["x86-64-v3"]),
    "avxvnni": Target(LEVELS["x86-64-v3-vnni"]),
    "generic": Target(LEVELS["x86-64"]),
    "aarch64": _aarch64("aarch64"),
    "aarch64_dot": _aarch64("aarch64-dot"),
    "aarch64_i8mm": _aarch64("aarch64-i8mm"),
}
"""What kernels can be compiled for, whatever the process runs on; any processor of that name has no less."""

_ROOT, _FOLDER = "bolt_numba.kernels", Path(__file__).parent
_OWN, _PREFIX = f"{_ROOT}.cpu", f"{_ROOT}.cpu_"
_LANGUAGE = frozenset(("jit", "declare", "compiler"))
"""Files beside ``cpu/`` that know the target, too."""
_BOUND = frozenset(("isa", "registry", "data_sized"))
"""Modules that a twin has without a file: those of the same name, bound to the target or to its device."""

_lock = threading.RLock()
renew_after_fork(sys.modules[__name__], "_lock", threading.RLock, awaited=True)


def device_of(name: str) -> str:
    """The device for which the makers of a target's twin are registered."""
    return f"cpu_{name}"


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
    return _emitted(kernel, False)


def object_of(kernels: Sequence[Any], symbols: Sequence[str]) -> bytes:
    """One object file of several kernels of one target that is not this process's kind; each gets a name of its own."""
    return _joined(kernels, symbols, False)


def assembly_of(kernels: Sequence[Any], symbols: Sequence[str]) -> str:
    """The same as text for the GNU assembler."""
    return _joined(kernels, symbols, True).decode()


def assembly(kernel: Any) -> str:
    """The machine code of a kernel for its own target, as text."""
    return _emitted(kernel, True).decode()


def _emitted(kernel: Any, as_text: bool) -> bytes:
    package = type(kernel).__module__.rpartition(".")[0]
    compiler: Any = importlib.import_module(f"{package}.compiler")
    target = TARGETS.get(package.removeprefix(_PREFIX))
    if target is None or not target.triple:
        return str(compiler.assembly(kernel)).encode() if as_text else bytes(compiler.compile_object(kernel))
    return _foreign([kernel], [kernel.symbol], target, as_text)


def _joined(kernels: Sequence[Any], symbols: Sequence[str], as_text: bool) -> bytes:
    package = type(kernels[0]).__module__.rpartition(".")[0]
    return _foreign(kernels, symbols, TARGETS[package.removeprefix(_PREFIX)], as_text)


def _foreign(kernels: Sequence[Any], symbols: Sequence[str], target: Target, as_text: bool) -> bytes:
    """Code of kernels, compiled by LLVM alone from what Numba made of them, for a processor of another kind."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.isa.cpu, features=",".join(f"+{name}" for name in target.isa.features), opt=3, reloc="pic",
        codemodel="default",
    )
    whole = llvm.parse_assembly(f'target triple = "{target.triple}"')
    for kernel, symbol in zip(kernels, symbols, strict=True):
        package = type(kernel).__module__.rpartition(".")[0]
        compiler: Any = importlib.import_module(f"{package}.compiler")
        lines = str(compiler.compile_module(kernel)).splitlines()
        text = "\n".join(x for x in lines if not x.startswith(("target triple", "target datalayout")))
        module = llvm.parse_assembly(f'target triple = "{target.triple}"\n{text}')
        module.verify()
        function = module.get_function(kernel.symbol)
        function.name, function.visibility = symbol, "hidden"
        whole.link_in(module)
    return str(machine.emit_assembly(whole)).encode() if as_text else bytes(machine.emit_object(whole))


class _Finder:
    """Finds the modules of twins; before others, which would take their files as they are."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name, _, inner = fullname.removeprefix(_PREFIX).partition(".")
        if not fullname.startswith(_PREFIX) or name not in TARGETS:
            return None
        place = (_FOLDER if inner in _LANGUAGE else _FOLDER / "cpu").joinpath(*filter(None, inner.split(".")))
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
        isa, device = TARGETS[self.name].isa, device_of(self.name)
        if self.inner == "isa":
            return {"Isa": Isa, "lower_levels": lower_levels, "target": lambda: isa}
        module: Any = registry if self.inner == "registry" else data_sized
        bound = ("kernel", "select", "candidates", "data_sized", "select_data_sized")
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
        elif own.startswith(f"{_ROOT}.") and inner in _LANGUAGE | _BOUND:
            node.module = f"{made}.{inner}"
        return node
