"""Caffe's nets: files beside each other, nets without weights, phases, in-place tops, fillers, what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bench.caffe_nets import CaffeNet, blob, caffemodel
from bolt_numba.converters.caffe.text import MAX_DEPTH, MAX_TEXT, parse
from bolt_numba.converters.wire import as_varint
from bolt_numba.errors import InvalidModelError, ShapeError, UnsupportedOpError
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, Array

INPUT = 'layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }\n'
CONV = (
    'layer { name: "conv" type: "Convolution" bottom: "data" top: "c"'
    " convolution_param { num_output: 3 kernel_size: 3 } }"
)
X = np.arange(32, dtype=F32).reshape(1, 2, 4, 4)


def weights(**layers: list[Array]) -> bytes:
    return caffemodel("net", {name: ("", blobs) for name, blobs in layers.items()})


def ones() -> bytes:
    return weights(conv=[np.ones((3, 2, 3, 3), F32), np.arange(3, dtype=F32)])


def run(text: str, model: bytes | None = None, **feeds: Array) -> dict[str, Array]:
    return interpret(bn.load(text.encode(), weights=model), feeds or {"data": X})


def layer(kind: str, param: str = "", bottoms: str = 'bottom: "data"', tops: str = 'top: "o"', name: str = "l") -> str:
    return f'{INPUT}layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {param} }}'


@pytest.mark.parametrize("name", ["net.prototxt", "net_deploy.prototxt", "deploy_net.prototxt", "deploy.prototxt"])
def test_weights_are_found_beside_a_prototxt(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(INPUT + CONV)
    (tmp_path / "net.caffemodel").write_bytes(ones())
    got = interpret(bn.load(tmp_path / name), {"data": X})["c"]
    assert got.shape == (1, 3, 2, 2)
    assert got[0, 1, 0, 0] == got[0, 0, 0, 0] + 1


def test_weights_of_another_net_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.prototxt").write_text(INPUT + CONV)
    (tmp_path / "b.prototxt").write_text(INPUT + CONV)
    (tmp_path / "b.caffemodel").write_bytes(ones())
    with pytest.raises(InvalidModelError, match="weights of layers 'conv': got none, wanted a caffemodel"):
        bn.load(tmp_path / "a.prototxt")
    assert bn.load(tmp_path / "a.prototxt", weights=tmp_path / "b.caffemodel").output_names == ["c"]
    assert bn.load(tmp_path / "b.caffemodel", weights=tmp_path / "a.prototxt").output_names == ["c"]


def test_missing_weights_are_named_with_the_file_that_lacks_them() -> None:
    fields = "inner_product_param { num_output: 2 }"
    dense = [f'layer {{ name: "f{i}" type: "InnerProduct" bottom: "c" top: "f{i}" {fields} }}' for i in range(7)]
    text = INPUT + CONV + "".join(dense)
    with pytest.raises(InvalidModelError, match=r"layers 'f0', 'f1', 'f2', 'f3', 'f4' and 2 more: got none in model"):
        bn.load(text.encode(), weights=ones())


def test_constant_fillers_need_no_weights() -> None:
    filler = 'weight_filler { value: 0.5 } bias_filler { type: "constant" value: 2 }'
    got = run(INPUT + CONV.replace("kernel_size: 3", f"kernel_size: 4 {filler}"))["c"]
    np.testing.assert_allclose(got, np.full((1, 3, 1, 1), X.sum() / 2 + 2))
    with pytest.raises(InvalidModelError, match="wanted a caffemodel"):
        bn.load((INPUT + CONV.replace("kernel_size: 3", 'kernel_size: 3 weight_filler { type: "xavier" }')).encode())


def test_layers_share_weights_by_the_name_of_a_parameter() -> None:
    param = 'param { name: "w" } convolution_param { num_output: 2 kernel_size: 1 bias_term: false }'
    text = layer("Convolution", param, tops='top: "a"', name="one")
    text += f'layer {{ name: "two" type: "Convolution" bottom: "data" top: "b" {param} }}'
    w = np.array([[1, 2], [3, 4]], F32).reshape(2, 2, 1, 1)
    got = run(text, weights(one=[w]))
    np.testing.assert_array_equal(got["a"], got["b"])


def test_phases_levels_and_stages_choose_layers() -> None:
    def power(name: str, shift: int, rule: str) -> str:
        fields = f'bottom: "data" top: "data" {rule} power_param {{ shift: {shift} }}'
        return f'layer {{ name: "{name}" type: "Power" {fields} }}'

    text = INPUT + power("a", 1, "include { phase: TRAIN }") + power("b", 2, "exclude { phase: TRAIN }")
    text += power("c", 4, 'include { stage: "deploy" }') + power(
        "d", 8, "include { min_level: 1 } include { phase: TEST }"
    )
    text += 'layer { name: "o" type: "AbsVal" bottom: "data" top: "o" }'
    np.testing.assert_array_equal(run(text)["o"], X + 10)
    np.testing.assert_array_equal(run('state { stage: "deploy" }' + text)["o"], X + 14)


def test_layers_of_training_go_and_their_data_becomes_inputs() -> None:
    text = """layer { name: "d" type: "Data" top: "data" top: "label" data_param { batch_size: 5 backend: LMDB }
                      transform_param { crop_size: 4 mean_value: 1 mean_value: 2 } }
    layer { name: "f" type: "Flatten" bottom: "data" top: "f" }
    layer { name: "acc" type: "Accuracy" bottom: "f" bottom: "label" top: "acc" }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "label" top: "loss" }"""
    graph = bn.load(text.encode())
    assert [(v.name, v.type.shape) for v in graph.inputs] == [("data", (5, 2, 4, 4))]
    assert graph.output_names == ["loss"]
    got = interpret(graph, {"data": np.zeros((5, 2, 4, 4), F32)})["loss"]
    np.testing.assert_allclose(got, np.full((5, 32), 1 / 32), rtol=1e-6)


def test_inputs_that_nobody_reads_are_results_but_not_those_of_training() -> None:
    def feed(name: str) -> str:
        return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}'

    text = feed("x") + feed("idle") + feed("label") + 'layer { name: "o" type: "ReLU" bottom: "x" top: "o" }'
    text += 'layer { name: "acc" type: "Accuracy" bottom: "o" bottom: "label" top: "acc" }'
    graph = bn.load(text.encode())
    assert ([v.name for v in graph.inputs], graph.output_names) == (["x", "idle"], ["idle", "o"])
    x = np.arange(6, dtype=F32).reshape(2, 3)
    np.testing.assert_array_equal(bn.compile(graph)(x=-x, idle=x)["idle"], x)


@pytest.mark.parametrize(
    ("spelled", "field"), [("RELU", ""), ("18", ""), ("PRELU", "prelu_param { filler { value: 0 } }")]
)
def test_types_of_older_nets_are_enumerated(spelled: str, field: str) -> None:
    text = 'input: "data" input_dim: 1 input_dim: 2 input_dim: 4 input_dim: 4 '
    text += f'layers {{ name: "r" type: {spelled} bottom: "data" top: "o" {field} blobs_lr: 1 weight_decay: 0 }}'
    np.testing.assert_array_equal(run(text, data=X - 9)["o"], np.maximum(X - 9, 0))


def test_a_net_saved_in_training_is_read_alone() -> None:
    """Its data layer says neither channels nor, with a crop, the size of the images in the data base."""
    text = """layer { name: "d" type: "Data" top: "data" top: "label"
                      data_param { batch_size: 2 } transform_param { crop_size: 6 } }
    layer { name: "conv" type: "Convolution" bottom: "data" top: "c"
            convolution_param { num_output: 4 kernel_size: 3 group: 2 } }
    layer { name: "pool" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
    layer { name: "fc" type: "InnerProduct" bottom: "p" top: "f" inner_product_param { num_output: 3 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "label" top: "loss" }"""
    w = [np.ones((4, 2, 3, 3), F32), np.zeros(4, F32)]
    graph = bn.load(text.encode(), weights=weights(conv=w, fc=[np.ones((3, 16), F32), np.arange(3, dtype=F32)]))
    assert str(graph.inputs[0].type) == "f32[2, data_1, 6, 6]"
    x = np.random.default_rng(0).normal(0, 0.01, (2, 4, 6, 6)).astype(F32)
    y = bn.compile(graph, threads=1)(x)["loss"]
    np.testing.assert_allclose(y, np.exp(np.arange(3)) / np.exp(np.arange(3)).sum() * np.ones((2, 1)), rtol=1e-4)
    with pytest.raises(InvalidModelError, match="got an HDF5 file"):
        bn.load(text.encode(), weights=b"\x89HDF\r\n\x1a\n")


def test_tops_in_place_keep_their_name() -> None:
    text = INPUT + "".join(
        f'layer {{ name: "l{i}" type: "Power" bottom: "{a}" top: "h" power_param {{ scale: 2 }} }}'
        for i, a in enumerate(("data", "h", "h"))
    )
    graph = bn.load(text.encode())
    assert graph.output_names == ["h"]
    np.testing.assert_array_equal(interpret(graph, {"data": X})["h"], 8 * X)


def test_all_that_is_unsupported_is_listed_at_once() -> None:
    text = layer("Novel") + 'layer { name: "m" type: "Other" bottom: "o" top: "p" }'
    text += 'layer { name: "n" type: "ReLU" bottom: "p" top: "q" relu_param { strange: 1 } }'
    with pytest.raises(UnsupportedOpError) as error:
        bn.load(text.encode())
    assert list(error.value.items) == ["Novel at layer 'l'", "Other at layer 'm'"]
    with pytest.raises(UnsupportedOpError, match=r"relu_param\.strange"):
        bn.load(layer("ReLU", "relu_param { strange: 1 }").encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (INPUT + 'layer { name: "x" type: "ReLU" bottom: "no" top: "y" }', "tensor 'no': got no definition"),
        (layer("Pooling", "pooling_param { kernel_size: 0 }"), "kernel"),
        (layer("AbsVal", bottoms='bottom: "data" bottom: "data"'), "number of inputs: got 2, wanted at most 1"),
        (layer("Concat", "concat_param { axis: 9 }"), "axis of .*: got 9"),
        (layer("Slice", "slice_param { slice_point: 9 }", tops='top: "a" top: "b"'), "slice_point"),
        (layer("Eltwise", "eltwise_param { coeff: 1 coeff: 2 }"), "coeff: got 2 for SUM"),
        (layer("Convolution", "convolution_param { num_output: 3 kernel_size: 3 group: 5 }"), "group: got 5"),
        (layer("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }"), "got"),
        ('name: "n" layer { name: "x" ', "line 1: got the end"),
        ('name: "n"\nlayer { : }', "line 2: got ':', wanted the name of a field or '}'"),
        ('name: "n" ' + "a { " * (MAX_DEPTH + 2), f"wanted at most {MAX_DEPTH} messages"),
        ('layer { name: "a" type: "ReLU" } layers { name: "b" }', "fields layer and layers"),
        ('input: "data" input_dim: 1 input_dim: 2', "input_dim: got 2 sizes, wanted 4"),
        ("name: 7 name: {", "got"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises((InvalidModelError, ShapeError), match=message.replace("{", r"\{").replace("}", r"\}")):
        bn.load(text.encode(), format="caffe")


def test_weights_of_a_wrong_size_are_refused() -> None:
    for bad, message in (
        ([np.ones((3, 2, 3, 2), F32), np.ones(3, F32)], r"wanted \[3, 2, 3, 3\]"),
        ([np.ones((3, 2, 3, 3), F32)], "weights: got 1 blobs, wanted at least 2"),
    ):
        with pytest.raises(InvalidModelError, match=message):
            bn.load((INPUT + CONV).encode(), weights=weights(conv=bad))


def test_lists_and_texts_that_are_too_long_are_refused_before_they_are_made() -> None:
    field = lambda number, content: as_varint(number << 3 | 2) + as_varint(len(content)) + content  # noqa: E731
    long = field(1, b"l") + field(7, field(7, field(1, bytes(1 << 16))))
    with pytest.raises(InvalidModelError, match="shape: got 65540 bytes of numbers, wanted at most 2048"):
        bn.load((INPUT + CONV).encode(), weights=field(100, long))
    with pytest.raises(InvalidModelError, match="input_dim: got 2097152 bytes of numbers"):
        bn.load(field(1, b"n") + field(4, bytes(1 << 21)), format="caffe")
    with pytest.raises(InvalidModelError, match="wanted at most"):
        bn.load(b"#" * (MAX_TEXT + 1), format="caffe")


def test_large_weights_stay_in_the_mapped_file(tmp_path: Path) -> None:
    net = CaffeNet("net", 1, 64, 4, 4)
    net.conv("conv", "data", 512, 3)
    (tmp_path / "net.prototxt").write_bytes(net.text())
    (tmp_path / "net.caffemodel").write_bytes(net.model())
    arrays = {a.size: a for a in bn.load(tmp_path / "net.prototxt").weights()}
    assert not arrays[512 * 64 * 9].flags.owndata
    assert not arrays[512 * 64 * 9].flags.writeable


def test_a_hundred_layers_load_quickly(tmp_path: Path) -> None:
    net = CaffeNet("deep", 1, 16, 8, 8)
    x = "data"
    for i in range(34):
        x = net.relu(net.norm(net.conv(f"conv{i}", x, 16, 3)))
    (tmp_path / "net.prototxt").write_bytes(net.text())
    (tmp_path / "net.caffemodel").write_bytes(net.model())
    times = []
    for _ in range(3):
        start = time.perf_counter()
        bn.load(tmp_path / "net.prototxt")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.3


def test_a_text_is_read_as_protobuf_reads_it() -> None:
    made = parse(
        b"""a: 1 a: 0x10 # one
        b { c: 'x' "y\\x41\\101\\n" } b < d: -2.5 >; e: [1, 2, 3] f: [ { g: t } ] h: "\xc3\xa9" """,
        "file",
    )
    assert made == {
        "a": ["1", "0x10"], "b": [{"c": ["xyAA\n"]}, {"d": ["-2.5"]}], "e": ["1", "2", "3"], "f": [{"g": ["t"]}],
        "h": ["é"],
    }  # fmt: skip


def test_a_mean_file_is_an_array_and_a_graph(tmp_path: Path) -> None:
    mean = np.arange(24, dtype=F32).reshape(1, 2, 3, 4)
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob(mean))
    np.testing.assert_array_equal(bn.read_mean(path), mean[0])
    np.testing.assert_array_equal(interpret(bn.load(path), {})["mean"], mean[0])
    for bad in (b"\xff", b"", blob(mean)[:-3]):
        with pytest.raises(InvalidModelError, match="mean"):
            bn.read_mean(bad)


@pytest.mark.parametrize("data", [INPUT.encode(), b"# a comment\nname: 'n'\n" + INPUT.encode(), ones()])
def test_nets_are_told_by_their_first_bytes(data: bytes) -> None:
    from bolt_numba.converters.caffe.format import is_caffe

    assert is_caffe(data[:64], None)


@pytest.mark.parametrize("head", [b"\x08\x07\x12\x04", b"\x0a\x10\x08\x00\x10\xff", b"", b'{"a": 1}', b"\x7fELF"])
def test_other_files_are_not_taken_for_nets(head: bytes) -> None:
    from bolt_numba.converters.caffe.format import is_caffe

    assert not is_caffe(head, None)


def test_a_real_net_agrees_with_its_twin_in_onnx() -> None:
    """The same weights: ResNet-50 of half the width, by Yahoo."""
    from tests import models

    twin = bn.compile(models.fetch("open_nsfw.onnx"), threads=1)
    net = bn.compile(models.fetch("open_nsfw.prototxt"), weights=models.fetch("open_nsfw.caffemodel"), threads=1)
    x = np.random.default_rng(0).normal(0, 50, (1, 3, 224, 224)).astype(F32)
    np.testing.assert_allclose(net(x)["prob"], next(iter(twin(x.transpose(0, 2, 3, 1)).values())), atol=1e-4)
    assert {row["op"] for row in net.report()} == {"Transpose", "Conv", "MaxPool", "ReduceMean", "MatMul", "Softmax"}


def test_what_a_fork_adds_to_a_layer_is_left_out() -> None:
    """Beside parameters under their usual number; a layer's own under another number are read."""
    field = lambda number, content: as_varint(number << 3 | 2) + as_varint(len(content)) + content  # noqa: E731
    slope = as_varint(1 << 3 | 5) + np.array([0.5], "<f4").tobytes()
    dims = b"".join(as_varint(1 << 3) + as_varint(d) for d in (1, 2))
    for parameters in (field(123, slope) + field(10001, b"#no message"), field(10001, slope)):
        relu = field(1, b"r") + field(2, b"ReLU") + field(3, b"x") + field(4, b"y") + parameters
        net = bn.load(field(1, b"n") + field(3, b"x") + field(8, dims) + field(100, relu), format="caffe")
        assert bn.compile(net)(np.array([[-2, 2]], F32))["y"].tolist() == [[-1, 2]]


@pytest.mark.parametrize("kind", ["Reduction", "Concat", "Slice", "Flatten", "Tile"])
def test_a_scalar_has_no_axis(kind: str) -> None:
    """Not even axis 0, as in Caffe."""
    one = 'layer { name: "s" type: "Reduction" bottom: "data" top: "s" }\n'
    param = f"{kind.lower()}_param {{ axis: 0 {'tiles: 2' if kind == 'Tile' else ''} }}"
    text = f'{INPUT}{one}layer {{ name: "l" type: "{kind}" bottom: "s" top: "o" {param} }}'
    with pytest.raises(InvalidModelError, match="axis of 's': got 0"):
        bn.load(text.encode())
    assert run(INPUT + one)["s"].shape == ()
