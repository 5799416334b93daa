"""What readers of TFLite's operators make of attributes and shapes, held against NumPy; sizes may be left open."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array
from tests.tflite_files import TfliteFile
from tests.tflite_operator import Tensor, constant, model

FEW = settings(max_examples=40, deadline=None)


def run(data: bytes, *inputs: Array) -> Any:
    """Results of the interpreter; the only one, where there is one."""
    graph = bn.load(data)
    feeds = {v.name: x for v, x in zip(graph.caller_inputs, inputs, strict=True)}
    made = list(interpret(graph, feeds, [name for name, _ in graph.caller_outputs]).values())
    return made[0] if len(made) == 1 else made


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-9, 9, shape).astype(np.float32)


def opened(x: Array, free: bool) -> Tensor:
    """The tensor of an input, with sizes left open or not."""
    if not free:
        return Tensor(x.shape)
    return Tensor([1] * x.ndim, signature=[-1] * x.ndim)


def same_pads(size: int, window: int, stride: int) -> tuple[int, int]:
    """Begin and end pads of padding SAME."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


windows = st.tuples(
    st.integers(1, 9), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans()
)
"""Height, width, kernel, stride, dilation, whether padding is SAME."""


def _padded(x: Array, span: int, stride: int, same: bool, value: float) -> Array:
    pads = [same_pads(d, span, stride) if same else (0, 0) for d in x.shape[1:3]]
    return np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=value)


