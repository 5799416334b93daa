"""References against outside oracles: onnxruntime, or the reference evaluator of onnx where that lacks the operator."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from bolt_numba.errors import DTypeError
from bolt_numba.ir.build import infer_types
from bolt_numba.ops import load_all
from bolt_numba.ops.arrays.histogram import HALF, Histogram
from bolt_numba.ops.foreign import Foreign
from bolt_numba.ops.layers.products.binary import BinaryPack
from bolt_numba.ops.layers.products.distances import Distances
from bolt_numba.ops.layers.products.integer_products import is_fused
from bolt_numba.ops.registry import OPS, Op, result_tuple
from bolt_numba.types import BF16, F16, F32, AnyDType, Array, Dim, Sym, TensorType, type_of
from tests.cases import CASES, ELSEWHERE, Case
from tests.missing import ops_without_cases, told
from tests.near import assert_near
from tests.onnx_node import model_of
from tests.unsaturated import unsaturated_operands

ALL = sorted(CASES, key=lambda op: op.name)
NAMES = [op.name for op in ALL]
INTERNAL_BY_FILE = {
    "tests/converters/test_onnx_microsoft_decoder.py": "GroupQueryAttention",
    "tests/converters/test_onnx_microsoft_forms.py": "MatMulNBits",
    "tests/converters/microsoft_layer_forms.py": "LinearAttention CausalConvWithState",
    "tests/converters/test_onnx_ml.py": "TreeEnsemble LabelEncoder OneHotEncoder PairwiseCoupling",
    "tests/converters/test_onnx_search.py": "BifurcationDetector",
    "tests/plugins/test_simnpu.py": "Foreign",
    "tests/rule_cases_bytes.py": "QuantizeRows RangeRounded",
    "tests/test_accumulate.py": "CumMax CumMin LogCumSumExp SearchSorted GatherTree Inverse",
    "tests/test_agreed.py": "DynamicQuantizeLSTM",
    "tests/test_binary.py": "BinaryPack BinaryConv BinaryMatMul",
    "tests/test_boxes.py": "PriorBox DetectionOutput",
    "tests/test_all_halves.py": "If",
    "tests/test_byte_moves.py": "ByteTable Between",
    "tests/test_forms.py": "MatMulForm GatherForm MatMulExperts",
    "tests/test_integer_ties.py": "BetweenBytes",
    "tests/test_loops.py": "Loop Scan",
    "tests/test_pointwise.py": "Chain",
    "tests/test_preprocessing.py": "FitImage WarpImage YuvToRgba",
    "tests/test_ragged.py": "RaggedAttention",
    "tests/test_random.py": "RandomNormal RandomUniform Multinomial Dropout",
    "tests/test_references.py": "Histogram Distances",
    "tests/test_suppression.py": "PSRoiPool MulticlassNMS MatrixNMS GenerateProposals",
    "tests/test_tokens.py": "Tokenizer",
}
"""Test -> operators that ONNX lacks or spells otherwise, that hold graphs or are random; it judges them."""
INTERNAL = {name for names in INTERNAL_BY_FILE.values() for name in names.split()}
FOREIGN = [op for op in ALL if op.name not in INTERNAL]
CRASHES = {"DFT"}
"""Operators that onnxruntime 1.31 dies of; the reference evaluator judges them."""
run_each = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def evaluate(case: Case) -> list[Array]:
    """Results of the reference; inputs must stay as they are."""
    before = [None if a is None else a.copy() for a in case.inputs]
    results = [np.asarray(r) for r in result_tuple(case.op.reference(*case.inputs))]
    for a, b in zip(case.inputs, before, strict=True):
        assert a is None or a.tobytes() == b.tobytes()  # type: ignore[union-attr]
    return results


def types_of(case: Case) -> list[TensorType | None]:
    return [None if a is None else type_of(a) for a in case.inputs]


def by_oracle(case: Case, results: list[Array]) -> list[Array]:
    """The same operator computed by somebody else."""
    inputs = unsaturated_operands(case.op.name, case.inputs)
    model = model_of(case.op, inputs, results)
    unknown = [n.op_type for n in model.graph.node if not onnx.defs.has(n.op_type)]
    assert not unknown, (
        f"{case.op.name}: ONNX has no operator {', '.join(unknown)} to compare with: add '{case.op.name}' "
        f"to INTERNAL_BY_FILE in tests/test_references.py and a test of its own, or its nodes to tests/onnx_node.py"
    )
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        if case.op.name in CRASHES:
            raise NotImplementedError(case.op.name)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results = session.run(None, feeds)
    except Exception:  # it lacks the operator, or refuses this dtype, rank or attribute
        with np.errstate(all="ignore"):
            evaluator: Any = ReferenceEvaluator(model)
            results = evaluator.run(None, feeds)
    return [r.astype(object) if r.dtype.kind == "U" else r for r in map(np.asarray, results)]


def close(case: Case, got: Array, wanted: Array) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if case.exact or got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted)
    else:
        assert_near(got, wanted, max(case.rtol, 5e-5), floor=0.02)


def has_oracle(case: Case) -> bool:
    """False for what neither oracle can compute: channels last, LRN of other ranks than 4, what is only ours."""
    if case.op.name in ("QLinearConv", "QLinearMatMul") and is_fused(case.op, *(*case.inputs, *(None,) * 3)[6:9:2]):
        return False
    if case.op.name == "LRN":
        return case.op.layout == "NCHW" and case.inputs[0].ndim == 4  # type: ignore[attr-defined, union-attr]
    if case.op.name == "ConvInteger" and len(case.inputs) > 3 and case.inputs[3].ndim:  # type: ignore[union-attr]
        return False
    return getattr(case.op, "layout", "NCHW") != "NHWC"


@pytest.mark.parametrize("op", FOREIGN, ids=[op.name for op in FOREIGN])
def test_reference_agrees_with_an_outside_oracle(op: type[Op]) -> None:
    ran = 0

    @run_each
    @given(CASES[op]())
    def check(case: Case) -> None:
        nonlocal ran
        assume(has_oracle(case))  # others are drawn in the place of those that have none
        results = evaluate(case)
        for got, wanted in zip(results, by_oracle(case, results), strict=True):
            close(case, got, wanted)
        ran += 1

    check()
    assert ran >= 3


@pytest.mark.parametrize("op", ALL, ids=NAMES)
@run_each
@given(data=st.data())
def test_infer_gives_the_type_of_the_result(op: type[Op], data: st.DataObject) -> None:
    case = data.draw(CASES[op]())
    inferred = infer_types(case.op, types_of(case))
    for kind, result in zip(inferred, evaluate(case), strict=True):
        assert kind.dtype == result.dtype
        assert kind.shape is not None
        assert all(a == b for a, b in zip(kind.shape, result.shape, strict=True) if not isinstance(a, Sym)), kind
        if kind.known is not None:
            np.testing.assert_array_equal(kind.known, result)


@pytest.mark.parametrize("op", ALL, ids=NAMES)
@run_each
@given(data=st.data())
def test_infer_with_symbols_is_true_of_the_result(op: type[Op], data: st.DataObject) -> None:
    """The data operand's dimensions are symbols and its content unknown; every formula in the result must come true."""
    case = data.draw(CASES[op]())
    types = types_of(case)
    first = types[0]
    assert first is not None
    names = [f"s{i}" for i in range(first.rank)]
    dims: list[Dim] = list(map(Sym, names))
    if isinstance(case.op, Foreign):  # a part of given sizes takes no others
        dims = list(first.dims)
    if isinstance(case.op, BinaryPack):  # bits of an axis fill words only where its size is known
        dims[case.op.axis] = first.dims[case.op.axis]
    types[0] = TensorType(first.dtype, tuple(dims))
    sizes = dict(zip(names, first.dims, strict=True))
    for kind, result in zip(infer_types(case.op, types), evaluate(case), strict=True):
        assert kind.dtype == result.dtype
        if kind.shape is not None:
            assert len(kind.shape) == result.ndim
            for dim, size in zip(kind.shape, result.shape, strict=True):
                assert value_of(dim, sizes) in (None, size), f"{kind} is not {result.shape} for {sizes}"


