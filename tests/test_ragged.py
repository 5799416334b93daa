"""Rows of unequal lengths in one run: which graphs are shown to allow that, and results as of single runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.base.errors import BoltError, DataError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops import pointwise as p
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear
from bolt_numba.ops.arrays.reduce import CumSum, ReduceMax, ReduceMean, ReduceSum, Softmax
from bolt_numba.ops.arrays.shape import Concat, Expand, Reshape, Shape, Slice, Split, Transpose, Unsqueeze
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.ragged import RaggedAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.ops.layers.norm import LayerNormalization, RMSNormalization
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.products.matmul_bits import MatMulNBits
from bolt_numba.quantize import quantize
from bolt_numba.runtime.packing import packing_of
from bolt_numba.types import F32, I64, Array, Sym, TensorType
from tests.level import few

N, T = Sym("n"), Sym("t")
WIDTH, HEADS, WORDS, MOST = 32, 2, 50, 64
MORE = ("turned heads", "gates", "halves", "swapped", "repeated", "root mean square", "flat", "four bits")


@dataclass
class Encoder:
    """How a small BERT is built.  computed: its shapes are.  more: what it does besides; spoil: what across tokens."""

    layers: int = 2
    mask: str = "keys"
    positions: str = "slice"
    types: bool = True
    joined: bool = False
    heads_first: bool = True
    pool: str = "none"
    causal: bool = False
    computed: bool = False
    more: str = ""
    spoil: str = ""
    wide: int = 2
    symbol: str = "t"
    seed: int = 0

    def graph(self) -> Graph:
        g = Graph("encoder")
        self.rng, self.b = np.random.default_rng(self.seed), Builder(g)
        b, ids = self.b, g.add_input("ids", TensorType(I64, (N, T)))
        self.ids = ids
        given = g.add_input("mask", TensorType(I64, (N, Sym(self.symbol)))) if self.mask else None
        x = b(Gather(0), self.normal(WORDS, WIDTH), ids)
        if self.types:
            x = b(p.Add(), x, b(Gather(0), self.normal(2, WIDTH), g.add_input("types", TensorType(I64, (N, T)))))
        if self.positions:
            x = b(p.Add(), x, self.position(ids))
        x = self.norm(x)
        mask = None if given is None else self.masked(given, x)
        for layer in range(self.layers):
            x = self.norm(b(p.Add(), x, self.attention(x, mask)))
            x = self.norm(b(p.Add(), x, self.linear(b(p.Gelu(), self.linear(x, self.wide * WIDTH)), WIDTH)))
            x = self.with_more(x)
            if layer == 0 and self.spoil:
                x = self.spoiled(x)
        for name, y in self.pooled(x, given):
            g.add_output(y, name)
        return g

    def normal(self, *shape: int) -> Array:
        return self.rng.normal(0, 0.3, shape).astype(F32)

    def norm(self, x: Any) -> Any:
        return self.b(LayerNormalization(-1, 1e-6), x, 1 + self.normal(WIDTH), self.normal(WIDTH))

    def linear(self, x: Any, width: int) -> Any:
        return self.b(p.Add(), self.b(MatMul(), x, self.normal(x.type.shape[-1], width)), self.normal(width))

    def position(self, ids: Any, width: int = WIDTH) -> Any:
        b = self.b
        end = b(Shape(start=1, end=2), ids)
        one = np.array([1])
        if self.positions == "slice":
            return b(Slice(), self.normal(1, MOST, width), np.array([0]), end, one, one)
        numbers = b(Slice(), np.arange(MOST), np.array([0]), end, np.array([0]), one)
        return b(Unsqueeze(), b(Gather(0), self.normal(MOST, width), numbers), np.array([0]))

    def masked(self, given: Any, x: Any) -> Any:
        b = self.b
        keep = b(Unsqueeze(), b(p.Cast(F32), given), np.array([1, 2]))
        mask = b(p.Mul(), b(p.Sub(), np.float32(1), keep), np.float32(-1e4))
        if self.mask in ("pairs", "shaped"):
            size = b(Shape(), given if self.mask == "pairs" else x)
            one, t = b(Gather(0), size, np.array([0])), b(Gather(0), size, np.array([1]))
            mask = b(Expand(), mask, b(Concat(0), one, np.array([1]), t, t))
        return mask

    def attention(self, x: Any, mask: Any) -> Any:
        b, d = self.b, WIDTH // HEADS
        if self.joined:
            q, k, v = b(Split(-1, 3), self.linear(x, 3 * WIDTH))
        else:
            q, k, v = (self.linear(x, WIDTH) for _ in range(3))
        q, k, v = (b(Reshape(), y, self.shape(x, HEADS, d)) for y in (q, k, v))
        if self.more == "turned heads":
            cos, sin = (self.position(self.ids, d // 2) for _ in range(2))
            q, k = (b(RotaryEmbedding(False, "SHD"), y, cos, sin) for y in (q, k))
        if self.heads_first or mask is not None:
            q, v = (b(Transpose((0, 2, 1, 3)), y) for y in (q, v))
            scores = b(p.Mul(), b(MatMul(), q, b(Transpose((0, 2, 3, 1)), k)), np.float32(d**-0.5))
            scores = scores if mask is None else b(p.Add(), scores, mask)
            y = b(Transpose((0, 2, 1, 3)), b(MatMul(), b(Softmax(-1), scores), v))
        else:
            y = b(FusedAttention(d**-0.5, self.causal, "SHD", "SHD", "SHD", "SHD"), q, k, v)
        return self.linear(b(Reshape(), y, self.shape(x, WIDTH)), WIDTH)

    def shape(self, x: Any, *last: int) -> Any:
        """Of rows of tokens with these last axes."""
        return self.b(Concat(0), self.b(Shape(end=2), x), np.array(last)) if self.computed else np.array([0, 0, *last])

    def with_more(self, x: Any) -> Any:
        """Something that stays within a token."""
        b = self.b
        if self.more == "gates":
            return b(p.Mul(), x, b(Softmax(-1), x))
        if self.more == "halves":
            return b(Concat(-1), *(b(p.Tanh(), self.linear(x, WIDTH // 2)) for _ in range(2)))
        if self.more == "swapped":
            ends = [(WIDTH // 2, WIDTH), (0, WIDTH // 2)]
            return b(Concat(-1), *(b(Slice(), x, *(np.array([n]) for n in (*end, -1))) for end in ends))
        if self.more == "repeated":
            size = b(Concat(0), b(Shape(), x), np.array([2]))
            both = b(Expand(), b(Unsqueeze(), x, np.array([3])), size)
            return b(Reshape(), b(Slice(), both, *(np.array([n]) for n in (1, 2, 3))), b(Shape(), x))
        if self.more == "four bits":
            codes = self.rng.integers(0, 256, (WIDTH, 1, WIDTH // 2), np.uint8)
            return b(MatMulNBits(4, WIDTH), x, codes, np.abs(self.normal(WIDTH, 1)) / 8, None, self.normal(WIDTH))
        if self.more == "root mean square":
            return b(RMSNormalization(), x, self.normal(WIDTH))
        if self.more == "flat":
            return b(Reshape(), self.linear(b(Reshape(), x, np.array([-1, WIDTH])), WIDTH), b(Shape(), x))
        return x

    def spoiled(self, x: Any) -> Any:
        b = self.b
        if self.spoil == "mean":
            return b(p.Sub(), x, b(ReduceMean(), x, np.array([1])))
        if self.spoil == "sum":
            return b(p.Mul(), b(CumSum(), x, np.array(1)), np.float32(0.1))
        if self.spoil == "softmax":
            return b(p.Add(), x, b(Softmax(1), x))
        if self.spoil == "bytes":
            return b(DequantizeLinear(), *b(DynamicQuantizeLinear(), x))
        if self.spoil == "turned":
            return b(Slice(), x, np.array([-1]), np.array([-1000]), np.array([1]), np.array([-1]))
        if self.spoil == "length":
            return b(p.Add(), x, b(p.Cast(F32), b(Shape(start=1, end=2), x)))
        assert self.spoil == "first"
        return b(p.Add(), x, b(Slice(), x, np.array([0]), np.array([1]), np.array([1]), np.array([1])))

    def pooled(self, x: Any, given: Any) -> list[tuple[str, Any]]:
        b = self.b
        if self.pool == "none":
            return [("hidden", x)]
        if self.pool == "first":
            first = b(Gather(1), x, np.array(0))
            return [("score", self.linear(b(p.Tanh(), self.linear(first, WIDTH)), 1)), ("hidden", x)]
        if self.pool == "max":
            return [("y", b(ReduceMax(keepdims=False), x, np.array([1])))]
        keep = b(Unsqueeze(), b(p.Cast(F32), given), np.array([2]))
        mean = b(p.Div(), b(ReduceSum(keepdims=False), b(p.Mul(), x, keep), np.array([1])),
                 b(p.Clip(1e-9, None), b(ReduceSum(keepdims=False), keep, np.array([1]))))  # fmt: skip
        norm = b(p.Sqrt(), b(ReduceSum(), b(p.Mul(), mean, mean), np.array([1])))
        return [("y", b(p.Div(), mean, norm))]

    def rows(self, lengths: Any, padded: bool = False) -> list[dict[str, Array]]:
        made = []
        for n in lengths:
            row = {"ids": self.rng.integers(0, WORDS, n)}
            row |= {"mask": np.ones(n, I64)} if self.mask else {}
            row |= {"types": self.rng.integers(0, 2, n)} if self.types else {}
            if padded and n > 1 and self.mask:
                row["mask"][n // 2 :] = 0
            made.append(row)
        return made


def held(session: bn.Session, rows: list[dict[str, Array]], rtol: float = 2e-5) -> list[Any]:
    """Results of rows, which are those of single runs up to the rounding of other kernels."""
    found = session.run_rows(rows)
    for row, one in zip(rows, found, strict=True):
        wanted = session.run(None, {name: x[None] for name, x in row.items()})
        for y, (w,) in zip(one, wanted, strict=True):
            assert (y.shape, y.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(y, w, rtol=rtol, atol=rtol * max(1.0, float(np.abs(w).max())))
    return found


def packed(session: bn.Session) -> Any:
    return packing_of(session._runner)


@settings(max_examples=few(60, 4), deadline=None)
@given(
    st.builds(
        Encoder, layers=st.integers(1, 2), mask=st.sampled_from(["keys", "pairs", "shaped", ""]),
        positions=st.sampled_from(["slice", "gather", ""]), types=st.booleans(), joined=st.booleans(),
        heads_first=st.booleans(), pool=st.sampled_from(["none", "first", "max"]), causal=st.booleans(),
        computed=st.booleans(), more=st.sampled_from(["", *MORE]),
        spoil=st.sampled_from(["", "", "", "mean", "sum", "softmax", "turned", "length", "first"]),
        seed=st.integers(0, 99),
    ),
    st.lists(st.integers(1, MOST), min_size=2, max_size=12), st.booleans(),
)  # fmt: skip
def test_every_row_is_as_its_own_run(encoder: Encoder, lengths: list[int], padded: bool) -> None:
    session = bn.compile(encoder.graph(), threads=2, stand_ins=False)
    assert encoder.spoil or packed(session) is not None
    held(session, encoder.rows(lengths, padded))


@pytest.mark.parametrize("pool", ["none", "first", "mean"])
@pytest.mark.parametrize("mask", ["keys", "pairs", "shaped"])
def test_an_encoder_is_packed(pool: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(pool=pool, mask=mask)
    session, lengths = bn.compile(encoder.graph(), stand_ins=False), [5, 9, 1, 5, 64, 33, 17, 2]
    packing = packed(session)
    assert {node.op.name for node in packing.form.bodies[0][0]} >= {"MatMul", "RaggedAttention", "LayerNormalization"}
    monkeypatch.setattr("bolt_numba.runtime.packing.MOST_POSITIONS", 70)
    rows = encoder.rows(lengths)
    for row, one in zip(rows, held(session, rows), strict=True):
        wanted = interpret(session.graph, {name: x[None] for name, x in row.items()})
        for y, (w,) in zip(one, wanted.values(), strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-4, atol=1e-4)
    plans = packing.runners["body"].region.plans
    assert plans
    parts = {row["inputs"] for row in session.report() if "inputs" in row}
    assert parts >= {"rows of unequal lengths: body", "rows of unequal lengths: head"}


@pytest.mark.parametrize("more", MORE)
def test_what_stays_within_a_token_is_packed(more: str) -> None:
    encoder = Encoder(more=more, computed=True, joined=True)
    session = bn.compile(encoder.graph(), stand_ins=False)
    assert sum(node.op.name == "RaggedAttention" for node in packed(session).form.bodies[0][0]) == 2
    assert not packed(session).form.tail
    held(session, encoder.rows([3, 9, 4, 64]))


@pytest.mark.parametrize("spoil", ["mean", "sum", "softmax", "length", "first"])
def test_what_mixes_tokens_is_not_packed(spoil: str) -> None:
    encoder = Encoder(spoil=spoil)
    session = bn.compile(encoder.graph(), stand_ins=False)
    assert packed(session) is None
    held(session, encoder.rows([3, 9, 4]))


def test_ranges_of_a_whole_batch_are_of_one_row() -> None:
    encoder = Encoder(spoil="bytes")
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([9, 4, 9, 9])
    assert packed(session) is None
    for row, one in zip(rows, session.run_rows(rows), strict=True):
        (wanted,) = session.run(None, {name: x[None] for name, x in row.items()})
        np.testing.assert_array_equal(one["hidden"], wanted[0])


def quantised(encoder: Encoder, **options: Any) -> Graph:
    graph = encoder.graph()
    data = [{name: x[None] for name, x in row.items()} for row in encoder.rows([8, 30, 64])]
    return quantize(graph, data, timed=False, **options).graph


@pytest.mark.parametrize("activations", ["u8", "s8"])
def test_fixed_ranges_are_packed(activations: str) -> None:
    encoder = Encoder(pool="first")
    session = bn.compile(quantised(encoder, activations=activations), stand_ins=False)
    assert sum(node.op.name == "QLinearMatMul" for node in packed(session).form.bodies[0][0]) == 12
    held(session, encoder.rows([3, 9, 4, 64, 17]))


def test_attention_between_bytes_is_not_packed() -> None:
    encoder = Encoder()
    session = bn.compile(quantised(encoder, attention=True), stand_ins=False)
    assert packed(session) is None
    held(session, encoder.rows([3, 9, 4]))


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_halves_are_packed(precision: str) -> None:
    encoder = Encoder()
    session, rows = bn.compile(encoder.graph(), precision=precision, stand_ins=False), encoder.rows([3, 9, 4, 64, 17])
    assert packed(session) is not None
    held(session, rows, 2e-2 if precision == "bf16" else 2e-5)


def test_inputs_of_unequal_lengths_are_as_by_themselves() -> None:
    encoder = Encoder(types=False, symbol="s")
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([8, 3, 12])
    rows[1]["mask"] = np.ones(5, I64)
    with pytest.raises(BoltError, match=r"^row 1: "):
        session.run_rows(rows)


def test_rows_with_padding_run_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder(pool="mean")
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([8, 3, 12, 6])
    rows[2]["mask"][5:] = 0
    seen: list[int] = []
    run = session.run

    def noting(names: Any, feeds: Any) -> Any:
        seen.append(feeds["ids"].shape[1])
        return run(names, feeds)

    monkeypatch.setattr(session, "run", noting)
    found = session.run_rows(rows)
    assert seen == [12]
    monkeypatch.undo()
    shown = {name: x[:5] for name, x in rows[2].items()}
    np.testing.assert_allclose(found[2]["y"], held(session, [rows[2]])[0]["y"], rtol=1e-5)
    np.testing.assert_allclose(found[2]["y"], session.run_rows([shown])[0]["y"], rtol=1e-4)


def test_masks_that_hide_later_positions_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    g, rng = Graph("masks"), np.random.default_rng(0)
    b, x = Builder(g), g.add_input("x", TensorType(F32, (N, T, 8)))
    mask = g.add_input("m", TensorType(F32, (N, 1, T, T)))
    heads = b(Reshape(), b(LayerNormalization(-1, 1e-6), x, np.ones(8, F32), np.zeros(8, F32)), np.array([0, 0, 2, 4]))
    g.add_output(b(FusedAttention(0.5, False, "SHD", "SHD", "SHD", "SHD"), heads, heads, heads, mask), "y")

    def later(n: int, hidden: float) -> Array:
        return np.where(np.tri(n, dtype=bool), 0, hidden)[None].astype(F32)

    masks = [later(5, -np.inf), later(9, -3e38), later(4, -2), later(6, -np.inf), later(7, -np.inf).swapaxes(1, 2)]
    masks += [later(8, -np.inf) + later(8, -np.inf)[:, ::-1, ::-1], *(np.zeros((1, n, n), F32) for n in (12, 3))]
    rows = [{"x": rng.normal(size=(m.shape[-1], 8)).astype(F32), "m": m} for m in masks]
    session, alone = bn.compile(g, stand_ins=False), []
    run = session.run
    with monkeypatch.context() as patch:
        patch.setattr(session, "run", lambda names, feeds: alone.append(feeds["x"].shape[1]) or run(names, feeds))
        session.run_rows(rows)
    assert sorted(alone) == [4, 7, 8]
    held(session, rows)


def test_rows_may_be_views() -> None:
    encoder = Encoder(pool="mean", more="halves")
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([8, 3, 12])
    views = [{name: np.stack([x, -x], 1).reshape(-1)[::2] for name, x in row.items()} for row in rows]
    assert not views[0]["ids"].flags.c_contiguous
    for one, other in zip(held(session, rows), session.run_rows(views), strict=True):
        np.testing.assert_array_equal(one["y"], other["y"])


def test_views_have_their_numbers_and_nan_stays_within_its_row() -> None:
    g = Graph("numbers")
    b, x, rng = Builder(g), g.add_input("x", TensorType(F32, (N, T, WIDTH))), np.random.default_rng(2)
    heads = [
        b(Reshape(), b(MatMul(), x, rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(F32)), np.array([0, 0, HEADS, -1]))
        for _ in range(3)
    ]
    y = b(FusedAttention(0.25, False, "SHD", "SHD", "SHD", "SHD"), *heads)
    g.add_output(b(p.Add(), x, b(Reshape(), y, np.array([0, 0, WIDTH]))), "y")
    session, many = bn.compile(g, stand_ins=False), rng.normal(size=(200, 2 * WIDTH)).astype(F32)
    views = [many[:9, ::2], many[50:20:-3, 1::2], many[3::7, :WIDTH], np.asfortranarray(many[:11, WIDTH:])]
    views += [np.broadcast_to(many[0, :WIDTH], (6, WIDTH)), many[20:60, ::2].copy()]
    assert packed(session) is not None
    assert not any(view.flags.c_contiguous for view in views[:-1])
    views[-1][3, 4] = np.nan
    for number, (view, one) in enumerate(zip(views, session.run_rows([{"x": view} for view in views]), strict=True)):
        alone = session.run(None, {"x": view.copy()[None]})[0][0]
        np.testing.assert_allclose(one["y"], alone, rtol=1e-5, atol=1e-5)
        assert np.isnan(alone).any() == (number == len(views) - 1)


@pytest.mark.parametrize("name", ["mask", "types"])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_inputs_of_a_row_have_as_many_tokens(name: str, size: int) -> None:
    """A mask of more tokens would give a result, and one number for all of them, too."""
    encoder = Encoder()
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([5, 4, 7])
    rows[1][name] = np.ones(size, I64)
    said = f"dimension 't': got {size} in input '{name}', but 4 in 'ids', wanted one size"
    for some in (rows, [rows[1]]):
        with pytest.raises(ShapeError, match=f"^row {len(some) // 2}: {said}"):
            session.run_rows(some)
        with pytest.raises(ShapeError, match=f"^row {len(some) // 2}: {said}"):
            bn.batch.predict({each: [row[each] for row in some] for each in some[0]}, session)
    whole = {each: np.ones((3, size if each == name else 4), I64) for each in rows[0]}
    with pytest.raises(ShapeError, match=f"^row 0: {said}"):
        bn.batch.predict(whole, session)


def test_a_row_at_fault_is_named_and_spoils_no_other() -> None:
    encoder = Encoder()
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([8, 3, 12, 6])
    rows[1]["ids"][1] = WORDS
    with pytest.raises(BoltError, match=r"^row 1: .*indices"):
        session.run_rows(rows)
    long = encoder.rows([8, MOST + 1])  # it has no embedding of its last position
    with pytest.raises(BoltError, match=r"^row 1: "):
        session.run_rows(long)
    rows[1]["ids"][1] = 0
    held(session, rows)
    assert [one["hidden"].shape for one in session.run_rows([encoder.rows([1])[0], rows[0]])] == [(1, 32), (8, 32)]


def test_new_lengths_are_not_planned_anew() -> None:
    encoder = Encoder()
    session, rng = bn.compile(encoder.graph(), stand_ins=False), np.random.default_rng(1)
    for _ in range(6):
        session.run_rows(encoder.rows(rng.integers(1, 30, 7)))
    session.warmup(ids=(1, 5), mask=(1, 5), types=(1, 5))  # waits for tapes
    body = packed(session).runners["body"]
    for _ in range(20):
        plans = body.region.plans
        held(session, encoder.rows(rng.integers(1, 30, rng.integers(2, 9))))
    assert body.region.plans - plans == 0
    rows = encoder.rows([3, 4])
    found = held(session, rows)
    session.close()
    for one, other in zip(found, held(session, rows), strict=True):  # packed again, with the same bits
        np.testing.assert_array_equal(one["hidden"], other["hidden"])
    assert packed(session).runners["body"].region.plans


def test_a_predictor_packs_lists() -> None:
    encoder = Encoder(pool="mean")
    session, rows = bn.compile(encoder.graph(), stand_ins=False), encoder.rows([4, 9, 2])
    found = bn.batch.Predictor(session)({name: [row[name] for row in rows] for name in rows[0]})["y"]
    assert found.shape == (3, WIDTH)
    np.testing.assert_allclose(found, [one["y"] for one in held(session, rows)], rtol=1e-6)


# --- the operator ----------------------------------------------------------------------------------------------------


def ragged(op: RaggedAttention, *shape: int) -> bn.Session:
    g = Graph("ragged")
    q, lengths = g.add_input("q", TensorType(F32, shape)), g.add_input("lengths", TensorType(I64, (Sym("rows"),)))
    g.add_output(Builder(g)(op, lengths, q, q, q), "y")
    return bn.compile(g, threads=2, stand_ins=False)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_each_row(causal: bool) -> None:
    of, q = FusedAttention(0.3, causal), np.random.default_rng(3).normal(size=(2, 100, 8)).astype(F32)
    session, lengths = ragged(RaggedAttention(of), 2, 100, 8), [50, 1, 0, 30, 19]
    (y,) = session(q, np.array(lengths))
    begin = 0
    for n in lengths:
        part = q[:, begin : begin + n]
        np.testing.assert_allclose(y[:, begin : begin + n], of.reference(part, part, part), rtol=1e-5, atol=1e-6)
        begin += n


@pytest.mark.parametrize("lengths", [[50, 49], [50, 51], [-1, 101], [1 << 62, 1 << 62], [101, -1], [99]])
def test_lengths_that_are_not_there_are_refused(lengths: list[int]) -> None:
    session, q = ragged(RaggedAttention(FusedAttention()), 1, 100, 4), np.zeros((1, 100, 4), F32)
    with pytest.raises(DataError, match=r"lengths\[[01]\]: got"):
        session(q, np.array(lengths))
    with pytest.raises(DataError, match=r"lengths\[[01]\]: got"):
        RaggedAttention(FusedAttention()).reference(np.array(lengths), q, q, q)


@pytest.mark.parametrize(
    ("op", "operands"),
    [
        (p.Relu(), ((2, 5, 4),) * 3), (FusedAttention(), ((2, 5, 4), (2, 6, 4), (2, 6, 4))),
        (FusedAttention(), ((3, 2, 5, 4),) * 3),
    ],
)  # fmt: skip
def test_operands_are_checked(op: Any, operands: Any) -> None:
    with pytest.raises(BoltError, match=r"^RaggedAttention: "):
        RaggedAttention(op).infer(TensorType(I64, (1,)), *[TensorType(F32, shape) for shape in operands])
