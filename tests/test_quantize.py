"""Post-training quantisation: calibration, methods, what is inserted, the search, scale files, bad input."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, InvalidModelError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.histogram import HALF
from bolt_numba.ops.arrays.quantize import DequantizeLinear
from bolt_numba.ops.arrays.shape import Concat
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Relu, Sigmoid
from bolt_numba.quantize import quantize, read_scales, write_clips, write_table
from bolt_numba.quantize.calibrate import TensorStats, Watched, calibrate, merged
from bolt_numba.quantize.data import feeds_of
from bolt_numba.quantize.equalise import equalised, smoothed
from bolt_numba.quantize.layers import layers_of
from bolt_numba.quantize.methods import METHODS, affine, range_of, stored_bias, stored_weight
from bolt_numba.quantize.report import LEFT, WIDTH
from bolt_numba.quantize.sensitivity import sqnr
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.types import F32, I8, U8, U16, Array, Sym, TensorType

RNG = np.random.default_rng(7)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    """The same numbers in each test, whichever run before."""
    RNG.bit_generator.state = START


def weights(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F32)


def small_net() -> Graph:
    """Convolutions with a residual block, a depthwise one, and a product."""
    graph = Graph("net")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 3, 8, 8)))
    b = Builder(graph)
    y = b(Relu(), b(Conv(pads=(1, 1, 1, 1)), x, weights(8, 3, 3, 3), weights(8), name="first"))
    z = b(Relu(), b(Conv(pads=(1, 1, 1, 1), group=8), y, weights(8, 1, 3, 3), weights(8), name="depthwise"))
    z = b(Conv(), z, weights(8, 8, 1, 1), name="last")
    pooled = b(Relu(), b(Add(), y, z))
    from bolt_numba.ops.arrays.reduce import ReduceMean

    mean = b(ReduceMean(keepdims=False), pooled, np.array([2, 3], np.int64))
    graph.add_output(b(MatMul(), mean, weights(8, 5), weights(5), name="head"), "y")
    return graph


def samples(count: int = 12) -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal((count, 3, 8, 8)).astype(F32)}


def run_elsewhere(path: Path, feed: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, feed)]


def stats_of(values: Array) -> TensorStats:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, (Sym("n"),)))
    graph.add_output(Builder(graph)(Relu(), x))
    return calibrate(graph, [{"x": values.astype(F32)}], [Watched("x")]).tensors["x"]


# --- the whole way ---------------------------------------------------------------------------------------------------


def test_a_quantised_model_is_near_the_float_one_and_runs_elsewhere(tmp_path: Path) -> None:
    graph, data = small_net(), samples()
    made = quantize(graph, data)
    made.save(tmp_path / "q.onnx")
    made.save(tmp_path / "q.bolt")
    wanted = bn.compile(graph)(data)["y"]
    ours = bn.compile(tmp_path / "q.onnx")(data)["y"]
    assert sqnr(wanted, ours) > 28
    assert sqnr(ours, run_elsewhere(tmp_path / "q.onnx", data)[0]) > 35
    np.testing.assert_array_equal(bn.compile(tmp_path / "q.bolt")(data)["y"], bn.compile(made.graph)(data)["y"])
    assert made.report.bytes_after < 0.6 * made.report.bytes_before
    kinds = {i.data_type for i in onnx.load(tmp_path / "q.onnx").graph.initializer if i.name.endswith("stored")}
    assert kinds == {onnx.TensorProto.INT8}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activations", ["u8", "s8", "u16"])
def test_every_method_gives_a_model_that_works(method: str, activations: str) -> None:
    graph, data = small_net(), samples()
    made = quantize(graph, data, method=method, activations=activations)
    assert made.report.sqnr > (20 if method == "entropy" else 26)
    if activations == "u16":
        assert made.report.sqnr > (20 if method == "entropy" else 34)


def test_the_shortcut_of_a_block_reads_the_bytes_that_the_convolution_reads() -> None:
    made = quantize(small_net(), samples(), results=False).graph
    add = next(n for n in made.nodes if isinstance(n.op, Add))
    assert "DequantizeLinear" in {v.node.op.name for v in add.inputs if v is not None and v.node is not None}
    assert sum(n.op.name == "QuantizeLinear" for n in made.nodes) == 4  # x, y shared by two, z, mean


def test_options_change_what_is_stored() -> None:
    graph, data = small_net(), samples()
    whole = quantize(graph, data, per_channel=False, symmetric=True, activations="s8").graph
    scales = [n.inputs[1] for n in whole.nodes if n.op.name == "DequantizeLinear" and n.inputs[0].is_const]  # type: ignore[union-attr]
    assert all(s is not None and (s.type.shape == () or s.type.shape is None) for s in scales if s.type.shape != (8,))
    zeros = [n.inputs[2] for n in whole.nodes if n.op.name == "QuantizeLinear"]
    assert {z.type.dtype for z in zeros if z is not None} == {I8}
    assert all(not np.any(z.const) for z in zeros if z is not None)
    assert quantize(graph, data, weights="s4").report.sqnr < quantize(graph, data).report.sqnr


def test_layers_stay_float_by_name_and_by_operator() -> None:
    graph, data = small_net(), samples()
    report = quantize(graph, data, keep=["dep*", "MatMul"]).report
    assert {r.name: r.stored for r in report.layers} == {
        "first": "u8 x s8", "depthwise": "float", "last": "u8 x s8", "head": "float",
    }  # fmt: skip
    report = quantize(graph, data, overrides={"*": {"method": "min-max"}, "head": {"activations": "u16"}}).report
    assert report.layers[-1].stored == "u16 x s8"
    with pytest.raises(BoltError, match="pattern 'nothing'"):
        quantize(graph, data, keep=["nothing"])
    with pytest.raises(BoltError, match="overrides: 'head'"):
        quantize(graph, data, overrides={"head": {"bits": 3}})


def test_biases_take_the_mean_error_of_the_weights_away() -> None:
    """With four bits a filter's error is large, and inputs that are positive make it a shift."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 16)))
    graph.add_output(Builder(graph)(MatMul(), x, weights(16, 8), weights(8), name="layer"), "y")
    data = {"x": (np.random.default_rng(3).random((200, 16)) + 3).astype(F32)}
    plain = quantize(graph, data, weights="s4", bias_correction=False)
    right = quantize(graph, data, weights="s4")
    assert right.report.sqnr > plain.report.sqnr + 6


