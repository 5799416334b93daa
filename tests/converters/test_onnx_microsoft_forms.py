"""All forms of onnxruntime's fused operators x f32, f16 and bf16, against onnxruntime.

Where its CPU has no kernel for a dtype, it judges by f32 on the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.layers.products.matmul_forms import rounded_rows
from bolt_numba.types import Array
from tests.converters.microsoft_forms import BF16, F16, F32, FORMS, U8, Form, codes, form_model, rounded
from tests.converters.microsoft_layer_forms import HELD
from tests.converters.test_onnx_microsoft_decoder import RNG as OF_REALS
from tests.converters.test_onnx_microsoft_decoder import real
from tests.near import assert_near

onnxruntime = pytest.importorskip("onnxruntime")
from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: E402

REFUSALS = (state.Fail, state.InvalidArgument, state.NotImplemented, state.InvalidGraph, state.RuntimeException)
RNG = np.random.default_rng(7)
UNKNOWN = ["RotaryEmbedding", *(f"{w}Attention" for w in ("MultiHead", "", "GroupQuery", "DecoderMaskedMultiHead"))]
"""Operators of which only a run need tell any size."""
ALLOWED = {F32: 1e-5, F16: 4e-3, BF16: 3e-2}


BEGINNINGS = [(random, random.bit_generator.state) for random in (RNG, OF_REALS)]


@pytest.fixture(autouse=True)
def drawn_alike() -> None:
    """A test draws the same numbers whichever ran before it."""
    for random, beginning in BEGINNINGS:
        random.bit_generator.state = beginning


@pytest.fixture(autouse=True)
def silent() -> Any:
    """What onnxruntime refuses is asked on purpose."""
    onnxruntime.set_default_logger_severity(4)
    yield
    onnxruntime.set_default_logger_severity(2)


def dtypes_of(op: str) -> list[Any]:
    """f32, and f16 and bf16 where the operator's schema has them."""
    (schema,) = [s for s in state.get_all_operator_schema() if (s.domain, s.name) == ("com.microsoft", op)]
    stated = {t for c in schema.type_constraints for t in c.allowed_type_strs}
    return [F32] + [d for d, t in ((F16, "tensor(float16)"), (BF16, "tensor(bfloat16)")) if t in stated]


@pytest.mark.parametrize("op", FORMS)
def test_all_forms_of_fused_operators(op: str) -> None:
    judged = 0
    for number, form in enumerate(FORMS[op]()):
        for dtype in dtypes_of(op):
            shapes = {name: a.shape for name, a in form[0].items() if a is not None}
            where = f"{op} {dtype} {shapes} {form[2]}"
            wanted = judgement(op, form, dtype)
            if wanted is None:
                continue
            arrays = rounded(form[0], dtype, dtype)
            feeds = {n: a for n, a in arrays.items() if n not in HELD.get(op, ())}
            model = form_model(op, form, arrays, dtype)
            results = [list(interpret(read_model(model), feeds).values())]
            if number % 11 == 0:
                results.append(bn.compile(model.SerializeToString(), threads=1).run(None, feeds))
            judged += 1
            for got in results:
                for mine, theirs in zip(got, wanted, strict=True):
                    if theirs.dtype.kind == "f":
                        assert_near(mine, theirs, ALLOWED[dtype], where, floor=1)
                    else:
                        assert np.abs(mine.astype(int) - theirs.astype(int)).max() <= 1, where
    assert judged


def judgement(op: str, form: Form, dtype: Any) -> list[Array] | None:
    """What onnxruntime computes of the same numbers in f32; None where it refuses the form."""
    arrays = rounded(form[0], dtype, F32)
    feeds = {n: a for n, a in arrays.items() if n not in HELD.get(op, ())}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(form_model(op, form, arrays, F32).SerializeToString(), options)
        made: list[Array] = session.run(None, feeds)
    except REFUSALS:
        return None
    return made


