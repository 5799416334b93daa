"""The driver of real GPUs over a fake of NVIDIA's functions: copies, launches, graphs, and every way to fail."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real

import bolt_numba as bn
from bench import zoo
from bolt_numba import devices
from bolt_numba.devices.cuda import driver, library
from bolt_numba.devices.cuda.device import Cuda
from bolt_numba.devices.cuda.driver import Gpu
from bolt_numba.devices.cuda.program import Faults
from bolt_numba.errors import BudgetError, DataError, DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cuda.code import PTX
from bolt_numba.kernels.cuda.declare import PTR, cuda_kernel
from bolt_numba.kernels.cuda.language.lang import store_f32
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Relu
from bolt_numba.passes.pipeline import STAGES
from bolt_numba.types import F32, Sym, TensorType
from bolt_numba_simulator.gpu import SimulatedGpu
from tests.cuda.fake_driver import FakeDriver, Result
from tests.cuda.test_sessions import expect, network, whole

_numbers = itertools.count()
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


def gpu_of(fake: FakeDriver, number: int = 0) -> Gpu:
    return Gpu(number, fake, PTX)


def session_on(fake: FakeDriver, graph: Graph, number: int = 0, precision: str = "f32") -> bn.Session:
    name = f"fake{next(_numbers)}"
    devices.register(name, lambda: Cuda(name, gpu_of(fake, number)))
    return bn.compile(graph, device=name, threads=1, stages=STAGES[-1:], precision=precision)


def chain(length: int = 3) -> Graph:
    """Launches in a row, each of which gives a result."""
    graph = Graph("chain")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 4)))
    b = Builder(graph)
    for i in range(length):
        x = b(Relu(), x)
        graph.add_output(x, f"y{i}")
    return graph


def test_a_model_gives_what_the_interpreter_gives() -> None:
    fake, graph = FakeDriver(), network()
    session = session_on(fake, graph)
    for n in (3, 5, 3, 3, 5):
        expect(session, graph, x=whole(n, 4, seed=n))
    assert fake.counts["cuLaunchKernel"]


def test_the_second_run_makes_a_graph_that_all_later_ones_replay() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    for seed in range(4):
        expect(session, graph, x=whole(6, 4, seed=seed))
    assert fake.counts["cuGraphInstantiate"] == 1
    assert fake.counts["cuGraphLaunch"] == 3
    launched = fake.counts["cuLaunchKernel"]
    expect(session, graph, x=whole(6, 4, seed=9))
    assert fake.counts["cuLaunchKernel"] == launched


@pytest.mark.parametrize("function", ["cuGraphInstantiate", "cuGraphLaunch"])
def test_without_memory_for_a_graph_launches_go_one_by_one(function: str) -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    fake.failing[function] = int(Result.CUDA_ERROR_OUT_OF_MEMORY)
    for seed in range(2):
        before = fake.counts["cuLaunchKernel"]
        expect(session, graph, x=whole(6, 4, seed=seed))
        assert fake.counts["cuLaunchKernel"] > before
    fake.failing.clear()
    expect(session, graph, x=whole(6, 4, seed=2))


def test_launches_that_become_no_graph_are_given_back() -> None:
    fake = FakeDriver()
    run, x = session_on(fake, chain()), whole(6, 4)
    run(x=x)
    fake.failing["cuGraphInstantiate"] = int(Result.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(DeviceError, match="making a graph of launches"):
        run(x=x)
    assert fake.counts["cuGraphDestroy"] == 1
    fake.failing.clear()
    np.testing.assert_array_equal(run(x=x)["y2"], np.maximum(x, 0))


def test_an_index_that_is_refused_is_read_back_from_a_replayed_graph_too() -> None:
    fake, graph = FakeDriver(), Graph("rows")
    table, index = whole(8, 4), graph.add_input("index", TensorType(np.dtype(np.int64), (5,)))
    rows = Builder(graph)(Gather(), table, index)
    graph.add_output(Builder(graph)(Relu(), rows), "y")
    session = session_on(fake, graph)
    for _ in range(3):
        np.testing.assert_array_equal(session(index=np.arange(5))["y"], np.maximum(table[:5], 0))
        with pytest.raises(DataError, match=r"Gather: indices\[3\]: got 8, wanted -8 to 7"):
            session(index=np.array([0, 1, 2, 8, 3]))
    assert fake.counts["cuGraphLaunch"]


def test_threads_have_streams_of_their_own() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: expect(session, graph, x=whole(2 + i % 2, 4, seed=i)), range(24)))
    assert len(fake.streams) > 1


def test_an_input_may_change_when_the_copy_was_asked() -> None:
    fake = FakeDriver()
    gpu = gpu_of(fake)
    stream, address = gpu.stream(), gpu.allocate(64)
    given, got = np.arange(16, dtype=F32), np.zeros(16, F32)
    gpu.write(address, given, stream)
    given[...] = -1
    gpu.read(address, got, stream)
    np.testing.assert_array_equal(got, np.arange(16))


@pytest.mark.parametrize("nbytes", [0, 1, 99, 1000, 4096, 5001])
def test_long_copies_go_piece_by_piece(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"PIECE": 1000, "FIRST_PINNED": 64, "MOST_PINNED": 2000}.items():
        monkeypatch.setattr(driver, name, size)
    fake = FakeDriver()
    gpu = gpu_of(fake)
    stream, address = gpu.stream(), gpu.allocate(3 * nbytes + 1)
    parts = [np.random.default_rng(i).integers(0, 256, nbytes, np.uint8) for i in range(3)]
    for i, part in enumerate(parts):
        gpu.write(address + i * nbytes, part, stream)
    got = np.zeros(3 * nbytes, np.uint8)
    gpu.read(address, got, stream)
    np.testing.assert_array_equal(got, np.concatenate(parts))
    assert sum(p.nbytes for p in fake.pinned.values()) <= 2000


def test_what_is_let_go_is_given_back() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    assert fake.sizes
    session.close()
    gc.collect()
    assert not fake.sizes
    assert not fake.pinned


def test_two_gpus_have_contexts_of_their_own() -> None:
    fake, graph = FakeDriver(gpus=2), chain()
    sessions = [session_on(fake, graph, number) for number in range(2)]
    for seed in range(3):
        for session in sessions:
            expect(session, graph, x=whole(2, 4, seed=seed))
    assert {stream.context for stream in fake.streams} == {1000, 1001}
    assert not fake._contexts()  # the caller's thread is as it was
    with pytest.raises(DeviceError, match="device: got 'cuda:2', wanted a number below 2"):
        gpu_of(fake, 2)


def test_profile_takes_times_of_events() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    rows = {row.op: row for row in session.profile(whole(6, 4), runs=2).rows}
    assert rows["Relu"].seconds == pytest.approx(1e-3)  # a tick of the fake's clock
    assert rows["Relu"].counts == {"launches": 1}


def test_profile_on_the_simulator_says_what_kernels_do(tmp_path: Path) -> None:
    profile = bn.compile(chain(2), device="cuda-sim", threads=1, stages=()).profile(whole(64, 4), runs=1)
    counts = [row.counts for row in profile.rows if row.op == "Relu"]
    assert len(counts) == 2
    for found in counts:
        assert found["launches"] == 1
        assert 8 < found["instructions"] < 200
        assert found["% of sectors used"] == 100
        assert found["bank conflicts"] == 0
    assert "1 launches, " in profile.table()
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"]["launches"] for event in events if event["cat"] == "Relu"] == [1, 1]


# ------------------------------------------------------------------------------------------------------------ failures


def test_memory_that_is_not_there_is_refused_and_the_session_goes_on() -> None:
    fake, graph = FakeDriver(nbytes=1 << 16), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    with pytest.raises(BudgetError, match=r"cuda: memory: got [\d,]+ of 65,536 bytes free, wanted [\d,]+"):
        session(x=whole(60000, 4))
    expect(session, graph, x=whole(7, 4))


def test_memory_of_idle_runs_is_let_go_for_others() -> None:
    fake, graph = FakeDriver(nbytes=1 << 16), chain()
    session = session_on(fake, graph)
    for rows in (600, 601, 600):  # of which only one fits at a time
        expect(session, graph, x=whole(rows, 4))
    assert sum(fake.sizes.values()) < 1 << 16
    with pytest.raises(BudgetError):
        session(x=whole(60000, 4))


def test_all_sessions_let_go_for_constants_and_arrays_of_another() -> None:
    """Idle buffers of one session make room for the weights of another on that GPU, and for arrays of callers."""
    fake, name = FakeDriver(nbytes=1 << 16), f"fake{next(_numbers)}"
    devices.register(name, lambda: Cuda(name, gpu_of(fake), weighs=False))
    first = bn.compile(chain(), device=name, threads=1, stages=())
    expect(first, chain(), x=whole(800, 4))
    graph = Graph("weights")
    x, table = graph.add_input("index", TensorType(np.dtype(np.int64), (5,))), whole(2500, 4)
    graph.add_output(Builder(graph)(Gather(), table, x), "y")
    second = bn.compile(graph, device=name, threads=1, stages=())
    np.testing.assert_array_equal(second(index=np.arange(5))["y"], table[:5])
    second.close()
    del second, graph, table
    expect(first, chain(), x=whole(800, 4))
    assert bn.device_array((8000,), device=name).nbytes == 32000
    gc.collect()
    expect(first, chain(), x=whole(800, 4))


def test_pinned_memory_is_counted() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    assert session.memory()["pinned"] == sum(p.nbytes for p in fake.pinned.values()) > 0


def test_a_run_that_is_interrupted_leaves_no_error_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, graph, table = FakeDriver(), Graph("rows"), whole(8, 4)
    index = graph.add_input("index", TensorType(np.dtype(np.int64), (5,)))
    graph.add_output(Builder(graph)(Gather(), table, index), "y")
    session = session_on(fake, graph)

    def interrupted(faults: Faults) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Faults, "check", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session(index=np.array([0, 1, 2, 8, 3]))
        np.testing.assert_array_equal(session(index=np.arange(5))["y"], table[:5])


@pytest.mark.parametrize("function", ["cuStreamSynchronize", "cuMemcpyHtoDAsync", "cuLaunchKernel", "cuMemAlloc"])
def test_a_lost_gpu_is_named_from_then_on(function: str) -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    fake.failing[function] = Result.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(DeviceError, match="the GPU failed: got CUDA_ERROR_ILLEGAL_ADDRESS"):
        session(x=whole(5, 4))
    fake.failing.clear()
    with pytest.raises(DeviceError, match=r"the GPU failed: got CUDA_ERROR_ILLEGAL_ADDRESS .*wanted a new process"):
        session(x=whole(6, 4))


def test_other_errors_leave_the_gpu_usable() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    fake.failing["cuStreamCreate"] = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="making a stream: got CUDA_ERROR_INVALID_VALUE"):
        session(x=whole(6, 4))
    fake.failing.clear()
    expect(session, graph, x=whole(6, 4))


def test_a_graph_that_cannot_be_made_leaves_the_stream_as_it_was() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    fake.failing["cuLaunchKernel"] = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="launching kernel"):
        session(x=whole(6, 4))
    fake.failing.clear()
    expect(session, graph, x=whole(6, 4))


class Interrupting(FakeDriver):
    """A user interrupts the process behind a call of the driver, ``left`` calls from now."""

    left = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("cu"):
            return found

        def called(*args: Any) -> Any:
            result = found(*args)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return result

        return called


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops those of finalisers
@pytest.mark.parametrize("runs", [0, 1, 2])
def test_an_interrupt_behind_any_call_leaves_the_session_usable(runs: int) -> None:
    """runs: how many were before.  The second one makes a graph."""
    fake, graph = Interrupting(), chain()
    for calls in range(1, 100):
        session = session_on(fake, graph)
        for _ in range(runs):
            expect(session, graph, x=whole(6, 4))
        fake.left = calls
        with contextlib.suppress(KeyboardInterrupt):
            session(x=whole(6, 4))
        over, fake.left = fake.left > 0, 0
        for seed in range(2):
            expect(session, graph, x=whole(6, 4, seed=seed))
        if over:
            return
    pytest.fail("a run makes no end of calls")


def test_a_driver_too_old_for_the_code_is_named() -> None:
    fake, graph = FakeDriver(version=12040), chain()
    fake.failing["cuModuleLoadData"] = Result.CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    with pytest.raises(DeviceError, match=r"got a driver of CUDA 12\.4, wanted one that takes code of CUDA 13"):
        session_on(fake, graph)(x=whole(6, 4))


def test_a_gpu_too_old_for_the_kernels_is_named() -> None:
    with pytest.raises(DeviceError, match="device: cuda: got a GPU of sm_75, wanted sm_80 or newer"):
        Gpu(0, FakeDriver(capability=75), PTX)


def test_shared_memory_is_allowed_or_refused() -> None:
    gpu = gpu_of(FakeDriver())
    function = driver.Function("k", None, type("F", (), {"most_shared": 0})())
    gpu.call(function, (1, 1, 1), 32, 100 << 10, [], gpu.stream())
    assert function.handle.most_shared == 100 << 10
    with pytest.raises(DeviceError, match=r"kernel k: shared memory of a block: got .*, wanted at most 232448"):
        gpu.call(function, (1, 1, 1), 32, 300 << 10, [], gpu.stream())


@pytest.mark.parametrize("is_simulated", [False, True])
def test_a_launch_that_no_gpu_takes_is_refused(is_simulated: bool) -> None:
    """The simulated GPU has the limits of a real one."""
    gpu: Any = SimulatedGpu("small") if is_simulated else gpu_of(FakeDriver())
    function = gpu.function(_noop)
    x = gpu.allocate(4)

    def launched(grid: tuple[int, int, int], threads: int = 32, shared: int = 0) -> None:
        stream = gpu.stream()
        gpu.run([gpu.call(function, grid, threads, shared, [ctypes.c_int64(x)], stream)])
        gpu.synchronise(stream)

    launched((1, 2, 3), shared=100 << 10)
    with pytest.raises(DeviceError, match=r"kernel .*noop.*: blocks of a launch: got \(1, 65536, 1\), wanted at most"):
        launched((1, 65536, 1))
    with pytest.raises(DeviceError, match="blocks of a launch"):
        launched((1, 1, 65536))
    with pytest.raises(DeviceError, match="threads of a block: got 1025, wanted at most 1024"):
        launched((1, 1, 1), threads=1025)
    with pytest.raises(DeviceError, match="shared memory of a block: got 239616 bytes, wanted at most"):
        launched((1, 1, 1), shared=234 << 10)


@cuda_kernel(threads=32, blocks=lambda a: 1, x=PTR)
def _noop(x):  # type: ignore[no-untyped-def]
    store_f32(x, np.float32(1))


class _Starting:
    """`cuda.bindings.driver` whose start ends so."""

    CUresult = Result

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def cuInit(self, flags: int) -> Any:  # noqa: N802
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return (self.outcome,)


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (RuntimeError("no libcuda"), "cuda: driver: got none on this machine, wanted that of NVIDIA"),
        (Result.CUDA_ERROR_NO_DEVICE, "got CUDA_ERROR_NO_DEVICE .*CUDA_VISIBLE_DEVICES.*cuda-sim"),
        (Result.CUDA_ERROR_STUB_LIBRARY, "got CUDA_ERROR_STUB_LIBRARY .*wanted the driver itself"),
        (Result.CUDA_ERROR_NOT_INITIALIZED, "got CUDA_ERROR_NOT_INITIALIZED .*spawn"),
        (Result.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "nvidia-smi"),
    ],
)
def test_a_start_that_fails_says_what_is_missing(outcome: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    monkeypatch.setattr(cuda.bindings, "driver", _Starting(outcome))
    with pytest.raises(DeviceError, match=message):
        library.library()


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"package cuda-bindings: got none .*pip install 'bolt-numba\[cuda\]'"):
        library.library()


def test_compile_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    monkeypatch.setattr(cuda.bindings, "driver", _Starting(Result.CUDA_ERROR_NO_DEVICE))
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_DEVICE"):
        bn.compile(chain(), device="cuda:77")


def test_doctor_lists_gpus_or_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.bindings

    from bolt_numba.cli.machine import _gpus

    monkeypatch.setattr(cuda.bindings, "driver", FakeDriver(gpus=2, nbytes=80 << 30, version=12040, capability=90))
    text = _gpus()
    assert text.startswith("driver of CUDA 12.4; cuda:0: NVIDIA Fake (sm_90a, 80 GiB); cuda:1: NVIDIA Fake")
    assert "numba-cuda 0." in text
    monkeypatch.setattr(cuda.bindings, "driver", _Starting(Result.CUDA_ERROR_NO_DEVICE))
    assert _gpus().startswith("cuda: driver: got CUDA_ERROR_NO_DEVICE")


def _in_child(work: Callable[[], Any], queue: Any) -> None:
    try:
        work()
        queue.put("no error")
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")


def test_a_child_of_fork_is_told_so() -> None:
    fake, graph = FakeDriver(), chain()
    session = session_on(fake, graph)
    expect(session, graph, x=whole(6, 4))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(lambda: session(x=whole(6, 4)), queue))
    child.start()
    child.join(60)
    assert "DeviceError: cuda: fork: got a child of a process that had used the GPU" in queue.get()
    expect(session, graph, x=whole(6, 4))


def test_the_fake_has_what_the_real_package_has() -> None:
    names = [name for name in vars(FakeDriver) if name.startswith("cu")]
    assert len(names) > 30
    assert all(hasattr(real, name) for name in names)


# --------------------------------------------------------------------------------------------------------- whole models


def test_the_digits_demo_and_a_transformer_run_through_the_driver(tmp_path: Path) -> None:
    """Several runs and shapes, so that graphs are replayed; each agrees with the CPU."""
    fake, name = FakeDriver(nbytes=1 << 26), f"fake{next(_numbers)}"
    devices.register(name, lambda: Cuda(name, gpu_of(fake), weighs=False))
    transformer = tmp_path / "transformer.onnx"
    transformer.write_bytes(zoo.bert(3, layers=1, width=64, heads=4, seq=24)(1).SerializeToString())
    for path, feeds in ((transformer, zoo.normal_feeds(transformer)), (DIGITS, zoo.normal_feeds(DIGITS))):
        cpu, gpu = bn.compile(path), bn.compile(path, device=name)
        for turn in range(3):
            given = {k: v if v.dtype.kind in "iu" else v + np.float32(turn) for k, v in feeds.items()}
            for key, wanted in cpu(**given).items():
                np.testing.assert_allclose(gpu(**given)[key], wanted, rtol=1e-3, atol=1e-4)
        assert all(row["device"] in (name, "mover") for row in gpu.report())
    assert fake.counts["cuGraphLaunch"] >= 4
