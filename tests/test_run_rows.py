"""Rows of any lengths through one session: every one as its own run gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import bolt_numba as bn
from bolt_numba.base.errors import BoltError, DTypeError, ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.arrays.shape import Reshape
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.pointwise import Add, Mul, Sqrt
from bolt_numba.types import F32, I64, Sym, TensorType
from tests.small import add, save_model, softmax
from tests.test_ragged import held, packed
from tests.test_states import counter

N, T = Sym("n"), Sym("t")


def alone(session: bn.Session, row: dict[str, Any], names: Any = None) -> list[Any]:
    """What a row gives as a batch of one."""
    return [y[0] for y in session.run(names, {name: np.asarray(x)[None] for name, x in row.items()})]


def sums() -> Graph:
    """Rows of t numbers: their roots, and the mean of a table's entries."""
    g = Graph("sums")
    x, ids = g.add_input("x", TensorType(F32, (N, T))), g.add_input("ids", TensorType(I64, (N, T)))
    b = Builder(g)
    entries = b(Gather(0), np.arange(12, dtype=F32).reshape(4, 3), ids)
    g.add_output(b(Sqrt(), x, name="root"))
    g.add_output(b(ReduceMean(), entries, np.array([1]), name="mean"))
    return g


def test_every_row_is_as_its_own_run() -> None:
    session, rng = bn.compile(sums(), stand_ins=False), np.random.default_rng(0)
    rows = [{"x": rng.random(n, F32), "ids": rng.integers(0, 4, n)} for n in rng.integers(1, 6, 40)]
    found = session.run_rows(rows)
    assert len(found) == 40
    for row, one in zip(rows, found, strict=True):
        assert one.keys() == ["root", "mean"]
        for y, wanted in zip(one, alone(session, row), strict=True):
            np.testing.assert_array_equal(y, wanted)
    (one,) = session.run_rows(iter(rows[:1]), ["mean"])
    assert one.keys() == ["mean"]
    assert session.run_rows([]) == []


def test_lists_scalars_and_intermediate_values(tmp_path: Path) -> None:
    session = bn.compile(softmax(tmp_path / "m.onnx"))
    found = session.run_rows([{"x": [0, 0]}, {"x": [1.0]}])
    assert [one["y"].tolist() for one in found] == [[0.5, 0.5], [1.0]]
    session = bn.compile(sums())
    inner = next(v.name for v in session.graph.values() if v.type.rank == 3 and v.const is None)
    (found,) = session.run_rows([{"x": [1.0], "ids": [2]}], [inner])
    assert found[0].tolist() == [[6, 7, 8]]
    path = save_model(
        tmp_path / "mul.onnx", "Mul", {"x": (TensorProto.FLOAT, ["n"]), "by": (TensorProto.FLOAT, [])}, 1
    )
    found = bn.compile(path).run_rows([{"x": 2.0, "by": by} for by in (1.0, 2.0, 1.0)])
    assert [one["y"].tolist() for one in found] == [2, 4, 2]
    assert all(one["y"].shape == () for one in found)


def test_a_model_may_fix_its_rows(tmp_path: Path) -> None:
    session = bn.compile(add(tmp_path / "add.onnx", rows=4))
    found = session.run_rows([{"a": np.full(3, i), "b": np.ones(3, "f4")} for i in np.arange(5, dtype="f4")])
    assert [one["y"].tolist() for one in found] == [[i + 1.0] * 3 for i in range(5)]


def test_errors_name_the_row(tmp_path: Path) -> None:
    session, good = bn.compile(sums()), {"x": np.ones(2, F32), "ids": np.array([0, 1])}
    for wrong, error, said in (
        ({"x": good["x"]}, ShapeError, "missing"),
        (good | {"z": 1}, ShapeError, "'z' is not one of"),
        (good | {"x": np.ones((1, 2), F32)}, ShapeError, "got shape"),
        (good | {"x": None}, DTypeError, "got None"),
        (good | {"ids": np.array([0, 4])}, BoltError, "indices"),
        (3, DTypeError, "got a int"),
        (good | {"ids": np.array([0, 1, 2])}, ShapeError, "dimension 't': got 3 in input 'ids', but 2 in 'x'"),
    ):
        with pytest.raises(error, match=rf"(?i)^row 2: .*{said}"):
            session.run_rows([good, good, wrong, good])
    for rows in (good, 3):
        with pytest.raises(DTypeError, match=r"^rows: got a"):
            session.run_rows(rows)  # type: ignore[arg-type]
    with pytest.raises(BoltError, match="output: 'z' is not one of"):
        session.run_rows([good], ["z"])
    with pytest.raises(BoltError, match="keeps something from run to run"):
        bn.compile(counter()).run_rows([])


def test_lists_of_unequal_lengths_are_pointed_to_it(tmp_path: Path) -> None:
    session = bn.compile(softmax(tmp_path / "m.onnx"))
    ragged = [np.ones(2, F32), np.ones(1, F32)]
    for given in ([[0, 0], [1.0]], ragged, np.array([*ragged, None], object)[:2]):
        with pytest.raises(DTypeError, match=r"^input 'x': got .*, wanted f32: .* session\.run_rows takes rows of any"):
            session.run(None, {"x": given})
    assert len(session.run_rows([{"x": row} for row in ragged])) == 2


def test_a_model_without_a_result_for_each_row_is_told() -> None:
    g = Graph("all")
    x = g.add_input("x", TensorType(F32, (N, 2)))
    b = Builder(g)
    g.add_output(b(Add(), b(ReduceMean(keepdims=False), x, np.array([0])), np.float32(1)))
    with pytest.raises(ShapeError, match=r"^row 0: output .* got other than 1 rows"):
        bn.compile(g).run_rows([{"x": [1.0, 2.0]}] * 4)


@pytest.mark.parametrize("sizes", [(1, 4, 4), (4, 4)])
def test_masks_have_as_many_positions_as_a_row(sizes: Any) -> None:
    for is_constant in (False, True):
        g = Graph("masks")
        b, x = Builder(g), g.add_input("x", TensorType(F32, (N, T, 8)))
        mask = np.zeros(sizes, F32) if is_constant else g.add_input("m", TensorType(F32, (N, *sizes)))
        heads = b(Reshape(), x, np.array([0, 0, 2, 4]))
        g.add_output(b(FusedAttention(0.5, False, "SHD", "SHD", "SHD", "SHD"), heads, heads, heads, mask), "y")
        session = bn.compile(g, stand_ins=False)
        more = {} if is_constant else {"m": np.zeros(sizes, F32)}
        rows = [{"x": np.ones((n, 8), F32), **more} for n in (5, 4)]
        with pytest.raises(ShapeError, match=r"^row 0: .*mask"):
            session.run_rows(rows)


def test_an_input_may_be_a_number_of_each_row() -> None:
    g = Graph("numbers")
    b, x, n = Builder(g), g.add_input("x", TensorType(F32, (N, T, 8))), g.add_input("n", TensorType(F32, (N,)))
    heads = b(Reshape(), x, np.array([0, 0, 2, 4]))
    y = b(FusedAttention(0.5, False, "SHD", "SHD", "SHD", "SHD"), heads, heads, heads)
    g.add_output(b(Mul(), b(ReduceMean(keepdims=False), y, np.array([1, 2, 3])), n), "y")
    session = bn.compile(g, stand_ins=False)
    assert packed(session) is not None
    held(session, [{"x": np.full((size, 8), size, F32), "n": np.array(size, F32)} for size in (5, 3, 1)])
