"""Numba CUDA's front end cut to what kernels need, as `kernels.compiler_passes` cuts Numba's, for the same code."""

# mypy: disable-error-code="attr-defined,no-untyped-call,misc,untyped-decorator,import-untyped"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import compiler
from numba.cuda.core import ssa
from numba.cuda.core.compiler_machinery import PassManager, register_pass
from numba.cuda.core.ir_utils import build_definitions
from numba.cuda.core.typed_passes import NopythonTypeInference, PreLowerStripPhis
from numba.cuda.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
)

from bolt_numba.kernels.compiler_passes import no_garbage_collection, remembered_calls, single_assignments


@register_pass(mutates_CFG=True, analysis_only=False)
class CudaKernelSSA(ReconstructSSA):
    """Static single assignment form, made of the blocks that name a variable instead of all for each."""

    _name = "cuda_kernel_ssa"

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = single_assignments(state.func_ir.blocks, ssa)
        self._patch_locals(state)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class CudaKernelStripPhis(PreLowerStripPhis):
    """Joins of variables become assignments; nobody asks for the lives of variables afterwards."""

    _name = "cuda_kernel_strip_phis"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


def _pipelines(_: Any) -> list[Any]:
    passes = PassManager("cuda_kernel")
    for each in (
        *(compiler.CUDATranslateBytecode, FixupArgs, IRProcessing),
        *(RewriteSemanticConstants, DeadBranchPrune, GenericRewrites, CudaKernelSSA, DeadBranchPrune),
        *(NopythonTypeInference, CudaKernelStripPhis),
        *(compiler.CreateLibrary, compiler.CUDANativeLowering, compiler.CUDABackend),
    ):
        passes.add_pass(each, each.name())
    passes.finalize()
    return [passes]


@contextmanager
def kernel_passes() -> Iterator[None]:
    """For the time of the block, which Numba's compiler lock should enclose, Numba CUDA compiles as kernels need."""
    whole = compiler.CUDACompiler.define_pipelines
    compiler.CUDACompiler.define_pipelines = _pipelines
    try:
        with no_garbage_collection(), remembered_calls():
            yield
    finally:
        compiler.CUDACompiler.define_pipelines = whole
