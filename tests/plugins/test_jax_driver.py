"""JAX as a device: operators against references, operands where they lie, kept code, what it is kept from."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DataError, DeviceError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.plugins.drivers.jax.device import JaxDriver
from bolt_numba.plugins.drivers.jax.table import TABLE
from bolt_numba.plugins.interface import Accelerator, CompileContext, DeviceFullError
from bolt_numba.types import BF16, F16, F32, F64, I64, U8, Array, Sym, TensorType
from tests.cases import CASES
from tests.graphs import make
from tests.plugins.drivers import agrees, layer, near, opened, run_graph, wanted_of

pytest.importorskip("jax", reason="the SDK of this device: pip install 'bolt-numba[jax]'")
BUILT = sorted(TABLE.load())
BY_NAME = {op.name: op for op in CASES}
TAKEN_APART = {
    "BatchNormalization", "BetweenBytes", "Chain", "Distances", "GroupNormalization", "InstanceNormalization",
    "LpNormalization", "QLinearConv", "QLinearMatMul", "RMSNormalization",
}  # fmt: skip


@pytest.fixture(scope="module")
def device() -> Accelerator:
    return opened(JaxDriver())


@pytest.mark.parametrize("name", sorted({*BUILT, *TAKEN_APART}))
def test_operator_agrees_with_its_reference(device: Accelerator, name: str) -> None:
    ran, refused = agrees(device, BY_NAME[name], 1e-3)
    assert ran, refused


def aligned(*shape: int, dtype: Any = F32, offset: int = 0) -> Array:
    """An array that begins so many bytes behind a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = np.zeros(size + 128, np.uint8)
    start = -block.ctypes.data % 64 + offset
    made: Array = block[start : start + size].view(dtype).reshape(shape)
    return made


@pytest.mark.parametrize("offset", [0, 4])
def test_operands_are_read_where_they_lie_and_never_kept(device: Accelerator, offset: int) -> None:
    graph = layer(2)
    request: Any = device.compile(graph, CompileContext()).request()
    x, made = aligned(2, 64, offset=offset), [np.zeros((2, n), F32) for n in (96, 64)]
    for value in (1, -2):  # the same memory with other content
        x[:] = value
        request.run([x], made)
        near(made, wanted_of(graph, x))
        assert request._lies == [offset == 0]
    others, before = [np.zeros((2, n), F32) for n in (96, 64)], [a.copy() for a in made]
    y = np.full((2, 64), 3, F32)
    y.flags.writeable = False
    request.run([y], others)
    near(others, wanted_of(graph, y))
    near(made, before)
    gone = [weakref.ref(a) for a in (x, *made)]
    del x, made
    assert all(r() is None for r in gone)


def test_requests_run_beside_each_other(device: Accelerator) -> None:
    graph = layer(2)
    compiled = device.compile(graph, CompileContext())
    for i, request in enumerate([compiled.request() for _ in range(3)]):
        x = np.full((2, 64), i, F32)
        made = [np.zeros((2, n), F32) for n in (96, 64)]
        request.run([x], made)
        near(made, wanted_of(graph, x))


def test_weights_are_read_where_they_lie(device: Accelerator) -> None:
    graph = layer(2)
    weights = graph.nodes[0].inputs[1].const  # type: ignore[union-attr]
    assert weights is not None
    moved = aligned(*weights.shape)
    moved[:] = weights
    graph.nodes[0].inputs[1].const = moved  # type: ignore[union-attr]
    compiled: Any = device.compile(graph, CompileContext())
    assert [w.unsafe_buffer_pointer() for w in compiled.weights] == [moved.ctypes.data]


KEPT = """
import sys
from pathlib import Path
import numpy as np
from bolt_numba.plugins.drivers.jax.device import JaxDriver
from bolt_numba.plugins.interface import CompileContext
from tests.plugins.drivers import layer, near, opened, wanted_of
device, graph = opened(JaxDriver()), layer(2)
blob = Path(sys.argv[1]).read_bytes()
x = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
for compiled in (device.restore(blob, graph, CompileContext()), device.start(memoryview(blob), CompileContext())):
    made = [np.empty((2, n), np.float32) for n in (96, 64)]
    compiled.request().run([x], made)
    near(made, wanted_of(graph, x))
    assert compiled.serialise() is None
"""


