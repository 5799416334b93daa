"""Layers of Bolt's own in files of Caffe and ONNX, each against loops over its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, U8, Array
from tests.converters.test_caffe_forks import net, results

RNG = np.random.default_rng(11)
IMAGE = RNG.integers(0, 256, (2, 12, 6, 1)).astype(F32)


def onnx_model(kind: str, feeds: dict[str, Array], constants: dict[str, Array], attributes: dict[str, Any]) -> Any:
    """A model of one node."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    held = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    node = helper.make_node(kind, [*feeds, *constants], ["y"], "n", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])


def onnx_result(
    kind: str, feeds: dict[str, Array], constants: dict[str, Array] | None = None, **attributes: Any
) -> Any:
    """Of the node; session and references agree."""
    model = onnx_model(kind, feeds, constants or {}, attributes)
    (wanted,) = interpret(read_model(model), feeds).values()
    (got,) = bn.compile(model.SerializeToString(), threads=1).run(None, feeds)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1e-5)
    return wanted


@pytest.mark.parametrize(("name", "compare"), [("EQUAL", "__eq__"), ("GREAT", "__gt__"), ("GREATEQUAL", "__ge__")])
def test_check_compares_element_by_element(name: str, compare: str) -> None:
    x, y = RNG.integers(0, 3, (2, 3, 4)).astype(F32), RNG.integers(0, 3, (3, 1)).astype(F32)
    (made,) = results("Check", f"check_param {{ operation: {name} }}", x=x, y=y)
    for n, i, j in np.ndindex(x.shape):
        assert made[n, i, j] == getattr(float(x[n, i, j]), compare)(float(y[i, 0]))


def sees(i: int, j: int, q: int, k: int, length: int, same: bool) -> bool:
    if length < 0:
        return True
    if length > 0:
        return k - q + i - length <= j <= k - q + i
    return i <= j <= i + q if same else j <= i + q


@pytest.mark.parametrize("length", [-1, 0, 1, 3, 1 << 31])
@pytest.mark.parametrize("same", [False, True])
def test_attention_masks(length: int, same: bool) -> None:
    for q, k in ((3, 5), (4, 4), (5, 3), (1, 6), (2, 9)):
        x = RNG.normal(size=(2, 2, q, k)).astype(F32)
        param = f"attention_mask_param {{ attention_length: {length} same_length: {str(same).lower()} mask: 99 }}"
        made = results("AttentionMask", param, x=x)[0]
        for i, j in np.ndindex(q, k):
            wanted = x[:, :, i, j] if sees(i, j, q, k, length, same) else -99
            np.testing.assert_array_equal(made[:, :, i, j], np.broadcast_to(wanted, (2, 2)))


@pytest.mark.parametrize("length", [3, 5, 8])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_relative_positions(length: int, transpose: bool, given: bool) -> None:
    table = RNG.normal(size=(5, 4)).astype(F32)
    param = "relative_position_embed_param { num_output: 4 input_dim: 5 bias_term: false axis: -2"
    param += f" transpose: {str(transpose).lower()} }}"
    stored = table.T.copy() if transpose else table
    x = np.zeros((2, length, 7), F32)
    made = (results("RelativePositionEmbed", param, x=x, t=stored) if given else
            results("RelativePositionEmbed", param, (stored,), x=x))[0]  # fmt: skip
    assert made.shape == (2, length, 4)
    for i in range(length):
        row = 5 - length + i
        np.testing.assert_array_equal(made[:, i], np.broadcast_to(table[row] if row >= 0 else 0, (2, 4)))


def copied(x: Array, step: int) -> Array:
    """[rows, length]: tail of what stands before row ``step``, then zeros and a row, again and again."""
    rows, length = x.shape
    flat, out = x.reshape(-1), []
    head = rows * length - (rows - step) * (step + length)
    out += list(flat[step * length - head : step * length])
    for row in x[step:]:
        out += [0.0] * step + list(row)
    return np.array(out).reshape(rows, length)


@pytest.mark.parametrize(("rows", "length", "step"), [(4, 4, 1), (3, 7, 1), (4, 6, 2), (3, 3, 3), (2, 5, 0), (1, 1, 1)])
def test_relative_shifts(rows: int, length: int, step: int) -> None:
    x = RNG.normal(size=(2, rows, length, 3)).astype(F32)
    made = results("RelativeShift", f"relative_shift_param {{ axis: 2 shift_length: {step} }}", x=x)[0]
    for n, c in np.ndindex(2, 3):
        np.testing.assert_array_equal(made[n, :, :, c], copied(x[n, :, :, c], step).astype(F32))
    first = results("RelativeShift", "relative_shift_param { axis: 0 }", x=x)[0]
    np.testing.assert_array_equal(first, x)