# --- the search ------------------------------------------------------------------------------------------------------


def test_the_worst_layers_stay_float_until_the_bound_holds() -> None:
    graph, data = small_net(), samples()
    whole = quantize(graph, data, weights="s4", measure=True).report
    wanted = whole.sqnr + 6
    made = quantize(graph, data, weights="s4", min_sqnr=wanted).report
    kept = [r for r in made.layers if r.stored == "float"]
    assert made.bound_holds
    assert made.sqnr >= wanted
    assert 0 < len(kept) < 4
    assert all(r.output_sqnr is not None for r in whole.layers)


def test_a_metric_bounds_the_drop() -> None:
    graph, data = small_net(), samples(40)
    labels = bn.compile(graph)(data)["y"].argmax(1)
    report = quantize(graph, data, labels=labels, weights="s4", max_drop=0.0).report
    assert report.metric_before == 1.0
    assert report.drop == 0.0

    def always_worse(outputs: Any) -> float:
        return float(np.array_equal(outputs[0]["y"], bn.compile(graph)({"x": data["x"]})["y"][: len(outputs[0]["y"])]))

    kept = quantize(graph, data, metric=always_worse, max_drop=0.5).report
    assert {r.stored for r in kept.layers} == {"float"}


# --- calibration -----------------------------------------------------------------------------------------------------


def test_histograms_of_runs_add_up_to_that_of_all() -> None:
    small, large = RNG.standard_normal(5000) * 0.3, RNG.standard_normal(3000) * 40
    both, whole = merged(stats_of(small), stats_of(large)), stats_of(np.concatenate([small, large]))
    assert both.exponent == whole.exponent
    assert np.abs(both.counts - whole.counts).sum() < 40  # a sum in f32 may round to the next bin
    assert (both.low, both.high) == (whole.low, whole.high)
    assert whole.counts.sum() == 8000
    assert whole.counts.size == 2 * HALF


