"""Caches of keys and values: appended to in place, in f16 too, and the same bits however runs are cut."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.errors import OptionError
from bolt_numba.base.huge_pages import give_back, zeros_in_parts
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention, coded, decoded
from bolt_numba.ops.pointwise import Mul
from bolt_numba.text import Generator, decoders
from bolt_numba.types import F16, F32, I8, I32, AnyDType, Array, Sym, TensorType
from tests.serve.serving import resident
from tests.text.decoders import whole

HEADS, GROUPS, SIZE, ROOM = 6, 3, 16, 700
"""The room is that of several parts (`kernels.cpu.attention.few`)."""
N, S = Sym("n"), Sym("s")


def step_graph(cache: AnyDType, values: AnyDType = F32) -> Graph:
    graph = Graph("step")
    b, widths = Builder(graph), (HEADS, GROUPS, GROUPS)
    new = [graph.add_input(c, TensorType(values, (N, S, w * SIZE))) for c, w in zip("qkv", widths, strict=True)]
    past = [graph.add_input(f"past_{c}", TensorType(cache, (N, GROUPS, ROOM, SIZE + 4 * (cache == I8)))) for c in "kv"]
    lengths, room = graph.add_input("lengths", TensorType(I32, (N,))), b.const(np.array([ROOM], np.int32))
    op = GroupQueryAttention(HEADS, GROUPS, local_window=600)
    made = b.node(op, b(Mul(), new[0], np.array(2, values)), *new[1:], *past, lengths, room).outputs
    for value, name in zip(made, ("y", "k_now", "v_now"), strict=True):
        graph.add_output(value, name)
    return graph


def feeds_of(lengths: list[int], s: int, cache: AnyDType, values: AnyDType = F32) -> dict[str, Any]:
    rng, n = np.random.default_rng(len(lengths) + s), len(lengths)
    made = {c: rng.standard_normal((n, s, w * SIZE)).astype(values) for c, w in zip("qkv", (6, 3, 3), strict=True)}
    past = {f"past_{c}": rng.standard_normal((n, GROUPS, ROOM, SIZE)) for c in "kv"}
    made |= {name: coded(x, SIZE + 4) if cache == I8 else x.astype(cache) for name, x in past.items()}
    return made | {"lengths": np.array(lengths, np.int32) + s - 1}


def in_place(session: Any, feeds: dict[str, Array]) -> Array:
    """The result of a run that appends to the caches it is given."""
    caches = {name: feeds[f"past_{name[0]}"] for name in ("k_now", "v_now")}
    y = np.empty(feeds["q"].shape, feeds["q"].dtype)
    session.run_into(feeds, {"y": y, **caches})
    return y


@pytest.mark.parametrize(
    ("cache", "values"), [(F32, F32), (F16, F32), (F16, F16), (I8, F32)], ids=["f32", "f16", "all f16", "i8"]
)
@pytest.mark.parametrize("s", [1, 4, 20], ids=["step", "few", "prompt"])
def test_in_place(cache: AnyDType, values: AnyDType, s: int) -> None:
    """As the interpreter has it; caches of f16 are not converted as a whole."""
    graph, feeds = step_graph(cache, values), feeds_of([0, 3, 255, 256, 660], s, cache, values)
    wanted = interpret(graph, feeds)
    session = bn.compile(graph, threads=2)
    session.warmup(**{name: a.shape for name, a in feeds.items()})
    made = in_place(session, feeds)
    got, want, rtol = made.astype(F32), wanted["y"].astype(F32), 2e-3 if values == F16 else 1e-4
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-4)
    for name in ("k", "v"):
        for row, length in enumerate(feeds["lengths"] + 1):
            got, want = (a[row, :, :length] for a in (feeds[f"past_{name}"], wanted[f"{name}_now"]))
            np.testing.assert_array_equal(got, want)
    casts = [row for row in session.report() if row["op"] == "Cast" and str(ROOM) in row["output"]]
    assert not casts, casts


def test_bits_of_threads_and_batches() -> None:
    """A sequence gets the same bits alone, beside others, and with any number of threads."""
    feeds = feeds_of([690, 5, 300], 1, F16)
    one, two = (bn.compile(step_graph(F16), threads=threads, stand_ins=False) for threads in (1, 2))
    made = in_place(one, feeds)
    np.testing.assert_array_equal(made, in_place(two, feeds))
    for row in range(3):
        alone = {name: np.ascontiguousarray(a[row : row + 1]) for name, a in feeds.items()}
        np.testing.assert_array_equal(in_place(one, alone), made[row : row + 1])


def test_the_kind_of_caches_is_chosen() -> None:
    """By an option, whatever the model has; a session of that is one of that again."""
    session = bn.compile(step_graph(F16), cache="int8", threads=1).clone(threads=2)
    assert [(s.dtype, s.shape) for s in session.inputs[3:5]] == [(I8, ("n", GROUPS, ROOM, SIZE + 4))] * 2
    one, other = (feeds_of([3, 256, 660], 2, I8) for _ in range(2))
    np.testing.assert_array_equal(in_place(session, one), in_place(bn.compile(step_graph(I8)), other))
    assert {s.dtype for s in bn.compile(step_graph(F16), cache="f32").inputs[3:5]} == {F32}


@pytest.mark.parametrize("graph", ["none", "read", "bytes"])
def test_caches_that_cannot_be_of_that_kind(graph: str) -> None:
    made = step_graph(I8 if graph == "bytes" else F32) if graph != "none" else Graph("none")
    if graph == "read":
        made.add_output(Builder(made)(Mul(), made.inputs[3], made.inputs[3]), "squares")
    with pytest.raises(OptionError, match="cache: got 'f16'"):
        bn.compile(made, cache="f16")


@pytest.mark.parametrize("size", [1, 7, 64])
def test_rows_of_bytes_are_near(size: int) -> None:
    """Within half of a scale, but for rows that are not finite, which stay so."""
    rows = np.random.default_rng(size).standard_normal((50, size)) * 10.0 ** np.arange(-25, 25)[:, None]
    rows = rows.astype(F32)
    found = decoded(coded(rows, size + 4), size)
    assert (np.abs(found - rows) <= np.abs(rows).max(-1, keepdims=True) * (0.5001 / 127) + 1e-32).all()
    assert not decoded(coded(np.zeros((1, size), F32), size + 4), size).any()
    for odd in (np.nan, np.inf, -np.inf):
        rows[3, size // 2] = odd
        assert np.isnan(decoded(coded(rows, size + 4), size)[3]).all()


def test_a_cache_takes_memory_where_it_is_filled() -> None:
    """One page of each 2 MiB, not all of them."""
    made = zeros_in_parts((64, 1 << 21), np.dtype(np.int8))
    before = resident()
    assert not made[:, :64].any()
    made[:, 0] = 1
    assert resident() - before < 16 << 20
    assert made.sum(dtype=int) == 64


def test_what_is_given_back_is_zeros_and_takes_no_memory() -> None:
    made = zeros_in_parts((4, 1 << 24), np.dtype(np.int8))
    made[:] = 1
    before = resident()
    give_back(made[1, 100:-5000])
    if sys.platform == "linux":
        assert before - resident() > 15 << 20
        assert not made[1, 8192 : (1 << 24) - 16384].any()
    assert made[1, :100].all()
    assert made[1, -5000:].all()
    assert made[[0, 2, 3]].all()
    give_back(np.ones(1 << 22, np.int8))


def test_a_slot_that_is_left_gives_memory_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a longer text wrote there before; texts stay the same."""
    pytest.importorskip("tokenizers")
    given: list[int] = []
    monkeypatch.setattr(decoders, "MUCH", 1)
    monkeypatch.setattr(decoders, "give_back", lambda part: given.append(part.shape[0]) or give_back(part))
    with Generator(whole(tmp_path / "small.bolt"), threads=1) as made:
        for prompt in ("A text that is longer", "Short"):
            wanted = made.generate(prompt, max_tokens=8, temperature=0.0).tokens
            assert given == ([] if prompt != "Short" else [len("A text that is longer") - len("Short")] * len(given))
        assert given
        assert made.generate("Short", max_tokens=8, temperature=0.0).tokens == wanted