@FEW
@given(windows, st.sampled_from([(2, 4, 1), (4, 2, 2), (3, 6, 3)]), st.booleans())
def test_conv_2d(window: Any, channels: tuple[int, int, int], free: bool) -> None:
    h, w, k, stride, dilation, same = window
    span = (k - 1) * dilation + 1
    if not same and min(h, w) < span:
        return
    c, filters, groups = channels
    x, f, bias = numbers(2, h, w, c), numbers(filters, k, k, c // groups), numbers(filters)
    seen = _padded(x, span, stride, same, 0)
    outs = [(d - span) // stride + 1 for d in seen.shape[1:3]]
    wanted = np.zeros((2, *outs, filters), np.float32) + bias
    for i, j in itertools.product(range(k), range(k)):
        part = seen[:, i * dilation :: stride, j * dilation :: stride][:, : outs[0], : outs[1]]
        for n in range(filters):
            group = n // (filters // groups)
            own = part[..., group * (c // groups) : (group + 1) * (c // groups)]
            wanted[..., n] += (own * f[n, i, j]).sum(-1)
    row = Tensor(x.shape, signature=[-1, -1, -1, c]) if free else Tensor(x.shape)
    data = model(
        "CONV_2D", [row, constant(f), constant(bias)], [Tensor(wanted.shape)], "Conv2D",
        padding="SAME" if same else "VALID", stride_w=stride, stride_h=stride, dilation_w_factor=dilation,
        dilation_h_factor=dilation,
    )  # fmt: skip
    np.testing.assert_allclose(run(data, x), wanted, rtol=1e-5, atol=1e-4)


@FEW
@given(windows, st.sampled_from(["AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"]), st.booleans())
def test_pools(window: Any, op: str, free: bool) -> None:
    """Means are of what lies inside."""
    h, w, k, stride, _, same = window
    if not same and min(h, w) < k:
        return
    x = numbers(1, h, w, 2)
    seen = _padded(x, k, stride, same, np.nan)
    outs = [(d - k) // stride + 1 for d in seen.shape[1:3]]
    parts = [seen[:, i::stride, j::stride][:, : outs[0], : outs[1]] for i, j in itertools.product(range(k), range(k))]
    stack = np.stack(parts)
    wanted = {
        "AVERAGE_POOL_2D": lambda: np.nanmean(stack, 0),
        "MAX_POOL_2D": lambda: np.nanmax(stack, 0),
        "L2_POOL_2D": lambda: np.sqrt(np.nanmean(stack * stack, 0)),
    }[op]()
    data = model(
        op, [opened(x, free)], [Tensor(wanted.shape)], "Pool2D", padding="SAME" if same else "VALID", stride_w=stride,
        stride_h=stride, filter_width=k, filter_height=k,
    )  # fmt: skip
    np.testing.assert_allclose(run(data, x), wanted, rtol=1e-5, atol=1e-5)


@FEW
@given(st.data())
def test_strided_slice(data: st.DataObject) -> None:
    """As NumPy's indexing with slices, numbers, one ellipsis and new axes; bounds constant or not, sizes open or not.

    Walking back from before the first element is told of known sizes only.
    """
    x = numbers(4, 3, 5)
    fixed, free = data.draw(st.booleans()), data.draw(st.booleans())
    places = st.integers(-6 if fixed and not free else -3, 6)
    kinds = data.draw(st.lists(st.sampled_from(["slice", "number", "new"]), max_size=3))
    if data.draw(st.booleans()):
        kinds.insert(data.draw(st.integers(0, len(kinds))), "ellipsis")
    index: list[Any] = []
    begin, end, step, masks = [], [], [], dict.fromkeys(("begin", "end", "ellipsis", "new_axis", "shrink_axis"), 0)
    for place, kind in enumerate(kinds):
        first, last, by = data.draw(places), data.draw(places), data.draw(st.sampled_from([1, 2, -1, -2]))
        if kind == "slice":
            cut = [data.draw(st.booleans()), data.draw(st.booleans())]
            masks["begin"] |= cut[0] << place
            masks["end"] |= cut[1] << place
            index.append(slice(None if cut[0] else first, None if cut[1] else last, by))
        elif kind == "number":
            first = data.draw(st.integers(-3, 2))
            masks["shrink_axis"] |= 1 << place
            is_first = data.draw(st.booleans())  # whatever ``begin`` says
            masks["begin"] |= is_first << place
            index.append(0 if is_first else first)
        else:
            masks["ellipsis" if kind == "ellipsis" else "new_axis"] |= 1 << place
            index.append(Ellipsis if kind == "ellipsis" else None)
        begin.append(first)
        end.append(last)
        step.append(by if kind == "slice" else 1)
    wanted = x[tuple(index)]
    bounds = [np.array(v, np.int32) for v in (begin, end)]
    operands = [constant(v) if fixed else Tensor(v.shape, np.int32) for v in bounds]
    file = model(
        "STRIDED_SLICE", [opened(x, free), *operands, constant(np.array(step, np.int32))],
        [Tensor(wanted.shape)], "StridedSlice", **{f"{name}_mask": bits for name, bits in masks.items()},
    )  # fmt: skip
    np.testing.assert_array_equal(run(file, x, *(() if fixed else bounds)), wanted)


@FEW
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 3)), min_size=3, max_size=3), st.booleans(), st.booleans())
def test_slice(rows: Any, free: bool, fixed: bool) -> None:
    x = numbers(5, 5, 5)
    begin, size = (np.array(v, np.int64) for v in zip(*rows, strict=True))
    wanted = x[tuple(slice(a, None if n < 0 else a + n) for a, n in rows)]
    operands = [constant(v) if fixed else Tensor(v.shape, np.int64) for v in (begin, size)]
    file = model("SLICE", [opened(x, free), *operands], [Tensor(wanted.shape)], "Slice")
    np.testing.assert_array_equal(run(file, x, *(() if fixed else (begin, size))), wanted)


@FEW
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=3, max_size=3),
    st.sampled_from(["PAD", "REFLECT", "SYMMETRIC"]),
    st.booleans(),
)
def test_pads(pads: Any, kind: str, free: bool) -> None:
    x = numbers(3, 4, 5)
    mode: Any = "constant" if kind == "PAD" else kind.lower()
    wanted = np.pad(x, pads, mode=mode)
    operands = [opened(x, free), constant(np.array(pads, np.int32))]
    options = {} if kind == "PAD" else {"mode": kind}
    name = ("PAD", "Pad") if kind == "PAD" else ("MIRROR_PAD", "MirrorPad")
    np.testing.assert_array_equal(run(model(name[0], operands, [Tensor(wanted.shape)], name[1], **options), x), wanted)


@FEW
@given(st.sampled_from([(24,), (2, 12), (4, 3, 2), (-1,), (2, -1), (-1, 3, 2, 1), (6, -1, 2)]), st.booleans())
def test_reshape(shape: tuple[int, ...], by_operand: bool) -> None:
    x = numbers(2, 3, 4)
    operands = [opened(x, True), *([constant(np.array(shape, np.int32))] if by_operand else [])]
    options = {} if by_operand else {"new_shape": shape}
    data = model("RESHAPE", operands, [Tensor(x.reshape(shape).shape)], "Reshape", **options)
    np.testing.assert_array_equal(run(data, x), x.reshape(shape))


