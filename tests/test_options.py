"""Options of sessions: declared once, checked once, and handed on whole by whatever takes or keeps them."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba.base import options as declared
from bolt_numba.base.options import OPTIONS
from bolt_numba.benchmark import bench
from bolt_numba.flow import Flow
from bolt_numba.passes.pipeline import STAGES

OTHER: dict[str, Any] = {
    "threads": 1, "precision": "bf16", "numerics": "strict", "tune": True, "time_limit": 50.0, "memory_limit": 1 << 28,
    "max_plans": 3, "stages": tuple(STAGES), "stand_ins": True, "device": ("cpu", "host"), "fallback": "warn",
}  # fmt: skip
"""Of each option a value that is not its default, but for those that only sessions with plug-ins or caches may have."""


def adding(*shape: int | str) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y])
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return made


def test_every_option_has_another_value_here() -> None:
    assert OTHER.keys() == OPTIONS.keys() - {"properties", "placement", "cache"}
    assert all(value != getattr(bn.Options, name) for name, value in OTHER.items())


def test_keywords_are_the_fields() -> None:
    """What type checkers see of `bn.compile` is what the record has, in its order."""
    tree = ast.parse(Path(declared.__file__).read_text())
    rows = {
        node.name: {row.target.id: ast.unparse(row.annotation) for row in node.body
                    if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name)}
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    assert list(rows["Options"].items()) == list(rows["OptionKeywords"].items())
    assert list(rows["Options"]) == list(OPTIONS)


def test_every_option_is_described() -> None:
    for name in OPTIONS:
        assert f"\n{name}: " in (inspect.getdoc(bn.Options) or ""), name
    for function in (bn.compile, bn.verify):
        assert list(OPTIONS) == list(inspect.signature(function).parameters)[-len(OPTIONS) :]


@pytest.mark.parametrize(
    "given",
    [
        {"threads": 0}, {"threads": True}, {"precision": "f99"}, {"numerics": ["strict"]}, {"tune": 1},
        {"time_limit": 0}, {"time_limit": "long"}, {"memory_limit": 1.5}, {"max_plans": 0}, {"stages": 5},
        {"stand_ins": "no"}, {"device": "abacus"}, {"device": 3}, {"device": []}, {"stages": "all"},
        {"properties": [1]}, {"fallback": "never"}, {"cache": "int4"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_told_with_the_name_of_its_option(given: Any) -> None:
    name, flow = next(iter(given)), Flow(inputs=["x"], outputs=["y"])
    calls: list[Callable[[], Any]] = [
        lambda: bn.compile(adding(3), **given),
        lambda: bn.Session(bn.load(adding(3)), **given),
        lambda: flow.model(adding(3), "x", "y", **given) if name != "stages" else bn.Options(**given),
    ]
    for call in calls:
        with pytest.raises(bn.BoltError, match=rf"^(flow 'flow': node '\w+': )?{name}: got .*, wanted "):
            call()


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    made = bn.Options(
        threads=np.int64(1), time_limit=np.float32(3), memory_limit=np.int64(9), max_plans=np.int32(2),  # type: ignore[arg-type]
        stand_ins=np.bool_(True),  # type: ignore[arg-type]
    )  # fmt: skip
    assert json.loads(json.dumps(vars(made))) == vars(made)


def test_stages_are_those_of_the_pipeline() -> None:
    with pytest.raises(bn.DTypeError, match=r"stages: got .* wanted stages"):
        bn.compile(adding(3), stages=[3])  # type: ignore[list-item]


def test_an_unknown_option_is_told() -> None:
    given: Any = {"treads": 1}
    for what, call in {
        "compile": lambda: bn.compile(adding(3), **given),
        "session": lambda: bn.Session(bn.load(adding(3)), **given),
        "verify": lambda: bn.verify(adding(3), **given),
        "bench": lambda: bench(adding(3), **given),
    }.items():
        with pytest.raises(TypeError, match=rf"^{what}: options: 'treads' is not one of .* mean 'threads'") as told:
            call()
        assert isinstance(told.value, bn.BoltError)
    with pytest.raises(bn.DTypeError, match=r"^Options: options: 'treads' is not one of .*; did you mean 'threads'"):
        bn.Options().but(**given)
    with pytest.raises(TypeError, match=r"^Options.*'treads'"):
        bn.Options(threads=1, **given)
    with pytest.raises(bn.DTypeError, match="options: got a dict, wanted Options"):
        bn.Session(bn.load(adding(3)), {"threads": 1})  # type: ignore[arg-type]


def test_sessions_made_of_a_session_have_all_its_options() -> None:
    session = bn.compile(adding("n", "n"), **OTHER)
    assert vars(session.options) == vars(bn.Options()) | OTHER
    for made in (session.clone(), bn.Session(session.graph, session.options)):
        assert made.options == session.options
    assert session.clone(threads=1).options == session.options
    x = np.ones((2, 3), np.float32)  # one symbol of two sizes, and an intermediate value: sessions inside
    np.testing.assert_array_equal(session.run(["r"], {"x": np.ones((2, 2), np.float32)})[0], np.ones((2, 2)))
    np.testing.assert_array_equal(session(x)["y"], 2 * x)
    inner = session._inner()
    assert inner
    assert all(each.options == session.options for each in inner)
    plain = bn.Session(session.graph, session.options.but(stages=None), signatures=("a", "b"))
    again = pickle.loads(pickle.dumps(plain))
    assert (again.options, again.signatures) == (plain.options, ("a", "b"))
    assert bn.Session(session.graph, plain.options, max_plans=7).options == plain.options.but(max_plans=7)


def test_more_threads_are_an_option_of_the_clone() -> None:
    session = bn.compile(adding(3), threads=1)
    clone = session.clone(threads=2)
    assert (clone.threads, clone.options.threads) == (2, 2)
    assert (session.threads, session.options.threads) == (1, 1)


def test_flows_and_the_drop_in_have_all_options_that_they_take() -> None:
    with Flow(inputs=["x"], outputs=["y"]) as flow:
        flow.model(adding(3), "x", "y", **OTHER)
        x = np.ones(3, np.float32)
        np.testing.assert_array_equal(flow(x=x)["y"], 2 * x)
        (made,) = {s for node in flow.nodes for s in getattr(node, "sessions", {}).values()}
        assert vars(made.options) == vars(bn.Options()) | OTHER
    told = bn.SessionOptions()
    texts: Mapping[str, Any] = {
        name: str(int(value) if isinstance(value, bool) else value)
        for name, value in OTHER.items() if name not in ("threads", "stages", "device", "fallback")
    }  # fmt: skip
    for name, text in texts.items():
        told.add_session_config_entry(f"bolt_numba.{name}", text)
    own = bn.InferenceSession(adding(3), told)._session.options
    assert {name: getattr(own, name) for name in texts} == {name: OTHER[name] for name in texts}


NEW = """    depth: int = field(default=2, metadata=_option(count_of, "How deep.", "LAYERS"))

    def __post_init__(self)"""
USES = """
import importlib.util, inspect, pickle, sys
import numpy as np
name, (model, new) = "bolt_numba.base.options", sys.argv[1:]
spec = importlib.util.find_spec(name)
text = open(spec.origin).read()
assert text.count("    def __post_init__(self)") == 1
module = sys.modules[name] = importlib.util.module_from_spec(spec)
exec(compile(text.replace("    def __post_init__(self)", new), spec.origin, "exec"), module.__dict__)

