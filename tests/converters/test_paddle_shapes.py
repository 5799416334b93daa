"""Shape rules of Paddle's operators, drawn: what is inferred is what comes out, also where sizes are left open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import F32, Array
from tests.formats import packed
from tests.paddle_program import feed, fetch, op, program, var

Draw = Callable[[Any], Any]
EACH = settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
sizes, small = st.integers(3, 9), st.integers(1, 3)


def loaded(type: str, x: Array, dims: list[int], out: str, slot: str, **attributes: Any) -> Any:
    """A program of one operator, whose input is declared with these dimensions."""
    parts = [feed("x"), op(type, {slot: ["x"]}, {out: ["y"]}, **attributes), fetch("y"), var("x", x.dtype, dims)]
    return bn.load(program(parts))


def agree(type: str, x: Array, wanted: tuple[int, ...], out: str = "Out", slot: str = "X", **attributes: Any) -> Array:
    """The result; its shape as inferred is the wanted one, and open sizes give the same."""
    fixed = loaded(type, x, list(x.shape), out, slot, **attributes)
    assert fixed.outputs[0].type.shape == wanted
    opened = loaded(type, x, [-1] * x.ndim, out, slot, **attributes)
    claimed = opened.outputs[0].type.shape
    assert claimed is None or len(claimed) == len(wanted)
    results = [interpret(graph, {"x": x})["y"] for graph in (fixed, opened)]
    assert results[0].shape == results[1].shape == wanted
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)
    return results[0]


def image(draw: Draw, channels: int = 2) -> Array:
    dims = (draw(small), channels, draw(sizes), draw(sizes))
    return np.random.default_rng(draw(st.integers(0, 99))).standard_normal(dims).astype(F32)


def windows(size: int, kernel: int, stride: int, pads: tuple[int, int], ceil: bool) -> int:
    """How many windows an axis has.  Source: Paddle's page of max_pool2d."""
    more = stride - 1 if ceil else 0
    return (size - kernel + sum(pads) + more) // stride + 1


@EACH
@given(st.data())
def test_pools(data: Any) -> None:
    draw = data.draw
    x, kind, exclusive = image(draw), draw(st.sampled_from(["max", "avg"])), draw(st.booleans())
    kernel, strides = [draw(st.integers(2, 3)) for _ in range(2)], [draw(small) for _ in range(2)]
    pads = [draw(st.integers(0, 1)) for _ in range(draw(st.sampled_from([2, 4])))]
    sides = [(pads[0],) * 2, (pads[1],) * 2] if len(pads) == 2 else [(pads[0], pads[1]), (pads[2], pads[3])]
    count = [windows(x.shape[2 + i], kernel[i], strides[i], sides[i], False) for i in range(2)]
    got = agree(
        "pool2d", x, (*x.shape[:2], *count), ksize=kernel, strides=strides, paddings=pads, pooling_type=kind,
        exclusive=exclusive, ceil_mode=False, adaptive=False, global_pooling=False, data_format="NCHW",
        padding_algorithm="EXPLICIT",
    )  # fmt: skip
    for i, j in np.ndindex(*count):
        begins = [k * s - side[0] for k, s, side in zip((i, j), strides, sides, strict=True)]
        ends = [min(b + k, d + side[0]) for b, k, d, side in zip(begins, kernel, x.shape[2:], sides, strict=True)]
        part = x[:, :, max(begins[0], 0) : ends[0], max(begins[1], 0) : ends[1]]
        if kind == "max":
            wanted = part.max((2, 3))
        else:
            area = part.shape[2] * part.shape[3] if exclusive else np.prod(np.subtract(ends, begins))
            wanted = part.sum((2, 3)) / max(area, 1)
        np.testing.assert_allclose(got[:, :, i, j], wanted, rtol=1e-4, atol=1e-5)


