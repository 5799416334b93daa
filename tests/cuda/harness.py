"""Runs one operator by its CUDA kernels on the simulated GPU, and holds the results against the reference.

Every operand is in memory of its own, so that the simulator sees each byte that is touched beyond it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from bolt_numba import devices
from bolt_numba.devices.cuda.memory import Buffer
from bolt_numba.devices.cuda.program import CudaProgram
from bolt_numba.ir.build import infer_types
from bolt_numba.kernels import registry
from bolt_numba.kernels.cuda import code
from bolt_numba.kernels.cuda.code import CUBIN
from bolt_numba.kernels.extents import made_steps
from bolt_numba.kernels.registry import Scratch
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.runtime.slots import CONST, TEMP, Job, Slot
from bolt_numba.types import NUMERICS, PRECISIONS, Array, TensorType, type_of
from bolt_numba_simulator.ptx import SimulationReport
from tests.harness import PlainContext, contexts

GPU: Any = devices.device(os.environ.get("BOLT_NUMBA_TEST_GPU", "cuda-sim"))
"""The simulator; `bench.gpu` runs the same tests on silicon."""
CUBINS = os.environ.get("BOLT_NUMBA_TEST_CUBINS", "")
"""An architecture for which kernels are compiled besides: `bench.gpu.prepare` fills a cache so."""


class _Apart:
    """Steps bound to buffers of which each holds one operand, so that the simulator sees every byte beyond it."""

    def __init__(self, job: Job, buffers: dict[int, Buffer]) -> None:
        scratch = {
            id(a): GPU.memory.allocate(a.nbytes)
            for s in job.steps or ()
            for a in s.args.values()
            if isinstance(a, Scratch)
        }
        job.scratch.update(dict.fromkeys(scratch, 0))
        program = CudaProgram([job], GPU.memory)
        run = program.bind({})
        run._address = lambda slot, offset: _address(program, slot, buffers) + offset  # type: ignore[method-assign]
        plain = run._value
        run._value = lambda job, arg: scratch[id(arg)].address if isinstance(arg, Scratch) else plain(job, arg)  # type: ignore[method-assign]
        self.kept = scratch, run  # what launches read and write is freed with these
        self.calls, self.faults, self.stream = run._calls(job), run.faults, run.arena.stream

    def run(self) -> None:
        GPU.driver.run(self.calls)
        self.faults.check()
        GPU.driver.synchronise(self.stream)  # results are read in other streams


def _address(program: CudaProgram, slot: Slot | None, buffers: dict[int, Buffer]) -> int:
    if slot is None:
        return 0
    return program.constants[id(slot.const)].buffer.address if slot.kind == CONST else buffers[id(slot)].address


def run_op(
    op: Op, *arrays: Array | None, constants: Sequence[int] = (), maker: str = "", context: PlainContext | None = None,
    over: int = -1,
) -> tuple[Array, ...]:  # fmt: skip
    """Results of the best CUDA maker (or of the one named) on the simulator; AssertionError where none accepts.

    constants: indices of the operands that are weights.  context: notes what the maker looks at.  over: the operand
    whose memory the first result takes over.  Results begin as NaN or -1.
    """
    context = context or PlainContext(1)
    ins: list[TensorType | None] = []
    for i, array in enumerate(arrays):
        t = None if array is None else type_of(array)
        ins.append(t if t is None or i in constants else t.with_value(None))
    outs = infer_types(op, ins)
    found = [e for e in registry.candidates(op, ins, context, "cuda", GPU.driver.arch) if maker in ("", e.name)]
    assert found, f"{op.name}: no CUDA maker {maker} accepts {ins}"
    context.asked.clear()
    steps = made_steps(found[0], op, ins, outs, context)
    slots: list[Slot | None] = []
    buffers: dict[int, Buffer] = {}
    for i, (array, t) in enumerate(zip(arrays, ins, strict=True)):
        slot = None
        if array is not None and t is not None:
            slot = Slot(
                f"x{i}", t, CONST if i in constants else TEMP, const=np.ascontiguousarray(array), memory=GPU.memory
            )
            if i not in constants:
                buffers[id(slot)] = GPU.memory.upload(np.ascontiguousarray(array))
        slots.append(slot)
    made = [Slot(f"y{i}", t, TEMP, memory=GPU.memory) for i, t in enumerate(outs)]
    for slot in made:
        buffers[id(slot)] = GPU.memory.upload(np.full(max(slot.type.nbytes, 1), 0xFF, np.uint8))
    if over >= 0:
        buffers[id(made[0])] = buffers[id(slots[over])]
    job = Job(op.name, op, GPU, slots, made, steps)
    if CUBINS:
        code.prepare([step.kernel for step in steps], CUBINS, CUBIN)  # type: ignore[misc]
    _Apart(job, buffers).run()
    results = []
    for slot in made:
        result = np.empty(slot.type.dims, slot.type.dtype)
        GPU.memory.read(buffers[id(slot)], 0, result)
        results.append(result)
    return tuple(results)


def expect(
    op: Op, *arrays: Array | None, constants: Sequence[int] = (), maker: str = "", numerics: str = "default",
    rtol: float = 1e-5, atol: float = 1e-6,
) -> None:  # fmt: skip
    """Hold the results of `run_op` against the reference, computed in f32 (integers: must be equal).

    Where the maker looks at the level of numerics or at the precision, it runs at the others, too.
    """
    with np.errstate(all="ignore"):
        wanted = result_tuple(op.reference(*arrays))
    for context in contexts(list(dict.fromkeys((numerics, *NUMERICS))), PRECISIONS, threads=1):
        got = run_op(op, *arrays, constants=constants, maker=maker, context=context)
        for mine, theirs in zip(got, wanted, strict=True):
            assert mine.shape == theirs.shape
            if theirs.dtype.kind in "iub":
                np.testing.assert_array_equal(mine, theirs)
            else:
                np.testing.assert_allclose(mine.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol)


def expect_together(
    parts: Sequence[tuple[Op, tuple[Array, ...]]], rtol: Any = 1e-5, atol: Any = 1e-6
) -> None:  # fmt: skip
    """Like `expect` for pointwise operators of one shape, which are one kernel: compiling takes longest of all.

    rtol, atol: numbers, or functions of an operator.
    """
    inputs = {id(x): x for _, arrays in parts for x in arrays}
    places = {key: i for i, key in enumerate(inputs)}
    steps = tuple((op, tuple(places[id(x)] for x in arrays)) for op, arrays in parts)
    results = tuple(range(len(inputs), len(inputs) + len(parts)))
    for (op, arrays), got in zip(parts, run_op(Chain(steps, results), *inputs.values()), strict=True):
        with np.errstate(all="ignore"):
            (wanted,) = result_tuple(op.reference(*arrays))
        near = {"rtol": rtol(op) if callable(rtol) else rtol, "atol": atol(op) if callable(atol) else atol}
        assert got.dtype == wanted.dtype, op
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(got, wanted, err_msg=str(op))
        else:
            np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), **near, err_msg=str(op))


@contextlib.contextmanager
def counted() -> Iterator[SimulationReport]:
    """What kernels do within: instructions, sectors of global memory, conflicts of banks; a GPU does not say."""
    if GPU.driver.number is not None:
        pytest.skip("counts are those of the simulator")
    report = GPU.driver.counts = SimulationReport()
    try:
        yield report
    finally:
        GPU.driver.counts = None