def test_a_shift_of_one_is_that_of_transformer_xl() -> None:
    """A column of zeros, another shape, the first row away."""
    x = RNG.normal(size=(3, 4, 6)).astype(F32)
    padded = np.concatenate([np.zeros((3, 4, 1), F32), x], 2).reshape(3, 7, 4)
    made = results("RelativeShift", "relative_shift_param { axis: -1 }", x=x)[0]
    np.testing.assert_array_equal(made, padded[:, 1:].reshape(x.shape))


def test_relative_shifts_to_the_length_of_another() -> None:
    x, like = RNG.normal(size=(2, 3, 8)).astype(F32), np.zeros((1, 3, 5), F32)
    made = results("RelativeShift", "relative_shift_param { axis: 2 shift_length: 2 }", x=x, like=like)[0]
    assert made.shape == (2, 3, 5)
    for n, j, k in np.ndindex(made.shape):
        assert made[n, j, k] == x[n].reshape(-1)[2 * 3 + j * 6 + k]


def pairs_of(image: Array) -> Array:
    """The two numbers of each block, [n, h / 2, w / 2, 2]."""
    n, rows, w, _ = image.shape
    return image[:, rows // 3 * 2 :].reshape(n, rows // 3, w // 2, 2)


def swapped(image: Array) -> Array:
    """NV21 as NV12 and the other way."""
    bright = image[:, : image.shape[1] // 3 * 2]
    return np.concatenate([bright, pairs_of(image)[..., ::-1].reshape(len(image), -1, image.shape[2], 1)], 1)


def test_nv12_is_nv21_with_its_numbers_swapped() -> None:
    a = results("ConvertColor", 'convert_color_param { src: "YUV_NV12" }', x=swapped(IMAGE))[0]
    np.testing.assert_array_equal(a, results("ConvertColor", "", x=IMAGE)[0])


@pytest.mark.parametrize("camera", ["YUV_NV21", "YUV_NV12"])
@pytest.mark.parametrize("order", ["RGB", "BGR", "RGBA", "BGRA"])
@pytest.mark.parametrize("most", [1, 255])
def test_colours_become_a_camera_image(camera: str, order: str, most: int) -> None:
    colours = RNG.integers(0, 256, (2, 4, 6, len(order))).astype(F32)
    param = f'convert_color_param {{ src: "{order}_0_{most}" dst: "{camera}" }}'
    made = results("ConvertColor", param, x=(colours * (most / 255)).astype(F32))[0]
    r, g, b = (colours[..., order.index(c)].astype(np.float64) for c in "RGB")
    y, v, u = (
        0.257 * r + 0.504 * g + 0.098 * b + 16,
        0.439 * r - 0.368 * g - 0.071 * b + 128,
        -0.148 * r - 0.291 * g + 0.439 * b + 128,
    )
    np.testing.assert_allclose(made[:, :4, :, 0], y, atol=0.501)
    both = (u, v) if camera == "YUV_NV12" else (v, u)
    np.testing.assert_allclose(pairs_of(made), np.stack([c[:, ::2, ::2] for c in both], -1), atol=0.501)
    np.testing.assert_array_equal(made, np.round(made))


def test_colours_of_onnx_files_are_bytes() -> None:
    wanted = results("ConvertColor", 'convert_color_param { dst: "BGR_0_255" }', x=IMAGE)[0]
    made = onnx_result("ConvertColor", {"x": IMAGE.astype(U8)}, src="YUV_NV21", dst="BGR_0_255")
    assert made.dtype == U8
    np.testing.assert_array_equal(made, wanted.astype(U8))


def test_tables_of_colours() -> None:
    size = 4
    table = RNG.uniform(0, 1, (3, size, size, size)).astype(F32)
    made = results("Lut", "lut_param { mode: LINEAR }", x=IMAGE, t=table)[0]
    bright, pairs, wanted = IMAGE[:, :8, :, 0], pairs_of(IMAGE), np.zeros((2, 8, 6, 3))
    for n, i, j in np.ndindex(2, 8, 6):
        at = np.array([bright[n, i, j], *pairs[n, i // 2, j // 2]], np.float64) / 255 / (1.0001 / (size - 1))
        low = np.floor(at).astype(int)
        for corner in np.ndindex(2, 2, 2):
            weight = np.prod([1 - abs(a - (k + c)) for a, k, c in zip(at, low, corner, strict=True)])
            y, first, second = low + corner
            wanted[n, i, j] += weight * table[:, second, first, y] * 255
    near = np.abs(wanted - np.round(wanted)) > 1e-3
    np.testing.assert_array_equal(made[:, :8, :, 0][near[..., 0]], np.floor(wanted[..., 0])[near[..., 0]])
    both = np.floor(wanted[:, ::2, ::2, 1:])
    np.testing.assert_array_equal(pairs_of(made)[near[:, ::2, ::2, 1:]], both[near[:, ::2, ::2, 1:]])
    bytes_ = onnx_result("Lut", {"x": IMAGE.astype(U8)}, {"t": table})
    assert bytes_.dtype == U8
    np.testing.assert_array_equal(bytes_, made)


def test_images_for_a_network_that_makes_a_table() -> None:
    made = results("LutPreprocess", "", x=IMAGE)[0]
    wanted = np.stack([IMAGE[:, 0:8:2, 1::2, 0], *np.moveaxis(pairs_of(IMAGE), -1, 0)], 1) * 0.003921
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    np.testing.assert_array_equal(onnx_result("LutPreprocess", {"x": IMAGE.astype(U8)}), made)


@pytest.mark.parametrize("guide_shape", [(2, 5, 7), (2, 5, 7, 1), (2, 1, 5, 7)])
def test_bilateral_grids(guide_shape: tuple[int, ...]) -> None:
    n, h, w, rows, columns, depth = 2, 5, 7, 3, 2, 4
    x = RNG.uniform(0, 1, (n, h, w, 3)).astype(F32)
    grid = RNG.normal(size=(n, rows, columns, depth * 12)).astype(F32)
    guide = RNG.uniform(-0.1, 1.1, guide_shape).astype(F32)
    made = results("BilateralSliceApply", "", x=x, grid=grid, guide=guide)[0]
    cells, flat = grid.reshape(n, rows, columns, depth, 12).astype(np.float64), guide.reshape(n, h, w)
    for m, i, j in np.ndindex(n, h, w):
        at = [(i + 0.5) * rows / h - 0.5, (j + 0.5) * columns / w - 0.5, float(flat[m, i, j]) * depth - 0.5]
        matrix = np.zeros(12)
        for corner in np.ndindex(2, 2, 2):
            cell = [int(np.floor(a)) + c for a, c in zip(at, corner, strict=True)]
            weight = np.prod([max(1 - abs(a - k), 0) for a, k in zip(at, cell, strict=True)])
            inside = tuple(min(max(k, 0), s - 1) for k, s in zip(cell, (rows, columns, depth), strict=True))
            matrix += weight * cells[(m, *inside)]
        pixel = np.array([*x[m, i, j], 1.0])
        np.testing.assert_allclose(made[m, i, j], matrix.reshape(3, 4) @ pixel, rtol=1e-4, atol=1e-4)
    again = onnx_result("BilateralSliceApply", {"x": x, "grid": grid, "guide": guide}, mode="null")
    np.testing.assert_array_equal(again, made)


def spliced(x: Array, context: list[int]) -> Array:
    frames = range(x.shape[1])
    whole = [t for t in frames if all(0 <= t + c < x.shape[1] for c in [*context, 0])]
    return np.stack([np.concatenate([x[:, t + c] for c in context], -1) for t in whole], 1)


CONTEXTS = [[-1, 0, 1], [0], [-2, 0], [0, 3], [2, 0, -1], [-3, -1]]


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_spliced_frames(context: list[int]) -> None:
    x = RNG.normal(size=(2, 7, 3)).astype(F32)
    if max(context) < 0:
        with pytest.raises(BoltError, match="context"):
            read_model(onnx_model("Splice", {"x": x}, {}, {"context": context}))
        return
    wanted = spliced(x, context)
    np.testing.assert_array_equal(onnx_result("Splice", {"x": x}, context=context, output_dim=9), wanted)
    whole = [t + c for t in range(-min(context), 7 - max(context)) for c in context]
    made = onnx_result("Splice", {"x": x}, context=context, forward_indexes=whole)
    np.testing.assert_array_equal(made, wanted)
    w, bias = RNG.normal(size=(4, 3 * len(context))).astype(F32), RNG.normal(size=4).astype(F32)
    held = {"context": np.array(context), "w": w, "b": bias}
    np.testing.assert_allclose(onnx_result("Tdnn", {"x": x}, held), wanted @ w.T + bias, rtol=1e-4, atol=1e-5)


def test_splices_that_choose_frames() -> None:
    """Every second frame; the indexes are those of other lengths where the last one is not the last frame."""
    x = RNG.normal(size=(1, 6, 2)).astype(F32)
    chosen = [0, 1, 2, 3, 4, 5]
    made = onnx_result("Splice", {"x": x}, context=[0, 1], forward_indexes=chosen)
    np.testing.assert_array_equal(made, x[:, chosen].reshape(1, 3, 4))
    made = onnx_result("Splice", {"x": x}, context=[0, 1], forward_indexes=[0, 1, 2, 3])
    np.testing.assert_array_equal(made, spliced(x, [0, 1]))
    for others in ([0, 1 << 60], [-1, 5]):
        np.testing.assert_array_equal(onnx_result("Splice", {"x": x}, context=[0], forward_indexes=others), x)


def test_pointwise_names_of_other_converters() -> None:
    x = RNG.normal(size=(2, 5, 3)).astype(F32) * 3
    np.testing.assert_array_equal(onnx_result("NoOp", {"x": x}), x)
    np.testing.assert_allclose(
        onnx_result("TFL_HARD_SWISH", {"x": x}), x * np.clip(x + 3, 0, 6) / 6, rtol=1e-5, atol=1e-6
    )
    w = RNG.normal(size=(4, 3)).astype(F32)
    np.testing.assert_allclose(onnx_result("Linear", {"x": x}, {"w": w}), x @ w.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((2, 5), 1), ((2, 3, 4, 5), 3), ((2, 5, 1, 1), 1)])
def test_norms_of_tflite(shape: tuple[int, ...], axis: int) -> None:
    x = RNG.normal(size=shape).astype(F32)
    made = onnx_result("TFL_L2_NORMALIZATION", {"x": x}, fused_activation_function="NONE")
    np.testing.assert_allclose(made, x / np.sqrt((x**2).sum(axis, keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
def test_regions_by_names_of_caffe2(aligned: int) -> None:
    """Each bin of a plane that grows evenly has the mean of its samples, which is the plane at its middle."""
    plane = np.add.outer(np.arange(12), 100 * np.arange(16)).T[None, None].astype(F32)
    rois = np.array([[2, 4, 10, 12], [4, 2, 16, 20]], F32)
    made = onnx_result(
        "RoIAlign", {"x": plane, "r": rois}, {"i": np.zeros(2, np.int64)}, aligned=aligned, pooled_h=2, pooled_w=4,
        sampling_ratio=2, spatial_scale=0.5,
    )  # fmt: skip
    for out, (x0, y0, x1, y1) in zip(made[:, 0], rois * 0.5 - 0.5 * aligned, strict=True):
        for i, j in np.ndindex(2, 4):
            middle = x0 + (j + 0.5) * (x1 - x0) / 4 + 100 * (y0 + (i + 0.5) * (y1 - y0) / 2)
            np.testing.assert_allclose(out[i, j], middle, rtol=1e-5)


ROWS = np.zeros((1, 4, 2), F32)


@pytest.mark.parametrize(
    ("kind", "param", "shapes"),
    [
        ("Check", "check_param { operation: 7 }", [(2,), (2,)]),
        ("Check", "", [(2,), (3,)]),
        ("AttentionMask", "attention_mask_param { attention_length: 1 }", [(3,)]),
        ("AttentionMask", "attention_mask_param { attention_length: 1 }", [(1 << 30, 1 << 30)]),
        ("RelativePositionEmbed", "relative_position_embed_param { num_output: 2 input_dim: 3 }", [(1, 2), (2, 2)]),
        ("RelativePositionEmbed", "r_param { num_output: 2 input_dim: 3 axis: 4 }", [(1, 2), (3, 2)]),
        ("RelativeShift", "relative_shift_param { axis: 1 shift_length: 5 }", [(2, 4)]),
        ("RelativeShift", "relative_shift_param { axis: 1 shift_length: -1 }", [(2, 4)]),
        ("RelativeShift", "relative_shift_param { axis: 1 }", [(6, 4)]),
        ("RelativeShift", "relative_shift_param { axis: 9 }", [(2, 4)]),
        ("RelativeShift", "relative_shift_param { axis: 0 }", [(2, 4), (2, 4)]),
        ("RelativeShift", "relative_shift_param { axis: 1 }", [(2, 4), (2, 4)]),
        ("ConvertColor", 'convert_color_param { src: "YUV_NV12" dst: "YUV_NV21" }', [(1, 12, 6, 1)]),
        ("ConvertColor", 'convert_color_param { src: "RGB_0_2" dst: "YUV_NV21" }', [(1, 4, 6, 3)]),
        ("ConvertColor", 'convert_color_param { src: "RGBA_0_1" dst: "YUV_NV21" }', [(1, 4, 6, 3)]),
        ("ConvertColor", 'convert_color_param { src: "RGB_0_1" dst: "YUV_NV21" }', [(1, 5, 6, 3)]),
        ("Lut", "", [(1, 12, 6, 1), (3, 2, 2, 3)]),
        ("Lut", "", [(1, 12, 6, 1), (3, 1, 1, 1)]),
        ("Lut", 'lut_param { type: "RGB_0_1" }', [(1, 12, 6, 1), (3, 2, 2, 2)]),
        ("LutPreprocess", "", [(1, 11, 6, 1)]),
        ("BilateralSliceApply", "", [(1, 4, 4, 3), (1, 2, 2, 12)]),
        ("BilateralSliceApply", 'bilateral_slice_apply_param { mode: "conv" }', [(1, 4, 4, 3), (1, 2, 2, 12)]),
        ("BilateralSliceApply", "", [(1, 4, 4, 3), (1, 2, 2, 13), (1, 4, 4)]),
        ("BilateralSliceApply", "", [(1, 4, 4, 3), (1, 2, 2, 12), (1, 4, 5)]),
        ("BilateralSliceApply", "", [(1, 4, 4, 3), (2, 2, 2, 12), (1, 4, 4)]),
    ],
)  # fmt: skip
def test_layers_that_make_no_sense_are_refused(kind: str, param: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = {f"x{i}": np.broadcast_to(np.zeros((), F32), shape) for i, shape in enumerate(shapes)}
    with pytest.raises(BoltError, match=r"got|unsupported"):
        bn.load(net(kind, param, **inputs))


@pytest.mark.parametrize(
    ("kind", "constants", "attributes"),
    [
        ("Splice", {}, {"context": [1 << 40]}),
        ("Splice", {}, {"context": [0, 1], "forward_indexes": [0, 2, 3]}),
        ("Splice", {}, {}),
        ("Tdnn", {"c": np.array([0]), "w": np.zeros((2, 3), F32), "b": np.zeros(2, F32)}, {}),
        ("Tdnn", {"c": np.array([], np.int64), "w": np.zeros((2, 2), F32), "b": np.zeros(2, F32)}, {}),
        ("Linear", {"w": np.zeros((2, 3), F32)}, {}),
        ("Linear", {"w": np.zeros((2,), F32)}, {}),
        ("TFL_L2_NORMALIZATION", {}, {"fused_activation_function": "RELU"}),
        ("RoIAlign", {"r": np.zeros((1, 5), F32), "i": np.zeros(1, np.int64)}, {}),
        ("RoIAlign", {"r": np.zeros((1, 4), F32), "i": np.zeros(1, np.int64)}, {"pooled_h": -1}),
        ("BilateralSliceApply", {"g": np.zeros((1, 2, 2, 12), F32)}, {}),
        ("ConvertColor", {}, {"src": "YUV_NV21", "dst": "RGB_0_1"}),
        ("Lut", {"t": np.zeros((3, 2, 2, 2), F32)}, {}),
    ],
)
def test_nodes_that_make_no_sense_are_refused(kind: str, constants: dict[str, Array], attributes: Any) -> None:
    with pytest.raises(BoltError, match=r"got|unsupported"):
        read_model(onnx_model(kind, {"x": ROWS}, constants, attributes))


@pytest.mark.parametrize("kind", ["Repeat", "Jump"])
def test_layers_that_are_not_read_say_why(kind: str) -> None:
    with pytest.raises(UnsupportedOpError, match=f"{kind} at layer 'l': it moves Bolt's program counter"):
        bn.load(net(kind, x=ROWS))


def test_operators_that_are_not_read_say_why() -> None:
    with pytest.raises(UnsupportedOpError, match=r"GenerateProposals .* at node 'n': Bolt alone has this form"):
        read_model(onnx_model("GenerateProposals", {"x": ROWS}, {}, {}))


def test_sizes_of_a_file_allocate_nothing_when_it_is_read() -> None:
    """An image of 64 GiB is the caller's to bring."""
    text = """
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 196608 dim: 131072 dim: 1 } } }
    layer { name: "c" type: "ConvertColor" bottom: "x" top: "y"
            convert_color_param { src: YUV_NV21 dst: RGBA_0_255 } }
    """
    assert bn.load(text.encode()).outputs[0].type.shape == (1, 131072, 131072, 4)