def test_ranges_of_methods() -> None:
    stats = stats_of(np.append(RNG.standard_normal(100_000), 60.0))
    assert range_of(stats, "min-max", U8) == (stats.low, stats.high)
    low, high = range_of(stats, "percentile:99", U8)
    assert low == pytest.approx(-2.33, abs=0.1)
    assert high == pytest.approx(2.33, abs=0.1)
    assert 2.5 < range_of(stats, "entropy", U8)[1] < 30
    assert 30 < range_of(stats, "mse", U8)[1] < 60  # one in 100,000 that is 60 counts as much as the steps it costs
    assert range_of(stats, "mse", U16)[1] == pytest.approx(60)


def test_no_method_is_led_astray_by_values_that_are_alike() -> None:
    """Pictures with a plain ground: three quarters of the values of a channel are one number."""
    values = np.where(RNG.random(200_000) < 0.75, 0.37, np.abs(RNG.standard_normal(200_000)))
    for method in METHODS:
        how = affine(*range_of(stats_of(values), method, U8), U8)
        stored = np.clip(np.rint(values / how.scale) + how.zero_point, 0, 255)
        assert sqnr(values, (stored - how.zero_point) * how.scale) > 28, method


def test_mse_is_no_worse_than_any_other_method_by_its_own_measure() -> None:
    for values in (RNG.standard_normal(20_000), RNG.laplace(size=20_000), RNG.random(20_000) ** 8):
        stats, errors = stats_of(values), {}
        for method in METHODS:
            how = affine(*range_of(stats, method, U8), U8)
            stored = np.clip(np.rint(values / how.scale) + how.zero_point, 0, 255)
            errors[method] = float(np.mean(((stored - how.zero_point) * how.scale - values) ** 2))
        assert errors["mse"] <= 1.1 * min(errors.values()), errors


@pytest.mark.parametrize("dtype", [U8, I8, U16])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("limits", [(-1.0, 3.0), (0.0, 0.0), (2.0, 5.0), (-4.0, -1.0), (-1e-45, 1e-45), (-1e38, 1e38)])
def test_scales_are_usable_and_zero_is_exact(dtype: Any, symmetric: bool, limits: tuple[float, float]) -> None:
    how = affine(*limits, dtype, symmetric)
    info = np.iinfo(dtype)
    assert np.isfinite(how.scale)
    assert how.scale > 0
    assert info.min <= how.zero_point <= info.max
    for value in (*limits, 0.0):
        stored = np.clip(np.rint(value / how.scale) + how.zero_point, info.min, info.max)
        assert abs((stored - how.zero_point) * how.scale - value) <= 1.01 * how.scale


@pytest.mark.parametrize("limits", [(-1.0, 1.0), (-1.0, 3.0), (-0.4, 5.0), (-7.0, 0.1), (0.0, 2.0), (-3.0, 0.0)])
def test_ends_stay_within_the_levels_and_one_is_exact(limits: tuple[float, float]) -> None:
    """A background of -1 would be off by half a level, all over the image."""
    how = affine(*limits, U8)
    assert how.low <= limits[0] * (1 - 1e-6) or limits[0] > -1e-6
    assert how.high >= limits[1] * (1 - 1e-6)
    assert (
        min(abs(how.low / limits[0] - 1) if limits[0] else 1, abs(how.high / limits[1] - 1) if limits[1] else 1) < 1e-6
    )


def test_weights_and_biases_in_integers() -> None:
    w = weights(6, 4)
    w[2] = 0
    stored = stored_weight(w, 0, "s8")
    assert np.max(np.abs(stored.real - w)) <= np.max(np.abs(w)) / 127 / 2 * 1.001
    assert stored.scale.shape == (6,)
    assert np.abs(stored_weight(w, None, "s4").data.astype(np.int8)).max() == 7
    found = stored_bias(np.array([1.0, -2.0], F32), 0.5, np.array([0.25, 0.5], F32))
    assert found is not None
    np.testing.assert_array_equal(found[0], [8, -8])
    assert stored_bias(np.array([1e9], F32), 1e-6, np.array([1e-6], F32)) is None