@FEW
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_space_to_batch_and_back(a: int, b: int, before: int, after: int, free: bool) -> None:
    """Each phase of the blocks is one entry of the batch; what was padded is cropped again."""
    x = numbers(2, 6, 6, 3)
    pads = np.array([[before, -(6 + before) % a], [after, -(6 + after) % b]], np.int32)
    blocks = constant(np.array([a, b], np.int32))
    data = model("SPACE_TO_BATCH_ND", [opened(x, free), blocks, constant(pads)], [Tensor((1,))], "SpaceToBatchND")
    made = run(data, x)
    wide = np.pad(x, [(0, 0), *map(tuple, pads), (0, 0)])
    np.testing.assert_array_equal(made, np.concatenate([wide[:, i::a, j::b] for i in range(a) for j in range(b)]))
    back = model("BATCH_TO_SPACE_ND", [opened(made, free), blocks, constant(pads)], [Tensor((1,))], "BatchToSpaceND")
    np.testing.assert_array_equal(run(back, made), x)


@FEW
@given(st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_gather_of_batches(axis: int, batch: int, free: bool) -> None:
    batch = min(axis, batch)
    x = numbers(3, 4, 5)
    places = np.random.default_rng(axis).integers(0, x.shape[axis], (*x.shape[:batch], 2)).astype(np.int32)
    wanted = np.empty((*x.shape[:axis], 2, *x.shape[axis + 1 :]), np.float32)
    for entry in np.ndindex(*x.shape[:batch]):
        wanted[entry] = np.take(x[entry], places[entry], axis=axis - batch)
    file = model(
        "GATHER", [opened(x, free), constant(places)], [Tensor(wanted.shape)], "Gather", axis=axis, batch_dims=batch
    )
    np.testing.assert_array_equal(run(file, x), wanted)


@FEW
@given(st.integers(1, 6), st.integers(1, 2), st.integers(1, 2), st.sampled_from(["ADD", "MUL", "MAXIMUM", "MINIMUM"]))
def test_reduce_window(size: int, stride: int, dilation: int, function: str) -> None:
    x = numbers(16, 2)
    combine: Any = {"ADD": np.sum, "MUL": np.prod, "MAXIMUM": np.max, "MINIMUM": np.min}[function]
    count = (16 - ((size - 1) * dilation + 1)) // stride + 1
    rows = [combine(x[i * stride : i * stride + (size - 1) * dilation + 1 : dilation], axis=0) for i in range(count)]
    first = np.float32({"MUL": 1, "MAXIMUM": -np.inf, "MINIMUM": np.inf}.get(function, 0))
    window = [constant(np.array(v, np.int64)) for v in ([size, 1], [stride, 1], [dilation, 1])]
    data = model(
        "REDUCE_WINDOW", [opened(x, True), constant(first), *window], [Tensor((count, 2))], "ReduceWindow",
        reduce_function=function,
    )  # fmt: skip
    np.testing.assert_allclose(run(data, x), np.stack(rows), rtol=1e-5)


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf])
@pytest.mark.parametrize("y", [0.0, -0.0, 3.0, -1.0, np.inf, -np.inf])
def test_angles(x: float, y: float) -> None:
    """Of all signs, zeros and infinities, as in C."""
    data = model("ATAN2", [Tensor((1,)), Tensor((1,))], [Tensor((1,))], "ATan2")
    got = run(data, *(np.array([v], np.float32) for v in (y, x)))
    np.testing.assert_allclose(got, np.arctan2(np.float32(y), np.float32(x)), rtol=1e-6)
    assert np.signbit(got[0]) == np.signbit(np.arctan2(y, x))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_floor_division(dtype: Any) -> None:
    """Of all signs; the remainder has the sign of the divisor."""
    a, b = (np.array(v, dtype) for v in ([7, -7, 7, -7, 6, -6, 0], [2, 2, -2, -2, 3, 3, -5]))
    for op, wanted in (("FLOOR_DIV", np.floor_divide(a, b)), ("FLOOR_MOD", np.mod(a, b))):
        data = model(op, [Tensor(a.shape, dtype), Tensor(b.shape, dtype)], [Tensor(a.shape, dtype)])
        np.testing.assert_array_equal(run(data, a, b), wanted)