@pytest.mark.parametrize("op", UNKNOWN)
def test_forms_of_unknown_sizes(op: str) -> None:
    """Every dimension but those of a projection is a name of its own."""
    judged = 0
    for form in list(FORMS[op]())[::5]:
        arrays = rounded(form[0], F32, F32)
        model = form_model(op, form, arrays, F32)
        for value in model.graph.input:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                if value.name != "w":
                    dim.dim_param = f"{value.name}{axis}"
        wanted = judgement(op, form, F32)
        if wanted is not None:
            judged += 1
            for mine, theirs in zip(interpret(read_model(model), arrays).values(), wanted, strict=True):
                assert_near(mine, theirs, 1e-5, f"{op} {form[2]}", floor=1)
    assert judged


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "codes", "fractional"])
@pytest.mark.parametrize("groups", ["blocks", "shuffled", "ragged"])
def test_products_of_few_bits_mean_their_formula(bits: int, zeros: str, groups: str) -> None:
    """Also where onnxruntime's CPU refuses the operator, or takes other zero points than those that are there."""
    K, N, block = 72, 5, 16
    blocks = -(-K // block)
    kept, scale = RNG.integers(0, 1 << bits, (N, blocks * block)), np.abs(real(N, blocks)) + F32.type(0.1)
    zero = {
        "none": np.full((N, blocks), 1 << (bits - 1)), "codes": RNG.integers(0, 1 << bits, (N, blocks)),
        "fractional": np.full((N, blocks), 1.5),
    }[zeros]  # fmt: skip
    own = np.arange(K) // block
    group = {"blocks": own, "shuffled": RNG.permutation(own), "ragged": RNG.integers(0, blocks, K)}[groups]
    held = {"none": None, "codes": packed(zero.astype(int), bits), "fractional": zero.astype(F32)}[zeros]
    inputs = {
        "x": real(3, K), "w": packed(kept, bits).reshape(N, blocks, -1), "s": scale, "z": held,
        "g": group.astype(np.int32),
    }  # fmt: skip
    model = form_model("MatMulNBits", (inputs, 1, {"K": K, "N": N, "bits": bits, "block_size": block}), {
        n: a for n, a in inputs.items() if a is not None
    }, F32)  # fmt: skip
    wanted = inputs["x"].astype(float) @ ((kept[:, :K] - zero[:, group]) * scale[:, group]).T
    assert_near(bn.compile(model.SerializeToString(), threads=1).run(None, {"x": inputs["x"]})[0], wanted, 1e-5)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "codes", "fractional"])
def test_accuracy_level_4_rounds_x(bits: int, zeros: str) -> None:
    """Where blocks are whole groups of 32; codes of 2 bits stay as they are then."""
    K, N, block = 72, 5, 64
    blocks = -(-K // block)
    kept, scale = RNG.integers(0, 1 << bits, (N, blocks * block)), np.abs(real(N, blocks)) + F32.type(0.1)
    zero = {
        "none": np.full((N, blocks), 1 << (bits - 1)), "codes": RNG.integers(0, 1 << bits, (N, blocks)),
        "fractional": np.full((N, blocks), 1.5),
    }[zeros]  # fmt: skip
    held = {"none": None, "codes": packed(zero.astype(int), bits), "fractional": zero.astype(F32)}[zeros]
    inputs = {"x": real(3, K), "w": packed(kept, bits).reshape(N, blocks, -1), "s": scale, "z": held}
    arrays = {n: a for n, a in inputs.items() if a is not None}
    weights = (kept - zero.repeat(block, axis=1)) * scale.repeat(block, axis=1)
    for level, x in ((4, rounded_rows(inputs["x"])), (1, inputs["x"])):
        attributes = {"K": K, "N": N, "bits": bits, "block_size": block, "accuracy_level": level}
        model = form_model("MatMulNBits", (inputs, 1, attributes), arrays, F32)
        session = bn.compile(model.SerializeToString(), threads=1, stand_ins=False)
        (node,) = [n.op for n in session.optimised.nodes if isinstance(n.op, MatMulNBits)]
        assert (node.bits, node.rounded) == (bits if level == 4 else max(bits, 4), level == 4)
        assert_near(session.run(None, {"x": inputs["x"]})[0], x.astype(float) @ weights[:, :K].T, 1e-5)


def packed(numbers: Array, bits: int) -> Array:
    """Numbers of few bits in bytes, the low ones first; rows are filled up with zeros."""
    each = 8 // bits
    filled = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % each))).reshape(len(numbers), -1, each)
    return (filled << (np.arange(each) * bits)).sum(-1).astype(np.uint8)


def test_groups_beyond_the_blocks_are_refused() -> None:
    arrays = {"x": real(2, 32), "w": codes(U8, 5, 2, 8), "s": real(5, 2), "g": np.full(32, 2, np.int32)}
    form = {**arrays, "z": None}
    order = {name: form[name] for name in "xwszg"}
    model = form_model("MatMulNBits", (order, 1, {"K": 32, "N": 5, "bits": 4, "block_size": 16}), arrays, F32)
    with pytest.raises(bn.BoltError, match="group_index"):
        read_model(model)