def value_of(dim: Any, sizes: dict[str, int]) -> int | None:
    """A dimension with sizes put in for its symbols; None when it holds others, which only the run would tell."""
    if not isinstance(dim, Sym):
        return int(dim)
    try:
        return dim.const + sum(factor * int(eval(atom, {"__builtins__": {}}, sizes)) for atom, factor in dim.terms)
    except NameError:
        return None


@pytest.mark.parametrize("op", FOREIGN, ids=[op.name for op in FOREIGN])
@run_each
@given(data=st.data())
def test_narrow_floats_are_rounded_results_of_f32(op: type[Op], data: st.DataObject) -> None:
    dtype: AnyDType = data.draw(st.sampled_from([F16, BF16]))
    case = data.draw(CASES[op]())
    narrow = [a.astype(dtype) if a is not None and a.dtype == F32 else a for a in case.inputs]
    try:
        inferred = infer_types(case.op, [None if a is None else type_of(a) for a in narrow])
    except DTypeError:
        return
    results = result_tuple(case.op.reference(*narrow))
    wide = [a.astype(F32) if a is not None and a.dtype == dtype else a for a in narrow]
    for kind, got, wanted in zip(inferred, results, result_tuple(case.op.reference(*wide)), strict=True):
        assert np.asarray(got).dtype == kind.dtype
        if kind.dtype == dtype:
            with np.errstate(over="ignore"):
                rounded = np.asarray(wanted).astype(dtype).astype(F32)
            assert_near(np.asarray(got).astype(F32), rounded, 2e-2, floor=1e-6)