@EACH
@given(st.data())
def test_adaptive_pools(data: Any) -> None:
    draw = data.draw
    x, kind, counts = image(draw), draw(st.sampled_from(["max", "avg"])), [draw(st.integers(1, 5)) for _ in range(2)]
    got = agree("pool2d", x, (*x.shape[:2], *counts), ksize=counts, pooling_type=kind, adaptive=True, paddings=[0, 0])
    for place in np.ndindex(*counts):
        spans = [slice(k * d // n, -(-(k + 1) * d // n)) for k, d, n in zip(place, x.shape[2:], counts, strict=True)]
        part = x[:, :, spans[0], spans[1]]
        wanted = part.max((2, 3)) if kind == "max" else part.mean((2, 3))
        np.testing.assert_allclose(got[:, :, place[0], place[1]], wanted, rtol=1e-4, atol=1e-5)


@EACH
@given(st.data())
def test_windows_as_columns(data: Any) -> None:
    draw = data.draw
    x, kernel, strides = image(draw), [draw(small) for _ in range(2)], [draw(small) for _ in range(2)]
    dilations = [draw(st.integers(1, 2)) if k > 1 and x.shape[2 + i] > k else 1 for i, k in enumerate(kernel)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, 2)) + max(0, spans[i % 2] - x.shape[2 + i % 2]) for i in range(4)]
    counts = [(x.shape[2 + i] + pads[i] + pads[2 + i] - spans[i]) // strides[i] + 1 for i in range(2)]
    fixed = loaded(
        "unfold", x, list(x.shape), "Y", "X", kernel_sizes=kernel, strides=strides, paddings=pads, dilations=dilations
    )
    got = interpret(fixed, {"x": x})["y"]
    assert got.shape == fixed.outputs[0].type.shape == (x.shape[0], 2 * kernel[0] * kernel[1], counts[0] * counts[1])
    wide = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    for n, (i, j) in enumerate(np.ndindex(*counts)):
        rows = i * strides[0] + np.arange(kernel[0]) * dilations[0]
        columns = j * strides[1] + np.arange(kernel[1]) * dilations[1]
        np.testing.assert_array_equal(got[:, :, n], wide[:, :, rows][..., columns].reshape(len(x), -1))


@EACH
@given(st.data())
def test_sizes_of_resampled_images(data: Any) -> None:
    draw = data.draw
    x, kind = image(draw), draw(st.sampled_from(["nearest", "bilinear", "bicubic"]))
    corners = draw(st.booleans()) and kind != "nearest"
    factors = [draw(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])) for _ in range(2)]
    sides = tuple(int(d * f) for d, f in zip(x.shape[2:], factors, strict=True))
    made = {"interp_method": kind, "align_corners": corners, "align_mode": 0, "data_layout": "NCHW"}
    by_scale = agree(f"{kind}_interp_v2", x, (*x.shape[:2], *sides), scale=factors, out_h=-1, out_w=-1, **made)
    by_size = agree(f"{kind}_interp_v2", x, (*x.shape[:2], *sides), out_h=sides[0], out_w=sides[1], **made)
    if all(d * f == s for d, f, s in zip(x.shape[2:], factors, sides, strict=True)):
        np.testing.assert_allclose(by_scale, by_size, rtol=1e-4, atol=1e-5)


@EACH
@given(st.data())
def test_slices_with_strides(data: Any) -> None:
    draw = data.draw
    x = image(draw)
    axis, step = draw(st.integers(0, 3)), draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    size = x.shape[axis]
    start, end = draw(st.integers(-size, size - 1)), draw(st.integers(-size, size))
    if end == -1 and step < 0:
        end = draw(st.integers(0, size - 1))
    index = [slice(None)] * 4
    first = start + size if start < 0 else start
    last = max(end + size, 0) if end < 0 else end
    index[axis] = slice(first, last, step)
    wanted = x[tuple(index)]
    got = agree(
        "strided_slice", x, wanted.shape, slot="Input", axes=[axis], starts=[start], ends=[end], strides=[step],
        infer_flags=[1],
    )  # fmt: skip
    np.testing.assert_array_equal(got, wanted)


@EACH
@given(st.data())
def test_axes_come_and_go(data: Any) -> None:
    draw = data.draw
    dims = [draw(st.sampled_from([1, 1, 2, 3])) for _ in range(draw(st.integers(2, 4)))]
    x = np.arange(np.prod(dims), dtype=F32).reshape(dims)
    axes = draw(st.lists(st.integers(-len(dims), len(dims) - 1), min_size=1, max_size=3))
    gone = {a % len(dims) for a in axes if dims[a] == 1}
    kept = tuple(d for i, d in enumerate(dims) if i not in gone)
    fixed = loaded("squeeze2", x, dims, "Out", "X", axes=axes)
    assert fixed.outputs[0].type.shape == interpret(fixed, {"x": x})["y"].shape == kept
    new: list[int] = []
    wanted = list(dims)
    for _ in range(draw(small)):
        axis = draw(st.integers(-len(wanted) - 1, len(wanted)))
        new.append(axis)
        wanted.insert(axis if axis >= 0 else axis + len(wanted) + 1, 1)
    agree("unsqueeze2", x, tuple(wanted), axes=new)
    first = draw(st.integers(0, len(dims) - 1))
    last = draw(st.integers(first, len(dims) - 1))
    flat = (*dims[:first], int(np.prod(dims[first : last + 1])), *dims[last + 1 :])
    agree("flatten_contiguous_range", x, flat, start_axis=first, stop_axis=last)


