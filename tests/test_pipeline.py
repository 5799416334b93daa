"""The whole pipeline: golden texts, values, order of rules, real models."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from bolt_numba.converters.onnx.reading.read import read_onnx
from bolt_numba.errors import BoltError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.spec import verify
from bolt_numba.ir.text import to_text
from bolt_numba.ops.arrays.shape import Transpose
from bolt_numba.ops.control import If
from bolt_numba.ops.pointwise import Neg
from bolt_numba.passes.layout.permuted import moves_data
from bolt_numba.passes.pipeline import STAGES, PipelineRun, run_pipeline
from bolt_numba.passes.rewrite import Rule, nested, rewrite
from bolt_numba.passes.trace import Trace
from bolt_numba.types import BOOL, F32, Array, Sym, TensorType
from tests import models
from tests.near import assert_near
from tests.pipeline_graphs import NETWORKS, graph

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def feeds(g: Graph) -> dict[str, Array]:
    """Whole numbers; symbols are 8, the batch 2."""
    rng = np.random.default_rng(3)
    sizes = {"n": 2, "batch": 2}
    made = {}
    for v in g.inputs:
        shape = [sizes.get(str(d), 8) if isinstance(d, Sym) else d for d in v.type.shape or ()]
        made[v.name] = rng.integers(-4, 5, shape).astype(v.type.dtype)
    return made


def operators(g: Graph) -> Counter[str]:
    return Counter(n.op.name for sub in nested(g) for n in sub.nodes)


def real_transposes(g: Graph) -> int:
    """Transposes that change the order of elements."""
    nodes = [n for sub in nested(g) for n in sub.nodes if isinstance(n.op, Transpose)]
    shapes = [n.inputs[0].type.shape or (2,) * 9 for n in nodes if n.inputs[0] is not None]
    return sum(moves_data(n.op.perm, shape) for n, shape in zip(nodes, shapes, strict=True))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NETWORKS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(name, to_text(run_pipeline(graph(name), check=True)))


@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_kept_after_every_stage(name: str) -> None:
    g = graph(name)
    want = interpret(g, feeds(g))
    for stage in STAGES:
        made = run_pipeline(g, until=stage.name, check=True)
        got = interpret(made, feeds(g))
        assert got.keys() == want.keys()
        for key, array in want.items():
            assert_near(got[key], array, 1e-5, f"{name} after {stage.name}")


@pytest.mark.parametrize("name", NETWORKS)
def test_order_of_rules_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = Counter(n.op for n in run_pipeline(graph(name)).nodes)
    for seed in range(3):
        rng = random.Random(seed)

        def shuffled(run: PipelineRun, g: Graph, rules: list[Rule], rng: random.Random = rng) -> None:
            mixed = list(rules)
            rng.shuffle(mixed)
            rewrite(g, mixed)

        monkeypatch.setattr(PipelineRun, "rewrite", lambda run, g, rules: shuffled(run, g, rules))
        got = run_pipeline(graph(name))
        monkeypatch.undo()
        assert Counter(n.op for n in got.nodes) == want


def test_the_graph_given_is_left_alone() -> None:
    for name in NETWORKS:
        g = graph(name)
        before = to_text(g)
        run_pipeline(g)
        assert to_text(g) == before
        verify(g)


def test_bodies_within_bodies_are_left_alone() -> None:
    """Whatever their depth: no graph of the copy is one of the graph given."""

    def branch(depth: int) -> Graph:
        made = Graph(f"depth {depth}")
        x, flag = made.add_input("x", TensorType(F32, (4,))), made.add_input("flag", TensorType(BOOL, ()))
        b = Builder(made)
        y = b(Neg(), b(Neg(), x))  # which is nothing
        made.add_output(y if not depth else b(If(branch(depth - 1), branch(depth - 1)), flag, y, flag), "y")
        return made

    source = branch(3)
    before = [to_text(g) for g in nested(source)]
    made = run_pipeline(source)
    assert [to_text(g) for g in nested(source)] == before
    assert not set(map(id, nested(source))) & set(map(id, nested(made)))


def test_until_stops_after_a_number_of_rewrites() -> None:
    whole = Trace()
    run_pipeline(graph("residual"), trace=whole)
    assert len(whole.rewrites) > 6
    data = feeds(graph("residual"))
    want = interpret(graph("residual"), data)["out0"]
    for n in range(0, len(whole.rewrites), 2):
        trace = Trace()
        part = run_pipeline(graph("residual"), trace=trace, until=n, check=True)
        assert len(trace.rewrites) == n
        assert_near(interpret(part, data)["out0"], want, 1e-5)


def test_unknown_stage_is_refused() -> None:
    with pytest.raises(BoltError, match="stage: got 'never'"):
        run_pipeline(graph("residual"), until="never")


# operators before and after, and transposes left that move data
LIGHT_MODELS = {
    "bvlc_alexnet": (2, {"Conv": 5, "MatMul": 3}),
    "densenet121": (1, {"Conv": 121, "Concat": 58}),
    "inception_v1": (1, {"Conv": 57, "Concat": 9}),
    "inception_v2": (1, {"Conv": 69, "Concat": 10}),
    "resnet50": (1, {"Conv": 53, "MatMul": 1}),
    "shufflenet": (17, {"Conv": 49, "Concat": 3}),
    "squeezenet": (1, {"Conv": 26, "Concat": 8}),
    "vgg19": (2, {"Conv": 16, "MatMul": 3}),
    "zfnet512": (2, {"Conv": 5, "MatMul": 3}),
}


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_light_models_come_out_clean(name: str) -> None:
    file = LIGHT / f"light_{name}.onnx"
    if not file.exists():
        pytest.skip("this onnx package has no light models")
    g = read_onnx(file.read_bytes(), LIGHT, name)
    made = run_pipeline(g, check=True)
    transposes, wanted = LIGHT_MODELS[name]
    found = operators(made)
    assert real_transposes(made) == transposes
    assert {k: found[k] for k in wanted} == wanted
    assert not found.keys() & {"ConstantOfShape", "BatchNormalization", "Unsqueeze", "Identity", "Add", "Relu"} - {
        "Relu"
    }
    assert found["Chain"] <= (62 if name == "densenet121" else 0)


def test_resnet_is_fast_to_optimise() -> None:
    file = LIGHT / "light_resnet50.onnx"
    if not file.exists():
        pytest.skip("this onnx package has no light models")
    g = read_onnx(file.read_bytes(), LIGHT, "resnet50")
    best = min(_seconds(g) for _ in range(3))
    assert best < 1.0


def _seconds(g: Graph) -> float:
    start = time.process_time()
    run_pipeline(g)
    return time.process_time() - start


# name -> transposes left that move data, operators at most afterwards, operators that must be there
REAL_MODELS: dict[str, tuple[int, int, dict[str, int]]] = {
    "open_nsfw.onnx": (0, 57, {"Conv": 53, "MatMul": 1}),
    "nmp.onnx": (0, 137, {"Conv": 32}),
    "minilm.onnx": (0, 109, {"FusedAttention": 6, "LayerNormalization": 13, "MatMul": 36}),
    "ch_PP-OCRv4_det_infer.onnx": (1, 108, {"Conv": 62, "ConvTranspose": 2}),
    "ch_PP-OCRv4_rec_infer.onnx": (3, 105, {"Conv": 38, "FusedAttention": 2, "LayerNormalization": 5}),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (1, 77, {"Conv": 53}),
    "silero_vad.onnx": (4, 110, {"LSTM": 2}),
    "silero_vad_16k_op15.onnx": (2, 55, {"LSTM": 1}),
    "silero_vad_16k_sequence.onnx": (0, 17, {"LSTM": 1, "Conv": 6}),
    "silero_vad_half.onnx": (2, 54, {"LSTM": 1}),
    "silero_vad_op18_ifless.onnx": (2, 56, {"Conv": 12, "MatMul": 4}),
    "silero_vad_openvino_16k.onnx": (0, 19, {"LSTM": 1, "Conv": 6}),
    "bilstm.int8.onnx": (4, 46, {"DynamicQuantizeLSTM": 3, "QLinearMatMul": 4}),
    "rawi.int8.onnx": (3, 22, {"DynamicQuantizeLSTM": 2}),
    "rawi_ensemble.int8.onnx": (6, 48, {"DynamicQuantizeLSTM": 4}),
    "rawi_v2.int8.onnx": (3, 22, {"DynamicQuantizeLSTM": 2}),
    "rawi_v3.int8.onnx": (3, 27, {"DynamicQuantizeLSTM": 2}),
}


@pytest.mark.parametrize("name", REAL_MODELS)
def test_real_models_come_out_clean(name: str) -> None:
    file = models.folder() / name
    if not file.exists():
        pytest.skip(f"{name} has not been fetched: python -m tests.models")
    g = read_onnx(file.read_bytes(), None, name)
    made = run_pipeline(g, check=True)
    transposes, most, wanted = REAL_MODELS[name]
    found = operators(made)
    assert real_transposes(made) <= transposes
    assert found.total() <= most
    assert {k: found[k] for k in wanted} == wanted
    assert [v.name for v in made.inputs] == [v.name for v in g.inputs]
    assert made.output_names == g.output_names
