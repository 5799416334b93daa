"""Looking at models: facts of a file, pictures, and what the rows of a profile add up to."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import bolt_numba as bn
from bolt_numba.cli import draw
from bolt_numba.converters.nodes import foreign_operators
from bolt_numba.ir.build import Builder
from bolt_numba.ir.dot import Mark
from bolt_numba.ir.drawing import to_page, to_svg
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.text import to_text
from bolt_numba.ops.costs import products_of
from bolt_numba.passes.pipeline import STAGES
from bolt_numba.types import F32, Sym, TensorType
from tests.graphs import make

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
SVG = "{http://www.w3.org/2000/svg}"
Call = Callable[..., tuple[int, str, str]]


class TestInspect:
    def test_a_file_says_who_wrote_it(self, call: Call, tmp_path: Path) -> None:
        model = onnx.load(DIGITS)
        model.producer_name, model.producer_version = "somebody", "1.2"
        model.metadata_props.add(key="names", value="{0: 'person',\n 1: 'bicycle'}" + "x" * 200)
        onnx.save(model, tmp_path / "m.onnx")
        lines = call("inspect", tmp_path / "m.onnx")[1].splitlines()
        assert {"format: onnx", "producer: somebody 1.2", "opset: ai.onnx 17"} <= set(lines)
        assert any(line.startswith("names: {0: 'person', 1: 'bicycle'}xx") and len(line) < 120 for line in lines)

    def test_operators_have_the_names_of_the_file(self, call: Call, tmp_path: Path) -> None:
        text = """<ir_version: 8, opset_import: ["": 18, "mine": 1, "com.microsoft": 1]>
            net (float[2] x) => (float[2] y) {
              a = mine.twice(x)
              b = mine.twice(a)
              c = com.microsoft.Gelu(b)
              y = HardSwish(c)
            }
            <domain: "mine", opset_import: ["": 18]> twice (x) => (y) { y = Add(x, x) }"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
        with foreign_operators() as found:
            bn.load(tmp_path / "m.onnx")
        assert found == {"mine.twice": 2, "Add": 1, "com.microsoft.Gelu": 1, "HardSwish": 1}
        shown = call("inspect", tmp_path / "m.onnx")[1]
        assert "operator            here  in the file\nAdd                    2            1\n" in shown
        assert "mine.twice                          2\n" in shown

    def test_names_of_another_format(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "net.prototxt").write_text(
            """input: "x" input_shape { dim: 1 dim: 3 }
            layer { name: "a" type: "ReLU" bottom: "x" top: "y" }
            layer { name: "b" type: "TanH" bottom: "y" top: "z" }"""
        )
        shown = call("inspect", tmp_path / "net.prototxt")[1]
        assert "operator  here  in the file\nRelu         1\n" in shown
        assert "ReLU                      1\n" in shown
        assert "format: caffe" in shown

    def test_nobody_counts_where_nobody_asked(self) -> None:
        with foreign_operators() as found:
            pass
        bn.load(DIGITS)
        assert not found


def titles(svg: str) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


