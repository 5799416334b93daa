"""Sizes for what a model leaves free: what is guessed, what a caller may say, what an error asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import with_shapes
from bolt_numba.ops.control import If
from bolt_numba.ops.pointwise import Equal
from bolt_numba.sessions.guesses import complete_shapes, guessed, index_bounds, model_feeds
from bolt_numba.types import F32, I64, U64, Sym, TensorType
from tests.graphs import make


def i64(values: Any) -> Any:
    return np.array(values, np.int64)


Call = Callable[..., tuple[int, str, str]]


def image_graph(rows: int | str = "h", columns: int | str = "w", layout: str = "NCHW") -> tuple[Graph, Builder, Any]:
    graph = Graph("images")
    sides = [Sym(d) if isinstance(d, str) else d for d in (rows, columns)]
    shape = (Sym("n"), 3, *sides) if layout == "NCHW" else (Sym("n"), *sides, 3)
    return graph, Builder(graph), graph.add_input("x", TensorType(F32, shape))


def classifier(rows: int | str = "h", columns: int | str = "w") -> Graph:
    graph, build, x = image_graph(rows, columns)
    pooled = build(make("MaxPool", kernel_shape=(5, 5), strides=(5, 5)), x)
    graph.add_output(build(make("ReduceMean"), pooled, i64([2, 3])), "scores")
    return graph


def reader_of_lines() -> Graph:
    """Only rows that a pool makes one can be squeezed, as in networks that read lines of text."""
    graph, build, x = image_graph()
    low = build(make("MaxPool", kernel_shape=(48, 2), strides=(48, 2)), x)
    graph.add_output(build(make("Squeeze"), low, i64([2])), "y")
    return graph


def listener() -> Graph:
    """As Silero's: a branch for each rate, each of which needs its own samples."""
    graph = Graph("sound")
    x = graph.add_input("input", TensorType(F32, (Sym("n"), Sym("sequence"))))
    state = graph.add_input("state", TensorType(F32, (2, Sym("m"), 4)))
    rate = graph.add_input("sr", TensorType(I64, ()))
    branches = []
    for width in (256, 128):
        branch = Graph(f"of{width}")
        inner = branch.add_input("x", TensorType(F32, (Sym("n"), Sym("sequence"))))
        build = Builder(branch)
        rows = build(make("Unsqueeze"), inner, i64([1]))
        branch.add_output(build(make("MaxPool", kernel_shape=(width,), strides=(width,)), rows), "y")
        branches.append(branch)
    build = Builder(graph)
    is_wide = build(make("Equal"), rate, i64(16000))
    graph.add_output(build(If(*branches), is_wide, x), "y")
    graph.add_output(build(make("Relu"), state), "stateN")
    return graph


class TestGuesses:
    def test_an_image_for_scores_and_one_for_maps(self) -> None:
        assert complete_shapes(classifier()) == {"x": (1, 3, 224, 224)}
        graph, build, x = image_graph()
        graph.add_output(build(make("MaxPool", kernel_shape=(2, 2), strides=(2, 2)), x), "map")
        assert complete_shapes(graph) == {"x": (1, 3, 640, 640)}

    def test_channels_last(self) -> None:
        graph, build, x = image_graph(layout="NHWC")
        graph.add_output(build(make("ReduceMean"), x, i64([1, 2])), "scores")
        assert complete_shapes(graph) == {"x": (1, 224, 224, 3)}

    def test_what_cannot_be_is_passed_over(self) -> None:
        assert complete_shapes(reader_of_lines()) == {"x": (1, 3, 48, 320)}

    def test_a_side_that_is_known(self) -> None:
        assert complete_shapes(classifier(48)) == {"x": (1, 3, 48, 320)}
        assert complete_shapes(classifier(96)) == {"x": (1, 3, 96, 96)}

    def test_a_number_in_a_name_is_a_size_only_where_it_can_be_one(self) -> None:
        for name, size in (("n+3", 4), (f"n+{'9' * 5000}", 2)):
            graph = Graph("rows")
            x = graph.add_input("x", TensorType(F32, (Sym("n"), Sym(name))))
            graph.add_output(Builder(graph)(make("Relu"), x), "y")
            assert complete_shapes(graph) == {"x": (1, size)}

    def test_the_model_says(self) -> None:
        graph = classifier()
        graph.metadata["imgsz"] = "[384, 512]"
        assert complete_shapes(graph) == {"x": (1, 3, 384, 512)}

    def test_tokens_and_what_was_before(self) -> None:
        graph = Graph("text")
        build = Builder(graph)
        dims = {"ids": ("batch", "sequence"), "mask": ("batch", "past_length + sequence")}
        values = [graph.add_input(k, TensorType(I64, tuple(map(Sym, v)))) for k, v in dims.items()]
        past = graph.add_input("past.0.key", TensorType(F32, (Sym("batch"), 2, Sym("past_length"), 4)))
        for value in (*values, past):
            graph.add_output(build(make("Identity"), value))
        wanted = {"ids": (1, 128), "mask": (1, 144), "past.0.key": (1, 2, 16, 4)}
        assert complete_shapes(graph) == wanted
        assert complete_shapes(graph, {"batch": (3,), "past_length": (0,)})["mask"] == (3, 128)

    def test_pieces_of_sound(self) -> None:
        graph = listener()
        assert complete_shapes(graph) == {"input": (1, 512), "state": (2, 1, 4), "sr": ()}
        feeds = model_feeds(graph)
        assert feeds["sr"] == 16000
        assert bn.compile(graph)(feeds)["y"].shape == (1, 1, 2)

    def test_one_of_two_branches_must_fit(self) -> None:
        with pytest.raises(bn.ShapeError, match="MaxPool"):
            with_shapes(listener(), {"input": (1, 64)})

    def test_integers_are_ids_of_their_tables(self) -> None:
        """The smallest counts; views and casts lead to it; a mask has none."""
        graph = Graph("text")
        b = Builder(graph)
        ids, kinds, mask = (graph.add_input(n, TensorType(I64, (2, 50))) for n in ("ids", "kinds", "mask"))
        for entries in (700, 500):
            graph.add_output(b(make("Gather"), np.zeros((entries, 2), F32), b(make("Cast", to=I64), ids)))
        graph.add_output(b(make("OneHot"), kinds, np.array(30), np.zeros(2, F32)))
        graph.add_output(b(make("Cast", to=F32), mask))
        assert index_bounds(graph) == {"ids": 500, "kinds": 30}
        feeds = model_feeds(graph)
        assert {n: a.min() >= 0 and a.max() < 500 for n, a in feeds.items()} == dict.fromkeys(feeds, True)
        assert feeds["ids"].max() > 400
        assert 20 < feeds["kinds"].max() < 30
        assert feeds["mask"].max() == 1
        bn.compile(graph)(feeds)


