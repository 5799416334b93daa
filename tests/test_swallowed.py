"""Internal errors that are passed over: they are counted, shown, and no broad ``except`` hides one."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.base.swallowed import FAULTS, MOST_KEPT, swallowed, swallowing
from bolt_numba.errors import BoltError, InternalError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.pointwise import Abs
from bolt_numba.passes.pipeline import with_rules
from bolt_numba.passes.rewrite import Pat, Rule
from bolt_numba.types import F32, TensorType
from tests.test_structure import ROOT, SOURCES, tree

QUIET = {
    "a device's own package raises, and what it was asked for is not needed": (
        *("Opened.closed", "Loaded.nbytes", "Loaded.counted", "_close_all", "BoundPart._keep", "text_of"),
    ),
    "what is wrong is told by the session that begins from its model": ("_KnownPart._restored", "_known"),
    "an object, a class or a function of the caller's": ("_failed", "_array", "FlowNode.fault", "_ToCallback.emit"),
    "each task is run by itself then, and what it raises is its own": ("_together", "Station.run"),
    "the other process has just ended, or not begun": ("Child.end", "_dispose", "_error_of", "_in_child"),
    "a forked process ends here, and its log says why": ("Herd._begin",),
    "the standard wants an empty image, whatever is wrong with the file": ("ImageDecoder.reference",),
    "the same is done where the error leaves": ("amounts_of", "_with_values", "serve"),
    "onnx's own inference, which knows less than the file": ("_declared",),
}
"""Why an error that goes no further is no fault of ours, or is told elsewhere; and where."""
COUNTED = [
    ("rewrite.py", ""),
    ("precompile.py", ""),
    ("tape_code.py", "ArithmeticError, ValueError, TypeError"),
    ("choices.py", "LostError, ArithmeticError, ValueError"),
    ("stages.py", "LostError, ArithmeticError, ValueError"),
    ("stand_ins.py", ""),
    ("known_parts.py", "*starts.DAMAGED"),
    ("known_plans.py", "*kept_plans.DAMAGED"),
    ("known_plans.py", "*kept_plans.DAMAGED"),
    ("known_plans.py", "*kept_plans.DAMAGED"),
    ("known_plans.py", "*kept_plans.DAMAGED"),
    ("known_plans.py", "*kept_plans.DAMAGED"),
    ("kept_plans.py", "*DAMAGED"),
    ("starts.py", "*DAMAGED"),
    ("starts.py", "*DAMAGED"),
    ("starts.py", "*DAMAGED"),
]
"""Files that have errors counted which go no further, and what is no fault there: kinds that data or sizes cause."""


def naming(*words: str) -> list[Path]:
    """Files of the product in which one of these words stands: few have to be parsed."""
    product = [file for file in SOURCES if file.relative_to(ROOT).parts[0] in ("bolt_numba", "kernels", "converters")]
    return [file for file in product if any(word in file.read_text() for word in words)]


def graph_of_abs() -> Graph:
    graph = Graph("abs")
    graph.add_output(Builder(graph)(Abs(), graph.add_input("x", TensorType(F32, (2,)))), "y")
    return graph


def raises(match: Any, build: Any) -> Any:
    raise KeyError("no such operand")


def test_a_rule_that_raises_is_told_by_report_and_doctor(
    nothing_swallowed: Counter[str], call: Callable[..., Any]
) -> None:
    session = bn.compile(graph_of_abs(), stages=with_rules("fuse", Rule("mine", Pat(Abs), raises)))
    assert session(np.array([-1, 2], F32))["y"].tolist() == [1, 2]
    said = "rule 'mine': KeyError: 'no such operand'"
    assert nothing_swallowed[said] >= 1
    assert session.report().swallowed == dict(nothing_swallowed)
    assert said.replace("'", "&#x27;") in session.report()._repr_html_() or said in session.report()._repr_html_()
    done = call("doctor", "--json")
    assert done.code == 1
    checks = json.loads(done.out)["checks"]
    assert said in checks["errors passed over"][1]
    nothing_swallowed.clear()
    assert session.report().swallowed == {}
    assert json.loads(call("doctor", "--json").out)["checks"]["errors passed over"] == [True, "none"]


def test_what_says_that_something_given_is_wrong_is_no_fault(nothing_swallowed: Counter[str]) -> None:
    swallowed("here", BoltError("x: got 1, wanted 2"))
    swallowed("here", ZeroDivisionError(), ArithmeticError)
    assert not nothing_swallowed
    for error in (InternalError("fault"), KeyError("a"), KeyError("a")):
        with swallowing("here", ValueError):
            raise error
    assert nothing_swallowed == {"here: InternalError: fault": 1, "here: KeyError: 'a'": 2}
    with pytest.raises(KeyboardInterrupt), swallowing("here"):
        raise KeyboardInterrupt
    for i in range(2 * MOST_KEPT):
        swallowed("there", KeyError(i))
    assert len(FAULTS) <= MOST_KEPT + 1
    assert FAULTS["there: others"] > 0
    nothing_swallowed.clear()


def silent(node: ast.AST, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Functions that catch any Exception, and neither raise, nor use it, nor tell `swallowed` of it."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        within = (*within, node.name)
    if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
        inner = [each for part in node.body for each in ast.walk(part)]
        used = {n.id if isinstance(n, ast.Name) else n.attr for n in inner if isinstance(n, (ast.Name, ast.Attribute))}
        if not used & {node.name, "exc_info"} and not any(isinstance(n, ast.Raise) for n in inner):
            yield ".".join(within)
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress"
    if is_call and any(map(is_broad, node.args)):
        yield ".".join(within)
    for child in ast.iter_child_nodes(node):
        yield from silent(child, within)


def counting(tree: ast.Module) -> Iterator[str]:
    """The kinds of errors that are no fault, for each call that has others counted."""
    for node in ast.walk(tree):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name in ("swallowed", "swallowing"):
            yield ", ".join(map(ast.unparse, node.args[2 if name == "swallowed" else 1 :]))


def is_broad(kinds: ast.expr | None) -> bool:
    names = {"Exception"} if kinds is None else {n.id for n in ast.walk(kinds) if isinstance(n, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def test_every_broad_except_says_what_becomes_of_the_error() -> None:
    """Raise it, hand it on, count it by `swallowed`, or say in `QUIET` why none of these is right."""
    found = {place for file in naming("Exception", "except:") for place in silent(tree(file))}
    assert found == {place for places in QUIET.values() for place in places}
    assert list(silent(ast.parse("def f():\n try:\n  g()\n except Exception:\n  pass"))) == ["f"]
    assert list(silent(ast.parse("def f():\n with a, suppress(Exception):\n  pass"))) == ["f"]


def test_what_is_counted_and_what_is_not_is_decided_here() -> None:
    """One that is no longer counted is missing, though its handler may use the error otherwise."""
    files = [file for file in naming("swallow") if file.name != "swallowed.py"]
    assert sorted((file.name, kinds) for file in files for kinds in counting(tree(file))) == sorted(COUNTED)
