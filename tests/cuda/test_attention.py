"""Attention on the simulated GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.errors import DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cuda.attention import attention
from bolt_numba.kernels.cuda.attention.tiles import attention_tiles, shared_bytes
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.attention.rotary import RotaryEmbedding
from bolt_numba.types import BF16, F16, F32, I8, I32, Array, TensorType
from bolt_numba_simulator.ptx import SimulationReport
from tests.cases.attention import group_query_attention, rotary_embedding
from tests.cuda.harness import GPU, expect, run_op

SHD = dict.fromkeys(("q_layout", "k_layout", "v_layout", "y_layout"), "SHD")


def drawn(*dims: int) -> Array:
    return np.random.default_rng(sum(dims)).uniform(-2, 2, dims).astype(F32)


def masked(*dims: int) -> Array:
    """0, -inf, and rows of nothing else."""
    mask = np.where(np.random.default_rng(0).integers(0, 3, dims) == 0, -np.inf, 0).astype(F32)
    mask[-1] = -np.inf
    return mask


CASES: dict[str, tuple[Any, tuple[Array | None, ...]]] = {
    "tiny": (FusedAttention(0.3), (drawn(1, 2, 5, 8), drawn(1, 2, 7, 8), drawn(1, 2, 7, 3))),
    "causal": (FusedAttention(0.3, causal=True), (drawn(2, 70, 8), drawn(2, 150, 8), drawn(2, 150, 36))),
    "mask": (
        FusedAttention(0.3, **SHD), (drawn(2, 66, 3, 17), drawn(2, 70, 3, 17), drawn(2, 70, 3, 20), masked(2, 1, 1, 70))
    ),
    "mask of rows": (
        FusedAttention(0.3, y_layout="SHD"), (drawn(2, 1, 3, 16), drawn(2, 1, 9, 16), drawn(2, 1, 9, 16), masked(3, 9))
    ),
    "packed": (FusedAttention(0.3, **SHD, packed=True), (drawn(2, 66, 6, 17),)),
    "broadcast": (FusedAttention(0.3), (drawn(3, 2, 5, 8), drawn(1, 7, 8), drawn(7, 8))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_any_size(name: str) -> None:
    op, operands = CASES[name]
    expect(op, *operands, maker="attention", rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("d", "width", "vectors", "again"),
    [
        (64, 64, 1, False), (64, 100, 2, False), (128, 160, 4, False), (256, 256, 2, False), (288, 288, 1, False),
        (289, 64, 1, True), (512, 512, 4, True), (5000, 40, 1, True),
    ],
)  # fmt: skip
def test_heads_fit_the_shared_memory_of_small_gpus(d: int, width: int, vectors: int, again: bool) -> None:
    assert attention.tiles_for("f32", d, width) is attention_tiles("f32", vectors, again)
    assert shared_bytes(vectors, d, again) <= 99 * 1024


def test_heads_of_any_size() -> None:
    expect(FusedAttention(0.05, **SHD), drawn(1, 5, 2, 300), drawn(1, 67, 2, 300), drawn(1, 67, 2, 9), rtol=1e-4)


@pytest.mark.parametrize(("dtype", "near"), [(F32, 1e-5), (F16, 4e-3)], ids=str)
def test_a_row_and_its_sink_that_are_nothing_are_zeros(dtype: Any, near: float) -> None:
    """The second row of the first head sees no key, and the first head has no sink."""
    s, held, d = 3, 8, 16
    bias, sink = np.zeros((1, 2, s, held), dtype), np.array([-np.inf, 0.5], dtype)
    bias[0, 0, 1] = -np.inf
    new, past = [drawn(1, s, h * d).astype(dtype) for h in (2, 1, 1)], [drawn(1, 1, held, d).astype(dtype)] * 2
    numbers = np.array([6], np.int32), np.array([held], np.int32)
    expect(GroupQueryAttention(2, 1), *new, *past, *numbers, bias, sink, constants=(TOTAL,), rtol=near, atol=near)


def test_halves_of_any_size() -> None:
    op, operands = CASES["mask"]
    expect(op, *(x.astype(BF16) for x in operands if x is not None), maker="attention", rtol=3e-2, atol=3e-2)


FLASH: dict[str, tuple[Any, tuple[Array, ...]]] = {
    "two tiles a warp": (
        FusedAttention(0.2, causal=True), (drawn(1, 1, 130, 64), drawn(1, 1, 150, 64), drawn(1, 1, 150, 48))
    ),
    "packed": (FusedAttention(0.3, **SHD, packed=True), (drawn(2, 20, 6, 16),)),
    "one row of mask": (
        FusedAttention(0.3, **SHD), (drawn(2, 6, 3, 16), drawn(2, 70, 3, 16), drawn(2, 70, 3, 24), masked(2, 1, 1, 70))
    ),
    "parts": (FusedAttention(0.3), (drawn(2, 9, 16), drawn(2, 300, 16), drawn(2, 300, 16), masked(9, 300))),
    "wide": (FusedAttention(0.1), (drawn(1, 66, 128), drawn(1, 100, 128), drawn(1, 100, 128))),
    "wide mask": (FusedAttention(0.1), (drawn(1, 66, 128), drawn(1, 50, 128), drawn(1, 50, 128), masked(66, 50))),
}  # fmt: skip


@pytest.mark.parametrize("name", FLASH)
def test_tensor_cores(name: str) -> None:
    op, operands = FLASH[name]
    expect(op, *(x.astype(F16) for x in operands), maker="flash", rtol=4e-3, atol=4e-3)


def test_bfloat16() -> None:
    op, operands = FLASH["one row of mask"]
    expect(op, *(x.astype(BF16) for x in operands), maker="flash", rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(("dtype", "near"), [(F32, 1e-4), (BF16, 3e-2)], ids=str)
def test_rows_of_the_least_finite_number_see_all_keys_alike(dtype: Any, near: float) -> None:
    mask = np.zeros((4, 5), F32)
    mask[1], mask[2, 3] = -3.3895314e38, -3.3895314e38
    operands = drawn(1, 2, 4, 16), drawn(1, 2, 5, 16), drawn(1, 2, 5, 16), mask
    expect(FusedAttention(0.25), *(x.astype(dtype) for x in operands), rtol=near, atol=near)


def test_what_is_no_number() -> None:
    """NaN and infinities spoil what they are part of, and nothing else."""
    q, k, v = drawn(1, 4, 8), drawn(1, 6, 8), drawn(1, 6, 8)
    q[0, 1, 0], k[0, 3, 1], v[0, 0, 2] = np.nan, np.inf, np.inf
    expect(FusedAttention(0.3, causal=True), q, k, v, maker="attention", rtol=1e-4, atol=1e-5)
    expect(FusedAttention(0.3), q, k, v, maker="attention", rtol=1e-4, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([F32, F16]))
def test_rotary_embedding(data: Any, dtype: Any) -> None:
    case = rotary_embedding(data.draw, RotaryEmbedding)
    operands = [x if x is None or x.dtype != F32 else x.astype(dtype) for x in case.inputs]
    expect(case.op, *operands, rtol=1e-5 if dtype == F32 else 4e-3, atol=1e-5 if dtype == F32 else 4e-3)


TOTAL = 6


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_cache(data: Any) -> None:
    case = group_query_attention(data.draw, GroupQueryAttention)
    if any(x is not None and x.dtype == I8 for x in case.inputs):
        return  # caches of 8 bits are the CPU's
    operands = [x if x is None or x.dtype != F16 else x.astype(F32) for x in case.inputs]  # one dtype for all here
    expect(case.op, *operands, constants=(TOTAL,), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_cache_of_halves(cap: float) -> None:
    """Two sequences of other lengths; two heads of queries for one of keys, which several blocks share."""
    n, s, held, d = 2, 3, 280, 16
    past = [drawn(n, 1, held, d).astype(F16) for _ in range(2)]
    new = [drawn(n, s, heads * d).astype(F16) for heads in (2, 1, 1)]
    lengths, total = np.array([278, 9], np.int32), np.array([held], np.int32)
    op = GroupQueryAttention(2, 1, softcap=cap, local_window=150, smooth=True)
    expect(op, *new, *past, lengths, total, constants=(TOTAL,), rtol=4e-3, atol=4e-3)


def test_positions_and_lengths_that_are_none() -> None:
    with pytest.raises(DataError, match="RotaryEmbedding"):
        run_op(RotaryEmbedding(), drawn(1, 2, 3, 8), drawn(5, 4), drawn(5, 4), np.array([[0, 5, 1]]))
    new, past = [drawn(1, 2, 8) for _ in range(3)], [drawn(1, 1, 6, 8) for _ in range(2)]
    numbers = np.array([7], np.int32), np.array([5], np.int32)
    with pytest.raises(DataError, match="GroupQueryAttention"):
        run_op(GroupQueryAttention(1, 1), *new, *past, *numbers, constants=(TOTAL,))


def test_tensor_cores_meet_no_bank_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tile of keys; whole sectors of global memory come and go."""
    report = SimulationReport()
    monkeypatch.setattr(GPU.driver, "counts", report)
    monkeypatch.setattr(attention, "PROCESSORS", 1)  # nobody shares the keys
    run_op(FusedAttention(0.125), *(drawn(1, 128, 64).astype(F16) for _ in range(3)), maker="flash")
    found = report.total()
    assert found.wavefronts == found.ideal
    assert report.efficiency("ld.global", "st.global") > 0.95
    products = 128 * 128 * 64 * 2 // (16 * 8 * 16)
    assert report.executed("mma") == products
    assert report.executed() < 9 * products