class TestTold:
    def test_shapes_arrays_and_symbols_count_first(self) -> None:
        graph = classifier()
        assert complete_shapes(graph, {"x": (2, 3, 10, 20)}) == {"x": (2, 3, 10, 20)}
        assert complete_shapes(graph, {"h": (32,), "n": (4,)}) == {"x": (4, 3, 32, 224)}
        assert complete_shapes(graph, given={"x": np.zeros((1, 3, 7, 8), F32)}) == {"x": (1, 3, 7, 8)}
        assert guessed(graph, {"h": (32,)}, {}) == ["w"]
        assert guessed(graph, {"x": (2, 3, 10, 20)}, {}) == []

    def test_names_that_the_model_has_not(self) -> None:
        with pytest.raises(bn.ShapeError, match=r"got 'y', wanted one of x, or one size of n, h, w"):
            complete_shapes(classifier(), {"y": (1, 2)})
        with pytest.raises(bn.ShapeError, match=r"got 'h', wanted one of x, or"):
            complete_shapes(classifier(), {"h": (1, 2)})
        with pytest.raises(bn.DTypeError, match="wanted arrays or shapes by name"):
            complete_shapes(classifier(), [("x", (1,))])  # type: ignore[arg-type]

    def test_a_shape_of_another_rank(self) -> None:
        with pytest.raises(bn.ShapeError, match=r"input 'x': got shape \(1, 3, 32\), wanted \(n, 3, h, w\)"):
            complete_shapes(classifier(), {"x": (1, 3, 32)})

    def test_an_error_names_symbols_and_the_option(self) -> None:
        graph, build, x = image_graph()
        flat = build(make("Reshape"), x, i64([1, 1009]))
        graph.add_output(flat, "y")
        with pytest.raises(bn.ShapeError, match=r"input 'x': got no size for 'n', 'h', 'w', wanted numbers: --shape"):
            complete_shapes(graph)


class TestCommands:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        path = tmp_path / "lines.bolt"
        bn.save(reader_of_lines(), path)
        return path

    @pytest.mark.parametrize(
        "command",
        [["run"], ["profile", "--runs", 1], ["bench", "--no-processes", "--seconds", 0.1], ["cache", "warm"]],
        ids=lambda c: c[0],
    )
    def test_first_contact(self, call: Call, model: Path, command: list[Any]) -> None:
        code, out, err = call(*command, model)
        assert code == 0, err
        assert out

    def test_what_is_guessed_is_said(self, call: Call, model: Path) -> None:
        _, _, err = call("run", model)
        assert "free sizes h, w: took x [1, 3, 48, 320]; --shape NAME=D,D gives others\n" in err
        assert "free sizes h, w: took" in call("verify", model, "--against", "reference")[2]
        assert "free sizes" not in call("run", model, "--shape", "x=1,3,48,64")[2]
        assert "[1, 3, 32]" in call("run", model, "--shape", "w=64", "--shape", "h=48")[1]

    def test_integers_beyond_what_is_drawn(self) -> None:
        """A table that ends at the last integer of 64 bits."""
        graph = Graph("g")
        x = graph.add_input("x", TensorType(U64, (9,)))
        graph.add_output(Builder(graph)(Equal(), x, np.full(9, np.iinfo(np.uint64).max, U64)), "y")
        assert index_bounds(graph) == {"x": np.iinfo(np.int64).max}
        assert model_feeds(graph)["x"].dtype == U64

    def test_unknown_names(self, call: Call, model: Path) -> None:
        for command in ("run", "profile", "bench", "verify"):
            code, _, err = call(command, model, "--shape", "nothing=1,2")
            assert (code, "got 'nothing', wanted one of x" in err) == (1, True), err
        code, _, err = call("cache", "warm", model, "--shape", "nothing=1,2")
        assert (code, "--shape: got nothing, wanted inputs or symbols of the models" in err) == (1, True), err
        with pytest.raises(bn.ShapeError, match=r"'nothing' is not one of \['x'\]"):
            bn.compile(model).warmup(nothing=(1, 2))
