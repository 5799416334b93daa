"""Each thing that is easily forgotten is told by name, with the file to edit and the line to write there."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bolt_numba.converters.onnx.reading.registry import KINDS
from bolt_numba.converters.onnx.reading.tables import pointwise as pointwise_readers
from bolt_numba.converters.readers import Readers
from bolt_numba.errors import BoltError
from bolt_numba.kernels.registry import Entry
from bolt_numba.ops.pointwise import Abs, Relu
from bolt_numba.ops.pointwise.row import ROWS, pointwise
from bolt_numba.ops.registry import OPS, Op, op
from bolt_numba.passes import rewrite
from bolt_numba.passes.rewrite import Pat, Rule, rule
from bolt_numba.types import TensorType
from tests import missing, test_kernels, test_references
from tests.cases import Case


@rule(Pat(Relu, (Pat(Abs, name="inner"),)))
def forgotten(m: Any, b: Any) -> Any:
    return m["inner"]


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """An operator that nothing else knows of, registered for one test."""
    monkeypatch.setattr("bolt_numba.ops.registry.OPS", dict(OPS))

    @op("Lonely")
    class Lonely(Op):
        strength: float = 1.0

        def infer(self, x: TensorType) -> TensorType:
            return x

        def reference(self, x: Any) -> Any:
            return x

    return Lonely


def module_with(**names: Any) -> ModuleType:
    made = ModuleType("bolt_numba.passes.mine")
    made.__file__ = rewrite.__file__.replace("rewrite.py", "mine.py")
    vars(made).update(names)
    return made


def test_a_rule_outside_rules() -> None:
    (line,) = missing.rules_without_stage([module_with(forgotten=forgotten)], ())
    assert line.startswith("rule forgotten (tests/test_newcomer.py:")
    assert "add to bolt_numba/passes/mine.py: RULES: tuple[Rule, ...] = (..., forgotten)" in line


def test_rules_of_a_file_that_no_stage_has() -> None:
    (line,) = missing.rules_without_stage([module_with(RULES=(forgotten,))], ())
    assert 'add to bolt_numba/passes/pipeline/__init__.py: Stage("canonical", ((*CLEAN, *mine.RULES),))' in line


def test_a_rule_without_a_case() -> None:
    rules: dict[str, Rule] = {"forgotten": forgotten}
    (line,) = missing.rules_without_case(rules, ())
    assert 'no case: add to tests/rule_cases.py: fires("forgotten", ' in line
    (line,) = missing.rules_without_case({}, {"gone"})
    assert line.startswith("rule gone: no stage has it")


def test_a_pointwise_row_outside_the_known_file() -> None:
    with pytest.raises(BoltError, match=rf"^Odd: row .*: got module .*test_newcomer, wanted {ROWS}: w"):
        pointwise("Odd", "x + x", lambda x: x + x)
    assert "Odd" not in OPS


def test_a_reader_of_a_row_that_is_not_there() -> None:
    text = rf"tables/pointwise.py: UNARY or BINARY: got 'Odd', .* {ROWS}: `Odd = pointwise\(\"Odd\""
    for make in (pointwise_readers._row, pointwise_readers._old_binary):
        with pytest.raises(BoltError, match=text):
            make("Odd")


def test_a_reader_of_an_operator_that_onnx_lacks() -> None:
    readers = Readers("onnx", kinds=KINDS)

    @readers.reader("Lonely", "Relu")
    def read(b: Any, x: Any) -> Any:
        return b(Relu(), x)

    readers.reader("Lonely", domain="acme")(read)
    (line,) = missing.readers_of_nothing(readers.table, ())
    assert line.startswith("Lonely: a reader, but the domain ai.onnx has no such operator: write at tests/test_")
    assert line.endswith('@reader("Lonely", domain="the.domain.of.its.files")')


def test_an_operator_without_cases(lonely: type[Op]) -> None:
    (line,) = missing.ops_without_cases({"Lonely": lonely}, ())
    assert line.startswith("Lonely (tests/test_newcomer.py): no cases")
    assert "add to a file in tests/cases, which may be a new one: @cases(Lonely) on a function (draw, op)" in line
    assert "add to tests/cases/pool.py: @cases(MaxPool)" in missing.no_cases(OPS["MaxPool"])
    (line,) = missing.ops_without_cases({}, {"Gone"})
    assert line.startswith("Gone: tests/cases names an operator that")
    entry = Entry(lonely, "cpu", "f32", lambda *_: [], lambda *_: True, 0, "mine")
    with pytest.raises(AssertionError, match=r"which may be a new one: @cases\(Lonely\)"):
        test_kernels.taken_cases(entry, 1)


def test_an_operator_that_onnx_lacks_is_internal(lonely: Any) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(AssertionError, match=r"add 'Lonely' to INTERNAL_BY_FILE in tests/test_references\.py"):
        test_references.by_oracle(Case(lonely(), (x,)), [x])


def test_an_operator_without_a_writer(lonely: type[Any]) -> None:
    (line,) = missing.ops_without_spelling({"Lonely": lonely}, (), set())
    assert "ONNX has no operator of that name: add to converters/onnx/writing/tables/standard.py: @writer(L" in line
    assert not list(missing.ops_without_spelling({"Lonely": lonely}, {lonely}, set()))
    (line,) = missing.ops_without_spelling({"LeakyRelu": lonely}, (), set())
    assert "ONNX's LeakyRelu has no attribute strength" in line
    (line,) = missing.ops_without_spelling({"Relu": Relu}, (), {"Relu"})
    assert "remove it from NO_SPELLING" in line


def test_all_lines_are_told_at_once() -> None:
    with pytest.raises(AssertionError, match=r"(?s)one\n.*two"):
        missing.told(["one", "two"])
    missing.told(())