import bolt_numba as bn
from bolt_numba import benchmark
from bolt_numba.cli.app import run
from bolt_numba.flow import Flow

session = bn.compile(model, depth=3)
told = bn.SessionOptions()
told.add_session_config_entry("bolt_numba.depth", "3")
flow = Flow(inputs=["x"], outputs=["y"])
flow.model(model, "x", "y", depth=3)
flow(x=np.ones(3, np.float32))
(node,) = flow.nodes
made = [session, session.clone(1), pickle.loads(pickle.dumps(session)), *node.sessions.values(),
        bn.InferenceSession(model, told)._session]
assert [each.options.depth for each in made] == [3] * 5, made
flow.close()
assert bn.compile(model).options.depth == inspect.signature(bn.compile).parameters["depth"].default == 2
other = Flow(inputs=["x"], outputs=["y"])
for wrong in (lambda: bn.compile(model, depth=0), lambda: other.model(model, "x", "y", depth=0)):
    try:
        wrong()
    except bn.BoltError as error:
        assert "depth: got 0, wanted" in str(error), error
    else:
        raise AssertionError(wrong)
assert not benchmark.bench(model, depth=3, seconds=0.1, processes=False).engines[0].error
for command in ("run", "verify", "bench", "profile"):
    assert run([command, "--help"]) == 0
assert run(["run", model, "--depth", "3"]) == 0
assert run(["run", model, "--depth", "0"]) == 2
"""


def test_a_new_option_is_declared_in_one_place(tmp_path: Path) -> None:
    """One field more, and everything that takes or hands on options has it."""
    path = tmp_path / "m.onnx"
    path.write_bytes(adding(3))
    command = [sys.executable, "-c", USES, str(path), NEW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("--depth") == 4
    assert done.stdout.count("How deep.") == 4