# --- evening out -----------------------------------------------------------------------------------------------------


def uneven_net() -> Graph:
    graph = Graph("uneven")
    x = graph.add_input("x", TensorType(F32, (1, 4, 6, 6)))
    b = Builder(graph)
    scale = np.logspace(-2, 2, 8).astype(F32).reshape(8, 1, 1, 1)
    y = b(Relu(), b(Conv(), x, weights(8, 4, 1, 1) * scale, weights(8), name="a"))
    y = b(Relu(), b(Conv(group=8), y, weights(8, 1, 3, 3), name="b"))
    graph.add_output(b(Conv(), y, weights(4, 8, 1, 1) / scale.reshape(1, 8, 1, 1), name="c"), "y")
    return graph


def test_equalised_convolutions_compute_the_same_and_quantise_better() -> None:
    graph = uneven_net()
    data = {"x": RNG.standard_normal((20, 4, 6, 6)).astype(F32)}
    made, notes = equalised(graph)
    assert notes == ["equalised 2 pairs of convolutions"]
    feed = {"x": data["x"][:1]}
    np.testing.assert_allclose(bn.compile(made)(feed)["y"], bn.compile(graph)(feed)["y"], rtol=1e-3, atol=1e-3)
    options: Any = {"per_channel": False}
    assert (
        quantize(graph, data, equalise=True, **options).report.sqnr > quantize(graph, data, **options).report.sqnr + 6
    )


def test_smoothed_products_compute_the_same_and_quantise_better() -> None:
    graph = Graph("t")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 5, 16)))
    b = Builder(graph)
    y = b(Sigmoid(), x)
    outliers = np.ones(16, F32)
    outliers[3] = 200
    from bolt_numba.ops.pointwise import Mul

    y = b(Mul(), y, outliers)
    both = [b(MatMul(), y, weights(16, 8), name="q"), b(MatMul(), y, weights(16, 8), name="k")]
    graph.add_output(b(Concat(-1), *both), "y")
    data = {"x": RNG.standard_normal((20, 5, 16)).astype(F32)}
    layers = layers_of(graph)
    found = calibrate(graph, feeds_of(data, [spec_of("x", x.type)]), [Watched(y.name, -1)])
    made, count = smoothed(graph, layers, found, 0.5)
    assert count == 1
    np.testing.assert_allclose(bn.compile(made)(data)["y"], bn.compile(graph)(data)["y"], rtol=1e-4, atol=1e-3)
    assert quantize(graph, data, smooth=0.5).report.sqnr > quantize(graph, data, smooth=None).report.sqnr + 3
    auto = quantize(graph, data).report
    assert "smoothed 1 input of products" in auto.notes
    assert auto.sqnr > quantize(graph, data, smooth=None).report.sqnr + 3


# --- scale files -----------------------------------------------------------------------------------------------------


def test_scale_files_are_written_and_read(tmp_path: Path) -> None:
    made = quantize(small_net(), samples())
    write_clips(made, tmp_path / "clip.json")
    write_table(made, tmp_path / "table.txt")
    clips, table = read_scales(tmp_path / "clip.json"), read_scales(tmp_path / "table.txt")
    assert clips.keys() == table.keys() == made.tensors.keys()
    for name, how in made.tensors.items():
        assert clips[name][1] == pytest.approx(max(-how.low, how.high))
        assert table[name][1] == pytest.approx(max(-how.low, how.high), rel=1e-6)
    again = quantize(small_net(), samples(), ranges=clips, activations="s8", symmetric=True, method="min-max")
    assert again.tensors["x"].high == pytest.approx(clips["x"][1])


