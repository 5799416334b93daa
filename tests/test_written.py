"""Model files that others write to or cut short while sessions use them: the same results, or an error that says so."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.base.files.mapped import map_of
from bolt_numba.errors import InvalidModelError
from bolt_numba.surgery import packed
from bolt_numba.types import Array

_RUN = """
import os, pickle, sys
import numpy as np
import bolt_numba as bn
from bolt_numba.errors import InvalidModelError

model, victim, action = sys.argv[1:]

def feeds(n, then):
    x = np.random.default_rng(n).standard_normal((n, 64), np.float32)
    return {"x": x, "c": np.array(then)}

def refused(work):
    try:
        work()
    except InvalidModelError as error:
        return "written to" in str(error)
    return False

graph = bn.load(model)
session = bn.compile(graph, threads=1)
want = [session.run(None, feeds(n, True)) for n in (1, 3)]
before = os.stat(victim)
if action == "truncate":
    os.truncate(victim, 100)
else:
    with open(victim, "r+b") as file:
        file.write(bytes(before.st_size))
os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
for n, first in zip((1, 3), want):
    for a, b in zip(first, session.run(None, feeds(n, True))):
        assert np.array_equal(a, b), "another result of the same plan"
assert refused(lambda: session.run(None, feeds(2, True))), "another plan"
assert refused(lambda: session.run(None, feeds(1, False))), "a branch that was not taken before"
assert refused(lambda: bn.compile(graph)), "another session"
assert refused(lambda: bn.save(graph, victim + ".copy")), "saving"
from bolt_numba.ir.interpret import interpret
assert refused(lambda: interpret(graph, feeds(1, True))), "the references"
from bolt_numba import surgery
for write in (
    lambda: pickle.dumps(session), lambda: surgery.simplify(graph),
    lambda: surgery.save_onnx(graph, victim + ".onnx"),
    lambda: surgery.save_onnx(graph, victim + ".onnx", external=True),
    *([] if graph.packed else [lambda: surgery.packed(graph)]),
):
    assert refused(write), "writing in other ways"
"""


def _write(folder: Path, kind: str) -> tuple[Path, Path]:
    """A model with large weights that are packed, read by kernels, references and branches, and given as results.

    Also gives the file that holds them.
    """
    rng = np.random.default_rng(0)
    shapes = {"w": (64, 8192), "table": (8192, 64), "kept": (512, 1024), "whole": (600, 512), "yes": (8192, 64)}
    weights = {**shapes, "no": (8192, 64)}
    made = [numpy_helper.from_array(rng.standard_normal(s).astype("f4"), n) for n, s in weights.items()]
    value = helper.make_tensor_value_info
    branches = {
        f"{label}_branch": helper.make_graph(
            [helper.make_node("Gather", [table, "at"], [f"{label}_rows"])], label, [], [value(f"{label}_rows", 1, None)]
        )
        for label, table in (("then", "yes"), ("else", "no"))
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["at"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "at"], ["rows"]),
        helper.make_node("SequenceConstruct", ["rows", "kept"], ["list"]),
        helper.make_node("SequenceAt", ["list", "one"], ["second"]),
        helper.make_node("If", ["c"], ["picked"], **branches),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, ("n", 64)), value("c", 9, ())],
        [value(n, 1, None) for n in ("y", "rows", "second", "whole", "picked")],
        [*made, numpy_helper.from_array(np.array(1), "one")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "model.onnx"
    if kind == "external":
        onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
        return path, folder / "weights.bin"
    onnx.save(model, path)
    if kind == "onnx":
        return path, path
    target = folder / "model.bolt"
    loaded = bn.load(path)
    bn.save(packed(loaded, threads=[1], shapes={"x": (1, 64)}) if kind == "packed" else loaded, target)
    return target, target


@pytest.mark.parametrize("action", ["truncate", "overwrite"])
@pytest.mark.parametrize("kind", ["external", "onnx", "bolt", "packed"])
def test_files_that_are_written_to_while_they_are_used(tmp_path: Path, kind: str, action: str) -> None:
    model, victim = _write(tmp_path, kind)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(model), str(victim), action], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def _large(graph: bn.Graph) -> list[Array]:
    return [v.const for v in graph.constants() if v.const is not None and v.const.nbytes > 1 << 20]


def test_external_data_is_mapped_once(tmp_path: Path) -> None:
    model, victim = _write(tmp_path, "external")
    maps = {id(map_of(a)): map_of(a) for a in _large(bn.load(model))}
    assert [m.path for m in maps.values() if m is not None] == [victim]


def test_external_data_that_was_replaced_is_of_no_concern(tmp_path: Path) -> None:
    model, victim = _write(tmp_path, "external")
    x = {"x": np.ones((2, 64), np.float32), "c": np.array(True)}
    session = bn.compile(model, threads=1)
    want = bn.compile(model, threads=1).run(None, x)
    session.run(None, {"x": np.ones((1, 64), np.float32), "c": np.array(True)})
    other = victim.with_name("other")
    other.write_bytes(bytes(victim.stat().st_size))
    os.replace(other, victim)
    for a, b in zip(session.run(None, x), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_of_branches_alone(tmp_path: Path) -> None:
    """A file of which only the graphs within the graph have weights is looked at, too."""
    value, table = helper.make_tensor_value_info, np.zeros((512, 512), np.float32)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], [name])], name, [], [value(name, 1, None)],
            [numpy_helper.from_array(table, "w")],
        )
        for name in ("then", "else")
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], **branches)], "g", [value("x", 1, ("n", 512)), value("c", 9, ())],
        [value("y", 1, None)],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    loaded = bn.load(path)
    session = bn.compile(loaded, threads=1)
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(0, 0))
    for write in (lambda: bn.save(loaded, tmp_path / "copy.bolt"), lambda: pickle.dumps(session)):
        with pytest.raises(InvalidModelError, match="written to"):
            write()
