"""What notebooks show of objects, and sessions that are awaited."""

from __future__ import annotations

import asyncio
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.notebook import html_table
from bolt_numba.benchmark import BenchReport, Measured
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.quantize.report import QuantizeReport
from bolt_numba.types import F32, Sym, TensorType
from bolt_numba.verification import TensorCheck, VerifyReport
from tests.graphs import make

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
HOSTILE = "<script>\x1b\u202e&</td>"


@pytest.fixture(scope="module")
def sess() -> bn.Session:
    return bn.compile(DIGITS, threads=1)


def shown(thing: Any) -> str:
    """The text of what a notebook shows, which must be well formed."""
    return " | ".join(ElementTree.fromstring(f"<div>{thing._repr_html_()}</div>").itertext())


class TestShown:
    def test_session(self, sess: bn.Session) -> None:
        text = shown(sess)
        assert "Session('digits.onnx', device='cpu', threads=1)" in text
        assert "input | image | f32 | (batch, 1, 8, 8)" in text
        assert "output | probabilities" in text

    def test_outputs(self, sess: bn.Session) -> None:
        outputs = sess(np.zeros((2, 1, 8, 8), F32))
        assert f"probabilities | f32 | [2, 10] | {np.asarray(outputs).min():.6g} | 0.1 |" in shown(outputs)
        odd = bn.Outputs(["a", "b", "c"], [np.array(["x"], object), [1, 2], np.zeros((0, 3), F32)])  # type: ignore[list-item]
        assert "b | list | 2 elements" in shown(odd)
        assert "c | f32 | [0, 3]" in shown(odd)

    def test_graph(self) -> None:
        graph = bn.load(DIGITS)
        assert "digits: 10 nodes | " in shown(graph)
        assert "MaxPool" in shown(graph)
        assert "max-height" in graph._repr_html_()

    def test_profile_and_report(self, sess: bn.Session) -> None:
        found = sess.profile(np.zeros((1, 1, 8, 8), F32), runs=2)
        assert "winograd_2" in shown(found)
        assert "outside of steps" in shown(found)
        nothing = bn.compile(DIGITS).report()
        assert nothing == []
        assert "nothing is planned yet" in shown(nothing)
        assert "run the session, or call warmup" in str(nothing)
        report = sess.report()
        assert str(report) == str(list(report))
        assert report == list(report)
        assert f"{len(report)} nodes | node | op | output | runner | device | packs" in shown(report)
        assert "relu2 | Conv" in shown(report)

    def test_reports(self) -> None:
        check = TensorCheck("y", "output", False, "f32", (1,), 1.0, 1.0, "too far")
        assert "DIFFERS from reference: 0 of 1" in shown(VerifyReport([check], "reference", 1e-3, 1e-4))
        engines = [Measured("bolt-numba", [0.001]), Measured("other", [0.002]), Measured("third", error="refuses")]
        text = shown(BenchReport("m.onnx", 1, {}, engines))
        assert "other | 2 | 2 | 2.00" in text
        assert "third | - | - | refuses" in text
        quantised = QuantizeReport([], 40.0, None, None, None, None, 4 << 20, 1 << 20, True, ["a note"])
        assert "0 of 0 layers quantised, SQNR of the worst output 40.0 dB" in shown(quantised)
        assert "a note" in shown(quantised)

    def test_names_are_no_markup(self) -> None:
        graph = Graph(HOSTILE)
        x = graph.add_input(HOSTILE, TensorType(F32, (Sym(HOSTILE), 2)))
        graph.add_output(Builder(graph)(make("Relu"), x, name=HOSTILE), HOSTILE + "y")
        session = bn.compile(graph)
        outputs = session(np.zeros((1, 2), F32))
        for thing in (graph, session, outputs, session.report(), session.profile(np.zeros((1, 2), F32), runs=1)):
            made = thing._repr_html_()
            assert not {"\x1b", "\u202e"} & set(made)
            assert "<script" not in made
            shown(thing)

    def test_long_tables_are_cut(self) -> None:
        made = html_table("t", ["n"], [[i] for i in range(100)])
        assert made.count("<tr>") == 41
        assert "and 60 more" in made
        assert len(html_table("t", ["n"], [["x" * 10000]])) < 1000


class TestAwaited:
    def test_results_are_those_of_a_call(self, sess: bn.Session) -> None:
        x = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)

        async def both() -> list[bn.Outputs]:
            return await asyncio.gather(sess.run_async(x), sess.run_async(image=x), sess.run_async({"image": x}))

        for outputs in asyncio.run(both()):
            np.testing.assert_array_equal(outputs["probabilities"], np.asarray(sess(x)))

    def test_the_loop_goes_on_meanwhile(self, sess: bn.Session, monkeypatch: pytest.MonkeyPatch) -> None:
        """The run ends only when the loop has come round."""
        event, original = threading.Event(), bn.Session.__call__

        def slow(self: bn.Session, *args: Any, **kwargs: Any) -> bn.Outputs:
            assert event.wait(30)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(bn.Session, "__call__", slow)

        async def main() -> bn.Outputs:
            task = asyncio.create_task(sess.run_async(np.zeros((1, 1, 8, 8), F32)))
            await asyncio.sleep(0)
            event.set()
            return await task

        assert asyncio.run(main())[0].shape == (1, 10)

    def test_errors_come_where_it_is_awaited(self, sess: bn.Session) -> None:
        with pytest.raises(bn.ShapeError, match="got shape"):
            asyncio.run(sess.run_async(np.zeros((1, 1, 8, 9), F32)))  # type: ignore[arg-type]
