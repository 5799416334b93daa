"""Real models: every file imports quickly and means what onnxruntime computes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import bolt_numba as bn
from bolt_numba.converters.formats import load
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.ir.interpret import interpret
from bolt_numba.types import Array
from tests.models import MODELS, FetchError, fetch
from tests.near import assert_near
from tests.unsaturated import unsaturated

IMAGES = {
    "ch_PP-OCRv4_det_infer.onnx": (1, 3, 64, 96),
    "ch_PP-OCRv4_rec_infer.onnx": (1, 3, 48, 160),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (2, 3, 48, 192),
    "open_nsfw.onnx": (1, 224, 224, 3),
    "nmp.onnx": (1, 43844, 1),
}
ROUNDED = ("rawi", "bilstm")
"""They round activations to 8 bits: what differs in the last bit before may differ by a level afterwards, and by a
percent in the end.  `test_rounding_layers_agree_one_by_one` shows that nothing else differs."""
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def fetched(name: str) -> Path:
    try:
        return fetch(name)
    except FetchError as error:
        pytest.skip(str(error))


def feeds(name: str, path: Path) -> dict[str, Array]:
    """Inputs of the right kinds and sizes; dynamic sizes are small."""
    import onnxruntime

    rng = np.random.default_rng(0)
    made: dict[str, Array] = {}
    for info in onnxruntime.InferenceSession(path).get_inputs():
        shape = tuple(d if isinstance(d, int) else 2 for d in info.shape)
        if name in IMAGES:
            made[info.name] = rng.standard_normal(IMAGES[name], np.float32)
        elif name.startswith("silero"):
            shape = {"input": (3 if "sequence" in name else 1, 576), "state": (2, 1, 128)}.get(info.name, info.shape)
            made[info.name] = (
                np.array(16000) if info.name == "sr" else rng.standard_normal(shape, np.float32) * np.float32(0.1)
            )
        else:
            ids = rng.integers(1, 30, (2, 7))
            made[info.name] = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}.get(
                info.name, ids
            )
        assert len(made[info.name].shape) == len(shape)
    return made


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(".onnx")])
def test_model_means_what_onnxruntime_computes(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = fetched(name)
    inputs = feeds(name, path)
    session = onnxruntime.InferenceSession(unsaturated(onnx.load(path)).SerializeToString())
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
    got = interpret(load(path), inputs)
    assert list(got) == list(wanted)
    for key, array in wanted.items():
        assert got[key].dtype == array.dtype
        assert got[key].shape == array.shape
        tolerance = 5e-2 if name.startswith(ROUNDED) else 1e-4
        assert_near(got[key], array, tolerance, key, floor=0.01)


def _alone(node: onnx.NodeProto, model: onnx.ModelProto, known: dict[str, Array]) -> onnx.ModelProto:
    """A model of one node, whose operands that are no weights are inputs with the types of ``known``."""
    weights = {w.name: w for w in model.graph.initializer}
    given = [helper.make_tensor_value_info(i, helper.np_dtype_to_tensor_dtype(known[i].dtype), known[i].shape)
             for i in dict.fromkeys(node.input) if i and i not in weights]  # fmt: skip
    results = [onnx.ValueInfoProto(name=o) for o in node.output if o]
    graph = helper.make_graph([node], "g", given, results, [weights[i] for i in set(node.input) if i in weights])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(ROUNDED)])
def test_rounding_layers_agree_one_by_one(name: str) -> None:
    """Each layer, given what onnxruntime gives it, gives what onnxruntime gives: integers the same, floats to 1e-5."""
    onnxruntime = pytest.importorskip("onnxruntime")
    path = fetched(name)
    known, model = feeds(name, path), onnx.load(path)
    wider = onnx.load(path)
    shown = {o.name for o in model.graph.output}
    wider.graph.output.extend(
        onnx.ValueInfoProto(name=o) for n in model.graph.node for o in n.output if o and o not in shown
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(unsaturated(wider).SerializeToString(), options)
    known |= dict(zip([o.name for o in session.get_outputs()], session.run(None, known), strict=True))
    checked = 0
    for node in model.graph.node:
        if node.op_type not in ("DynamicQuantizeLSTM", "DynamicQuantizeLinear", "MatMulInteger"):
            continue
        one = _alone(node, model, known)
        inputs = {i.name: known[i.name] for i in one.graph.input}
        for got in (interpret(read_model(one), inputs), dict(bn.compile(one.SerializeToString())(inputs).items())):
            for key, array in got.items():
                assert_near(array, known[key], 1e-5 if array.dtype.kind == "f" else 0, key, floor=1)
                checked += 1
    assert checked > 6


@pytest.mark.parametrize(("name", "rate"), [("silero_vad.onnx", 8000), ("silero_vad.onnx", 16000), ("minilm.onnx", 0)])
def test_intermediate_tensors_have_their_names(name: str, rate: int) -> None:
    """Tensor by tensor, not only at the end: names are those of the file."""
    onnxruntime = pytest.importorskip("onnxruntime")
    path = fetched(name)
    model = onnx.load(path)
    graph = load(path)
    names = {v.name for node in graph.nodes for v in node.outputs}
    own = [n.output[0] for n in model.graph.node if n.op_type in ("MatMul", "If", "Softmax") and n.output[0] in names]
    assert own, "no tensor of the file is found"
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in own)
    inputs = feeds(name, path)
    if "sr" in inputs:
        inputs = {**inputs, "sr": np.array(rate), "input": inputs["input"][:, : 576 if rate == 16000 else 288]}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    got = interpret(graph, inputs, own)
    for key, array in zip(own, wanted, strict=True):
        assert_near(got[key], array, 1e-4, key)


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda p: p.stem)
def test_light_models_are_read_quickly(path: Path) -> None:
    load(path)  # the first one loads the tables
    start = time.process_time()
    graph = load(path)
    assert time.process_time() - start < 1.0
    assert all(v.type.is_static for v in graph.values())


def test_a_large_file_is_read_quickly(tmp_path: Path) -> None:
    """100 MB of weights cost what copying them costs."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (float[5000] x) => (float[5000] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((5000, 5000), np.float32), "w"))
    path = tmp_path / "big.onnx"
    path.write_bytes(model.SerializeToString())
    start = time.process_time()
    graph = load(path)
    assert time.process_time() - start < 1.5
    assert graph.constants()[0].type.shape == (5000, 5000)