CHANNELS_LAST = [op for op in ALL if getattr(op, "layout", None) == "NCHW"]


@pytest.mark.parametrize("op", CHANNELS_LAST, ids=[op.name for op in CHANNELS_LAST])
@run_each
@given(data=st.data())
def test_channels_last_is_the_same_operator_on_moved_axes(op: type[Op], data: st.DataObject) -> None:
    case = data.draw(CASES[op]())
    if case.op.layout == "NCHW":  # type: ignore[attr-defined]
        return
    twin: Any = dataclasses.replace(case.op, layout="NCHW")  # type: ignore[type-var]
    inputs = [None if a is None else a for a in case.inputs]
    spatial = [0, case.op.residual_at] if getattr(case.op, "residual", False) else [0]  # type: ignore[attr-defined]
    for i in spatial:
        a = inputs[i]
        assert a is not None
        inputs[i] = np.moveaxis(a, -1, 1)
    moved = [np.moveaxis(np.asarray(r), 1, -1) for r in result_tuple(twin.reference(*inputs))]
    for got, wanted in zip(evaluate(case), moved, strict=True):
        assert got.flags.c_contiguous
        assert_near(got, wanted, 1e-5, floor=0.1)


def test_every_operator_has_cases() -> None:
    load_all()
    elsewhere = {name for names in ELSEWHERE.values() for name in names}
    told(ops_without_cases(OPS, {op.name for op in CASES} | elsewhere))


def test_operators_that_onnx_lacks_are_judged_elsewhere() -> None:
    assert OPS.keys() >= INTERNAL
    root = Path(__file__).parent.parent
    silent = [
        f"{file}: {name}"
        for file, names in INTERNAL_BY_FILE.items()
        for name in names.split()
        if name not in re.findall(r"\w+", (root / file).read_text())
    ]
    assert not silent


def test_counts_of_a_histogram_are_those_of_numpy() -> None:
    x = np.random.default_rng(0).normal(0, 1.5, 1000).astype(F32)
    bound = 2.0 ** np.ceil(np.log2(np.abs(x).max()))
    wanted, _ = np.histogram(x, 2 * HALF, (-bound, bound))
    np.testing.assert_array_equal(Histogram().reference(x, x.min(), x.max()), wanted)


@pytest.mark.parametrize("power", [1, 2])
def test_distances_are_the_norms_of_differences(power: int) -> None:
    x, w = (np.random.default_rng(i).standard_normal((3 + i, 4)).astype(F32) for i in range(2))
    wanted = [[np.linalg.norm((a - b).astype(np.float64), power) ** power for b in w] for a in x]
    np.testing.assert_allclose(Distances(power).reference(x, w.T), wanted, rtol=1e-5)