@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64])
def test_floats_become_integers_within_their_limits(source: Any, dtype: Any) -> None:
    """What is beyond them becomes the limit, NaN the upper one; the rest is cut."""
    x = np.array([-np.inf, -6e4, -1.5, 0.9, 100.7, 4e4, np.inf, np.nan], source)
    limits = np.iinfo(dtype)
    wanted = [limits.max if not v < limits.max else limits.min if v <= limits.min else int(v) for v in x.tolist()]
    data = model("CAST", [Tensor(x.shape, source)], [Tensor(x.shape, dtype)], "Cast")
    for got in (run(data, x), bn.compile(data).run(None, {"t0": x})[0]):
        assert got.dtype == dtype
        assert got.tolist() == wanted


@pytest.mark.parametrize("start", [(0, 0), (2, 3), (-4, 9), (99, -99)])
def test_an_update_lies_inside(start: tuple[int, int]) -> None:
    x, update = numbers(5, 6), numbers(2, 3) + 50
    row, column = np.clip(start[0], 0, 3), np.clip(start[1], 0, 3)
    wanted = x.copy()
    wanted[row : row + 2, column : column + 3] = update
    begin = np.array(start, np.int32)
    operands = [Tensor(x.shape), Tensor(update.shape), Tensor((2,), np.int32)]
    data = model("DYNAMIC_UPDATE_SLICE", operands, [Tensor(x.shape)])
    np.testing.assert_array_equal(run(data, x, update, begin), wanted)


@pytest.mark.parametrize("bad", [{"stride_w": 0}, {"dilation_h_factor": -1}, {"stride_h": 1 << 30, "stride_w": -7}])
def test_windows_that_cannot_be(bad: dict[str, int]) -> None:
    x, f = Tensor((1, 4, 4, 2)), constant(numbers(3, 2, 2, 2))
    options = {"stride_w": 1, "stride_h": 1, **bad}
    with pytest.raises(bn.BoltError):
        bn.load(model("CONV_2D", [x, f, constant(numbers(3))], [Tensor((1, 4, 4, 3))], "Conv2D", **options))


def test_channels_that_are_no_groups() -> None:
    x, f = Tensor((1, 4, 4, 3)), constant(numbers(2, 2, 2, 2))
    with pytest.raises(bn.BoltError, match="channels of x"):
        bn.load(model("CONV_2D", [x, f, None], [Tensor((1, 4, 4, 2))], "Conv2D", stride_w=1, stride_h=1))


# --- stored numbers --------------------------------------------------------------------------------------------------


def quantised(shape: Any, dtype: Any = np.int8, scale: float = 0.05, zero: int = 3, **more: Any) -> Tensor:
    return Tensor(shape, dtype, scale=[scale], zero_point=[zero], **more)


def levels(shape: Any, dtype: Any = np.int8) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(7).integers(max(info.min, -500), min(info.max, 500), shape).astype(dtype)


MOVES: dict[str, tuple[list[Tensor], str, dict[str, Any], Any]] = {
    "RESHAPE": ([constant(np.array([3, 4], np.int32))], "Reshape", {}, lambda x: x.reshape(3, 4)),
    "TRANSPOSE": ([constant(np.array([1, 0, 2], np.int32))], "Transpose", {}, lambda x: x.transpose(1, 0, 2)),
    "REVERSE_V2": ([constant(np.array([2], np.int32))], "ReverseV2", {}, lambda x: x[..., ::-1]),
    "TILE": ([constant(np.array([1, 2, 2], np.int32))], "Tile", {}, lambda x: np.tile(x, (1, 2, 2))),
    "PAD": ([constant(np.array([[0, 0], [1, 0], [0, 2]], np.int32))], "Pad", {},
            lambda x: np.pad(x, [(0, 0), (1, 0), (0, 2)], constant_values=3)),
    "MATRIX_DIAG": ([], "MatrixDiag", {}, lambda x: np.where(np.eye(2, dtype=bool), x[..., None], 0)),
    "REDUCE_MAX": ([constant(np.array([1], np.int32))], "Reducer", {}, lambda x: x.max(1)),
    "ARG_MIN": ([constant(np.array(1, np.int32))], "ArgMin", {}, lambda x: x.argmin(1).astype(np.int32)),
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(MOVES))
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_what_moves_or_compares_is_exact(op: str, dtype: Any) -> None:
    """In the session, too, whose passes let it run on stored numbers."""
    operands, kind, options, expected = MOVES[op]
    x = levels((2, 3, 2), dtype)
    wanted = expected(x).astype(np.int32 if op == "ARG_MIN" else dtype)
    y = Tensor(wanted.shape, np.int32) if op == "ARG_MIN" else quantised(wanted.shape, dtype)
    data = model(op, [quantised(x.shape, dtype), *operands], [y], kind, **options)
    for got in (run(data, x), bn.compile(data).run(None, {"t0": x})[0]):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype


@pytest.mark.parametrize("function", ["NONE", "RELU", "RELU6", "RELU_N1_TO_1"])
def test_a_fused_activation_is_one_of_real_numbers(function: str) -> None:
    x, y = levels((4, 5)), levels((5,))
    real = (x - 3.0) * 0.05 + (y + 7.0) * 0.02
    low, high = {"NONE": (-99, 99), "RELU": (0, 99), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1)}[function]
    wanted = np.clip(np.rint(np.clip(real, low, high) / 0.06) - 20, -128, 127)
    operands = [quantised((4, 5)), quantised((5,), scale=0.02, zero=-7)]
    made = quantised((4, 5), scale=0.06, zero=-20)
    data = model("ADD", operands, [made], "Add", fused_activation_function=function)
    for got in (run(data, x, y), bn.compile(data).run(None, {"t0": x, "t1": y})[0]):
        assert np.abs(got - wanted).max() <= 1


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_convolution_of_bytes_runs_on_bytes(per_channel: bool) -> None:
    rng = np.random.default_rng(1)
    x, f = levels((1, 6, 6, 4)), rng.integers(-127, 128, (3, 3, 3, 4)).astype(np.int8)
    scales = rng.uniform(0.001, 0.01, 3 if per_channel else 1).astype(np.float32)
    bias = rng.integers(-900, 900, 3).astype(np.int32)
    weights = constant(f, scale=scales.tolist(), axis=0)
    offset = constant(bias, scale=(np.float32(0.05) * scales).tolist())
    operands = [quantised(x.shape), weights, offset]
    y = quantised((1, 4, 4, 3), scale=0.1, zero=-5)
    data = model("CONV_2D", operands, [y], "Conv2D", padding="VALID", stride_w=1, stride_h=1)
    session = bn.compile(data)
    got = session.run(None, {"t0": x})[0]
    assert [row["op"] for row in session.report()] == ["QLinearConv"]
    views = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64) - 3, (3, 3), (1, 2))
    sums = np.einsum("nhwcij,kijc->nhwk", views, f.astype(np.int64)) + bias
    wanted = np.clip(np.rint(sums * (0.05 * scales) / 0.1) - 5, -128, 127)
    assert np.abs(got - wanted).max() <= 1


# --- recurrent layers ------------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_lstm_against_its_formula(coupled: bool, clip: float, projected: bool, time_major: bool) -> None:
    """Two runs of a session, so that the second one begins with the state of the first."""
    rng = np.random.default_rng(3)
    n, t, i, h = 2, 3, 4, 5
    p = 3 if projected else h
    w, r, bias = (rng.normal(size=s).astype(np.float32) * 0.5 for s in ((4, h, i), (4, h, p), (4, h)))
    peep = rng.normal(size=(3, h)).astype(np.float32)
    projection = rng.normal(size=(p, h)).astype(np.float32) if projected else None
    gates = range(1 if coupled else 0, 4)
    rows: list[Tensor | None] = [Tensor((t, n, i) if time_major else (n, t, i))]
    for stack in (w, r, peep, bias):
        places = [0, 1, 3] if stack is peep else range(4)
        rows += [constant(stack[k]) if g in gates else None for k, g in enumerate(places)]
    rows += [None if projection is None else constant(projection), None]
    rows += [Tensor((n, p), is_variable=True), Tensor((n, h), is_variable=True)]
    data = model(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", rows, [Tensor((t, n, p) if time_major else (n, t, p))],
        "UnidirectionalSequenceLSTM", fused_activation_function="TANH", cell_clip=clip, time_major=time_major,
    )  # fmt: skip
    session = bn.compile(data)
    out, cell = np.zeros((n, p), np.float32), np.zeros((n, h), np.float32)
    for _ in range(2):
        x = rng.normal(size=(t, n, i)).astype(np.float32)
        wanted = []
        for step in x:
            z = np.einsum("khi,ni->knh", w, step) + np.einsum("khp,np->knh", r, out) + bias[:, None]
            forget = sigmoid(z[1] + peep[1] * cell)
            taken = 1 - forget if coupled else sigmoid(z[0] + peep[0] * cell)
            cell = forget * cell + taken * np.tanh(z[2])
            cell = np.clip(cell, -clip, clip) if clip else cell
            out = sigmoid(z[3] + peep[2] * cell) * np.tanh(cell)
            out = out if projection is None else out @ projection.T
            wanted.append(out)
        got = session.run(None, {"t0": x if time_major else x.swapaxes(0, 1)})[0]
        np.testing.assert_allclose(got if time_major else got.swapaxes(0, 1), np.stack(wanted), rtol=1e-4, atol=1e-5)
    session.reset_state()


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_suppression(sigma: float) -> None:
    """Two boxes on one place, and one beside them: the worse of the two goes, or its score falls."""
    boxes = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]], np.float32)
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    limits = [constant(np.array(v, d)) for v, d in ((3, np.int32), (0.99 if sigma else 0.5, np.float32))]
    limits += [constant(np.array(v, np.float32)) for v in (0.1, sigma)]
    outputs = [Tensor((3,), np.int32), Tensor((3,)), Tensor((), np.int32)]
    data = model(
        "NON_MAX_SUPPRESSION_V5", [Tensor((3, 4)), Tensor((3,)), *limits], outputs, "NonMaxSuppressionV5"
    )  # fmt: skip
    chosen, left, count = bn.compile(data).run(None, {"t0": boxes, "t1": scores})
    share = 0.9 / 1.1
    fallen = 0.8 * np.exp(-0.5 / sigma * share**2) if sigma else 0
    assert chosen.tolist() == ([0, 2, 1] if sigma else [0, 2, 0])
    assert count == (3 if sigma else 2)
    np.testing.assert_allclose(left, [0.9, 0.7, fallen], rtol=1e-5)