@EACH
@given(st.data())
def test_rolls_and_pads(data: Any) -> None:
    draw = data.draw
    x = image(draw)
    axes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
    shifts = [draw(st.integers(-12, 12)) for _ in axes]
    got = agree("roll", x, x.shape, shifts=shifts, axis=axes)
    np.testing.assert_array_equal(got, np.roll(x, shifts, axes))
    pads = [draw(st.integers(0, 2)) for _ in range(4)]
    mode = draw(st.sampled_from(["constant", "reflect", "edge"]))
    wide = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[1]), (pads[2], pads[3])), mode=mode)
    got = agree("pad2d", x, wide.shape, paddings=pads, mode=mode, data_format="NCHW")
    np.testing.assert_array_equal(got, wide)


@pytest.mark.parametrize(
    ("type", "attributes", "what"),
    [
        ("pool2d", {"ksize": [2, 2], "pooling_type": "median", "paddings": [0, 0]}, "pooling_type"),
        ("pool2d", {"ksize": [2, 2], "pooling_type": "max", "paddings": [0, 0, 0]}, "paddings"),
        ("flatten_contiguous_range", {"start_axis": 2, "stop_axis": 1}, "stop_axis"),
        ("unsqueeze2", {"axes": [7]}, "axes"),
        ("softmax", {"axis": 9}, "axis"),
        ("maxout", {"groups": 3, "axis": 1}, "groups"),
        ("pool2d", {"ksize": [1 << 30, 2], "pooling_type": "max", "paddings": [0, 0], "adaptive": True}, "places"),
        ("shard_index", {"index_num": 4, "nshards": 2, "shard_id": 5}, "shard_id"),
        ("bilinear_interp_v2", {"interp_method": "sinc", "out_h": 2, "out_w": 2}, "interp_method"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(type: str, attributes: dict[str, Any], what: str) -> None:
    with pytest.raises(bn.BoltError, match=what):
        loaded(type, np.zeros((1, 4, 5, 6), F32), [1, 4, 5, 6], "Out", "X", **attributes)


@pytest.mark.parametrize("decimals", [39, -(1 << 62)])
def test_powers_of_ten_have_an_end(decimals: int) -> None:
    """A program of PIR whose power of ten took no end of time."""
    text = packed("more/paddle.npz.xz")["round_dec__pir/model"].tobytes().decode()
    spelled = '{"#":"0.a_i32","D":1}'
    assert text.count(spelled) == 1
    with pytest.raises(bn.InvalidModelError, match="decimals"):
        bn.load(text.replace(spelled, spelled.replace("1}", f"{decimals}}}")).encode())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("method", ["bicubic", "bilinear", "linear", "trilinear"])
def test_one_element_of_an_axis(method: str, size: int) -> None:
    """Of pixels' centres: bicubic is taken half a pixel before the first, bilinear at it, the others in the middle."""
    rank = {"linear": 3, "trilinear": 5}.get(method, 4)
    x = np.random.default_rng(size).standard_normal((1, 2, *(size,) * (rank - 2))).astype(F32)
    given = dict(zip(("out_w", "out_h", "out_d"), (1, size, size)[: rank - 2], strict=False))
    how = {"align_corners": False, "align_mode": 0, "interp_method": method}
    for name in (f"{method}_interp_v2", f"{method}_interp"):
        got = agree(name, x, (*x.shape[:-1], 1), **given, **how)
        first, second = x[..., 0], x[..., min(1, size - 1)]
        middle = x[..., size // 2] if size % 2 else (x[..., size // 2 - 1] + x[..., size // 2]) / 2
        centred = method in ("linear", "trilinear") and name.endswith("v2")
        wanted = 1.09375 * first - 0.09375 * second if method == "bicubic" else middle if centred else first
        np.testing.assert_allclose(got[..., 0], wanted, atol=1e-5)
        got = bn.compile(loaded(name, x, list(x.shape), "Out", "X", **given, **how))(x=x)["y"]
        np.testing.assert_allclose(got[..., 0], wanted, atol=1e-5)
        corners = agree(name, x, (*x.shape[:-1], 1), **given, **(how | {"align_corners": True}))
        np.testing.assert_allclose(corners[..., 0], first, atol=1e-6)