def test_files_of_others_are_read(tmp_path: Path) -> None:
    bolt = {"conv": {"inputs": {"x": 2.5}, "weights": {"w": 1.0}, "outputs": {"y": -1}}, "quantization": "static"}
    (tmp_path / "a").write_text(json.dumps(bolt))
    assert read_scales(tmp_path / "a") == {"x": (-2.5, 2.5)}
    digits = struct.pack(">f", 2 / 127).hex()
    (tmp_path / "b").write_text(f"TRT-7103-EntropyCalibration2\nconv:0: {digits}\n")
    assert read_scales(tmp_path / "b")["conv:0"][1] == pytest.approx(2)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"a": {"inputs": {"x": -3}}}', '{"a": {"inputs": 3}}', "TRT-1\nx 3", "TRT-1\nx: 00"]
)
def test_broken_scale_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(InvalidModelError, match="is no file of clip values"):
        read_scales(tmp_path / "a")


# --- data and bad input ----------------------------------------------------------------------------------------------


def test_activations_that_overflow_are_named() -> None:
    data = {"x": np.full((2, 3, 8, 8), 3e38, F32)}
    with pytest.raises(DataError, match=r"tensor '.*': got NaN or infinity"):
        quantize(small_net(), data)


def test_wrong_options_are_one_clear_error(tmp_path: Path) -> None:
    for options, words in (
        ({"method": "best"}, "method: got 'best'"),
        ({"method": "mse:3"}, "method: got 'mse:3'"),
        ({"activations": "u4"}, "activations: got 'u4'"),
        ({"weights": "u8"}, "weights: got 'u8'"),
        ({"per_channel": 1}, "per_channel: got 1"),
        ({"max_drop": 0.1}, "got no metric and no labels"),
        ({"min_sqnr": -1}, "min_sqnr: got -1"),
        ({"smooth": 2}, "smooth: got 2"),
        ({"smooth": "yes"}, "smooth: got 'yes'"),
        ({"labels": [0.5]}, "labels: got float64"),
        ({"labels": [1]}, "labels: got 1, wanted one for each"),
        ({"metric": lambda _: float("nan")}, "metric: got nan"),
        ({"keep": [1]}, "got pattern 1, wanted texts"),
        ({"ranges": {"x": 5}}, "ranges: tensor 'x': got 5, wanted two numbers"),
        ({"ranges": {"x": (float("nan"), 1)}}, "got nan to 1.0, wanted finite numbers"),
        ({"ranges": {"x": (1, -1)}}, "the lower one first"),
    ):
        given: Any = options
        with pytest.raises(BoltError) as caught:
            quantize(small_net(), samples(), **given)
        assert words in str(caught.value)
    made = quantize(small_net(), samples())
    with pytest.raises(BoltError, match=r"wanted \.onnx"):
        made.save(tmp_path / "model.tflite")
    assert not list(tmp_path.iterdir())


def test_a_model_without_products_is_refused() -> None:
    graph = Graph("plain")
    graph.add_output(Builder(graph)(Relu(), graph.add_input("x", TensorType(F32, (3,)))), "y")
    with pytest.raises(BoltError, match="no convolution or product"):
        quantize(graph, [{"x": np.ones(3, F32)}])


def test_constant_and_zero_tensors_keep_their_value() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, (1, 4)))
    graph.add_output(Builder(graph)(MatMul(), x, np.zeros((4, 3), F32), weights(3), name="layer"), "y")
    for value in (0.0, 2.5, -7.0):
        feed = {"x": np.full((1, 4), value, F32)}
        made = quantize(graph, [feed])
        np.testing.assert_allclose(bn.compile(made.graph)(feed)["y"], bn.compile(graph)(feed)["y"], atol=1e-5)


def test_layers_whose_weights_are_no_numbers_stay_float() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, (1, 4)))
    b = Builder(graph)
    y = b(MatMul(), x, weights(4, 4), name="good")
    graph.add_output(b(MatMul(), y, np.full((4, 2), np.inf, F32), name="bad"), "y")
    made = quantize(graph, [{"x": np.ones((1, 4), F32)}])
    assert [layer.name for layer in made.report.layers] == ["good"]


