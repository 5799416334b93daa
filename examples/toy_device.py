"""A device of the kernel route, whole: memory of its own, two kernels, and a main program that shows it at work.

    python examples/toy_device.py

Nothing here is part of bolt-numba: a device is registered from outside.  docs/plugins/index.md leads through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.ir.build import Builder
from bolt_numba.kernels.registry import Context, Entry, In, Out, Step, Types
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Arenas, Device
from bolt_numba.runtime.slots import CONST, Job, Slot
from bolt_numba.types import F32, Array, Sym, TensorType

# --- 1. Kernels: functions that fill a result, and what they may touch -----------------------------------------------


@dataclass
class ToyKernel:
    """``run(x, z, y)``: a NumPy function of one or two operands that fills y.

    The other fields are what every kernel states: its parameters, which of them are addresses (True: may be None), and
    what may stand there.
    """

    name: str
    run: Callable[..., Any]
    names: frozenset[str] = frozenset(("x", "z", "y", "n"))
    pointers: dict[str, bool] = field(default_factory=lambda: {"x": False, "z": True, "y": False})
    references: dict[str, frozenset[type]] = field(default_factory=lambda: dict.fromkeys("xzy", frozenset((In, Out))))

    def extents(self, a: Any) -> dict[str, int]:
        """Bytes that it touches from each address: the planner holds every step to them."""
        return {"x": 4 * a.n, "y": 4 * a.n, "z": 0 if a.z is None else 4 * a.n}


ADD, RELU = ToyKernel("toy_add", np.add), ToyKernel("toy_relu", lambda x, out: np.maximum(x, 0, out=out))

# --- 2. Makers: the steps of a node --------------------------------------------------------------------------------


def make(op: Op, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    """One step: the kernel, and where its parameters come from."""
    two = isinstance(op, Add)
    return [Step(ADD if two else RELU, {"x": In(0), "z": In(1) if two else None, "y": Out(), "n": outs[0].size})]


ENTRIES = {kind: Entry(kind, "toy", "f32", make, lambda op, ins: True, 0, f"toy {kind.name}") for kind in (Add, Relu)}

# --- 3. Memory: the planner puts copies where values cross ---------------------------------------------------------


class ToyMemory:
    """Arrays that nobody but the device touches; ``copied`` counts bytes in both directions."""

    name = "toy"

    def __init__(self) -> None:
        self.copied = [0, 0]

    def allocate(self, nbytes: int) -> dict[str, Array]:
        return {"only the device looks inside": np.full(nbytes, 0xAA, np.uint8)}

    def write(self, buffer: dict[str, Array], offset: int, array: Array) -> None:
        (data,) = buffer.values()
        data[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.copied[0] += array.nbytes

    def read(self, buffer: dict[str, Array], offset: int, array: Array) -> None:
        (data,) = buffer.values()
        array[...] = data[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        self.copied[1] += array.nbytes


# --- 4. Programs: the steps of consecutive nodes, bound to the memory of a run -------------------------------------


@dataclass
class ToyProgram:
    """Steps over slots; bound to buffers, a list of calls."""

    jobs: Sequence[Job]
    memory: ToyMemory
    calls: list[Callable[[], Any]] = field(default_factory=list)
    nbytes = 0

    def bind(self, arenas: Arenas) -> ToyProgram:
        (data,) = arenas[self.memory].values() if self.memory in arenas else (np.zeros(0, np.uint8),)
        calls = [self.call(job, step, data) for job in self.jobs for step in job.steps or ()]
        return ToyProgram(self.jobs, self.memory, calls)

    def call(self, job: Job, step: Step, data: Array) -> Callable[[], Any]:
        kernel: Any = step.kernel
        operands = [self.view(job.ins[a.index], data) for a in (step.args["x"], step.args["z"]) if isinstance(a, In)]
        return lambda: kernel.run(*operands, out=self.view(job.outs[0], data))

    def view(self, slot: Slot | None, data: Array) -> Array:
        """Where a value is: in the arena of the device, or a constant, which a real device uploads in `build`."""
        assert slot is not None
        root, offset = slot.root()
        if root.kind == CONST:
            assert root.const is not None
            return root.const.reshape(slot.type.dims)
        start = root.place + offset
        return data[start : start + slot.type.nbytes].view(slot.type.dtype).reshape(slot.type.dims)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for call in self.calls:
            call()

    def timed(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[float]:
        seconds = []
        for call in self.calls:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return seconds


# --- 5. The device: what it takes, and how it builds a program -----------------------------------------------------


class Toy(Device):
    name = "toy"

    def __init__(self) -> None:
        self.memory = ToyMemory()

    def select(self, op: Op, ins: Types, context: Context) -> Entry | None:
        """It adds and cuts arrays of f32 of one shape; the next device gets all else."""
        entry = ENTRIES.get(type(op))
        shapes = {t.shape if t is not None and t.dtype == F32 else None for t in ins}
        return entry if len(shapes) == 1 and None not in shapes else None

    def build(self, jobs: Sequence[Job], threads: int) -> ToyProgram:
        return ToyProgram(jobs, self.memory)


devices.register("toy", Toy)
# --- that is all that joins it -------------------------------------------------------------------------------------


def main() -> None:
    """Three nodes, of which the toy device takes two and the CPU one."""
    graph = bn.Graph("demo")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    b = Builder(graph)
    graph.add_output(b(Add(), x, b(Softmax(-1), b(Relu(), x))), "y")
    session = bn.compile(graph, device=["toy", "cpu"])
    given = np.array([[-1, 0, 1, 2]], F32)
    print("y =", np.round(session(x=given)["y"], 3))
    for row in session.profile(x=given, runs=3).rows:
        print(f"{row.op:10} {row.runner}")


if __name__ == "__main__":
    main()
