"""Machine code of kernels by Numba and LLVM: imported only when a kernel is not in the cache."""

# mypy: disable-error-code="attr-defined,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir

from bolt_numba.base.errors import BoltError, DeviceError, KernelError
from bolt_numba.kernels.declare import FASTMATH, Inline, Late
from bolt_numba.kernels.instructions.isa import Isa, on_x86, own, target
from bolt_numba.kernels.mistakes import check_names, repeated, told
from bolt_numba.kernels.numba_parts import lacking

if lack := lacking():
    raise DeviceError(lack)

from numba.core import compiler, errors, types, utils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typing.templates import AbstractTemplate
from numba.extending import typeof_impl

from bolt_numba.kernels.compiler_passes import KernelCompiler, LinkOnly, no_garbage_collection, remembered_calls
from bolt_numba.kernels.instructions import bits, dots, halves, memory, raw, simd, tiles, tiles_bytes

if TYPE_CHECKING:
    from bolt_numba.kernels.jit import Native


def word(name: str) -> Any:
    """The intrinsic behind a word of the language."""
    for module in (simd, memory, raw, dots, tiles, tiles_bytes, halves, bits):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"kernel language: word: got {name}")


@typeof_impl.register(Late)
def typeof_late(value: Late, context: Any) -> Any:
    """What Numba sees where a kernel names a word or a helper."""
    if isinstance(value, Inline):
        return helper_type(value, _freedoms if value.fastmath is None else value.fastmath)
    if value.resolved is None:
        value.resolved = word(value.name)
    return cpu_target.typing_context.resolve_value_type(value.resolved)


_freedoms = FASTMATH
"""Those of the function that is lowered; Numba's lock is held meanwhile."""


@functools.cache
def helper_type(helper: Inline, fastmath: frozenset[str]) -> Any:
    """Numba type of a helper with these freedoms: for each combination of argument types, code that is only linked.

    What Numba refuses it asks for again, twice at each level of helpers; the first answer is kept.
    """
    known: dict[Any, Any] = {}
    refused: dict[Any, str] = {}
    names = utils.pysignature(helper.function)
    who = f"helper '{helper.name}'"

    class Helper(AbstractTemplate):
        key = helper, fastmath

        def generic(self, args: Any, kws: Any) -> Any:
            try:
                bound = names.bind(*args, **kws)
            except TypeError as error:
                raise errors.TypingError(f"call of {who}: {error}") from None
            given = tuple(
                bound.arguments[name] if name in bound.arguments else types.Omitted(parameter.default)
                for name, parameter in names.parameters.items()
            )
            if given in refused:
                raise errors.TypingError(repeated(refused[given]))
            if given not in known:
                check_names(helper.function, who)
                try:
                    result = _lower(helper.function, given, None, fastmath, inlined=True)
                except errors.NumbaError as error:
                    refused[given] = told(error, helper.function, who)
                    raise errors.TypingError(repeated(refused[given])) from None
                cpu_target.target_context.insert_user_function(self.key, result.fndesc, [result.library])
                known[given] = result.signature.replace(pysig=names)
            return known[given]

    Helper.__name__ = helper.name
    return types.Function(Helper)


def _lower(function: Any, arguments: Any, result: Any, fastmath: frozenset[str], inlined: bool = False) -> Any:
    """Numba's front end: typed, lowered to LLVM, neither optimised nor made executable."""
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = flags.release_gil = True
    flags.nrt, flags.boundscheck, flags.error_model = False, False, "numpy"
    flags.fastmath, flags.forceinline = set(fastmath), inlined
    targets = cpu_target.target_context
    library = LinkOnly(targets.codegen(), function.__name__)
    global _freedoms
    before, _freedoms = _freedoms, fastmath
    try:
        return compiler.compile_extra(
            cpu_target.typing_context, targets, function, arguments, result, flags, {}, library, KernelCompiler
        )
    finally:
        _freedoms = before