def test_a_decoder_appends_to_its_cache() -> None:
    """Past and present are one buffer of the caller's; one plan serves every length."""
    n, heads, size, room = 2, 2, 16, 20
    graph = Graph("decoder")
    widths = {"q": heads, "k": 1, "v": 1}
    q, k, v = (graph.add_input(name, TensorType(F32, (n, 1, width * size))) for name, width in widths.items())
    pasts = [graph.add_input(f"past_{x}", TensorType(F32, (n, 1, room, size))) for x in "kv"]
    lengths = graph.add_input("lengths", TensorType(I32, (n,)))
    op = GroupQueryAttention(heads, 1)
    made = Builder(graph)(op, q, k, v, *pasts, lengths, np.array([room], np.int32))
    for value, name in zip(made, ("y", "present_k", "present_v"), strict=True):
        graph.add_output(value, name)
    session = bn.compile(graph, device="cuda-sim")
    caches, apart = ([np.zeros((n, 1, room, size), F32) for _ in range(2)] for _ in range(2))
    for step in range(3):
        new = [drawn(n, 1, width * size) + step for width in (heads, 1, 1)]
        valid, y = np.array([step, step], np.int32), np.empty((n, 1, heads * size), F32)
        wanted, *apart = op.reference(*new, *apart, valid, np.array([room]))
        feeds = {**dict(zip("qkv", new, strict=True)), "lengths": valid, "past_k": caches[0], "past_v": caches[1]}
        session.run_into(feeds, {"y": y, "present_k": caches[0], "present_v": caches[1]})
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(caches, apart)
    assert {r["device"] for r in session.report() if r["op"] == op.name} == {"cuda-sim"}
