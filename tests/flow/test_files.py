"""Flows from files: TOML of our own with every option, graphs of Bolt's Flow, and what is refused."""

from __future__ import annotations

import random
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.flow import Flow, FlowError, Workers, files, load, save, toml
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.pointwise import Add
from bolt_numba.types import I64, Sym, TensorType
from tests.flow.test_nodes import DIGITS, images

STEPS = '''
import numpy as np

def best(p):
    return int(p.argmax())

def halves(x):
    return [x[: len(x) // 2], x[len(x) // 2 :]]

def count(x, seen, step):
    return seen, seen + step

def shifted(x, by):
    return x + by

class Texts:
    @staticmethod
    def joined(first, second):
        return f"{first}{second}"

NUMBER = 3
'''
FLOW = '''
name = "everything"
outputs = ["digit", "turn", "parts", "text"]
workers = { count = 2, threads = 1 }
capacity = 7
order = "completed"

[inputs]
image = "f32[n,1,8,8]"
x = "f32[4]"

[nodes.digits]
model = "digits.onnx"
inputs = { image = "image" }
outputs = ["p"]
max_batch = 4
max_wait = 0.001
workers = [{ count = 1 }, { device = "host" }]
numerics = "strict"

[nodes.best]
function = "flow_steps:best"
inputs = "p"
outputs = "digit"
queue = 3

[nodes.count]
function = "flow_steps:count"
inputs = ["x"]
outputs = "turn"
fixed = { step = 2 }
states = { seen = { output = "next", initial = { file = "five.npy" } } }

[nodes.halves]
function = "flow_steps:halves"
inputs = "x"
outputs = "half"

[nodes.shifted]
function = "flow_steps:shifted"
inputs = "half"
outputs = "parts"
each = "half"
fixed = { by = { file = "by.npy" } }

[nodes.joined]
function = "flow_steps:Texts.joined"
inputs = { first = "digit", second = "turn" }
outputs = "text"
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a flow, its functions, its model and an array."""
    (tmp_path / "flow_steps.py").write_text(STEPS)
    (tmp_path / "flow.toml").write_text(FLOW)
    (tmp_path / "digits.onnx").write_bytes(DIGITS.read_bytes())
    np.save(tmp_path / "by.npy", np.full(2, 10, np.float32))
    np.save(tmp_path / "five.npy", 5)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "flow_steps", raising=False)
    return tmp_path


def test_a_file_has_all_that_a_flow_has(folder: Path) -> None:
    flow = load(folder / "flow.toml")
    assert sys.path[-1] == str(folder)
    assert (flow.name, flow.capacity, flow.order) == ("everything", 7, "completed")
    assert flow.workers == (Workers(2, threads=1),)
    nodes = {node.name: node.options for node in flow.nodes}
    assert (nodes["digits"].max_batch, nodes["digits"].max_wait, nodes["best"].queue) == (4, 0.001, 3)
    assert nodes["digits"].workers == [Workers(1), Workers(device="host")]
    want = int(np.asarray(bn.compile(DIGITS)(images(1))).argmax())
    x = np.arange(4, dtype=np.float32)
    with flow:
        assert flow.submit(image=images(1), x=x, stream=1).result(30)["turn"] == 5
        made = flow.submit(image=images(1), x=x, stream=1).result(30)
    assert (made["digit"], made["turn"], made["text"]) == (want, 7, f"{want}7")
    np.testing.assert_array_equal(made["parts"], [[10, 11], [12, 13]])


def test_the_caller_goes_before_the_file(folder: Path) -> None:
    functions = {"flow_steps:best": lambda p: -1}
    text = (folder / "flow.toml").read_text().replace('numerics = "strict"', "")
    (folder / "flow.toml").write_text(text, encoding="utf-8-sig")  # as some editors write it
    session = bn.compile(DIGITS, threads=1)
    flow = load(folder / "flow.toml", functions=functions, models={"digits.onnx": session}, copies=1, capacity=2)
    assert flow.copies == (Workers(1),)
    assert (flow.capacity, flow.order) == (2, "completed")
    with flow:
        assert flow(image=images(1), x=np.zeros(4, np.float32))["digit"] == -1


def test_steps_before_a_model_are_words_of_the_file(folder: Path) -> None:
    (folder / "small.toml").write_text(
        'inputs = "image"\noutputs = "p"\n[nodes.m]\nmodel = "digits.onnx"\ninputs = "image"\noutputs = "p"\n'
        'preprocess = { image = "Image(8, color=\'gray\')" }\n'
    )
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)
    from bolt_numba.preprocessing import Image, with_preprocessing

    want = bn.compile(with_preprocessing(bn.load(DIGITS), {"image": Image(8, color="gray")}))(pixels)
    with load(folder / "small.toml") as flow:
        np.testing.assert_array_equal(flow(image=pixels)["p"], np.asarray(want))
    assert flow.name == "small"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("capacity = 7", "capacty = 7", "keys: got capacty (wanted capacity)"),
        ("queue = 3", 'que = 3\nmodle = "x"', "nodes.best.que (wanted queue); nodes.best.modle (wanted "),
        ("max_batch = 4", "max_bach = 4\ntypes = {}", "keys: got nodes.digits.max_bach (wanted max_batch); nodes"),
        ("{ count = 2, threads = 1 }", "{ cont = 2 }", "keys: got workers.cont (wanted count)"),
        ("initial = {", "inital = {", "keys: got nodes.count.states.seen.inital (wanted initial)"),
        ("capacity = 7", "capacity = 0", "capacity: got 0, wanted a whole number above 0"),
        ("capacity = 7", "capacity = ", "got what is no TOML: Invalid value (at line 5"),
        ('order = "completed"', 'order = "random"', "order: got 'random', wanted one of fifo, completed"),
        ('name = "everything"', "name = 3", "name: got 3, wanted a text"),
        ("count = 2", 'count = "two"', "workers: got 'two', wanted a whole number"),
        ("max_batch = 4", "max_batch = 0", "flow 'everything': node 'digits': max_batch: got 0, wanted a whole number"),
        ('"f32[4]"', '"f99[4]"', "type of 'x': got 'f99[4]', wanted a text such as"),
        ('"digits.onnx"', '"none.onnx"', "node 'digits': model: got 'none.onnx', wanted a file that is there"),
        ('"digits.onnx"', '"by.npy"', "node 'digits': "),
        ('"digits.onnx"', "3", "node 'digits': model: got 3, wanted a file"),
        ('numerics = "strict"', "properties = 3", "node 'digits': properties: got a int, wanted those of each device"),
        ('"strict"', '"exact"', "node 'digits': numerics: got 'exact', wanted one of"),
        ('device = "host"', 'device = "host"\ncpus = [-1]', "got what is no TOML"),
        ("[{ count = 1 }, ", '["two", ', "node 'digits': workers: got ['two', Workers("),
        ('device = "host"', 'device = "hots"', "node 'digits': workers: device: got 'hots', wanted "),
        ('"strict"', '"strict"\ndevice = ["cpu", 3]', "node 'digits': device: got ['cpu', 3], wanted "),
        ("{ step = 2 }", "3", "node 'count': fixed: got 3, wanted a mapping by name"),
        ("{ seen = {", "{ x = {", "node 'count': inputs: got ['x'] twice"),
        ('{ output = "next", initial = { file = "five.npy" } }', "7", "node 'count': states: seen: got 7, wanted"),
        ('"five.npy"', '"six.npy"', "node 'count': states: seen: got 'six.npy': "),
        ('"by.npy"', '"by.npz"', "node 'shifted': fixed: by: got 'by.npz': "),
        ('"flow_steps:best"', '"best"', "node 'best': function: got 'best', wanted 'module:function'"),
        ('"flow_steps:best"', '"flow_steps:worst"', "node 'best': function: got 'flow_steps:worst': AttributeError: "),
        ('"flow_steps:best"', '"no_steps:best"', "node 'best': function: got 'no_steps:best': ModuleNotFoundError: "),
        ('"flow_steps:best"', '"flow_steps:NUMBER"', "'flow_steps:NUMBER', a int, wanted a function"),
        ('function = "flow_steps:best"', "", "node 'best': got ['inputs', 'outputs', 'queue'], wanted a function or a"),
        ('inputs = "p"\n', "", "node 'best': inputs: got none, wanted names of values"),
        ('inputs = "p"\n', 'inputs = "q"\n', "flow 'everything': node 'best': inputs: got ['q'], that nothing makes"),
        ('outputs = ["digit", "turn", "parts", "text"]', "", "outputs: got none, wanted names of values"),
        ('"flow_steps:best"', '"flow_exits:best"', "node 'best': function: got 'flow_exits:best': SystemExit: 3, w"),
        ('"flow_steps:best"', '"flow_lines:best"', "got 'flow_lines:best': ValueError: one two, wanted what can be"),
        ("capacity = 7", f"capacity = {'7' * 5000}", "got what is no TOML: Exceeds the limit"),
        ("capacity = 7", f"capacity = {'[' * 3000}{']' * 3000}", "flow: got what is nested too deep"),
        ("queue = 3", '"a\\nb" = 3', "keys: got nodes.best.a b (wanted"),
        ("queue = 3", "\n".join(f"k{i} = 3" for i in range(1000)), "; and 992 more"),
        ("queue = 3", f"{'k' * 10000} = 3", "keys: got nodes.best.kkkk"),
        ("count = 2,", "count = 1000000000,", "workers: got 1000000000, wanted at most 1024"),
        ("threads = 1 }", "threads = 1025 }", "workers: threads: got 1025, wanted at most 1024"),
        ("count = 2,", 'cpus = "01",', "workers: cpus: got '01', wanted whole numbers from 0 to 65535"),
        ("count = 2,", "cpus = [99999999999],", "workers: cpus: got [99999999999], wanted whole numbers from 0"),
        ("count = 2,", "cpus = [1.5],", "workers: cpus: got [1.5], wanted a processor, or several, for each"),
        ("count = 2,", "device = 3,", "workers: device: got 3, wanted "),
        ('{ image = "image" }', '{ image = ["image"] }', "node 'digits': inputs: got {'image': ['image']}, wan"),
        ('outputs = ["digit", "turn", "parts", "text"]', 'outputs = { digit = "x" }', "outputs: got {'digit': 'x'}, w"),
        ('"f32[4]"', '"f32[-1]"', "type of 'x': got 'f32[-1]', wanted a text such as"),
        ('"f32[4]"', f'"f32[{"9" * 5000}]"', "type of 'x': got 'f32[999"),
        ('"digits.onnx"', f'"{"d" * 5000}"', "node 'digits': model: got 'dddd"),
        ('"by.npy"', "3", "node 'shifted': fixed: by: got 3, wanted the name of an .npy file"),
        ('"by.npy"', '"large.npy"', "node 'shifted': fixed: by: got 'large.npy': "),
        ('"by.npy"', '"torn.npy"', "node 'shifted': fixed: by: got 'torn.npy': "),
        ('numerics = "strict"', 'preprocess = { image = "Image(8, mode=3)" }', "node 'digits': FitImage: mode: got"),
        ("[nodes.digits]", "[nodes]\nnothing = 3\n[nodes.digits]", "nothing: got 3, wanted a table such as"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_with_file_and_place(folder: Path, before: str, after: str, said: str) -> None:
    text = (folder / "flow.toml").read_text()
    assert text.count(before) >= 1
    (folder / "flow.toml").write_text(text.replace(before, after, 1))
    (folder / "flow_exits.py").write_text("raise SystemExit(3)")
    (folder / "flow_lines.py").write_text("raise ValueError('one\\ntwo')")
    for name, shape in (("large", "(10000000000000000,)"), ("torn", "((((")):
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        (folder / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + head + b"\n")
    with pytest.raises(FlowError) as raised:
        load(folder / "flow.toml")
    assert str(raised.value).startswith(f"{folder / 'flow.toml'}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).count("flow.toml") == 1
    assert len(str(raised.value)) < 2200


def test_all_unknown_keys_are_listed_at_once(folder: Path) -> None:
    text = FLOW.replace("capacity", "capacty").replace("max_wait", "wait").replace("queue", "quue")
    (folder / "flow.toml").write_text(text)
    with pytest.raises(FlowError, match=r"capacty .*nodes\.digits\.wait .*nodes\.best\.quue"):
        load(folder / "flow.toml")


def test_what_the_caller_gives_is_named_in_the_file(folder: Path) -> None:
    with pytest.raises(FlowError, match=r"functions: got \['worst'\], wanted only what the file names"):
        load(folder / "flow.toml", functions={"worst": len})


def test_each_file_has_the_module_beside_it_as_it_is_now(tmp_path: Path) -> None:
    text = "inputs = 'x'\noutputs = 'y'\n[nodes.f]\nfunction = 'beside_steps:f'\ninputs = 'x'\noutputs = 'y'\n"

    def written(folder: str, number: int) -> Any:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "beside_steps.py").write_text(f"def f(x):\n    return x + {number}\n")
        (tmp_path / folder / "flow.toml").write_text(text)
        return load(tmp_path / folder / "flow.toml")

    first, second = written("one", 10), written("two", 20)
    again = load(tmp_path / "one" / "flow.toml")
    changed = written("one", 300)
    with first, second, again, changed:
        assert [flow(x=1)["y"] for flow in (first, second, again, changed)] == [11, 21, 11, 301]
    (tmp_path / "two" / "beside_steps.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(FlowError, match="SystemExit: 3, wanted what can be imported"):
        load(tmp_path / "two" / "flow.toml")


def test_what_is_no_file_of_a_flow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.toml")
    (tmp_path / "a.yaml").write_text("a: 3")
    with pytest.raises(FlowError, match=r"got the suffix '.yaml', wanted .toml or .prototxt"):
        load(tmp_path / "a.yaml")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FlowError, match="got bytes that are no UTF-8"):
        load(tmp_path / "a.toml")
    monkeypatch.setattr(files, "MOST_BYTES", 1)
    with pytest.raises(FlowError, match="got more than 1 bytes"):
        load(tmp_path / "a.toml")


# --- written ---------------------------------------------------------------------------------------------------------


def test_a_saved_flow_is_the_one_that_was_read(folder: Path) -> None:
    with load(folder / "flow.toml") as flow:
        save(flow, folder / "again.toml")
        x, image = np.arange(4, dtype=np.float32), images(1)
        with load(folder / "again.toml") as again:
            for mine, theirs in zip(flow.nodes, again.nodes, strict=True):
                assert repr(mine.options) == repr(theirs.options)
                assert (mine.name, mine.inputs, mine.outputs) == (theirs.name, theirs.inputs, theirs.outputs)
            assert (flow.types, flow.capacity, flow.order) == (again.types, again.capacity, again.order)
            assert flow.workers == again.workers
            assert repr(again(image=image, x=x)) == repr(flow(image=image, x=x))
    assert 'numerics = "strict"' in (folder / "again.toml").read_text()


def test_what_no_file_can_hold_is_listed(tmp_path: Path) -> None:
    flow = Flow("f", inputs="x", outputs="z")
    flow.function(lambda x: x, "x", "y", name="a", fixed={"by": object()})
    flow.model(bn.compile(DIGITS), {"image": "y"}, {"probabilities": "z"}, name="b")
    with pytest.raises(FlowError) as raised:
        save(flow, tmp_path / "f.toml")
    for said in ("flow 'f': node 'a': function: got <function", "node 'a': by: got a object", "node 'b': model: got a"):
        assert said in str(raised.value)
    with pytest.raises(FlowError, match=r"got the suffix '.json', wanted .toml"):
        save(flow, tmp_path / "f.json")
    with load_bolt(tmp_path) as flow, pytest.raises(FlowError, match="node 'inference': got a model of a graph of B"):
        save(flow, tmp_path / "f.toml")
    assert not list(tmp_path.glob("*.toml"))


FLOATS = st.floats(allow_nan=False)


@given(st.text(), FLOATS | FLOATS.map(np.float64) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_names_and_numbers_are_written_as_toml_reads_them(name: str, number: Any) -> None:
    given = {"a": {name: [number, name]}}
    assert tomllib.loads(f"a = {toml._toml(given['a'])}") == given


# --- Bolt's ----------------------------------------------------------------------------------------------------------

BOLT = """
name: "digits_flow"     # as Bolt's own examples are written
input: "pixels"
output: "digit"
node {
  name: "pixels"
  type: "Input"
  output: "pixels"
  input_type: "UINT8"
  input_format: "NCHW"
  input_dim: 1
  input_dim: 1
  input_dim: 8
  input_dim: 8
}
node {
  name: "inference"
  type: "Inference"
  input: "pixels"
  output: "digit"
  infer_output_size_parameter: "digitOutputSize"
  preprocess_parameter: "pixelProcess"
  preprocess_parameter: "255"
  inference_parameter: "/data/local/tmp/digits_f32.bolt"
  inference_parameter: "/data/local/tmp/algorithms"
  postprocess_parameter: "best"
  precision: "FLOAT16"
  tmp: 64
}
"""


def scaled(values: dict[str, Any], most: str) -> dict[str, Any]:
    return {"image": values["pixels"].astype(np.float32) / np.float32(most)}


def best(values: dict[str, Any]) -> dict[str, Any]:
    assert values["pixels"].dtype == np.uint8
    assert values["image"].dtype == np.float32
    return {"digit": values["probabilities"].argmax(1)}


def load_bolt(folder: Path, text: str = BOLT, **given: Any) -> Flow:
    (folder / "flow.prototxt").write_text(text)
    chosen = {"functions": {"pixelProcess": scaled, "best": best}, "models": {"digits_f32.bolt": DIGITS}}
    return load(folder / "flow.prototxt", **{**chosen, **given})


@pytest.mark.parametrize("how", [{}, {"copies": 2}, {"workers": [Workers(1), Workers(device="host")]}])
def test_a_graph_of_bolt_is_a_flow(tmp_path: Path, how: dict[str, Any]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 1, 1, 8, 8)).astype(np.uint8)
    session = bn.compile(DIGITS)
    with load_bolt(tmp_path, **how) as flow:
        assert flow.name == "digits_flow"
        for x in pixels:
            flow.enqueue(pixels=x)
        for x in pixels:
            made = flow.dequeue(timeout=30).result()["digit"]
            np.testing.assert_array_equal(made, np.asarray(session(x.astype(np.float32) / np.float32(255))).argmax(1))
        assert {"inference/before", "inference", "inference/behind"} == {node.name for node in flow.nodes}


def sums() -> Graph:
    """Two inputs of 64-bit integers, as models of texts have them."""
    graph = Graph("sums")
    x, y = (graph.add_input(name, TensorType(I64, (Sym("n"),))) for name in ("x", "y"))
    graph.add_output(Builder(graph)(Add(), x, y), "total")
    return graph


def test_numbers_of_other_widths_are_converted(tmp_path: Path) -> None:
    text = 'input: "x" input: "y" output: "total" node { name: "n" input: "x" input: "y" output: "total" ' \
           'inference_parameter: "sum.bolt" }'  # fmt: skip
    with load_bolt(tmp_path, text, functions={}, models={"sum.bolt": sums()}) as flow:
        made = flow(x=np.arange(3, dtype=np.uint32), y=np.arange(3, dtype=np.int32))["total"]
        assert made.dtype == np.int64
        assert made.tolist() == [0, 2, 4]
        with pytest.raises(bn.DTypeError, match="node 'n': input 'x': got f32, wanted i64"):
            flow(x=np.zeros(3, np.float32), y=np.zeros(3, np.int32))
        with pytest.raises(bn.DTypeError, match=f"got 1 to {2**64 - 1}, wanted what i64 has"):
            flow(x=np.array([1, 2**64 - 1], np.uint64), y=np.zeros(2, np.int32))


def test_a_function_before_a_model_makes_outputs_of_the_node_too(tmp_path: Path) -> None:
    text = 'input: "x" output: "total" output: "half" node { name: "n" input: "x" output: "total" output: "half" ' \
           'preprocess_parameter: "split" inference_parameter: "sum.bolt" }'  # fmt: skip
    functions = {"split": lambda v: {"x": v["x"] // 2, "y": v["x"], "half": 3}}
    with load_bolt(tmp_path, text, functions=functions, models={"sum.bolt": sums()}) as flow:
        made = flow(x=np.array([4]))
    assert (made["total"].tolist(), made["half"]) == ([6], 3)


def test_a_node_without_a_model_calls_its_functions(tmp_path: Path) -> None:
    text = 'input: "x" output: "y" node { name: "n" input: "x" output: "y" preprocess_parameter: "twice" ' \
           'inference_parameter: "NULL" postprocess_parameter: "more" postprocess_parameter: "5" }'  # fmt: skip
    functions = {"twice": lambda v: {"z": v["x"] * 2}, "more": lambda v, by: {"y": v["z"] + int(by)}}
    with load_bolt(tmp_path, text, functions=functions, models={}) as flow:
        assert flow(x=4) == {"y": 13}
    functions["more"] = lambda v, by: {"q": 3}
    with (
        load_bolt(tmp_path, text, functions=functions, models={}) as flow,
        pytest.raises(FlowError, match="node 'n': results: got"),
    ):
        flow(x=4)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('type: "Inference"', 'type: "Inferenc"', "'inference': type: got 'Inferenc', wanted one of Input, Inference"),
        ('"UINT8"', '"INT64"', "node 'pixels': input_type: got 'INT64', wanted one of FLOAT32"),
        ("tmp: 64", "tmpp: 64 dims: 3", "keys: got node 'inference': tmpp (wanted tmp); node 'inference': dims (w"),
        ('input: "pixels"\noutput', 'input: "pixls"\noutput', "node 'inference/before': inputs: got ['pixels'], that "),
        ('"pixelProcess"', '"pixels"', "functions: got none for 'pixels', wanted functions= and models=, or --f"),
        ("digits_f32.bolt", "x.bolt", "models: got none for '/data/local/tmp/x.bolt', wanted functions= and"),
        ("tmp: 64", "tmp: 64 }", "line 29: got '}', wanted the name of a field"),
        ('preprocess_parameter: "pixelProcess"\n', 'preprocess_parameter: "NULL"\n', "inputs: got ['pixels'], wanted"),
        ('name: "digits_flow"', "name { a: 1 }", "name: got a message, wanted text"),
        ('"best"', "{ a: 1 }", "node 'inference': postprocess_parameter: got a message, wanted text"),
        ('"/data/local/tmp/digits_f32.bolt"', '"/dev"', "node 'inference': dev: format: got a folder with"),
        ('"/data/local/tmp/digits_f32.bolt"', f'"{"d" * 5000}"', "models: got none for 'dddd"),
        ("node {\n  name: \"inf", "node: 3 node {\n  name: \"inf", "node: got '3', wanted a message"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_graph_of_bolt_is_one_error(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in BOLT
    with pytest.raises(FlowError) as raised:
        load_bolt(tmp_path, BOLT.replace(before, after, 1))
    assert str(raised.value).startswith(f"{tmp_path / 'flow.prototxt'}: ")
    assert said in str(raised.value)


# --- damaged files ---------------------------------------------------------------------------------------------------

VALUES = ("3", "-1", "1.5", '"x"', '""', "[]", "{}", "true", '["a", 3]', "[[]]", "{ a = 1 }", "inf", "1979-05-27")


def damaged(text: str, pattern: str, others: Sequence[str], chance: random.Random) -> str:
    """The text with one to three of its pieces removed, doubled, or another in their place."""
    pieces = re.findall(pattern, text)
    for _ in range(chance.choice((1, 2, 3))):
        at = chance.randrange(len(pieces))
        other = chance.choice((chance.choice(others), chance.choice(pieces)))
        pieces[at : at + 1] = chance.choice(([], [pieces[at]] * 2, [other]))
    return "".join(pieces)


def test_damaged_files_are_refused_or_read(folder: Path) -> None:
    chance, said = random.Random(0), list[str]()
    for i in range(300):
        try:
            if i % 2:
                load_bolt(folder, damaged(BOLT, r'"[^"]*"|\w+|\s+|.', ("<", "[", "3", '"\\xff"', "node"), chance))
            else:
                made = damaged(FLOW, r"(?<= = ).*|[^=]+=?(?: )?", VALUES, chance)
                (folder / "flow.toml").write_text(made)
                load(folder / "flow.toml")
        except FlowError as error:
            said.append(str(error))
    assert 150 < len(said) < 300
    assert all(text.startswith(str(folder)) and "fault of bolt-numba" not in text for text in said)
