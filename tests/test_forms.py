"""Weights as GGUF files store them: what their bytes mean, and products and rows of them."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import DataError, OptionError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.kernels.cpu.language.lang import BYTES, LANES, dot_low_bytes, native, splat, vload_i32, vstore
from bolt_numba.kernels.jit import PTR
from bolt_numba.kernels.registry import KERNELS, Entry, load
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.ops.layers.products.matmul_forms import (
    LEVELS_OF_THREE,
    LEVELS_OF_TWO,
    LEVELS_OF_X,
    GatherForm,
    MatMulForm,
    rounded_rows,
)
from bolt_numba.passes.pipeline import run_pipeline
from bolt_numba.types import BF16, F16, F32, I64, U8, Array, TensorType
from tests.gguf_files import numbers_of, put_number
from tests.harness import plan, run_planned
from tests.level import is_quick
from tests.near import assert_near

RNG = np.random.default_rng(34)
ROUNDED = {"strict": LEVELS_OF_THREE, "default": LEVELS_OF_TWO, "fast": LEVELS_OF_X}
load("cpu")
ALWAYS = ("Q4_1", "Q6_K") if is_quick() else tuple(FORMS)
PAIRS = [
    (name, e)
    for name, form in FORMS.items()
    for e in KERNELS[MatMulForm, "cpu"]
    if (form.plain is not None) == (e.name == "matmul_form_of_floats")
    and (e.numerics == "default" or name in ALWAYS)
]
GOLDEN = {
    "Q4_0": (0xA584C634, [-0.257080078125, 0.51416015625, 0.414306640625]),
    "Q4_1": (0x6F878617, [1.900146484375, 1.2574462890625, 4.314208984375]),
    "Q5_0": (0x2B622804, [1.1568603515625, -1.799560546875, -1.242919921875]),
    "Q5_1": (0x99C822D5, [1.12890625, 2.928466796875, 6.800048828125]),
    "Q8_0": (0xBDB9DAFC, [4.884521484375, 2.1851806640625, 38.1162109375]),
    "Q2_K": (0x8AF549EF, [-3.3587646484375, 4.62744140625, -15.89697265625]),
    "Q3_K": (0x0C5217D4, [-0.771240234375, -10.79736328125, -23.201171875]),
    "Q4_K": (0x28CFB23A, [25.450927734375, 31.106689453125, 138.098876953125]),
    "Q5_K": (0x3F7A0861, [-35.957275390625, -19.76123046875, 173.620849609375]),
    "Q6_K": (0x4D4AD807, [-19.02392578125, 92.548828125, 185.609375]),
    "IQ4_NL": (0xFB1B5F3D, [-2.827880859375, 6.8126220703125, 5.385986328125]),
    "IQ4_XS": (0x54F8DE89, [65.041259765625, -334.0755615234375, 128.43505859375]),
    "MXFP4": (0x2943D36B, [-0.125, 0.75, -2.0]),
    "F32": (0x547C2662, [13.414285659790039, 15.842857360839844, 26.985713958740234]),
    "F16": (0x7CBCCCA9, [13.4140625, 15.84375, 26.984375]),
    "BF16": (0xC40DF66F, [13.4375, 15.8125, 27.0]),
}
"""Of what gguf 0.19.0 makes of `bytes_of`: the CRC of all, zeros without signs; three of the last row."""


def bytes_of(name: str) -> Array:
    """Two rows of three blocks, of plain numbers as many."""
    form = FORMS[name]
    count = 3 if form.block > 1 else 96
    raw = (np.arange(2 * count * form.size) ** 2 * 7 // 5 % 256).astype(U8).reshape(2, -1)
    for i, at in enumerate(numbers_of(form)):
        put_number(form, form.blocks(raw), at, np.arange(2 * count).reshape(2, count) / 7 - 0.3 + i)
    return raw


@pytest.mark.parametrize("name", FORMS)
def test_what_bytes_mean(name: str) -> None:
    crc, some = GOLDEN[name]
    made = FORMS[name].weights(bytes_of(name))
    assert made[1, [0, 17, -1]].tolist() == some
    assert zlib.crc32((made + np.float32(0)).tobytes()) == crc


@pytest.mark.parametrize("name", FORMS)
def test_products_and_rows(name: str) -> None:
    raw, weights = bytes_of(name), FORMS[name].weights(bytes_of(name))
    x, bias = RNG.normal(size=(3, weights.shape[1])).astype(F32), RNG.normal(size=2).astype(F32)
    np.testing.assert_allclose(MatMulForm(name).reference(x, raw, bias), x @ weights.T + bias, rtol=1e-5)
    assert np.array_equal(GatherForm(name).reference(raw, np.array([[1], [-2]])), weights[[[1], [0]]])


@pytest.mark.parametrize(("name", "entry"), PAIRS, ids=lambda x: x if isinstance(x, str) else x.numerics)
def test_kernels_of_each_form(name: str, entry: Entry) -> None:
    """A row's result has the same bits whichever rows run with it, and x is rounded as the session's numerics say."""
    raw = np.tile(bytes_of(name), (20, 1))[:39]
    x = RNG.normal(size=(8, raw.shape[1] // FORMS[name].size * FORMS[name].block)).astype(F32)
    x[3, 40] = np.nan
    op, made = MatMulForm(name), []
    for rows in (8, 1):
        inputs = x[:rows], raw, None
        planned = plan(entry, inputs, instance=op)
        assert planned is not None
        made += run_planned(planned, inputs)
        assert_near(made[-1], op.reference(rounded_rows(x[:rows], ROUNDED[entry.numerics]), raw), 1e-5)
        if entry.numerics == "strict":
            assert_near(made[-1], op.reference(x[:rows], raw), 1e-5)
    assert made[0][:1].tobytes() == made[1].tobytes()


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_each_form(name: str) -> None:
    raw, rows = np.tile(bytes_of(name), (20, 1))[:39], np.array([[0, -1, 38]])
    planned = plan(GatherForm(name), (raw, rows), (True, False))
    assert planned is not None
    assert np.array_equal(run_planned(planned, (raw, rows))[0], GatherForm(name).reference(raw, rows))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_kernels_of_blocks(bits: int, zeros: bool) -> None:
    """k that is no whole group, blocks of several."""
    k, n, block = 150, 39, 64
    codes = RNG.integers(0, 256, (n, 3, block * bits // 8)).astype(U8)
    x, scales = RNG.normal(size=(2, 4, k)).astype(F32), RNG.normal(size=(n, 3)).astype(F32)
    points = RNG.integers(0, 1 << bits, (n, 3)).astype(F32) if zeros else None
    op, inputs = MatMulNBits(bits, block, True), (x, codes, scales, points, RNG.normal(size=n).astype(F32))
    planned = plan(op, inputs)
    assert planned is not None
    assert_near(run_planned(planned, inputs)[0], op.reference(*inputs), 1e-5)


@pytest.mark.parametrize("levels", [LEVELS_OF_X, LEVELS_OF_TWO, LEVELS_OF_THREE])
def test_x_is_rounded_by_groups(levels: np.float32) -> None:
    x = RNG.normal(size=(4, 100)).astype(F32) * np.float32(10) ** RNG.integers(-20, 20, (4, 100)).astype(F32)
    made, most = rounded_rows(x, levels), 0.5001 if levels < LEVELS_OF_THREE else 1.5  # f32 has no half of these
    for start in range(0, 100, 32):
        group = x[:, start : start + 32]
        scale = np.abs(group).max(axis=1, keepdims=True) / levels
        codes = made[:, start : start + 32] / scale
        assert np.abs(codes - np.rint(codes)).max() < max(1e-4, 2e-7 * levels)
        assert (np.abs(made[:, start : start + 32] - group) <= most * scale).all()


def test_halves_go_to_even() -> None:
    x = np.zeros((1, 32), F32)
    x[0, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    assert rounded_rows(x)[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_groups_that_are_not_finite_are_nan(number: float) -> None:
    x = np.ones((2, 64), F32)
    x[0, 40] = number
    made = np.isnan(rounded_rows(x))
    assert made.tolist() == [[False] * 32 + [True] * 32, [False] * 64]
    assert np.array_equal(rounded_rows(np.zeros((1, 32), F32)), np.zeros((1, 32), F32))


def test_what_does_not_fit_is_refused() -> None:
    x, raw = TensorType(F32, (2, 64)), TensorType(U8, (3, 68))
    assert MatMulForm("Q8_0").infer(x, raw) == TensorType(F32, (2, 3))
    with pytest.raises(ShapeError, match="MatMulForm: bytes of a row: got 70, wanted a multiple of 34"):
        MatMulForm("Q8_0").infer(x, TensorType(U8, (3, 70)))
    with pytest.raises(ShapeError, match="MatMulForm: last dimension of x: got 64, wanted 32"):
        MatMulForm("Q8_0").infer(x, TensorType(U8, (3, 34)))
    with pytest.raises((ShapeError, OptionError), match="GatherForm: form: got Q9_9, wanted"):
        GatherForm("Q9_9").infer(raw, TensorType(I64, (1,)))
    with pytest.raises(DataError, match=r"GatherForm: indices\[1\]: got 3, wanted -3 to 2"):
        GatherForm("Q8_0").reference(np.zeros((3, 34), U8), np.array([0, 3]))


@native(x=PTR, y=PTR, to=PTR, extents=lambda a: dict.fromkeys(("x", "y", "to"), BYTES))
def low_dots(p, tid, nthreads):  # type: ignore[no-untyped-def]
    """x: u8 [BYTES] · y: i8 [BYTES] · to: i32 [LANES]."""
    vstore(p.to, dot_low_bytes(splat(np.int32(7)), vload_i32(p.x), vload_i32(p.y)))


@pytest.mark.parametrize(("low", "high"), [(-128, -127), (127, 127), (-128, 127)])
def test_products_of_bytes_do_not_saturate(low: int, high: int) -> None:
    x, y, to = np.full(BYTES, 127, U8), RNG.integers(low, high + 1, BYTES).astype(np.int8), np.empty(LANES, np.int32)
    low_dots.run(x=x, y=y, to=to)
    assert np.array_equal(to, 7 + (x.astype(int) * y).reshape(-1, 4).sum(1))


@pytest.mark.parametrize("name", ["Q4_K", "IQ4_NL", "MXFP4", "Q6_K", "F16", "F32"])
def test_products_with_chosen_matrices(name: str) -> None:
    """Against plain NumPy; a row's result has the same bits whichever rows run with it, and for any threads."""
    rng, form, experts, n = np.random.default_rng(3), FORMS[name], 4, 39
    count = 3 if form.block > 1 else 96
    raw = np.tile(bytes_of(name), (experts * n // 2, 1)).reshape(experts, n, -1)
    if form.plain is not None:
        raw = rng.normal(size=(experts, n, count)).astype(form.plain).view(U8)
    x, ids = rng.normal(size=(50, 1, form.block * count)).astype(F32), rng.integers(0, experts, (50, 2))
    ids[:, 1] = (ids[:, 0] + 1) % experts
    op, weights = MatMulExperts(name), np.stack([form.weights(each) for each in raw])
    wanted = np.einsum("ik,iunk->iun", x[:, 0].astype(np.float64), weights[ids])
    np.testing.assert_allclose(op.reference(x, raw, ids), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    made = []
    for rows in (50, 3, 1):
        inputs = x[:rows], raw, ids[:rows]
        planned = plan(op, inputs)
        assert planned is not None
        made.append(run_planned(planned, inputs, (1, 3))[0])
        assert_near(made[-1], wanted[:rows].astype(F32), 1e-4)
        assert made[-1].tobytes() == made[0][:rows].tobytes()


def test_chosen_matrices_are_there() -> None:
    x, raw, ids = np.zeros((2, 1, 32), F32), np.zeros((3, 4, 34), U8), np.array([[0], [3]])
    with pytest.raises(DataError, match=r"MatMulExperts: ids\[1, 0\]: got 3, wanted 0 to 2"):
        MatMulExperts("Q8_0").reference(x, raw, ids)
    b = Builder(Graph())
    given = b.graph.add_input("ids", TensorType(I64, (2, 1)))
    b.graph.add_output(b(MatMulExperts("Q8_0"), x, raw, given), "y")
    with pytest.raises(DataError, match=r"MatMulExperts.*got 3, wanted 0 to 2"):
        bn.compile(b.graph)(ids=ids)
    with pytest.raises(ShapeError, match=r"MatMulExperts: rows of x: got 3, wanted 1 or 2, as ids"):
        MatMulExperts("Q8_0").infer(TensorType(F32, (5, 3, 32)), TensorType(U8, (3, 4, 34)), TensorType(I64, (5, 2)))


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0"])
def test_devices_that_compute_on_halves_get_products_of_them(name: str) -> None:
    raw, x = bytes_of(name), RNG.normal(size=(3, bytes_of(name).shape[1] // FORMS[name].size * FORMS[name].block))
    b = Builder(Graph())
    given = b.graph.add_input("x", TensorType(F32, x.shape))
    b.graph.add_output(b(MatMulForm(name), given, raw), "y")
    made = run_pipeline(b.graph, halves=True)
    wanted = {"F16": F16, "BF16": BF16}.get(name)
    held = {v.type.dtype for v in made.constants() if len(v.type.dims) == 2}
    assert ("MatMul" in {n.op.name for n in made.nodes}, held) == (bool(wanted), {wanted or U8})
    near = interpret(made, {"x": x.astype(F32)})["y"]
    assert_near(near, x @ FORMS[name].weights(raw).T, 2e-2)
