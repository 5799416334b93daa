"""Numba's front end cut to what kernels need: its passes, its lowering, its library, and types that it asks for again.

Kernels have no exceptions, references, closures, context managers or arrays that are made, so most of Numba's passes
could only look and find nothing.  What is left gives LLVM the same code in less than half of the time.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call,misc,untyped-decorator"
from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba.core import cgutils, ssa
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.types.functions import BaseFunction
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)


class KernelLower(Lower):
    """Lowering without debug information, and without references that a store or the end of a life would count."""

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Memory of a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Set a variable, without a look at what it held."""
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(BaseNativeLowering):
    """From typed code to LLVM's; nothing says where the life of a variable ends."""

    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return KernelLower


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelSSA(ReconstructSSA):
    """Numba's single static assignment form, made of the blocks that name a variable instead of all for each."""

    _name = "kernel_ssa"

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = single_assignments(state.func_ir.blocks, ssa)
        self._patch_locals(state)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


def single_assignments(blocks: dict[int, Any], ssa: Any) -> dict[int, Any]:
    """``reconstruct_ssa`` of a function's blocks, by their labels.  ssa: Numba's module of that, or Numba CUDA's."""
    graph = ssa.compute_cfg_from_blocks(blocks)
    frontiers, named, where = ssa._iterated_domfronts(graph), ssa._CacheListVars(), defaultdict(set)
    for label, block in blocks.items():
        for variable in (x for statement in block.body for x in statement.list_vars()):
            where[variable.name].add(label)
    for name in ssa._find_defs_violators(blocks, graph):
        mine = {label: block for label, block in blocks.items() if label in where[name]}
        mine, made = ssa._fresh_vars(mine, name)
        states = {
            **ssa._make_states(blocks),
            "varname": name,
            "defmap": made,
            "phimap": defaultdict(list),
            "cfg": graph,
            "phi_locations": ssa._compute_phi_locations(frontiers, made),
        }
        blocks = {**blocks, **ssa._run_block_rewrite(mine, states, ssa._FixSSAVars(named))}
        for label, joins in states["phimap"].items():
            blocks[label].body = joins + blocks[label].body
    return blocks


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelStripPhis(PreLowerStripPhis):
    """Joins of variables become assignments; nobody asks for the lives of variables afterwards."""

    _name = "kernel_strip_phis"

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class KernelPasses(PassManager):
    """Passes without a check of the whole function after each."""

    _ENFORCING = False


class KernelCompiler(CompilerBase):
    """Numba's pipeline of compiled code, less the passes that find nothing in kernels."""

    def define_pipelines(self) -> list[PassManager]:
        passes = KernelPasses("kernel")
        for each in (
            *(TranslateByteCode, FixupArgs, IRProcessing),
            *(RewriteSemanticConstants, DeadBranchPrune, GenericRewrites, KernelSSA, DeadBranchPrune),
            *(NopythonTypeInference, KernelStripPhis, KernelLowering, NoPythonBackend),
        ):
            passes.add_pass(each, each.name())
        passes.finalize()
        return [passes]


class LinkOnly(JITCodeLibrary):
    """LLVM code of one function, which only ever is linked: it is optimised once, when all of a kernel is there."""

    def add_ir_module(self, ir_module: Any) -> None:
        self._final_module.link_in(llvm.parse_assembly(cgutils.normalize_ir_text(str(ir_module))))

    def finalize(self) -> None:
        self._finalized = True

    def linked(self) -> Any:
        """The module with all that it calls, each once."""
        seen, ahead = {id(self)}, [*self._linking_libraries]
        while ahead:
            other = ahead.pop(0)
            if id(other) not in seen:
                seen.add(id(other))
                whole = not isinstance(other, LinkOnly)
                module = other._get_module_for_linking() if whole else other._final_module
                self._final_module.link_in(module, preserve=True)
                ahead += () if whole else other._linking_libraries
        return self._final_module

    def optimise(self, machine: Any) -> None:
        """Run LLVM's passes on what was linked; they weigh costs as on ``machine``, not as on this one."""
        options = llvm.create_pipeline_tuning_options()
        options.speed_level, options.loop_vectorization, options.slp_vectorization = 3, True, False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(self._final_module, builder)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Numba keeps most of what it makes until it is done: looking for garbage meanwhile takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_signatures: dict[Any, Any] = {}


@contextmanager
def remembered_calls() -> Iterator[None]:
    """Numba types each call again in every round, and twice while it lowers: an answer is kept.

    For the time of the block, which Numba's compiler lock should enclose.  What cannot be typed is asked again.
    """
    ask = BaseFunction.get_call_type

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return ask(self, context, args, kws)
        asked = self, context, args
        found = _signatures.get(asked)
        if found is None:
            found = _signatures[asked] = ask(self, context, args, kws)
        return found

    BaseFunction.get_call_type = get_call_type  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseFunction.get_call_type = ask  # type: ignore[method-assign]