def test_another_process_takes_what_was_kept_and_says_nothing(device: Accelerator, tmp_path: Path) -> None:
    """XLA writes to the standard error where code does not fit the processor."""
    blob = device.compile(layer(2), CompileContext(threads=1)).serialise()
    assert blob is not None
    path = tmp_path / "blob"
    path.write_bytes(blob)
    done = subprocess.run([sys.executable, "-W", "error", "-c", KEPT, str(path)], capture_output=True, text=True,
                          timeout=120, cwd=Path(__file__).parents[2], check=False)  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.parametrize("cut", [100, 4000])
def test_damaged_code_is_an_error(device: Accelerator, cut: int) -> None:
    graph, context = layer(2), CompileContext()
    blob = device.compile(graph, context).serialise()
    assert blob is not None
    with pytest.raises(Exception, match=r".+"):
        device.restore(blob[:cut], graph, context)


def test_a_failure_of_a_run_is_an_exception(device: Accelerator) -> None:
    request = device.compile(layer(2), CompileContext()).request()
    made = [np.zeros((2, n), F32) for n in (96, 64)]
    with pytest.raises(TypeError):
        request.run([np.zeros((2, 63), F32)], made)
    request.run([np.ones((2, 64), F32)], made)
    near(made, wanted_of(layer(2), np.ones((2, 64), F32)))


def test_a_lack_of_memory_is_an_error(device: Accelerator) -> None:
    """A result without memory ends the process when somebody looks at it before it is waited for."""
    graph = Graph("large")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (1, 1)))
    wide = b(make("Expand"), b(make("Exp"), x), np.array([1 << 23, 1 << 23]))  # more than there are addresses
    graph.add_output(b(make("CumSum"), wide, np.array(0)))
    request = device.compile(graph, CompileContext()).request()
    with pytest.raises(DeviceFullError, match="jax: memory: RESOURCE_EXHAUSTED"):
        request.run([np.zeros((1, 1), F32)], [np.zeros((1,), F32)])


def test_the_self_check_agrees_on_sizes_that_change() -> None:
    graph = layer(Sym("rows"))
    properties = {"jax": {"self_check": True, "cache": False}}
    with bn.compile(graph, device=["jax", "cpu"], properties=properties, fallback="forbid", threads=1) as session:
        for rows in (3, 1, 3):
            x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(F32)
            near(list(session.run(None, {"x": x})), wanted_of(graph, x))


def test_numbers_of_64_bits_stay_so(device: Accelerator) -> None:
    """JAX makes them narrower unless it is told not to, whatever the caller's setting is."""
    for offset in (0, 8):
        for dtype, step in ((I64, 1), (F64, 2.0**-40)):
            graph = Graph("wide")
            b, x = Builder(graph), graph.add_input("x", TensorType(dtype, (4,)))
            graph.add_output(b(make("Add"), b(make("Mul"), x, x), np.array(step, dtype)))
            given = aligned(4, dtype=dtype, offset=offset)
            given[:] = [1, 1 << 20, 1 << 26, -(1 << 30)]
            (made,) = run_graph(device, graph, [given], [given])
            np.testing.assert_array_equal(made, given * given + np.array(step, dtype))


def test_the_caller_s_own_jax_is_as_it_was() -> None:
    import jax.numpy as jnp

    opened(JaxDriver(), precision="bf16").compile(layer(2), CompileContext())
    assert jnp.arange(3).dtype == np.int32
    assert jnp.zeros(2).dtype == np.float32


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_are_summed_as_wide_ones(device: Accelerator, dtype: Any) -> None:
    graph = Graph("narrow")
    b, x = Builder(graph), graph.add_input("x", TensorType(dtype, (1, 4096)))
    graph.add_output(b(make("ReduceSum"), x))
    (made,) = run_graph(device, graph, [np.ones((1, 4096), dtype)], [np.zeros((1, 1), dtype)])
    assert float(made[0, 0]) == 4096


