"""Inference never claims what is not so: every operand of every operator is spoiled, one at a time.

`infer` must refuse by a BoltError, or give types that the reference, which must run then, keeps exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from bolt_numba.errors import BoltError, DTypeError, ShapeError
from bolt_numba.ir.build import Builder, infer_types
from bolt_numba.ir.graph import Graph
from bolt_numba.ops import control
from bolt_numba.ops.arrays import gather, quantize, reduce, shape, signal, slicing
from bolt_numba.ops.arrays import generate as fill
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.layers import norm, pool, recurrent, resize
from bolt_numba.ops.layers.attention import attention, cache
from bolt_numba.ops.layers.detection import regions as detection
from bolt_numba.ops.layers.products import conv, integer_products, matmul
from bolt_numba.ops.layers.recurrent_quantized import DynamicQuantizeLSTM
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.registry import Op, result_tuple
from bolt_numba.types import BOOL, F16, F32, F64, I32, I64, STRING, U8, AnyDType, Array, Sym, TensorType, type_of
from tests.cases import CASES, Case

ALL = sorted(CASES, key=lambda op: op.name)
EXAMPLES = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
HARMLESS = {"Flatten", "Identity", "NonZero", "RegexFullMatch", "Shape", "Size", "StringSplit", "Transpose", "Unique"}
"""Operators with one operand of almost any shape and dtype."""
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DTYPES = (F32, F64, F16, I64, I32, U8, BOOL, STRING)

ZEROED: dict[str, int] = {
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "MaxRoiPool"), 1),
    **dict.fromkeys(("PSRoiPool", "GatherTree", "GatherForm"), 1),
    **dict.fromkeys(("RNN", "GRU", "LSTM", "DynamicQuantizeLSTM"), 4),
    "ReverseSequence": 1,
    "RoiAlign": 2,
    "GroupQueryAttention": 5,
    "MatMulExperts": 2,
}
"""Operands that hold places or lengths, which only the run judges: zeros fit whatever the other operands are."""

CONTENT = {
    "Cast": "a text that is no number",
    "OneHotEncoder": "an element of no category",
    "TreeEnsemble": "nodes that lead outside",
    "GroupQueryAttention": "keys that no column of the bias is for",
    "RaggedAttention": "lengths that are not those of all positions",
    "Between": "a number outside of the others",
    "BifurcationDetector": "a guess that is not as long as the source from the start on",
}
"""Operators whose reference may refuse what `infer` accepts, and for what content of an operand."""


def resized(a: Array, axis: int, size: int) -> Array:
    """``a`` cut off or repeated along an axis."""
    if not a.shape[axis]:
        return np.zeros((*a.shape[:axis], size, *a.shape[axis + 1 :]), a.dtype)
    return np.ascontiguousarray(a.take(np.arange(size) % a.shape[axis], axis=axis))


def as_dtype(a: Array, dtype: AnyDType) -> Array:
    with np.errstate(all="ignore"):
        return np.full(a.shape, "x", STRING) if dtype == STRING else np.nan_to_num(a.astype(F64)).astype(dtype)


def spoiled(a: Array) -> Iterator[tuple[str, Array]]:
    """What is wrong, and the operand: a rank more or less, an axis longer, shorter, 1 or empty, another dtype."""
    yield "an axis in front", a[None].copy()
    yield "an axis at the end", a[..., None].copy()
    if a.ndim:
        yield "without the first axis", resized(a, 0, 1).reshape(a.shape[1:])
    if a.ndim > 1:
        yield "flat", a.reshape(-1)
    for axis, size in enumerate(a.shape):
        for other in sorted({0, 1, size - 1, size + 1} - {size, -1}):
            yield f"{other} instead of {size} along axis {axis}", resized(a, axis, other)
    if a.dtype != STRING:
        for dtype in DTYPES:
            if dtype != a.dtype:
                yield f"dtype {dtype}", as_dtype(a, dtype)


def inferred(op: Op, types: list[TensorType | None]) -> tuple[TensorType, ...] | None:
    """What `infer` says; None when it refuses.  Whatever else it raises is a failure."""
    try:
        op.infer(*types)
        return infer_types(op, types)
    except BoltError:
        return None


def agrees(t: TensorType, result: Array) -> bool:
    if t.dtype != result.dtype or t.shape is None:
        return t.dtype == result.dtype
    same = len(t.shape) == result.ndim
    return same and all(isinstance(d, Sym) or d == n for d, n in zip(t.shape, result.shape, strict=True))


def check(op: Op, operands: list[Array | None]) -> bool:
    """Whether the operands are refused; raises AssertionError for a wrong claim, and what is no BoltError."""
    at = ZEROED.get(op.name, len(operands))
    if at < len(operands) and operands[at] is not None:
        operands[at] = np.zeros_like(operands[at])
    types = [None if a is None else type_of(a) for a in operands]
    claims = [inferred(op, ts) for ts in (types, [None if t is None else t.with_value(None) for t in types])]
    if claims == [None, None]:
        return True
    try:
        results = [np.asarray(r) for r in result_tuple(op.reference(*operands))]
    except BoltError:
        assert claims[0] is None or op.name in CONTENT, f"accepted as {[str(t) for t in claims[0]]}"
        return True
    for claim in claims:
        for t, result in zip(claim or (), results, strict=claim is not None):
            assert agrees(t, result), f"{t} is not {result.dtype}{result.shape}"
    return claims[0] is None


@pytest.mark.parametrize("op", ALL, ids=[op.name for op in ALL])
def test_spoiled_operands_are_refused_or_right(op: type[Op]) -> None:
    refused = 0

    @EXAMPLES
    @given(CASES[op]())
    def run(case: Case) -> None:
        nonlocal refused
        for i, a in enumerate(case.inputs):
            for what, b in () if a is None else spoiled(a):
                try:
                    refused += check(case.op, [*case.inputs[:i], b, *case.inputs[i + 1 :]])
                except Exception as error:
                    raise AssertionError(f"{case}, operand {i}, {what}: {error}") from error

    run()
    assert refused or op.name in HARMLESS


@pytest.mark.parametrize("op", ALL, ids=[op.name for op in ALL])
def test_omitted_operands_are_refused_or_optional(op: type[Op]) -> None:
    @EXAMPLES
    @given(CASES[op]())
    def run(case: Case) -> None:
        for i in range(len(case.inputs)):
            operands = [*case.inputs[:i], None, *case.inputs[i + 1 :]]
            try:
                types = infer_types(case.op, [None if a is None else type_of(a) for a in operands])
            except BoltError:
                continue
            if op is not control.If:  # a branch may have no use for a capture
                results = result_tuple(case.op.reference(*operands))
                assert all(agrees(t, np.asarray(r)) for t, r in zip(types, results, strict=True)), f"{i}: {case}"

    run()


def f(*dims: int) -> Array:
    return np.arange(int(np.prod(dims)), dtype=F32).reshape(dims)


def n(*values: int) -> Array:
    return np.array(values, I64)


def lens(*values: int) -> Array:
    return np.array(values, I32)


X, W, R = f(5, 2, 3), f(1, 16, 3), f(1, 16, 4)
BYTES = W.astype(np.int8), R.astype(np.int8)
NOTHING, SCALES = [None] * 5, (f(1), np.zeros((1, 16), np.int8)) * 2
STATE, LAYOUT_1 = f(1, 2, 4), recurrent.LSTM(layout=1)
IMAGE = f(1, 2, 4, 4)
CROP = resize.Resize(coordinate_transformation_mode="tf_crop_and_resize")
KEPT = resize.Resize(keep_aspect_ratio_policy="not_larger")
BLOCKED = quantize.QuantizeLinear(1, 3)
HUGE = 1 << 62


def body(dims: tuple[int, ...] = (2,), dtype: AnyDType = F32) -> Graph:
    """A graph of one capture: its output is the capture after Relu."""
    graph = Graph("body")
    graph.add_output(Builder(graph)(Relu(), graph.add_input("x", TensorType(dtype, dims))))
    return graph


def steps(states: int) -> Graph:
    """The body of a Scan, or of a Loop after its number and condition: a state and a slice, both [2], are added."""
    graph = Graph("steps")
    b = Builder(graph)
    if states < 0:
        graph.add_input("i", TensorType(I64, ()))
        graph.add_output(graph.add_input("go", TensorType(BOOL, ())))
    s, x = (graph.add_input(name, TensorType(F32, (2,))) for name in "sx")
    graph.add_output(b(Add(), s, x))
    return graph


IF, LOOP, SCAN = control.If(body(), body()), control.Loop(steps(-1), 1), control.Scan(steps(1), 1, 1)
GO = np.array(True)
WRONG: list[tuple[type[BoltError], Op, tuple[Array | None, ...], str]] = [
    (ShapeError, recurrent.LSTM(), (X, W, R, f(1, 31)), "shape of b: got .*, wanted .1, 32"),
    (ShapeError, recurrent.LSTM(), (X, W, R, f(2, 32)), "shape of b"),
    (ShapeError, recurrent.LSTM(), (X, W, R, None, lens(5)), "shape of sequence_lens: got .*, wanted .2"),
    (ShapeError, recurrent.LSTM(), (X, W, R, None, None, f(1, 1, 4)), "shape of initial_h: got .*, wanted .1, 2, 4"),
    (ShapeError, recurrent.LSTM(), (X, W, R, None, None, STATE, f(1, 2, 3)), "shape of initial_c"),
    (ShapeError, recurrent.LSTM(), (X, W, R, None, None, STATE, STATE, f(1, 11)), "shape of p: got .*, wanted .1, 12"),
    (ShapeError, LAYOUT_1, (X, W, R, None, None, f(1, 5, 4)), "shape of initial_h: got .*, wanted .5, 1, 4"),
    (ShapeError, LAYOUT_1, (X, W, R, None, lens(2, 2)), "shape of sequence_lens: got .*, wanted .5"),
    (ShapeError, recurrent.LSTM(direction="bidirectional"), (X, W, R), "shape of w: got .*, wanted .2, 16, 3"),
    (ShapeError, DynamicQuantizeLSTM(), (X, *BYTES, None, None, f(1, 1, 4), None, None, *SCALES), "shape of initial_h"),
    (ShapeError, DynamicQuantizeLSTM(), (X, *BYTES, *NOTHING, f(1, 15), *SCALES[1:]), "shape of w_scale"),
    (ShapeError, DynamicQuantizeLSTM(), (X, *BYTES, *NOTHING, *SCALES[:3], SCALES[1][0]), "shape of r_zero_point"),
    (ShapeError, DynamicQuantizeLSTM(), (X, *BYTES), "w_scale: got None"),
    (ShapeError, recurrent.GRU(), (X, f(1, 12, 3), f(1, 12, 4), None, None, f(2, 2, 4)), "shape of initial_h"),
    (ShapeError, gather.NonMaxSuppression(), (f(1, 3, 4), f(1, 1, 5)), "shape of boxes: got .*, wanted .1, 5, 4"),
    (ShapeError, gather.NonMaxSuppression(), (f(1, 3, 4), f(1, 1, 3), n(1, 2)), "max_output_boxes_per_class"),
    (ShapeError, detection.RoiAlign(), (IMAGE, f(3, 5), n(0, 0, 0)), "shape of rois: got .*, wanted .any, 4"),
    (ShapeError, detection.RoiAlign(), (IMAGE, f(3, 4), n(0, 0)), "shape of batch_indices: got .*, wanted .3"),
    (ShapeError, detection.DeformConv(), (IMAGE, f(2, 2, 3, 3), f(1, 18, 1, 2)), "shape of offset"),
    (ShapeError, BLOCKED, (f(2, 7), f(2, 2)), "shape of scale: got .*, wanted .2, 3"),
    (ShapeError, BLOCKED, (f(2, 7), f(2, 3), np.zeros((2, 2), U8)), "shape of zero_point"),
    (ShapeError, quantize.QuantizeLinear(1), (f(2, 7), f(2, 7)), "blocks with a block_size"),
    (ShapeError, quantize.QuantizeLinear(0, -1), (f(2, 7), f(2)), "block_size: got -1"),
    (ShapeError, slicing.ReverseSequence(), (f(4, 3), n(1, 1)), "shape of sequence_lens: got .*, wanted .3"),
    (ShapeError, cache.TensorScatter(), (f(2, 4, 3), f(2, 5, 3)), "dimension 1 of update: got 5, wanted at most 4"),
    (ShapeError, cache.TensorScatter(), (f(2, 4, 3), f(2, 2, 2)), "shape of update: got .*, wanted .2, any, 3"),
    (ShapeError, cache.TensorScatter(), (f(2, 4, 3), f(2, 2, 3), n(0)), "shape of write_indices"),
    (ShapeError, gather.ScatterElements(), (f(3, 3), n(0, 1)[None], f(1, 3)), "shape of updates"),
    (ShapeError, gather.GatherND(1), (f(3, 3), n(0, 0)[:, None]), "shape of indices: got .*, wanted .3, any"),
    (ShapeError, gather.Gather(), (f(0, 3), n(0)), "no elements"),
    (ShapeError, slicing.Slice(), (f(3), n(0), n(1, 1)), "shape of ends"),
    (ShapeError, slicing.Slice(), (f(3, 3), n(0, 0), n(1, 1), n(0, -2)), "axes: got .*, wanted each axis once"),
    (ShapeError, slicing.Pad("edge"), (f(0), n(1, 0)), "none around no elements in mode edge"),
    (ShapeError, reduce.ArgMax(), (f(0, 3),), "dimension 0 of x: got 0, wanted at least 1"),
    (ShapeError, reduce.TopK(), (f(3), n(1, 1)), "shape of k: got .*, wanted one element"),
    (ShapeError, reduce.Softmax(), (f(),), "axis: got -1"),
    (ShapeError, gather.OneHot(), (n(1), n(-1), f(2)), "depth: got -1"),
    (ShapeError, shape.Tile(), (f(3), n(-1)), "repeats"),
    (ShapeError, shape.Split(0, 0), (f(3),), "num_outputs: got 0"),
    (ShapeError, resize.Resize(), (IMAGE, None, np.full(4, np.inf, F32)), "size times scale"),
    (ShapeError, resize.Resize(), (f(1, 1, 0, 4), None, None, n(1, 1, 2, 2)), "dimension 2 of x: got 0"),
    (ShapeError, KEPT, (f(1, 1, 0, 4), None, None, n(1, 1, 2, 2)), "dimensions of x"),
    (ShapeError, CROP, (IMAGE, f(6), f(4) + 1), "shape of roi: got .*, wanted .8"),
    (ShapeError, CROP, (IMAGE, None, f(4) + 1), "roi: got none"),
    (ShapeError, resize.GridSample(), (IMAGE, f(2, 3, 3, 2)), "batch of grid"),
    (ShapeError, resize.GridSample(), (f(1, 1, 0, 4), f(1, 3, 3, 2)), "dimensions of x"),
    (ShapeError, pool.Col2Im(), (f(1, 4, 7), n(4, 4), n(2, 2)), "last dimension of x: got 7, wanted 9"),
    (ShapeError, pool.Col2Im(), (f(1, 5, 9), n(4, 4), n(2, 2)), "channels of x: got 5, wanted a multiple of 4"),
    (ShapeError, fill.Range(), (np.float32(0), np.float32(np.inf), np.float32(1)), "finite number of steps"),
    (ShapeError, signal.DFT(), (f(4, 3),), "shape of x"),
    (ShapeError, signal.STFT(), (f(1, 9, 1), n(1), f(4), n(5)), "shape of window"),
    (ShapeError, signal.MelWeightMatrix(), (n(4), n(8), n(1), np.float32(0), np.float32(9)), "edges"),
    (ShapeError, matmul.Einsum("...i->i"), (f(2, 3),), "an ellipsis on both sides or on none"),
    (ShapeError, matmul.Einsum("ii->i"), (f(1, 3),), "dimension i of an operand: got 3, wanted 1"),
    (ShapeError, matmul.Einsum("i->ii"), (f(3),), "each letter once"),
    (ShapeError, norm.LayerNormalization(), (f(3, 1), f(5)), "shape of scale"),
    (ShapeError, attention.FusedAttention(), (f(1, 2, 3), f(1, 4, 3), f(1, 4, 3), f(5, 2, 4)), "shape of mask"),
    (ShapeError, conv.Conv(residual=True), (IMAGE, f(2, 2, 1, 1), None, f(1, 1, 4, 4)), "shape of residual"),
    (ShapeError, pool.LpPool((2, 2), p=0), (IMAGE,), "p: got 0"),
    (ShapeError, IF, (GO, f(3)), "shape of capture 0: got .*, wanted .2"),
    (DTypeError, IF, (GO, n(3, 3)), "dtype of capture 0"),
    (ShapeError, IF, (np.array([True, True]), f(2)), "shape of cond"),
    (DTypeError, LOOP, (GO, GO, f(2), f(2)), "dtype of trip_count"),
    (ShapeError, LOOP, (n(1), GO, f(2), f(3)), "shape of capture 0"),
    (ShapeError, SCAN, (f(2), f(2)), "rank of scanned input 0: got .*, wanted 2"),
    (ShapeError, conv.ConvTranspose((HUGE, 1)), (IMAGE, f(2, 1, 3, 3)), "strides: got"),
    (ShapeError, conv.ConvTranspose((2**31 - 1,) * 2), (IMAGE, f(2, 1, 3, 3)), "result: got"),
    (ShapeError, shape.Expand(), (f(1), n(HUGE)), "result: got"),
    (ShapeError, shape.Expand(), (f(1), n(1 << 40, 1 << 40)), "result: got"),
    (ShapeError, shape.Expand(), (f(1), n(-1)), "result: got"),
    (ShapeError, shape.Unsqueeze(), (f(1), n(*range(64))), "result: got"),
    (ShapeError, resize.Resize(), (IMAGE, None, None, n(1, 1, -4, 4)), "result: got"),
    (ShapeError, cache.GroupQueryAttention(1, 1), (f(1, 2, 4), *(f(1, 2, 4),) * 2, None, None, lens(0), lens(1)),
     "total: got 1, wanted at least the 2 new keys"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "op", "operands", "text"), WRONG, ids=[f"{w[1].name}-{i}" for i, w in enumerate(WRONG)]
)
def test_operands_are_held_against_each_other(
    kind: type[BoltError], op: Op, operands: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(kind, match=f"^{op.name}: .*({text}).*, wanted|^{op.name}: .*{text}"):
        infer_types(op, [None if a is None else type_of(np.asarray(a)) for a in operands])


def test_a_part_of_given_sizes_takes_no_operand_whose_size_is_open() -> None:
    """Its nodes in its place would compute with any."""
    part = Foreign(body(), "npu")
    assert infer_types(part, [TensorType(F32, (2,))])[0].shape == (2,)
    for open_type in (TensorType(F32, (Sym("n"),)), TensorType(F32, None)):
        with pytest.raises(ShapeError, match=r"^Foreign: shape of operand 0: got .*, wanted the sizes of "):
            infer_types(part, [open_type])
    graph = Graph("open")
    graph.add_output(Builder(graph)(Relu(), graph.add_input("x", TensorType(F32, (Sym("n"),)))))
    assert infer_types(Foreign(graph, "npu"), [TensorType(F32, (2,))])[0].shape == (2,)


PERMITTED: list[tuple[Op, tuple[Array | None, ...]]] = [
    (reduce.ReduceMax(), (f(), n(0))),
    (reduce.ReduceMean(False), (f(), n(-1))),
    (reduce.ArgMax(), (f(3, 0),)),
    (gather.Gather(), (f(0, 3), n())),
    (gather.Compress(0), (f(3, 2), np.array([True, False, True, True, True]))),
    (gather.Compress(), (f(2, 2), np.ones(9, BOOL))),
    (gather.OneHot(), (n(1), n(3), f(2))),
    (reduce.CumSum(), (f(3), n(0))),
    (fill.Range(), (n(0), n(3), n(1))),
    (conv.Conv(), (f(0, 2, 5, 5), f(3, 2, 3, 3))),
    (conv.Conv(), (f(1, 0, 5, 5), f(3, 0, 3, 3))),
    (conv.Conv(auto_pad="SAME_UPPER"), (f(1, 2, 0, 5), f(3, 2, 3, 3))),
    (conv.ConvTranspose(), (f(0, 2, 5, 5), f(2, 3, 3, 3))),
    (pool.MaxPool((2, 2), auto_pad="SAME_LOWER"), (f(0, 2, 5, 5),)),
    (norm.InstanceNormalization(), (f(0, 3, 4), f(3), f(3))),
    (norm.LayerNormalization(1), (f(2, 3, 4), f(3, 1))),
    (BLOCKED, (f(2, 7), f(2, 3) + 1, np.zeros((2, 3), U8))),
    (integer_products.QLinearMatMul(), (*(np.ones((2, 3), U8), f(2) + 1, np.zeros(2, U8)),
                                *(np.ones((3, 4), U8), f(1, 4) + 1, np.zeros(4, U8)), f(2) + 1, np.zeros(2, U8))),
    (resize.Resize(), (IMAGE, f(3), f(4) + 1)),
    (slicing.Pad(), (np.full((2,), "a", STRING), n(1, 0))),
    (LAYOUT_1, (X, W, R, None, lens(1, 2, 2, 1, 2), f(5, 1, 4), f(5, 1, 4), f(1, 12))),
    (IF, (GO[None], f(2))),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands"), PERMITTED, ids=[f"{p[0].name}-{i}" for i, p in enumerate(PERMITTED)])
def test_what_the_standard_permits_is_computed(op: Op, operands: tuple[Array | None, ...]) -> None:
    assert not check(op, list(operands))


def test_a_longer_condition_is_cut_off() -> None:
    condition = np.array([True, False, True, True, True])
    np.testing.assert_array_equal(gather.Compress(0).reference(f(3, 2), condition), f(3, 2)[[0, 2]])
    (t,) = infer_types(gather.Compress(0), [TensorType(F32, (Sym("n"), 2)), type_of(condition)])
    assert t.shape is not None
    assert isinstance(t.shape[0], Sym), "how many are kept depends on the length"


def test_failures_of_references_name_the_operator() -> None:
    with pytest.raises(ShapeError, match=r"^Concat: cannot compute the result of .* \(float32\[2\], float32\[2, 2\]\)"):
        shape.Concat(0).reference(f(2), f(2, 2))
