"""PTX and cubins of CUDA kernels by Numba CUDA, NVVM and nvJitLink; no driver and no GPU is needed.

Imported only when code is in no cache (`kernels.cuda.code`).
"""

# mypy: disable-error-code="no-untyped-call,attr-defined,import-untyped,no-any-return"
from __future__ import annotations

import functools
import types as python
from collections.abc import Callable
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):
    np.vstack = np.vstack  # Numba CUDA 0.30.4 registers an overload for it, and NumPy 2.5 has it no longer

from numba import cuda
from numba.cuda import types
from numba.cuda.compiler import compile_cuda

from bolt_numba.kernels.cuda.declare import CudaKernel, Macro
from bolt_numba.kernels.cuda.language import memory
from bolt_numba.kernels.cuda.language.emit import word_of
from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS
from bolt_numba.kernels.cuda.language.macros import MACROS
from bolt_numba.kernels.cuda.language.unroll import unrolled
from bolt_numba.kernels.declare import Inline, Late, free_names

_KINDS = {
    **dict.fromkeys(("ptr", "fault", "i64"), types.int64), "i32": types.int32, "f32": types.float32, "f64": types.float64
}  # fmt: skip
_WORDS: dict[str, Any] = {"cuda": cuda, **memory.WORDS}


@functools.cache
def _word(name: str) -> Any:
    return _WORDS[name] if name in _WORDS else word_of(name, INSTRUCTIONS[name])


def word_names() -> set[str]:
    """Words that have a meaning here; those of `unroll` have none when a kernel comes here."""
    return {*_WORDS, *INSTRUCTIONS}


@functools.cache
def _macro(name: str, settings: tuple[Any, ...]) -> Any:
    return MACROS[name](*settings)


def capability(arch: str) -> tuple[int, ...] | tuple[int, int, str]:
    """Numba's form of an architecture: ``sm_80`` is (8, 0), ``sm_90a`` is (9, 0, "a")."""
    digits = arch.removeprefix("sm_")
    number = digits.rstrip("af")
    return (int(number[:-1]), int(number[-1]), *digits[len(number) :])


def _meaning(value: Late, arch: str) -> Any:
    if isinstance(value, Inline):
        return _helper(value, arch)
    if isinstance(value, Macro):
        return _macro(value.name, value.settings)
    return _word(value.name)


@functools.cache
def _helper(helper: Inline, arch: str) -> Any:
    """A device function.  Numba asks the driver which GPU there is to compile one; here the kernel's caller says."""
    made = cuda.jit(resolved(helper.function, arch), device=True, forceinline=True)

    def compile_device(args: Any, return_type: Any = None) -> Any:
        if args not in made.overloads:
            options: dict[str, Any] = {"opt": 3, "fastmath": False}
            found = compile_cuda(
                made.py_func, return_type, args, debug=False, lineinfo=False, forceinline=True, inline="never",
                fastmath=False, nvvm_options=options, cc=capability(arch),
            )  # fmt: skip
            made.overloads[args] = found
            found.target_context.insert_user_function(found.entry_point, found.fndesc, [found.library])
        return made.overloads[args]

    made.compile_device = compile_device
    return made


def resolved(function: Callable[..., Any], arch: str) -> Callable[..., Any]:
    """The same function, whose words and helpers are what Numba CUDA knows."""

    def meant(value: Any) -> Any:
        return _meaning(value, arch) if isinstance(value, Late) else value

    scope = dict(function.__globals__)
    scope |= {name: meant(scope[name]) for name in free_names(function.__code__) if name in scope}
    cells = tuple(python.CellType(meant(cell.cell_contents)) for cell in function.__closure__ or ())
    made = python.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _compiled(kernel: CudaKernel, arch: str, output: str) -> Any:
    signature = types.void(*(_KINDS[field.kind] for field in kernel.fields.values()))
    body = unrolled(kernel.body) if kernel.unrolled else kernel.body
    made, _ = cuda.compile(
        resolved(body, arch), signature, device=False, abi="numba", cc=capability(arch), output=output,
        launch_bounds=(kernel.threads, 1), fastmath=kernel.fastmath,
    )  # fmt: skip
    return made


def ptx_of(kernel: CudaKernel, arch: str) -> str:
    """PTX text with one entry, whose parameters are the kernel's fields."""
    return _compiled(kernel, arch, "ptx")


def cubin_of(kernel: CudaKernel, arch: str) -> bytes:
    """Machine code of one architecture."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    code = ObjectCode.from_ltoir(_compiled(kernel, arch, "ltoir"))
    return bytes(Linker(code, options=LinkerOptions(arch=arch, link_time_optimization=True)).link("cubin").code)