class TestPictures:
    def test_every_node_has_a_box_and_edges(self) -> None:
        svg = to_svg(bn.load(DIGITS), {"conv1": Mark("winograd", "palegreen")})
        shown = titles(svg)
        assert [t for t in shown if t in ("Conv", "MaxPool", "Softmax")] == ["Conv", "Conv", "MaxPool", "Softmax"]
        assert {"image", "probabilities", "winograd"} <= set(shown)
        root = ElementTree.fromstring(svg)
        assert len(root.findall(f".//{SVG}path")) == 11
        fills = [r.get("fill") for r in root.iter(f"{SVG}rect")]
        assert fills.count("palegreen") == 1

    def test_boxes_do_not_overlap_and_nothing_points_up(self) -> None:
        graph = Graph("wide")
        build = Builder(graph)
        values = [graph.add_input(f"x{i}", TensorType(F32, (2,))) for i in range(3)]
        rng = np.random.default_rng(0)
        for _ in range(60):
            a, b = rng.integers(0, len(values), 2)
            values.append(build(make("Add"), values[a], values[b]))
        graph.add_output(values[-1])
        places = []
        for group in ElementTree.fromstring(to_svg(graph)).iter(f"{SVG}g"):
            if group.find(f"{SVG}rect") is not None:
                x, y = group.attrib["transform"].removeprefix("translate(").rstrip(")").split()
                places.append((float(y), float(x)))
        assert len(places) == 64
        for (y, x), (below, right) in zip(sorted(places), sorted(places)[1:], strict=False):
            assert below > y or right - x >= 156, (y, x, right)
        assert min(x for _, x in places) >= 0

    def test_subgraphs_are_drawn_too(self) -> None:
        from tests.test_guesses import listener

        assert {"If.then_branch", "If.else_branch"} <= {
            t.rpartition("/")[2].strip() for t in titles(to_svg(listener()))
        }

    def test_names_are_no_markup(self) -> None:
        graph = Graph("<script>alert(1)</script>")
        x = graph.add_input('x"><script>\x00\x1b\u202e', TensorType(F32, (2,)))
        graph.add_output(Builder(graph)(make("Relu"), x, name="</svg>"), "&amp;")
        svg = to_svg(graph, {"</svg>": Mark('"/><b>', '"/><b>')})
        ElementTree.fromstring(svg)
        for text in (svg, to_page(graph)):
            assert "<script" not in text
            assert "\x1b" not in text
            assert "\u202e" not in text

    def test_few_of_many(self) -> None:
        shown = titles(to_svg(bn.load(DIGITS), limit=3))
        assert "... and 7 nodes more" in shown
        assert "Softmax" not in shown