@pytest.mark.parametrize("kinds", [("u8", "s4"), ("u16", "s8"), ("s16", "s8"), ("s8", "s8")])
def test_every_kind_of_integer_is_written_as_onnx(tmp_path: Path, kinds: tuple[str, str]) -> None:
    made = quantize(small_net(), samples(), activations=kinds[0], weights=kinds[1])
    made.save(tmp_path / "q.onnx")
    data = samples(2)
    ours = bn.compile(tmp_path / "q.onnx")(data)["y"]
    assert sqnr(ours, run_elsewhere(tmp_path / "q.onnx", data)[0]) > 30
    np.testing.assert_array_equal(ours, bn.compile(made.graph)(data)["y"])


def test_weights_that_are_stored_narrow_are_quantised_anew() -> None:
    """A float model whose file holds integers."""
    graph = Graph("g")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 64)))
    b = Builder(graph)
    wide = b(DequantizeLinear(1), RNG.integers(-127, 128, (64, 128)).astype(I8), np.full(128, 0.01, F32))
    graph.add_output(b(MatMul(), x, wide, name="layer"), "y")
    data = {"x": RNG.standard_normal((40, 64)).astype(F32)}
    made = quantize(graph, data)
    assert made.report.layers[0].stored == "u8 x s8"
    assert made.report.layers[0].weight_sqnr == pytest.approx(200, abs=200)
    assert sqnr(bn.compile(graph)(data)["y"], bn.compile(made.graph)(data)["y"]) > 35


def test_a_quantised_model_is_not_quantised_again() -> None:
    made = quantize(small_net(), samples())
    with pytest.raises(BoltError, match="layers: got a model that is quantised already"):
        quantize(made.graph, samples())


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_is_text_json_and_a_picture(tmp_path: Path) -> None:
    report = quantize(small_net(), samples(), measure=True).report
    for suffix in ("txt", "json", "svg"):
        report.save(tmp_path / f"r.{suffix}")
    assert "depthwise" in (tmp_path / "r.txt").read_text()
    content = json.loads((tmp_path / "r.json").read_text())
    assert [layer["name"] for layer in content["layers"]] == ["first", "depthwise", "last", "head"]
    assert (tmp_path / "r.svg").read_text().count("<rect") == 4 * len(report.layers)
    with pytest.raises(BoltError, match="wanted one of"):
        report.save(tmp_path / "r.pdf")


def test_headings_of_the_picture_do_not_overlap() -> None:
    """Letters of 11 pixels are 6 wide on average."""
    picture = quantize(small_net(), samples(2), timed=False).report.picture()
    found = re.findall(r'<text x="(\d+)" y="(14|30)"[^>]*>(.*?)</text>', picture)
    lines = {y: [(int(x), re.sub("<.*?>", "", text)) for x, at, text in found if at == y] for y in ("14", "30")}
    assert [len(line) for line in lines.values()] == [3, 1]
    for line in lines.values():
        for (x, text), (after, _) in zip(line, [*line[1:], (LEFT + WIDTH + 20, "")], strict=True):
            assert x + 6 * len(text) < after or (x, text) == line[-1]
    assert LEFT + 6 * len(lines["30"][0][1]) < LEFT + WIDTH + 20


def test_the_summary_warns_of_noise_and_says_what_was_timed() -> None:
    report = quantize(small_net(), samples(2), threads=1).report
    assert "(x [2, 3, 8, 8], 1 thread)" in report.summary()
    assert "min_sqnr" not in report.summary()
    report.sqnr = 12.0
    assert "12.0 dB is little: min_sqnr=20 (--min-sqnr 20) keeps" in report.summary()


def test_progress_says_how_far_it_is() -> None:
    said: list[tuple[str, int, int]] = []
    quantize(small_net(), samples(), measure=True, progress=lambda *what: said.append(what))
    assert {"calibrating", "measuring layers"} <= {what for what, _, _ in said}
    assert all(0 <= done <= total for _, done, total in said)


def test_interrupted_work_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = quantize(small_net(), samples())

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    for name in ("q.onnx", "q.bolt"):
        with pytest.raises(KeyboardInterrupt):
            made.save(tmp_path / name)
    with pytest.raises(KeyboardInterrupt):
        made.report.save(tmp_path / "r.svg")
    assert not list(tmp_path.iterdir())
