"""A device joins from one file: arrays of NumPy are its memory, and it has two kernels.  The CPU takes the rest."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.errors import DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.registry import Context, Entry, In, Out, Step, Types
from bolt_numba.ops.arrays.reduce import Softmax
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.data.ml import LabelEncoder
from bolt_numba.ops.layers.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import Op
from bolt_numba.runtime.device import Arenas, Device
from bolt_numba.runtime.slots import CONST, Job, Slot
from bolt_numba.types import F32, Array, Sym, TensorType


@dataclass
class ToyKernel:
    """``run(x, z, y)``: a NumPy function of one or two operands that fills y."""

    name: str
    run: Callable[..., Any]
    names: frozenset[str] = frozenset(("x", "z", "y", "n"))
    pointers: dict[str, bool] = field(default_factory=lambda: {"x": False, "z": True, "y": False})
    references: dict[str, frozenset[type]] = field(default_factory=lambda: dict.fromkeys("xzy", frozenset((In, Out))))

    def extents(self, a: Any) -> dict[str, int]:
        return {"x": 4 * a.n, "y": 4 * a.n, "z": 0 if a.z is None else 4 * a.n}


ADD, RELU = ToyKernel("toy_add", np.add), ToyKernel("toy_relu", lambda x, out: np.maximum(x, 0, out=out))


def make(op: Op, ins: Types, outs: Sequence[TensorType], context: Context) -> list[Step]:
    two = isinstance(op, Add)
    return [Step(ADD if two else RELU, {"x": In(0), "z": In(1) if two else None, "y": Out(), "n": outs[0].size})]


ENTRIES = {kind: Entry(kind, "toy", "f32", make, lambda op, ins: True, 0, f"toy {kind.name}") for kind in (Add, Relu)}


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


class Toy(Device):
    name = "toy"

    def __init__(self) -> None:
        self.memory = ToyMemory()

    def select(self, op: Op, ins: Types, context: Context) -> Entry | None:
        entry = ENTRIES.get(type(op))
        shapes = {t.shape if t is not None and t.dtype == F32 else None for t in ins}
        return entry if len(shapes) == 1 and None not in shapes else None

    def build(self, jobs: Sequence[Job], threads: int) -> ToyProgram:
        return ToyProgram(jobs, self.memory)


devices.register("toy", Toy)
TOY: Any = devices.device("toy")
# -------------------------------------------------------------------------------------- that is all that joins it


def whole(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(F32)


def network(build: Callable[[Builder, Value, Value], Any]) -> Graph:
    """Inputs x and z, [n, 4]."""
    graph = Graph("toy")
    x, z = (graph.add_input(name, TensorType(F32, (Sym("n"), 4))) for name in "xz")
    for i, y in enumerate(build(Builder(graph), x, z)):
        graph.add_output(y, f"y{i}")
    return graph


def mixed(b: Builder, x: Value, z: Value) -> Any:
    """Toy, CPU, toy, the host's reference, toy; results and a view of the toy's, one of which others read, too."""
    first = b(Relu(), x)
    middle = b(Softmax(-1), b(MatMul(), first, whole(4, 4)))
    third = b(Add(), middle, z)
    coded = b(LabelEncoder(), first, *(np.array(values, F32) for values in ([0, 1, 2], [5, 6, 7], [9])))
    last = b(Add(), coded, third)
    return first, third, last, b(Reshape(), last, np.array([2, -1]))


def alone(b: Builder, x: Value, z: Value) -> Any:
    """Nothing for others to do; a result is an input, too."""
    return b(Add(), z, z), x


def feeds(n: int, seed: int = 0) -> dict[str, Array]:
    return {"x": whole(n, 4, seed=seed), "z": whole(n, 4, seed=seed + 1)}


def expect(session: bn.Session, graph: Graph, given: dict[str, Array]) -> None:
    wanted = interpret(graph, given)
    for name, got in session(**given).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("build", [mixed, alone])
@pytest.mark.parametrize("threads", [1, 2])
def test_nodes_run_where_they_are_preferred(build: Any, threads: int) -> None:
    graph = network(build)
    session = bn.compile(graph, device=["toy", "cpu"], threads=threads)
    for n in (2, 6, 2, 4):
        expect(session, graph, feeds(n, seed=n))
    runners = {row["runner"] for row in session.report()}
    assert "toy Add" in runners
    assert ("reference" in runners) == ("matmul" in runners) == (build is mixed)


def test_copies_are_seen_and_made_once() -> None:
    session, given = bn.compile(network(mixed), device="toy", threads=1), feeds(6)
    session(**given)
    before = list(TOY.memory.copied)
    session(**given)
    nbytes = given["x"].nbytes  # of every value
    assert [b - a for a, b in zip(before, TOY.memory.copied, strict=True)] == [4 * nbytes, 4 * nbytes]
    profile = session.profile(**given, runs=2)
    copies = [row for row in profile.rows if row.op == "Copy"]
    assert [row.runner for row in copies].count("copy to toy") == 4
    assert [row.runner for row in copies].count("copy from toy") == 4
    assert all(row.seconds > 0 for row in profile.rows)
    assert session.memory()["arena"] >= 3 * nbytes


def test_segments_are_runs_of_one_device() -> None:
    session = bn.compile(network(mixed), device="toy", threads=1)
    session(**feeds(4))
    (prepared,) = session._runner.prepared.values()
    names = [segment.device.name for segment in prepared.plan.segments]
    assert all(a != b for a, b in itertools.pairwise(names))
    assert set(names) == {"toy", "mover", "cpu", "host"}
    assert [job for segment in prepared.plan.segments for job in segment.jobs] == prepared.plan.jobs


def test_many_threads_share_a_session() -> None:
    graph = network(mixed)
    session = bn.compile(graph, device="toy", threads=1)
    shapes = [2, 4, 6, 8] * 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: expect(session, graph, feeds(row[1], seed=row[0])), enumerate(shapes)))


def test_the_host_runs_everything_when_it_is_preferred() -> None:
    graph = network(mixed)
    session = bn.compile(graph, device="host", threads=1)
    expect(session, graph, feeds(4))
    assert {row["runner"] for row in session.report()} <= {"reference", "copy in host"}


def test_a_session_keeps_its_devices(tmp_path: Any) -> None:
    import pickle

    session = bn.compile(network(alone), device=("toy", "cpu"), threads=1)
    again = pickle.loads(pickle.dumps(session))
    assert again.device == session.device == ("toy", "cpu")
    np.testing.assert_array_equal(again(**feeds(4))[0], session(**feeds(4))[0])


@pytest.mark.parametrize("device", ["tpu", 7, ["toy", "tpu"], None, [None], {"cpu": 1}])
def test_unknown_devices_are_refused(device: Any) -> None:
    with pytest.raises(DeviceError, match=r"device: got .*, wanted one of 'cpu', .*'host', 'toy'"):
        bn.compile(network(alone), device=device)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(DeviceError, match="got a second 'cpu'"):
        devices.register("cpu", Toy)