# --- Fourier transforms and random numbers ---------------------------------------------------------------------------


def spectrum(part: str, sizes: tuple[int, int]) -> bytes:
    """A file that gives a real part of the transform of t0; "" gives the transform itself."""
    file = TfliteFile()
    file.subgraph()
    x, length = file.tensor("x", (2, 4, 6)), file.constant("length", np.array(sizes, np.int32))
    made, y = file.tensor("made", (2, 4, 4), "COMPLEX64"), file.tensor("y", (2, 4, 4))
    file.operator("RFFT2D", [x, length], [made])
    if part:
        file.operator(part, [made], [y])
    file.ends([x], [y if part else made])
    return file.to_bytes()


@pytest.mark.parametrize("part", ["REAL", "IMAG", "COMPLEX_ABS"])
@pytest.mark.parametrize("sizes", [(4, 6), (2, 8)])
def test_fourier_transforms(part: str, sizes: tuple[int, int]) -> None:
    x = numbers(2, 4, 6)
    made = np.fft.rfft2(x, sizes)
    wanted = {"REAL": made.real, "IMAG": made.imag, "COMPLEX_ABS": np.abs(made)}[part]
    np.testing.assert_allclose(run(spectrum(part, sizes), x), wanted, rtol=1e-4, atol=1e-4)


def test_complex_numbers_do_not_leave_a_graph() -> None:
    with pytest.raises(bn.UnsupportedOpError, match="COMPLEX64"):
        bn.load(spectrum("", (4, 6)))


@pytest.mark.parametrize("op", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_random_numbers(op: str) -> None:
    """With a seed every run gives the same."""
    for seed in (0, 5):
        data = model(op, [constant(np.array([50, 40], np.int32))], [Tensor((50, 40))], "Random", seed=seed, seed2=seed)
        first, second = run(data), run(data)
        assert np.array_equal(first, second) == bool(seed)
        assert abs(first.mean() - (0.5 if op == "RANDOM_UNIFORM" else 0)) < 0.1
        assert abs(first.std() - (12**-0.5 if op == "RANDOM_UNIFORM" else 1)) < 0.1


def test_multinomial() -> None:
    logits = np.log(np.array([[0.2, 0.8], [1, 1e-9]], np.float32))
    samples = constant(np.array(1000, np.int32))
    data = model("MULTINOMIAL", [Tensor((2, 2)), samples], [Tensor((2, 1000), np.int64)], "Random", seed=1)
    drawn = run(data, logits)
    assert drawn.dtype == np.int64
    assert abs(drawn[0].mean() - 0.8) < 0.06
    assert not drawn[1].any()
