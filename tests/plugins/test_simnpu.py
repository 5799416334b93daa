"""SimNPU's SDK and its driver, without sessions: operators, chips, blobs, memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.registry import OPS
from bolt_numba.plugins import registry
from bolt_numba.plugins.interface import COMMON, INTERFACE, CompileContext, DeviceFullError, DeviceLostError
from bolt_numba.quantize.tool import quantize
from bolt_numba.types import F32, I8, I32, U8, Array, Sym, TensorType
from tests.graphs import make
from tests.plugins.drivers import agrees
from tests.plugins.simnpu import BYTES, CHIPS, OPERATORS, TOLERANCE, SimDriver, computed, opened, sdk

FOLDER = Path(__file__).parents[2] / "examples" / "simnpu"


def numbers(rng: Any, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(F32)


def whole(rng: Any, dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def graph_of(arrays: list[Array], build: Any) -> Graph:
    """A graph with these inputs, x0, x1, ..."""
    graph = Graph("part")
    values = [graph.add_input(f"x{i}", TensorType(a.dtype, a.shape)) for i, a in enumerate(arrays)]
    made = build(Builder(graph), *values)
    for i, y in enumerate(made if isinstance(made, tuple) else (made,)):
        graph.add_output(y, f"y{i}")
    return graph


def expect(accelerator: Any, graph: Graph, arrays: list[Array], share: float) -> None:
    """The device's results are the interpreter's, up to a share of the greatest (0.1 at least); of bytes up to one."""
    wanted = interpret(graph, {value.name: a for value, a in zip(graph.inputs, arrays, strict=True)})
    for got, want in zip(computed(accelerator, graph, *arrays), wanted.values(), strict=True):
        if want.dtype.kind in "iu":
            assert abs(got.astype(int) - want.astype(int)).max(initial=0) <= 1
        else:
            np.testing.assert_allclose(got, want, rtol=0, atol=share * max(0.1, abs(want).max(initial=0)))


def small_net(b: Builder, x: Any, channels: int = 16, seed: int = 3) -> Any:
    """Convolution, activation, pool, sum with itself, product, softmax: images, then matrices."""
    rng = np.random.default_rng(seed)
    c, side = x.type.dims[1], x.type.dims[2]
    y = b(make("Conv", pads=(1, 1, 1, 1)), x, numbers(rng, channels, c, 3, 3) / 3, numbers(rng, channels))
    y = b(make("Relu"), y)
    y = b(make("MaxPool", kernel_shape=(2, 2), strides=(2, 2)), y)
    y = b(make("Add"), y, y)
    flat = channels * (side // 2) ** 2
    y = b(make("Reshape"), y, np.array([-1, flat]))
    return b(make("MatMul"), y, numbers(rng, flat, 5) / 16, numbers(rng, 5))


@pytest.mark.parametrize("chip", CHIPS)
def test_chips_compute_as_exactly_as_their_arithmetic(chip: str) -> None:
    x = numbers(np.random.default_rng(0), 2, 3, 6, 6)
    graph = graph_of([x], small_net)
    alive = sdk.live()
    accelerator = opened(chip=chip)
    assert [accelerator.supports(node) for node in graph.nodes] == [True] * len(graph.nodes)
    expect(accelerator, graph, [x], TOLERANCE[chip])
    exact = interpret(graph, {"x0": x})["y0"]
    (rounded,) = computed(accelerator, graph, x)
    assert (abs(rounded - exact).max() > 1e-4) == (chip != "sim200")  # the others do round
    accelerator.close()
    assert sdk.live() == alive


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_convolutions_and_pools(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    n, h, w = (data.draw(st.integers(*limits)) for limits in ((1, 2), (5, 8), (5, 8)))
    group, cg, per = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    kernel, pads = data.draw(st.sampled_from([(2, 2), (3, 2), (2, 3)])), data.draw(st.tuples(*[st.integers(0, 1)] * 4))
    strides, auto = (
        data.draw(st.sampled_from([(), (2, 1)])),
        data.draw(st.sampled_from(["NOTSET", "SAME_LOWER", "VALID"])),
    )
    shared = {"strides": strides, "auto_pad": auto, "pads": pads if auto == "NOTSET" else ()}
    x = numbers(rng, n, group * cg, h, w)
    filters = numbers(rng, group * per, cg, *kernel)

    def build(b: Builder, v: Any) -> Any:
        dilations = data.draw(st.sampled_from([(), (1, 2)]))
        y = b(make("Conv", group=group, dilations=dilations, **shared), v, filters, None)
        best = b(make("MaxPool", kernel_shape=kernel, **shared), v)
        mean = b(make("AveragePool", kernel_shape=kernel, count_include_pad=data.draw(st.booleans()), **shared), v)
        return (
            y,
            b(make("Concat", axis=1), best, mean),
            b(make("ReduceMean", keepdims=data.draw(st.booleans())), y, np.array([2, 3])),
        )

    expect(opened(), graph_of([x], build), [x], 1e-5)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_rest_of_the_floats(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, z = numbers(rng, 2, 3, 4, 4), numbers(rng, 3, 4, 4)
    kind = data.draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min"]))
    last = data.draw(st.sampled_from(["Sigmoid", "Tanh", "Exp", "Neg", "Relu"]))
    perm = tuple(data.draw(st.permutations(range(4))))

    def build(b: Builder, v: Any, u: Any) -> Any:
        image = b(make("MaxPool", kernel_shape=(1, 1)), v)
        summed = b(make(kind), image, numbers(rng, 3, 1, 1))  # beside an image: a constant turns with it
        mixed = b(make("Add"), summed, u)  # of another rank: the image turns back
        turned = b(make("Transpose", perm=perm), b(make(last), mixed))
        clipped = b(make("Clip", lo=-1.0, hi=data.draw(st.sampled_from([None, 0.5]))), turned)
        square = b(make("MatMul"), v, b(make("Softmax", axis=-1), u))
        return clipped, square, b(make("Flatten", axis=2), square), b(make("Unsqueeze"), u, np.array([0]))

    expect(opened(), graph_of([x, z], build), [x, z], 1e-5)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("filters", [U8, I8])
@pytest.mark.parametrize("ends", ["bytes", "real"])
def test_bytes_become_unsigned(signed: bool, filters: Any, ends: str) -> None:
    """Symmetric signed scales are said as asymmetric unsigned ones, exactly."""
    rng = np.random.default_rng(7)
    kind = I8 if signed else U8
    x, zero = whole(rng, kind, 2, 3, 5, 5), np.array(0 if signed else 117, kind)
    w_zero = np.array(0 if filters == I8 else 128, filters)
    tail = (np.float32(2.5), np.array(3, kind)) if ends == "bytes" else (None, None)

    def build(b: Builder, v: Any) -> Any:
        w, scales = whole(rng, filters, 4, 3, 2, 2), rng.uniform(0.01, 0.02, 4).astype(F32)
        given = (v, np.float32(0.1), zero, w, scales, np.full(4, w_zero), *tail, rng.integers(-999, 999, 4).astype(I32))
        y = b(make("QLinearConv", activation=make("Relu")), *given)
        if ends == "real":
            return y
        real = b(make("DequantizeLinear"), y, tail[0], tail[1])
        matrix = b(make("QuantizeLinear"), b(make("Flatten"), real), np.float32(1.5), np.array(2, kind))
        table = whole(rng, filters, 64, 3)
        given = (matrix, np.float32(1.5), np.array(2, kind), table, np.float32(0.01), w_zero, np.float32(9), zero)
        return y, real, b(make("QLinearMatMul"), *given)

    accelerator, graph = opened(chip="sim300"), graph_of([x], build)
    assert [accelerator.supports(node) for node in graph.nodes] == [True] * len(graph.nodes)
    expect(accelerator, graph, [x], 1e-5 if ends == "real" else 2.5 / 255)


@pytest.mark.parametrize("name", sorted({*OPERATORS, "HardSwish", "LeakyRelu", "Swish"} - {"QLinearConv"}))
def test_operators_agree_with_their_references(name: str) -> None:
    """On what the chip takes of the cases that the references are tested by; bytes are above, too."""
    ran, refused = agrees(opened(chip="sim300" if name in BYTES else "sim200"), OPS[name], 1e-5)
    assert ran, refused


@pytest.mark.parametrize("options", [{}, {"activations": "s8", "symmetric": True}], ids=["unsigned", "signed"])
def test_a_quantised_model_goes_whole_to_the_chip_of_bytes(options: dict[str, Any]) -> None:
    folder = FOLDER.parent / "digits"
    images = (np.load(folder / "digits.npz")["image"][:64] / 16).astype(F32)
    graph = quantize(folder / "digits.onnx", {"image": images[:32]}, timed=False, **options).graph
    registry.register_driver(SimDriver)
    try:
        properties = {"simnpu": {"chip": "sim300", "cache": False}}
        with bn.compile(graph, device=["simnpu", "cpu"], properties=properties, fallback="forbid") as session:
            got = session(image=images)["probabilities"]
            assert [row["op"] for row in session.report()] == ["Foreign"]
    finally:
        registry.unregister_driver("simnpu")
    np.testing.assert_allclose(got, bn.compile(graph)(image=images)["probabilities"], atol=1e-4)


# --- what chips refuse -------------------------------------------------------------------------------------------


def one(op: Any, *shapes: tuple[Any, ...], constants: tuple[Any, ...] = (), dtype: Any = F32) -> Any:
    graph = Graph("one")
    values = [graph.add_input(f"x{i}", TensorType(dtype, shape)) for i, shape in enumerate(shapes)]
    return Builder(graph)(op, *values, *constants).node


EIGHT, ONE = np.ones((8, 3, 1, 1), F32), np.ones((), F32)


@pytest.mark.parametrize(
    ("chip", "node", "reason"),
    [
        ("sim100", one(make("Tanh"), (2, 3)), "sim100 has no Tanh"),
        ("sim200", one(make("Relu"), (1, 1, 1, 2, 2)), "rank 4 at most: got 5"),
        ("sim100", one(make("MaxPool", kernel_shape=(2, 2)), (1, 512, 4, 4)), "256 channels at most: got 512"),
        ("sim100", one(make("Conv"), (Sym("n"), 3, 4, 4), constants=(EIGHT,)), "multiple of 16 filters: got 8"),
        ("sim200", one(make("Sin"), (2, 3)), "SimNPU has nothing for Sin"),
        ("sim200", one(make("Add"), (2,), (2,), dtype=np.dtype("f8")), "operands of f32"),
        ("sim200", one(make("Conv"), (1, 3, 4, 4), (8, 3, 1, 1)), "%x1 is no constant"),
        ("sim200", one(make("Softmax", axis=1), (2, 3, 4)), "along the last axis"),
        ("sim200", one(make("Conv", auto_pad="SAME_UPPER"), (1, 3, Sym("h"), 4), constants=(EIGHT,)), "sizes that are"),
        ("sim200", one(make("QuantizeLinear"), (2, 3), constants=(ONE, ONE.astype(U8))), "sim200 has no Quantize"),
    ],
)  # fmt: skip
def test_a_chip_says_why_not(chip: str, node: Any, reason: str) -> None:
    accelerator = opened(chip=chip, dynamic="free")
    assert reason in str(accelerator.supports(node))


@pytest.mark.parametrize("dynamic", ["none", "free"])
def test_sizes_that_are_yet_to_come_are_no_obstacle(dynamic: str) -> None:
    """Where a graph is compiled for each set of shapes, `supports` is asked before they are known."""
    node = one(make("Conv", auto_pad="SAME_UPPER"), (1, 3, Sym("h"), 4), constants=(EIGHT,))
    reshape = one(make("Reshape"), (Sym("n"), Sym("m"), 4), constants=(np.array([0, 0, 2, 2]),))
    answers = [opened(dynamic=dynamic).supports(each) for each in (node, reshape)]
    assert all(answer is True for answer in answers) == (dynamic == "none")


def test_operators_can_be_named() -> None:
    accelerator = opened(supported="Conv, Relu")
    assert accelerator.supports(one(make("Relu"), (2,))) is True
    assert accelerator.supports(one(make("Neg"), (2,))) == "Neg is not in the property supported"


def test_the_compiler_counts_what_is_alive() -> None:
    x = np.ones((1, 64, 72, 72), F32)
    graph = graph_of([x], lambda b, v: b(make("Add"), v, v))
    with pytest.raises(sdk.UnsupportedError, match="bytes alive at once"):
        computed(opened(chip="sim100"), graph, x)
    assert computed(opened(), graph, x)[0].max() == 2


def test_a_part_that_no_node_told_of_fails_when_it_is_compiled() -> None:
    """Each node alone is well, but the SDK has one scale for a tensor."""
    x = np.array([[1, 2]], U8)

    def build(b: Builder, v: Any) -> Any:
        return tuple(b(make("DequantizeLinear"), v, np.float32(s), np.array(0, U8)) for s in (1, 2))

    with pytest.raises(sdk.UnsupportedError, match="read with two scales"):
        computed(opened(chip="sim300"), graph_of([x], build), x)


# --- blobs, memory, the plug ---------------------------------------------------------------------------------------


def test_blobs_are_restored_by_the_same_chip_and_release_alone() -> None:
    x = numbers(np.random.default_rng(1), 1, 3, 6, 6)
    graph = graph_of([x], small_net)
    maker = opened()
    blob = maker.compile(graph, CompileContext()).serialise()
    again = opened().restore(blob, graph, CompileContext())
    out = np.empty((1, 5), F32)
    again.request().run([x], [out])
    np.testing.assert_array_equal(out, computed(maker, graph, x)[0])
    for other in ({"chip": "sim100"}, {"sdk_version": "2.0"}):
        with pytest.raises(sdk.VersionError):
            opened(**other).restore(blob, graph, CompileContext())
        assert opened(**other).version != maker.version
    rng = np.random.default_rng(2)
    for _ in range(40):
        bad = bytearray(blob)
        bad[rng.integers(8, len(bad))] ^= 1 << rng.integers(8)
        with pytest.raises(sdk.BlobError):
            opened().restore(bytes(bad), graph, CompileContext())
    for length in (4, 20, len(blob) - 1):
        with pytest.raises(sdk.BlobError):
            opened().restore(blob[:length], graph, CompileContext())


def test_the_host_has_no_pointer_into_the_device() -> None:
    alive = sdk.live()
    runtime = sdk.Runtime("sim200", "1.4", memory=64)
    graph = sdk.Graph()
    x, y = graph.add_tensor("f32", (2,)), graph.add_tensor("f32", (2,))
    graph.add_op("Relu", [x], [y])
    graph.identify_io([x], [y])
    loaded = runtime.load(sdk.Compiler("sim200", "1.4").build(graph))
    with pytest.raises(AttributeError):
        loaded.run([(np.ones(2, F32), (2,))], [(np.ones(2, F32), (2,))])
    other = sdk.Runtime("sim200", "1.4")
    mine, foreign = runtime.alloc(8), other.alloc(8)
    with pytest.raises(sdk.SimError, match="of another device"):
        loaded.run([(mine, (2,))], [(foreign, (2,))])
    before = sdk.counters()
    mine.write(np.array([-1, 2], F32))
    out = runtime.alloc(8)
    loaded.run([(mine, (2,))], [(out, (2,))])
    got = np.empty(2, F32)
    out.read(got)
    assert got.tolist() == [0, 2]
    done = sdk.counters() - before
    assert done == {"dma_in": 1, "dma_out": 1, "bytes_in": 8, "bytes_out": 8, "runs": 1}
    with pytest.raises(sdk.MemoryFullError, match=r"got 80 bytes, wanted 64"):
        runtime.alloc(64)
    for each in (mine, out, foreign, loaded, runtime, other):
        each.close()
    assert sdk.live() == alive


def test_the_session_hears_of_a_full_and_of_a_lost_device_in_its_words() -> None:
    x = numbers(np.random.default_rng(1), 1, 3, 6, 6)
    graph = graph_of([x], small_net)
    with pytest.raises(DeviceFullError):
        opened(memory=100).compile(graph, CompileContext())
    accelerator = opened(fail="lost:2", memory=20_000)
    request = accelerator.compile(graph, CompileContext()).request()
    out = np.empty((1, 5), F32)
    request.run([x], [out])
    for _ in range(2):  # and it stays lost
        with pytest.raises(DeviceLostError):
            request.run([x], [out])


@pytest.mark.parametrize("dynamic", ["ranges", "free"])
def test_one_compiled_graph_serves_many_sizes(dynamic: str) -> None:
    graph = Graph("part")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 3, 6, Sym("w"))))
    b = Builder(graph)
    image = b(make("Relu"), b(make("Conv", pads=(1, 1, 1, 1)), x, numbers(np.random.default_rng(0), 4, 3, 3, 3)))
    graph.add_output(b(make("ReduceMean", keepdims=False), image, np.array([2, 3])), "y")
    accelerator = opened(dynamic=dynamic)
    assert accelerator.shapes == dynamic
    request = accelerator.compile(graph, CompileContext()).request()
    for n, w in ((1, 4), (3, 9), (2, 5)):
        given, out = numbers(np.random.default_rng(n), n, 3, 6, w), np.empty((n, 4), F32)
        request.run([given], [out])
        np.testing.assert_allclose(out, interpret(graph, {"x": given})["y"], atol=1e-5)


# --- the plug-in itself --------------------------------------------------------------------------------------------


def test_the_sdk_knows_nothing_of_ours_and_the_driver_needs_no_sdk_to_be_imported() -> None:
    for file in (FOLDER / "simnpu_sdk").glob("*.py"):
        assert "import bolt" not in file.read_text()
        assert "from bolt" not in file.read_text()
    code = (
        "import sys; sys.modules['simnpu_sdk'] = None; import simnpu_driver as d; print(d.SimDriver().missing())\n"
        "print(sorted(m for m in sys.modules if m.startswith(('numba', 'bolt_numba.kernels'))))"
    )
    path = f"{FOLDER}:{FOLDER.parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["the package simnpu_sdk is not installed", "[]"]


def test_the_driver_states_what_the_interface_asks() -> None:
    driver = SimDriver()
    assert driver.interface == INTERFACE
    assert driver.missing() == ""
    assert not set(driver.properties) & set(COMMON)
    assert all(p.what and (not p.choices or p.default in p.choices) for p in driver.properties.values())
    with pytest.raises(ValueError, match="property fail: got 'sometimes'"):
        opened(fail="sometimes")
