"""Layers that BVLC's Caffe lacks, against formulas: those of SSD, Faster R-CNN, YOLO, other forks, and Bolt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bench.caffe_nets import caffemodel
from bolt_numba.errors import BoltError, UnsupportedOpError
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, Array

RNG = np.random.default_rng(7)
X = RNG.normal(0, 2, (2, 8, 6, 4)).astype(F32)
MATRIX = RNG.normal(0, 1, (3, 5)).astype(F32)
FLAGS = np.array([[1, 1, 0, 1], [1, 0, 0, 0]], F32)


def net(kind: str, param: str = "", tops: int = 1, **inputs: Array) -> bytes:
    """A net of one layer, ``l``, with an input for each bottom."""
    lines = []
    for name, array in inputs.items():
        shape = " ".join(f"dim: {d}" for d in array.shape)
        lines.append(f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {shape} }} }} }}')
    bottoms = " ".join(f'bottom: "{name}"' for name in inputs)
    names = " ".join(f'top: "o{i}"' for i in range(tops))
    return "\n".join([*lines, f'layer {{ name: "l" type: "{kind}" {bottoms} {names} {param} }}']).encode()


def results(kind: str, param: str = "", blobs: tuple[Array, ...] = (), tops: int = 1, **inputs: Array) -> list[Array]:
    """Of the layer; the session and the references agree."""
    model = caffemodel("net", {"l": (kind, list(blobs))}) if blobs else None
    graph = bn.load(net(kind, param, tops, **inputs), weights=model)
    wanted, got = interpret(graph, inputs), bn.compile(graph, threads=1).run(None, inputs)
    for a, b in zip(got, wanted.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return list(wanted.values())


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def shuffled(x: Array) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, 4, c // 4, h, w).swapaxes(1, 2).reshape(x.shape)


def reorganised(x: Array) -> Array:
    """Darknet's loop, by the flat places of numbers."""
    n, c, h, w = x.shape
    flat, y, kept = x.reshape(n, -1), np.zeros_like(x).reshape(n, -1), c // 4
    for k, j, i in np.ndindex(c, h, w):
        offset = k // kept
        place = i * 2 + offset % 2 + 2 * w * (j * 2 + offset // 2 + 2 * h * (k % kept))
        y[:, i + w * (j + h * k)] = flat[:, place]
    return y.reshape(n, 4 * c, h // 2, w // 2)


def bilinear(x: Array, height: int, width: int) -> Array:
    """Corner pixels on corner pixels."""
    rows, columns = (np.linspace(0, s - 1, n) for s, n in zip(x.shape[2:], (height, width), strict=True))
    y = np.stack([[np.interp(rows, np.arange(x.shape[2]), x[n, c, :, k]) for k in range(x.shape[3])]
                  for n, c in np.ndindex(x.shape[:2])]).reshape(*x.shape[:2], x.shape[3], height)  # fmt: skip
    z = np.stack([np.interp(columns, np.arange(x.shape[3]), y[n, c, :, k]) for n, c, k in
                  np.ndindex(*x.shape[:2], height)])  # fmt: skip
    return z.reshape(*x.shape[:2], height, width)


NORM = np.sqrt((X**2).sum(1, keepdims=True) + 1e-10)
FORMULAS: list[tuple[str, str, Callable[[Array], Any]]] = [
    ("ReLU6", "", lambda x: np.clip(x, 0, 6)),
    ("HardSwish", "", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("HSwish", "", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("HardSigmoid", "", lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    ("HSigmoid", "", lambda x: np.clip(x + 3, 0, 6) / 6),
    ("Mish", "", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    ("SoftPlus", "", lambda x: np.log1p(np.exp(x))),
    ("RReLU", "rrelu_param { lower: 0.1 upper: 0.3 }", lambda x: np.where(x > 0, x, 0.2 * x)),
    ("CReLU", "crelu_param { negative_slope: 0.5 }",
     lambda x: np.concatenate([np.where(v > 0, v, 0.5 * v) for v in (x, -x)], 1)),
    ("Permute", "permute_param { order: 0 order: 2 }", lambda x: x.transpose(0, 2, 1, 3)),
    ("ShuffleChannel", "shuffle_channel_param { group: 4 }", shuffled),
    ("Reorg", "reorg_param { stride: 2 }", reorganised),
    ("Interp", "interp_param { height: 9 width: 7 }", lambda x: bilinear(x, 9, 7)),
    ("Interp", "interp_param { zoom_factor: 2 pad_beg: -1 }", lambda x: bilinear(x[:, :, 1:, 1:], 9, 5)),
    ("Upsample", "upsample_param { scale: 2 }", lambda x: x.repeat(2, 2).repeat(2, 3)),
    ("Pad", "pad_param { top: 1 right: 2 }", lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)))),
    ("Squeeze", "squeeze_param { axis: 0 }", lambda x: x[0]),
    ("Unsqueeze", "unsqueeze_param { axis: 1 }", lambda x: x[:, None]),
    ("LogSoftmax", "softmax_param { axis: 1 }", lambda x: x - np.log(np.exp(x).sum(1, keepdims=True))),
    ("Gelu", "", lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ("AxisMean", "axis_mean_param { axis: 1 }", lambda x: x.mean(1)),
    ("Cum", "cum_param { axis: 2 reverse: true }", lambda x: x[:, :, ::-1].cumsum(2)[:, :, ::-1]),
    ("Normalize", "norm_param { across_spatial: false scale_filler { value: 3 } }", lambda x: 3 * x / NORM),
    ("BN", "", lambda x: (x - 3) / np.sqrt(4 + 1e-5) * 1 + 2),
]  # fmt: skip
BLOBS = {"BN": tuple(np.full(8, v, F32) for v in (1, 2, 3, 4))}


@pytest.mark.parametrize(("kind", "param", "formula"), FORMULAS, ids=lambda v: v if isinstance(v, str) else "")
def test_layers_of_one_bottom(kind: str, param: str, formula: Callable[[Array], Any]) -> None:
    x = X[:1] if kind == "Squeeze" else X
    (y,) = results(kind, param, BLOBS.get(kind, ()), x=x)
    np.testing.assert_allclose(y, formula(x.astype(np.float64)), rtol=1e-4, atol=1e-5)


def test_layers_of_several_bottoms() -> None:
    gate = RNG.uniform(0, 1, (2, 8, 1, 1)).astype(F32)
    np.testing.assert_allclose(results("Axpy", a=gate, x=X, y=X * 2)[0], gate * X + 2 * X, rtol=1e-6)
    np.testing.assert_allclose(results("Axpy", a=gate[..., 0, 0], x=X, y=X * 2)[0], gate * X + 2 * X, rtol=1e-6)
    swapped = results("MatMul", "matmul_param { transpose_b: true }", a=MATRIX, b=MATRIX)[0]
    np.testing.assert_allclose(swapped, MATRIX @ MATRIX.T, rtol=1e-5)
    index = np.array([2, 0], F32)
    np.testing.assert_array_equal(
        results("Gather", "gather_param { axis: 1 }", x=MATRIX, i=index)[0], MATRIX[:, [2, 0]]
    )
    shape = "attention_param { num_heads: 2 from_sequence_length: 3 to_sequence_length: 4 }"
    y = results("Attention", shape, mask=FLAGS)[0]
    np.testing.assert_array_equal(y, np.broadcast_to((1 - FLAGS[:, None, None]) * -10000, (2, 2, 3, 4)))
    hot = results("OneHot", "onehot_param { axis: -1 depth: 3 on_value: 5 }", x=np.array([2, 0], F32))[0]
    np.testing.assert_array_equal(hot, [[0, 0, 5], [5, 0, 0]])


@pytest.mark.parametrize("order", ["RGB", "BGR", "RGBA", "BGRA"])
def test_colours_are_those_of_opencv(order: str) -> None:
    cv2 = pytest.importorskip("cv2")
    image = RNG.integers(0, 256, (2, 12, 6, 1)).astype(F32)
    wanted = [cv2.cvtColor(a.astype(np.uint8), getattr(cv2, f"COLOR_YUV2{order}_NV21")) for a in image]
    y = results("ConvertColor", f'convert_color_param {{ dst: "{order}_0_255" }}', x=image)[0]
    np.testing.assert_allclose(y, np.stack(wanted), atol=1)
    z = results("ConvertColor", f'convert_color_param {{ dst: "{order}_0_1" dt: FLOAT32 }}', x=image)[0]
    np.testing.assert_allclose(z * 255, y, atol=0.51)
    with pytest.raises(UnsupportedOpError, match="colours from RGB_0_1 to BGR_0_1"):
        bn.load(net("ConvertColor", 'convert_color_param { src: "RGB_0_1" dst: "BGR_0_1" }', x=image))
    colours = RNG.integers(0, 256, (8, 6, len(order)), np.uint8)
    planes = cv2.cvtColor(colours, getattr(cv2, f"COLOR_{order}2YUV_I420"))
    u, v = planes[8:].reshape(2, 4, 3)
    param = f'convert_color_param {{ src: "{order}_0_255" dst: "YUV_NV21" }}'
    made = results("ConvertColor", param, x=colours[None].astype(F32))[0][0, ..., 0]
    np.testing.assert_allclose(made[:8], planes[:8], atol=1)
    np.testing.assert_allclose(made[8:].reshape(4, 3, 2), np.stack([v, u], -1), atol=1)


def test_a_depthwise_layer_has_as_many_groups_as_channels() -> None:
    w = RNG.normal(0, 1, (8, 1, 3, 3)).astype(F32)
    for kind in ("DepthwiseConvolution", "ConvolutionDepthwise"):
        param = "convolution_param { num_output: 8 kernel_size: 3 bias_term: false }"
        y = results(kind, param, (w,), x=X)[0]
        wanted = sum(X[:, :, i : i + 4, j : j + 2] * w[:, 0, i, j, None, None] for i in range(3) for j in range(3))
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


def test_unpooling_puts_numbers_where_they_were() -> None:
    pool = (
        'layer { name: "p" type: "Pooling" bottom: "x" top: "y" top: "m" pooling_param { kernel_size: 2 stride: 2 } }'
    )
    tail = 'layer { name: "u" type: "Upsample" bottom: "y" bottom: "m" top: "o" upsample_param { scale: 2 } }'
    head = net("Silence", x=X).decode().splitlines()[0]
    y = interpret(bn.load(f"{head}\n{pool}\n{tail}".encode()), {"x": X})["o"]
    blocks = X.reshape(2, 8, 3, 2, 2, 2)
    greatest = blocks.max((3, 5), keepdims=True)
    np.testing.assert_array_equal(y.reshape(blocks.shape), np.where(blocks == greatest, blocks, 0))


def decoded(prior: Array, box: Array, variance: Array) -> list[float]:
    size, centre = prior[2:] - prior[:2], (prior[2:] + prior[:2]) / 2
    middle = variance[:2] * box[:2] * size + centre
    half = np.exp(variance[2:] * box[2:]) * size / 2
    return [*(middle - half), *(middle + half)]


@pytest.mark.parametrize("shared", [True, False])
def test_detections_of_ssd(shared: bool) -> None:
    count, classes = 12, 3
    begins = RNG.uniform(0, 0.7, (count, 2))
    corners = np.concatenate([begins, begins + RNG.uniform(0.1, 0.3, (count, 2))], 1)
    spread = np.tile([0.1, 0.1, 0.2, 0.2], (count, 1))
    priors = np.stack([corners.reshape(-1), spread.reshape(-1)])[None].astype(F32)
    sets = 1 if shared else classes
    loc = RNG.normal(0, 1, (1, count * sets * 4)).astype(F32)
    conf = RNG.permutation(np.linspace(0, 1, count * classes)).reshape(1, -1).astype(F32)
    param = f"detection_output_param {{ num_classes: 3 share_location: {str(shared).lower()} code_type: CENTER_SIZE"
    param += " keep_top_k: 8 confidence_threshold: 0.3 nms_param { nms_threshold: 0.4 top_k: 6 } }"
    y = results("DetectionOutput", param, loc=loc, conf=conf, priors=priors)[0]
    rows = []
    for label in (1, 2):
        scores = conf.reshape(count, classes)[:, label]
        kept: list[list[float]] = []
        for i in [i for i in np.argsort(-scores) if scores[i] > 0.3][:6]:
            box = decoded(corners[i], loc.reshape(count, sets, 4)[i, 0 if shared else label], spread[i])
            if all(overlap(box, other[3:]) <= 0.4 for other in kept):
                kept.append([0, label, float(scores[i]), *box])
        rows += kept
    best = sorted(rows, key=lambda r: -r[2])[:8]
    np.testing.assert_allclose(y[0, 0], [r for r in rows if r in best], rtol=1e-4, atol=1e-5)


def overlap(a: list[float], b: list[float]) -> float:
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(high, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def test_proposals_of_faster_r_cnn() -> None:
    """One anchor, deltas of 0: boxes are the anchors with a pixel more at their end, cut at the image, best first."""
    scores = np.stack([np.zeros((2, 3)), np.arange(6).reshape(2, 3) / 6])[None].astype(F32)
    info = np.array([[40, 50, 1]], F32)
    param = "proposal_param { feat_stride: 16 ratio: 1 scale: 1 min_size: 10 nms_thresh: 0.7 }"
    inputs = {"s": scores, "d": np.zeros((1, 4, 2, 3), F32), "i": info}
    rois, best = results("Proposal", param, tops=2, **inputs)
    wanted = [(0, 16 * c, 16 * r, min(16 * c + 16, 49), 16 * r + 16) for r in (1, 0) for c in (2, 1, 0)]
    np.testing.assert_allclose(rois, wanted, atol=1e-4)
    np.testing.assert_allclose(best[:, 0], np.arange(6)[::-1] / 6, rtol=1e-6)
    script = """python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 16" }"""
    nine = {"s": RNG.uniform(0, 1, (1, 18, 2, 3)).astype(F32), "d": np.zeros((1, 36, 2, 3), F32), "i": info}
    assert results("Python", script, **nine)[0].shape[1] == 5
    with pytest.raises(UnsupportedOpError, match=r"script a\.b"):
        bn.load(net("Python", 'python_param { module: "a" layer: "b" }', **nine))


def test_detections_of_yolo() -> None:
    """A grid of one cell and one anchor of half the image: the box is that of the formula."""
    x = np.array([0.5, -0.5, 0.1, 0.2, 3.0, 0.3, 1.2], F32).reshape(1, 7, 1, 1)
    param = "yolov3_detection_output_param { num_classes: 2 num_box: 1 biases: 16 biases: 8 anchors_scale: 32 mask: 0"
    y = results("Yolov3DetectionOutput", f"{param} mask_group_num: 1 }}", x=x)[0][0, 0, 0]
    cx, cy = sigmoid(0.5), sigmoid(-0.5)
    w, h = np.exp(0.1) / 2, np.exp(0.2) / 4
    wanted = [0, 2, sigmoid(3) * sigmoid(1.2), cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_detections_of_the_second_yolo() -> None:
    """Anchors are in cells, and classes share a softmax."""
    x = np.array([0.5, -0.5, 0.1, 0.2, 3.0, 0.3, 1.2], F32).reshape(1, 7, 1, 1)
    param = "yolo_detection_output_param { num_classes: 2 num_box: 1 biases: 0.5 biases: 0.25 side: 1 }"
    y = results("YoloDetectionOutput", param, x=x)[0][0, 0, 0]
    np.testing.assert_allclose(y[1:3], [2, sigmoid(3) * sigmoid(1.2 - 0.3)], rtol=1e-5)
    np.testing.assert_allclose(y[5] - y[3], np.exp(0.1) / 2, rtol=1e-5)
    cells = results("Region", "region_param { classes: 2 num: 1 }", x=x)[0].ravel()
    chances = np.exp([0.3, 1.2]) / np.exp([0.3, 1.2]).sum()
    np.testing.assert_allclose(cells, [sigmoid(0.5), sigmoid(-0.5), 0.1, 0.2, sigmoid(3), *chances], rtol=1e-5)
    single = results("Region", "region_param { classes: 2 num: 9 do_softmax: false mask: 1 }", x=x)[0].ravel()
    np.testing.assert_allclose(single[5:], sigmoid(np.array([0.3, 1.2])), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "param"),
    [
        ("Region", "region_param { classes: 3 }"),
        ("YoloDetectionOutput", "p_param { biases: 1 }"),
        ("Permute", "permute_param { order: 9 }"),
        ("ShuffleChannel", "shuffle_channel_param { group: 3 }"),
        ("Reorg", "reorg_param { stride: 5 }"),
        ("Interp", "interp_param { height: 99999999 width: 2 }"),
        ("Upsample", "upsample_param { scale: -2 }"),
        ("CReLU", "crelu_param { concat_axis: 7 }"),
        ("DetectionOutput", "detection_output_param { num_classes: 2 }"),
        ("Yolov3DetectionOutput", "yolov3_detection_output_param { biases: 1 anchors_scale: 1 mask: 5 }"),
        ("PriorBox", "prior_box_param { min_size: 1 }"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, param: str) -> None:
    with pytest.raises(BoltError):
        bn.load(net(kind, param, x=X))
