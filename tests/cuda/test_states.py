"""What a model keeps from run to run stays on the GPU that makes it and reads it."""

from __future__ import annotations

import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba import devices
from bolt_numba.devices.cuda.arrays import DeviceArray
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.driver import Gpu
from bolt_numba.devices.cuda.memory import CudaMemory
from bolt_numba.errors import BudgetError, DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.cuda.code import PTX
from bolt_numba.ops.arrays.accumulate import CumMax
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.types import F32, I64, TensorType
from tests.cuda.fake_driver import FakeDriver

_numbers = itertools.count()
ROWS, WIDTH = 3, 256
ONE = np.ones((ROWS, WIDTH), F32)
STATE_BYTES = ONE.nbytes


def counter(reads_on_host: bool = False) -> Graph:
    """s becomes x + s; y is twice the row of it that an index names, which is checked."""
    g = Graph("counter")
    x, index = g.add_input("x", TensorType(F32, (ROWS, WIDTH))), g.add_input("index", TensorType(np.dtype(I64), (1,)))
    s = Value(g.unique_name("s"), TensorType(F32, (ROWS, WIDTH)))
    b = Builder(g)
    total = b(Add(), x, b(CumMax(), s)[0] if reads_on_host else s)
    g.add_state(s, total, np.zeros((ROWS, WIDTH), F32))
    g.add_output(b(Mul(), b(Gather(), total, index), 2.0), "y")
    return g


class Copied:
    """Bytes that were copied between the host and the GPU since the last look."""

    def __init__(self, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = 0
        for name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"):
            monkeypatch.setattr(fake, name, self._counted(getattr(FakeDriver, name), fake))

    def _counted(self, plain: Any, fake: FakeDriver) -> Any:
        def copy(target: int, source: int, nbytes: int, stream: Any) -> Any:
            self.nbytes += nbytes
            return plain(fake, target, source, nbytes, stream)

        return copy

    def taken(self) -> int:
        found, self.nbytes = self.nbytes, 0
        return found


def session_of(fake: FakeDriver, graph: Graph) -> bn.Session:
    name = f"fake-states{next(_numbers)}"
    devices.register(name, lambda: Cuda(name, Gpu(0, fake, PTX), weighs=False))
    return bn.compile(graph, device=name, threads=1, stages=())


def run(session: bn.Session, index: int = 0) -> float:
    (y,) = session(x=ONE, index=np.array([index]))
    assert (y == y[0, 0]).all()
    return float(y[0, 0])


def test_states_do_not_pass_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    copied, session = Copied(fake, monkeypatch), session_of(fake, counter())
    assert [run(session) for _ in range(3)] == [2, 4, 6]
    copied.taken()
    for turn in range(4, 8):
        assert run(session) == 2 * turn
        assert copied.taken() < STATE_BYTES + 2 * WIDTH * 4  # x, and a row of y
        assert isinstance(session._states.values[0], DeviceArray)  # type: ignore[union-attr]
    np.testing.assert_array_equal(session.states["s"], 7 * ONE)
    session.reset_state()
    assert run(session) == 2
    session.reset_state({"s": 10 * ONE})
    assert [run(session), run(session)] == [22, 24]
    total, *_ = session.run([session.optimised.nodes[0].outputs[0].name], {"x": ONE, "index": np.array([0])})
    assert total[0, 0] == 13
    assert run(session) == 28


def test_two_places_serve_all_runs() -> None:
    fake = FakeDriver()
    session = session_of(fake, counter())
    sizes = []
    for runs in (3, 3):
        for _ in range(runs):
            run(session)
        gc.collect()
        sizes.append(sum(fake.sizes.values()))
    assert sizes[0] == sizes[1]


def test_a_run_that_fails_leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """By content of an operand, behind which the state was computed already, and by a copy that the driver refuses."""
    fake = FakeDriver()
    session = session_of(fake, counter())
    assert [run(session) for _ in range(3)] == [2, 4, 6]
    for wanted in (8, 10, 12):
        with pytest.raises(DataError):
            run(session, index=7)
        assert run(session) == wanted
    fake.failing["cuMemcpyDtoHAsync"] = 1
    with pytest.raises(bn.DeviceError):
        run(session)
    fake.failing.clear()
    assert [run(session), run(session)] == [14, 16]


def test_runs_of_many_threads_and_sessions_go_one_after_another() -> None:
    fake = FakeDriver()
    name = f"fake-states{next(_numbers)}"
    devices.register(name, lambda: Cuda(name, Gpu(0, fake, PTX), weighs=False))
    sessions = [bn.compile(counter(), device=name, threads=1, stages=()) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: (i % 2, run(sessions[i % 2])), range(16)))
    for which in range(2):
        assert sorted(y for i, y in found if i == which) == [2.0 * n for n in range(1, 9)]


def test_copies_of_states_are_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of another thread, which would write where the copy is read from, wait for it."""
    session = session_of(FakeDriver(), counter())
    assert [run(session) for _ in range(3)] == [2, 4, 6]
    fetch, others = CudaMemory.fetch, threading.Thread(target=lambda: [run(session) for _ in range(2)])

    def late(self: CudaMemory, address: int, array: Any, after: Any = None) -> None:
        others.start()
        others.join(1)
        fetch(self, address, array, after)

    with monkeypatch.context() as patched:
        patched.setattr(CudaMemory, "fetch", late)
        np.testing.assert_array_equal(session.states["s"], 3 * ONE)
    others.join()
    np.testing.assert_array_equal(session.states["s"], 5 * ONE)


def test_a_profile_reads_states_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test_copies_of_states_are_of_one_moment`: what it times begins with them, and it changes none."""
    session = session_of(FakeDriver(), counter())
    assert [run(session) for _ in range(3)] == [2, 4, 6]
    fetch, others, seen = CudaMemory.fetch, threading.Thread(target=lambda: [run(session) for _ in range(2)]), []

    def late(self: CudaMemory, address: int, array: Any, after: Any = None) -> None:
        if array.shape == ONE.shape and not seen:
            others.start()
            others.join(1)
            fetch(self, address, array, after)
            seen.append(array.copy())
        else:
            fetch(self, address, array, after)

    with monkeypatch.context() as patched:
        patched.setattr(CudaMemory, "fetch", late)
        session.profile(x=ONE, index=np.array([0]), runs=1)
    np.testing.assert_array_equal(seen[0], 3 * ONE)
    others.join()
    assert run(session) == 12


def test_memory_tells_of_both_places_of_a_state() -> None:
    session = session_of(FakeDriver(), counter())
    assert session.memory()["states"] == STATE_BYTES
    for _ in range(3):
        run(session)
    assert session.memory()["states"] == 2 * STATE_BYTES


def test_what_the_host_reads_stays_there() -> None:
    session = session_of(FakeDriver(), counter(reads_on_host=True))
    for _ in range(3):
        run(session)
        assert isinstance(session._states.values[0], np.ndarray)  # type: ignore[union-attr]


def test_a_gpu_without_room_keeps_states_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise BudgetError("cuda: memory: got none, wanted some")

    session = session_of(FakeDriver(), counter())
    assert run(session) == 2
    monkeypatch.setattr(Cuda, "array", full)
    session.reset_state()
    session._states._spare = [None]  # type: ignore[union-attr]
    assert [run(session) for _ in range(3)] == [2, 4, 6]
    assert isinstance(session._states.values[0], np.ndarray)  # type: ignore[union-attr]