def compile_module(kernel: Native, here: bool = False) -> Any:
    """The optimised LLVM module of a kernel; its only visible function is ``kernel.symbol``.

    here: as `_machine` says.  Raises KernelError, which names the line, for a body that is no kernel code.
    """
    who = f"kernel '{kernel.name}'"
    check_names(kernel.body, who, kernel.fields)
    try:
        with global_compiler_lock, no_garbage_collection(), remembered_calls():
            return _module(kernel, here)
    except (BoltError, MemoryError):
        raise
    except Exception as error:
        text = told(error, kernel.body, who)
        raise KernelError(text if who in text else f"{text} (called by {who})") from None


def _module(kernel: Native, here: bool) -> Any:
    targets = cpu_target.target_context
    record = numba.from_dtype(kernel.params)
    cpu_target.typing_context.refresh()
    targets.refresh()
    numbers = [types.intp] * (len(utils.pysignature(kernel.body).parameters) - 1)
    result = _lower(kernel.body, (record, *numbers), types.void, kernel.fastmath)
    library = result.library
    library.add_ir_module(_entry(result.fndesc, library, targets, kernel.symbol))
    return _link(library, kernel.symbol, _machine(here))


def _entry(fndesc: Any, library: Any, targets: Any, symbol: str) -> Any:
    """IR of the C function that calls Numba's function and forgets its status."""
    module = library.create_ir_module(symbol)
    i64 = ir.IntType(64)
    callee_type = targets.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
    callee = ir.Function(module, callee_type, fndesc.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [i64] * len(fndesc.argtypes)), symbol)
    builder = ir.IRBuilder(entry.append_basic_block())
    params, *numbers = entry.args
    pointer = builder.inttoptr(params, targets.get_argument_type(fndesc.argtypes[0]))
    targets.call_conv.call_function(builder, callee, fndesc.restype, fndesc.argtypes, [pointer, *numbers])
    builder.ret_void()
    return module


def _link(library: Any, symbol: str, machine: Any) -> Any:
    """Link helpers in, hide everything but the entry, and optimise."""
    module = library.linked()
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    if machine.triple != _machine(True).triple:  # Numba writes for this one; the two lay data out alike
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
    library.optimise(machine)
    module.verify()
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    return module


@functools.cache
def _machine(here: bool = False) -> Any:
    """The target, as a position-independent object wants it; ``here``: this machine if the target cannot run on it.

    LLVM takes more instructions for granted than the level has, because it is told a processor to arrange code for.
    """
    isa = own() if here and target().is_x86 != on_x86() else target()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, named = llvm.get_process_triple(), list(llvm.get_host_cpu_features())
    if isa.is_x86 != on_x86():
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        triple, named = f"{'x86_64' if isa.is_x86 else 'aarch64'}-unknown-linux-gnu", []
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=isa.cpu, features=_feature_text(isa, named), opt=3, reloc="pic", codemodel="default", jit=False
    )


def _feature_text(isa: Isa, named: Iterable[str]) -> str:
    """What LLVM may use, and of the features that it names what it may not.

    Until version 20 it names the 512 bits of AVX-512 themselves, which go with the level's processor.
    """
    not_asked = sorted(set(named) - set(isa.features) - {"evex512"})
    return ",".join([*(f"-{name}" for name in not_asked), *(f"+{name}" for name in isa.features)])


def compile_object(kernel: Native) -> bytes:
    """Object file of a kernel that runs on this machine, compiled now.

    Raises KernelError for a kernel of another kind of processor that uses instructions of its own.
    """
    module = compile_module(kernel, here=True)
    if target().is_x86 != on_x86() and _FOREIGN.search(str(module)):
        raise KernelError(f"kernel '{kernel.name}': machine code: got instructions of {target().level}, wanted any's")
    return bytes(_machine(True).emit_object(module))


_FOREIGN = re.compile(r"@llvm\.(?:aarch64|x86)\.")


def compile_for_target(kernel: Native) -> bytes:
    """Object file of a kernel for its target, compiled now."""
    return bytes(_machine().emit_object(compile_module(kernel)))


def assembly(kernel: Native) -> str:
    """Assembly text of a kernel for its target, compiled now: for people who tune."""
    return str(_machine().emit_assembly(compile_module(kernel)))