def test_indices_of_a_run_are_held_to_their_axis() -> None:
    """XLA would read the last element instead."""
    graph = Graph("lookup")
    b = Builder(graph)
    at = graph.add_input("at", TensorType(I64, (Sym("n"),)))
    graph.add_output(b(make("Relu"), b(make("Gather", axis=0), np.eye(3, dtype=F32), at)), "y")
    with bn.compile(graph, device=["jax", "cpu"], threads=1) as session:
        np.testing.assert_array_equal(session(at=np.array([2, -3]))[0], np.eye(3)[[2, 0]])
        with pytest.raises(DataError, match=r"indices\[1\]: got 3, wanted -3 to 2"):
            session(at=np.array([0, 3]))
        np.testing.assert_array_equal(session(at=np.array([1, -1]))[0], np.eye(3)[[1, 2]])
        assert {row["device"] for row in session.report().placed} == {"jax"}


def test_reasons_say_what_is_missing(device: Accelerator) -> None:
    graph = Graph("others")
    build = Builder(graph)
    y, none = (graph.add_input(n, TensorType(F32, s)) for n, s in (("y", (3,)), ("z", (3, 0))))
    wide = graph.add_input("n", TensorType(I64, (3,)))
    assert "without elements" in str(device.supports(build.node(make("Add"), none, none)))
    assert "no function" in str(device.supports(build.node(make("NonZero"), y)))
    assert "i64" in str(device.supports(build.node(make("Pow"), wide, wide)))
    assert "beyond their axis" in str(device.supports(build.node(make("Gather", axis=0), y, np.array([3]))))
    image, at = (graph.add_input(n, TensorType(F32, s)) for n, s in (("i", (1, 1, 4, 4)), ("at", (1, 2, 2, 2))))
    assert device.supports(build.node(GridSample(mode="cubic", padding_mode="border"), image, at)) is True
    rows = graph.add_input("rows", TensorType(F32, (Sym("n"), Sym("m"))))
    assert device.supports(build.node(make("Softmax"), rows)) is True


def test_what_it_is_asked_for_is_named() -> None:
    with pytest.raises(DeviceError, match=r"platform: got 'npu', wanted one of auto, cpu"):
        opened(JaxDriver(), platform="npu")
    with pytest.raises(DeviceError, match=r"index: got 64, wanted 0 to "):
        opened(JaxDriver(), index=64, platform="cpu")


LOOKED_AT = """
import sys
import bolt_numba as bn
from bolt_numba.plugins import registry
from bolt_numba.plugins.drivers.jax.table import TABLE
assert registry.obstacle("jax") == "" and len(TABLE.load()) > 100
assert [m for m in sys.modules if m.partition(".")[0] in ("jax", "jaxlib")] == []
"""


def test_nothing_of_it_is_imported_before_a_session_names_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKED_AT], capture_output=True, text=True, timeout=60,
                          cwd=Path(__file__).parents[2], check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_package_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JaxDriver().missing() == ""
    monkeypatch.setitem(sys.modules, "jax", None)
    assert "not installed" in JaxDriver().missing()


def test_bytes_that_only_a_run_tells_are_looked_up(device: Accelerator) -> None:
    graph = Graph("table")
    x = graph.add_input("x", TensorType(U8, (256,)))
    table = np.arange(256, dtype=np.uint8)[::-1].copy()
    graph.add_output(Builder(graph)(make("ByteTable"), x, table))
    given = np.arange(256, dtype=np.uint8)
    (made,) = run_graph(device, graph, [given], [given])
    np.testing.assert_array_equal(made, table)


@pytest.mark.parametrize("group", [1, 2, 4, 48])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2), (8, 8)])
def test_convolutions_of_all_groups(device: Accelerator, group: int, kernel: tuple[int, int]) -> None:
    """Products, images moved channel by channel, one group after the other, all at once."""
    rng, graph = np.random.default_rng(group), Graph("conv")
    op = make("Conv", group=group, strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2))
    x, w = rng.integers(-4, 5, (2, 48, 16, 18)).astype(F32), rng.integers(-4, 5, (48, 48 // group, *kernel)).astype(F32)
    given = graph.add_input("x", TensorType(F32, x.shape))
    graph.add_output(Builder(graph)(op, given, w))
    wanted = op.reference(x, w)
    np.testing.assert_array_equal(run_graph(device, graph, [x], [wanted])[0], wanted)
