"""What callers give the quantiser: data in many forms, bad data, functions of their own that raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BoltError, DataError, DTypeError, ShapeError
from bolt_numba.inputs import spec_of
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.reduce import ReduceMean
from bolt_numba.ops.layers.conv import Conv
from bolt_numba.quantize import quantize, weights_only
from bolt_numba.quantize.data import feeds_of
from bolt_numba.types import F32, I64, Sym, TensorType


def small_net() -> Graph:
    graph, rng = Graph("net"), np.random.default_rng(2)
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 3, 8, 8)))
    y = b(Conv(pads=(1, 1, 1, 1)), x, rng.standard_normal((8, 3, 3, 3)).astype(F32), name="first")
    y = b(Conv(), y, rng.standard_normal((8, 8, 1, 1)).astype(F32), name="last")
    graph.add_output(b(ReduceMean(keepdims=False), y, np.array([2, 3], np.int64)), "y")
    return graph


def samples(count: int = 3) -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((count, 3, 8, 8)).astype(F32)}


def test_data_comes_in_many_forms(tmp_path: Path) -> None:
    specs = [spec_of("x", TensorType(F32, (Sym("n"), 3))), spec_of("i", TensorType(I64, (Sym("n"),)))]
    arrays = {"x": np.ones((70, 3), F32), "i": np.arange(70)}
    feeds = feeds_of(arrays, specs)
    assert [len(f["x"]) for f in feeds] == [64, 6]
    np.savez(tmp_path / "all.npz", **arrays)
    assert len(feeds_of(tmp_path / "all.npz", specs)) == 2
    for n in range(3):
        np.savez(tmp_path / f"{n}.npz", x=np.ones((2, 3), F32), i=np.zeros(2, np.int64))
    assert len(feeds_of(tmp_path, specs)) == 5
    fixed = [spec_of("x", TensorType(F32, (2, 3)))]
    assert len(feeds_of(np.ones((7, 3), F32), fixed)) == 3
    assert len(feeds_of(np.ones((7, 2, 3), F32), fixed)) == 7
    assert len(feeds_of([{"x": np.ones((2, 3), F32)}], fixed)) == 1
    assert len(feeds_of({"x": [[1.5, 2, 3]] * 4}, fixed)) == 2
    assert len(feeds_of(({"x": np.ones((2, 3), F32)} for _ in range(3)), fixed)) == 3


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"z": np.ones((4, 3, 8, 8), F32)}, ShapeError, "got ['z'], wanted ['x']"),
        ({"x": np.ones((4, 3, 8, 8))}, DTypeError, "got f64"),
        ({"x": np.ones((4, 2, 8, 8), F32)}, ShapeError, "got shape (4, 2, 8, 8)"),
        ({"x": np.ones((0, 3, 8, 8), F32)}, DataError, "got none"),
        ([], DataError, "got none"),
        (3, DTypeError, "got a int"),
        ([3], DTypeError, "got a int in a list"),
        ({"x": np.full((4, 3, 8, 8), np.nan, F32)}, DataError, "got NaN or infinity"),
        ({"x": [[[[1, 2]]], [[[1]]]]}, DTypeError, "input 'x': got a list, wanted f32"),
        ([{"x": [[1, 2], [1]]}], DTypeError, "input 'x': got a list, wanted f32"),
        ({"x": "letters"}, DTypeError, "input 'x': got a str, wanted f32"),
    ],
)
def test_data_that_does_not_fit_is_one_clear_error(data: Any, error: type[BoltError], words: str) -> None:
    with pytest.raises(error) as caught:
        quantize(small_net(), data)
    assert words in str(caught.value)


class TheirError(Exception):
    pass


def fail(*_: Any) -> Any:
    raise TheirError("theirs")


def failing_data() -> Iterator[Any]:
    yield {"x": samples()["x"]}
    raise TheirError("theirs")


CALLERS: dict[str, Callable[[], Any]] = {
    "metric": lambda: quantize(small_net(), samples(), metric=fail),
    "progress": lambda: quantize(small_net(), samples(), progress=fail),
    "data": lambda: quantize(small_net(), failing_data()),
    "calibration": lambda: bn.compile(small_net(), precision="int8", calibration=failing_data()),
    "weights": lambda: weights_only(wide(), progress=fail),
}


def wide() -> Graph:
    from bolt_numba.ops.layers.matmul import MatMul

    graph = Graph("wide")
    x = graph.add_input("x", TensorType(F32, (2, 96)))
    graph.add_output(Builder(graph)(MatMul(), x, np.ones((96, 160), F32)), "y")
    return graph


@pytest.mark.parametrize("what", CALLERS)
def test_what_a_function_of_the_caller_raises_reaches_the_caller(what: str) -> None:
    with pytest.raises(TheirError, match="theirs"):
        CALLERS[what]()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "accuracy"}, "metric: got 'accuracy', wanted a function"),
        ({"progress": 3}, "progress: got 3, wanted a function"),
        ({"labels": [[1], [1, 2]]}, "labels: got lists of different lengths"),
        ({"labels": ["a"]}, "labels: got"),
        ({"metric": lambda _: "good"}, "metric: got 'good', wanted a finite number"),
    ],
)
def test_wishes_that_are_no_functions_or_figures(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BoltError, match=words):
        quantize(small_net(), samples(), **options)


def test_labels_need_a_number_for_each_class() -> None:
    graph = Graph("net")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 3, 8, 8)))
    y = b(Conv(pads=(1, 1, 1, 1)), x, np.ones((8, 3, 3, 3), F32))
    graph.add_output(b(ReduceMean(keepdims=False), y), "y")
    with pytest.raises(ShapeError, match="labels: first output"):
        quantize(graph, samples(), labels=[1, 2, 3])
