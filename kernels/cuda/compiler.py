"""PTX and cubins of CUDA kernels by Numba CUDA, NVVM and nvJitLink; no driver and no GPU is needed.

Imported only when code is in no cache (`kernels.cuda.code`).
"""

# mypy: disable-error-code="no-untyped-call,attr-defined,import-untyped,no-any-return,index"
from __future__ import annotations

import functools
import re
import types as python
from collections.abc import Callable
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):
    setattr(np, "row_stack", np.vstack)  # noqa: B010 (Numba CUDA 0.30.4 asks for it, and NumPy 2.5 has it no longer)

from numba import cuda
from numba.core.compiler_lock import global_compiler_lock
from numba.cuda import types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core import errors

from bolt_numba.base.errors import BoltError, KernelError
from bolt_numba.kernels.cuda.compiler_passes import kernel_passes
from bolt_numba.kernels.cuda.declare import CudaKernel, Macro
from bolt_numba.kernels.cuda.language import memory
from bolt_numba.kernels.cuda.language.emit import word_of
from bolt_numba.kernels.cuda.language.instructions import INSTRUCTIONS
from bolt_numba.kernels.cuda.language.lang import WORDS
from bolt_numba.kernels.cuda.language.macros import MACROS
from bolt_numba.kernels.cuda.language.unroll import is_static, unrolled
from bolt_numba.kernels.cuda.needs import REMEDY
from bolt_numba.kernels.declare import Inline, Late, free_names
from bolt_numba.kernels.mistakes import check_names, repeated, told

_KINDS = {
    **dict.fromkeys(("ptr", "map", "fault", "i64"), types.int64),
    "i32": types.int32, "f32": types.float32, "f64": types.float64,
}  # fmt: skip
_ENTRY = re.compile(r"\.entry\s+(\w+)")
_ENVIRONMENT = re.compile(r"^\.common \.global .* _ZN08NumbaEnv\w+;\n", re.MULTILINE)
"""What Numba declares for each function and nothing reads."""
_MEANINGS: dict[str, Any] = {"cuda": cuda, **memory.WORDS}
_LANGUAGE = WORDS, "bolt_numba.kernels.cuda.language.lang"


def capability(arch: str) -> tuple[int, ...] | tuple[int, int, str]:
    """Numba's form of an architecture: ``sm_80`` is (8, 0), ``sm_90a`` is (9, 0, "a")."""
    digits = arch.removeprefix("sm_")
    number = digits.rstrip("af")
    return (int(number[:-1]), int(number[-1]), *digits[len(number) :])


def word_names() -> set[str]:
    """Words that have a meaning here; those of `unroll` have none when a kernel comes here."""
    return {*_MEANINGS, *INSTRUCTIONS}


@functools.cache
def _word(name: str) -> Any:
    if name in _MEANINGS:
        return _MEANINGS[name]
    if name not in INSTRUCTIONS:
        raise KernelError(f"word '{name}': got it in a kernel that is not unrolled, wanted @cuda_kernel(unrolled=True)")
    return word_of(name, INSTRUCTIONS[name])


@functools.cache
def _macro(name: str, settings: tuple[Any, ...]) -> Any:
    if name not in MACROS:
        raise KernelError(f"macro '{name}': got no such one, wanted one of {', '.join(sorted(MACROS))}")
    return MACROS[name](*settings)


def _meaning(value: Late, arch: str) -> Any:
    if isinstance(value, Inline):
        return _helper(value, arch)
    if isinstance(value, Macro):
        return _macro(value.name, value.settings)
    return _word(value.name)


@functools.cache
def _helper(helper: Inline, arch: str) -> Any:
    """A device function.  Numba asks the driver which GPU there is to compile one; here the kernel's caller says."""
    who = f"helper '{helper.name}'"
    function = unrolled(helper.function) if is_static(helper.function) else helper.function
    check_names(function, who, language=_LANGUAGE)
    made = cuda.jit(resolved(function, arch), device=True, forceinline=True)

    def compile_device(args: Any, return_type: Any = None) -> Any:
        if args not in made.overloads:
            options: dict[str, Any] = {"opt": 3, "fastmath": False}
            try:
                found = compile_cuda(
                    made.py_func, return_type, args, debug=False, lineinfo=False, forceinline=True, inline="never",
                    fastmath=False, nvvm_options=options, cc=capability(arch),
                )  # fmt: skip
            except errors.NumbaError as error:
                raise errors.TypingError(repeated(told(error, helper.function, who))) from None
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
    """PTX text or LTO-IR; raises KernelError, which names the line, for a body that is no kernel code."""
    who = f"kernel '{kernel.name}'"
    body = unrolled(kernel.body) if kernel.unrolled else kernel.body
    check_names(body, who, language=_LANGUAGE)
    try:
        with global_compiler_lock, kernel_passes():
            made, _ = cuda.compile(
                resolved(body, arch), types.void(*(_KINDS[field.kind] for field in kernel.fields.values())),
                device=False, abi="numba", cc=capability(arch), output=output, launch_bounds=(kernel.threads, 1),
                fastmath=kernel.fastmath,
            )  # fmt: skip
    except (BoltError, MemoryError):
        raise
    except (ImportError, OSError) as error:
        raise KernelError(f"{who}: NVVM: got no library ({_first_line(error)}), wanted it: {REMEDY}") from None
    except Exception as error:
        text = told(error, kernel.body, who)
        raise KernelError(text if who in text else f"{text} (called by {who})") from None
    return made


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def ptx_of(kernel: CudaKernel, arch: str) -> str:
    """PTX text with one entry, `CudaKernel.symbol`, whose parameters are the kernel's fields."""
    text = _ENVIRONMENT.sub("", _compiled(kernel, arch, "ptx"))
    return text.replace(_ENTRY.search(text)[1], kernel.symbol)  # Numba's has a count of what was compiled before


def linked(kernel: CudaKernel, arch: str) -> tuple[bytes, str]:
    """Machine code of one architecture, and what the linker said of it.

    Optimised as a whole: of parts, nvJitLink would leave ``setmaxnreg`` out.
    """
    from cuda.core import Linker, LinkerOptions, ObjectCode

    code = ObjectCode.from_ltoir(_compiled(kernel, arch, "ltoir"))
    linker = Linker(code, options=LinkerOptions(arch=arch, link_time_optimization=True))
    made = bytes(linker.link("cubin").code)
    return made, linker.get_info_log() + linker.get_error_log()


def cubin_of(kernel: CudaKernel, arch: str) -> bytes:
    """Machine code of one architecture."""
    try:
        return linked(kernel, arch)[0]
    except BoltError:
        raise
    except Exception as error:
        raise KernelError(f"kernel '{kernel.name}': nvJitLink for {arch}: got {_first_line(error)}") from None
