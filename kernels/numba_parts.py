"""The parts of Numba that are not its public interface, looked for once, before any of them is used.

`kernels.compiler` asks first: with another Numba one sentence says what it lacks, and nothing fails half way.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from bolt_numba.kernels.instructions.processor import installed_version

WORKS = "0.62 to 0.68"
"""Versions of Numba that are known to work; pyproject.toml allows the same."""

NEEDED = (
    *("numba.core.compiler.compile_extra", "numba.core.compiler_lock.global_compiler_lock"),
    *(
        f"numba.core.compiler.Flags.{name}"
        for name in (
            *("no_cpython_wrapper", "no_cfunc_wrapper", "no_compile", "release_gil"),
            *("nrt", "boundscheck", "error_model", "fastmath", "forceinline"),
        )
    ),
    *(
        f"numba.core.codegen.JITCodeLibrary.{name}"
        for name in (
            *("_final_module", "_finalized", "_linking_libraries", "_get_module_for_linking"),
            *("create_ir_module", "add_ir_module"),
        )
    ),
    "numba.core.compiler.CompilerBase.define_pipelines",
    *(f"numba.core.compiler_machinery.{name}" for name in ("PassManager._ENFORCING", "register_pass")),
    *(f"numba.core.lowering.Lower.{name}" for name in ("_alloca_var", "_find_singly_assigned_variable")),
    *(f"numba.core.lowering.Lower.{name}" for name in ("alloca_lltype", "storevar", "getvar", "typeof")),
    *(
        f"numba.core.typed_passes.{name}"
        for name in (*("BaseNativeLowering.lowering_class", "NopythonTypeInference", "NoPythonBackend"),)
    ),
    *(
        f"numba.core.untyped_passes.{name}"
        for name in (
            *("DeadBranchPrune", "FixupArgs", "GenericRewrites", "IRProcessing"),
            *("RewriteSemanticConstants", "TranslateByteCode", "ReconstructSSA._patch_locals"),
        )
    ),
    *(
        f"numba.core.ssa.{name}"
        for name in (
            *("_CacheListVars", "_FixSSAVars", "_compute_phi_locations", "_find_defs_violators", "_fresh_vars"),
            *("_iterated_domfronts", "_make_states", "_run_block_rewrite"),
        )
    ),
    *("numba.core.typed_passes.PreLowerStripPhis._strip_phi_nodes", "numba.core.ir_utils.build_definitions"),
    "numba.core.analysis.compute_cfg_from_blocks",
    "numba.core.types.functions.BaseFunction.get_call_type",
    *("numba.core.registry.CPUTarget.target_context", "numba.core.registry.CPUTarget.typing_context"),
    "numba.core.utils.pysignature",
    *("numba.core.typing.context.Context.resolve_value_type", "numba.core.typing.context.Context.refresh"),
    *(f"numba.core.cpu.CPUContext.{name}" for name in ("insert_user_function", "get_argument_type", "codegen")),
    *("numba.core.callconv.CPUCallConv.get_function_type", "numba.core.callconv.CPUCallConv.call_function"),
    *("numba.core.typing.templates.AbstractTemplate", "numba.core.typing.templates.infer_global"),
    *("numba.core.typing.templates.signature", "numba.core.types.Omitted", "numba.core.types.Function"),
    *("numba.core.errors.NumbaError", "numba.core.errors.TypingError"),
    *(f"numba.core.cgutils.{name}" for name in ("alloca_once", "get_or_insert_function", "unpack_tuple")),
    "numba.core.cgutils.normalize_ir_text",
    *("numba.np.arrayobj.make_array", "numba.np.arrayobj.populate_array"),
    *(f"numba.extending.{name}" for name in ("intrinsic", "lower_builtin", "models", "register_model", "typeof_impl")),
)
"""What `kernels.compiler` and the words in `cpu.language` use."""


def lacking(needed: Iterable[str] = NEEDED) -> str:
    """The first part that the installed Numba lacks, as a sentence; "" when it has all."""
    for name in needed:
        if not _has(name):
            version = installed_version("numba")
            return f"numba {version}: {name}: got none, wanted it to compile kernels: numba {WORKS} has it"
    return ""


def _has(name: str) -> bool:
    parts = name.split(".")
    found: Any = None
    for i, part in enumerate(parts):
        if found is None or not hasattr(found, part):
            if isinstance(found, type):
                return part in _set_by_init(found)
            try:
                found = importlib.import_module(".".join(parts[: i + 1]))
            except ImportError:
                return False
        else:
            found = getattr(found, part)
    return True


def _set_by_init(cls: type) -> set[str]:
    """Names that the class's constructors use, those of its instances' attributes among them."""
    makers = [each.__init__ for each in cls.__mro__ if hasattr(each.__init__, "__code__")]  # type: ignore[misc]
    return {name for made in makers for name in made.__code__.co_names}