class TestViz:
    @pytest.fixture
    def no_dot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)

    @pytest.mark.usefixtures("no_dot")
    def test_without_graphviz(self, call: Call, tmp_path: Path) -> None:
        code, out, _ = call("viz", DIGITS, "-o", tmp_path / "g.svg")
        assert (code, out) == (0, f"{tmp_path}/g.svg: 10 nodes\n")
        assert "Softmax" in titles((tmp_path / "g.svg").read_text())
        assert call("viz", DIGITS, "--after", "-o", tmp_path / "g.html")[0] == 0
        page = (tmp_path / "g.html").read_text()
        assert page.startswith("<!DOCTYPE html>")
        assert "palegreen" in page
        code, _, err = call("viz", DIGITS, "-o", tmp_path / "g.png")
        assert (code, "g.png: cannot be drawn: Graphviz (the program dot) is not installed; .svg and" in err) == (
            1,
            True,
        )
        assert not (tmp_path / "g.png").exists()

    def test_with_graphviz(self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program in its place, which gets the graph and the format."""
        fake = tmp_path / "dot"
        fake.write_text(
            '#!/bin/sh\n[ "$1" = -Tpdf ] && { echo "no fonts" >&2; exit 1; }\necho "$1" > "$3"; cat >> "$3"\n'
        )
        fake.chmod(0o755)
        monkeypatch.setattr(shutil, "which", lambda name: str(fake))
        assert call("viz", DIGITS, "-o", tmp_path / "g.png")[0] == 0
        assert (tmp_path / "g.png").read_text().startswith('-Tpng\ndigraph "digits"')
        code, _, err = call("viz", DIGITS, "-o", tmp_path / "g.pdf")
        assert (code, "Graphviz failed: no fonts" in err) == (1, True)

        def late(*args: Any, **options: Any) -> None:
            raise subprocess.TimeoutExpired("dot", 1)

        monkeypatch.setattr(draw.subprocess, "run", late)
        assert call("viz", DIGITS, "-o", tmp_path / "late.svg")[0] == 0
        assert "Softmax" in titles((tmp_path / "late.svg").read_text())

    def test_wrong_usage(self, call: Call, tmp_path: Path) -> None:
        assert call("viz", DIGITS, "-o", tmp_path / "g.jpg")[0] == 2
        assert call("viz", DIGITS, "--text", "-o", tmp_path / "g.svg")[0] == 2


class TestStages:
    def test_each_stage_leaves_its_graph_and_a_row(self, call: Call, tmp_path: Path) -> None:
        """The last is the graph of the session, and every rewrite of the trace is counted in the table."""
        code, out, _ = call("viz", DIGITS, "--dump-stages", tmp_path / "d")
        assert code == 0
        names = ["loaded", *(stage.name for stage in STAGES)]
        files = [tmp_path / "d" / f"{i}-{name}.txt" for i, name in enumerate(names)]
        assert sorted((tmp_path / "d").iterdir()) == sorted([*files, tmp_path / "d" / "rewrites.txt"])
        sess = bn.compile(DIGITS)
        assert files[0].read_text() == to_text(bn.load(DIGITS))
        assert files[-1].read_text() == to_text(sess.optimised)
        lines = out.splitlines()
        assert [line.split()[0] for line in lines[1:-1] if line[0] != " "] == names[1:]
        rewrites = (tmp_path / "d" / "rewrites.txt").read_text()
        counted = sum(int(line.split()[1]) for line in lines if " times " in line)
        assert counted == rewrites.count("\n    - ") > 0
        assert re.search(r"fuse_activation +\d+ times +\d", out)
        assert re.search(rf"precision +{len(sess.optimised.nodes)} +\d", out)

    def test_a_packed_file_has_none(self, call: Call, tmp_path: Path) -> None:
        assert call("convert", DIGITS, "--pack", "-o", tmp_path / "p.bolt")[0] == 0
        code, _, err = call("viz", tmp_path / "p.bolt", "--dump-stages", tmp_path / "d")
        assert code == 1
        assert "got a packed graph, wanted one that is not optimised yet" in err


class TestProfile:
    def test_products_have_a_speed(self) -> None:
        """[1, 16] by [16, 10] of the last layer, and a convolution of 8 filters of one channel, 3 by 3."""
        found = bn.compile(DIGITS, threads=1).profile(np.zeros((1, 1, 8, 8), F32), runs=2)
        for row in found.rows:
            assert bool(row.flops) == (row.op in ("Conv", "MatMul"))
            assert (row.speed != "") == bool(row.flops)
        assert "GFLOP/s" in found.table().splitlines()[0]
        assert found.to_json()["rows"][-1]["flops"] == found.rows[-1].flops

    def test_multiply_adds_of_products(self) -> None:
        """As the loops that define them count."""
        x, w = TensorType(F32, (2, 4, 8, 8)), TensorType(F32, (6, 2, 3, 3))
        assert products_of(make("Conv", group=2), [x, w], [TensorType(F32, (2, 6, 6, 6))]) == 2 * 6 * 36 * 2 * 9
        y = TensorType(F32, (2, 10, 10, 10))
        assert products_of(make("ConvTranspose"), [x, TensorType(F32, (4, 10, 3, 3))], [y]) == 2 * 4 * 64 * 10 * 9
        a, b = TensorType(F32, (5, 7, 3)), TensorType(F32, (7, 9))
        assert products_of(make("MatMul", trans_a=True), [a, b], [TensorType(F32, (5, 3, 9))]) == 5 * 3 * 9 * 7
        assert products_of(make("Add"), [a, a], [a]) == 0
        assert products_of(make("MatMul"), [TensorType(F32, (Sym("n"), 7)), b], [TensorType(F32, (Sym("n"), 9))]) == 0

    def test_rows_add_up(self, call: Call) -> None:
        found = bn.compile(DIGITS, threads=1).profile(np.zeros((1, 1, 8, 8), F32), runs=5)
        assert sum(r.seconds for r in found.rows) + found.rest == pytest.approx(found.total)
        for top in (None, 2):
            lines = found.table(top).splitlines()[1:]
            assert sum(float(line.split()[0]) for line in lines[:-1]) == pytest.approx(
                float(lines[-1].split()[0]), abs=1
            )
        assert "5 more steps" in found.table(2)
        assert call("profile", DIGITS, "--runs", 2)[1].splitlines()[-1].startswith("(outside of steps)")
