"""Graphs as Bolt's own programs have them: shapes of its eight examples, names of a phone, several in one executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.flow import Flow, FlowEmptyError, FlowError, Flows, load
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.pointwise import Add
from bolt_numba.types import F32, I64, Array, Sym, TensorType

PHONE = "/data/user/0/com.example.application/cache/"


def node(**fields: str | Sequence[str | int]) -> str:
    rows = [(k, v) for k, given in fields.items() for v in ([given] if isinstance(given, str) else given)]
    return (
        "node {\n" + "".join(f"  {k}: {v if isinstance(v, int) else chr(34) + v + chr(34)}\n" for k, v in rows) + "}\n"
    )


def graph_of(
    name: str, inputs: Mapping[str, tuple[str, str, Sequence[int]]], outputs: Sequence[str], **more: Any
) -> str:
    """A graph of one model.  inputs: type, format and sizes by name."""
    text = (
        f'name: "{name}"\n' + "".join(f'input: "{n}"\n' for n in inputs) + "".join(f'output: "{n}"\n' for n in outputs)
    )
    for n, (dtype, layout, dims) in inputs.items():
        text += node(name=n, type="Input", output=n, input_type=dtype, input_format=layout, input_dim=list(dims))
    return text + node(name=f"{name}_inference", input=list(inputs), output=list(outputs), **more)


def adds(inputs: Sequence[str], outputs: Sequence[str], dtype: Any = F32) -> Graph:
    """A model whose i-th output is its i-th input, or its last, twice."""
    made = Graph("model")
    values = [made.add_input(n, TensorType(dtype, None)) for n in inputs]
    build = Builder(made)
    for i, name in enumerate(outputs):
        x = values[min(i, len(values) - 1)]
        made.add_output(build(Add(), x, x), name)
    return made


def opened(folder: Path, text: str, **given: Any) -> Flow:
    (folder / "graph.prototxt").write_text(text)
    return load(folder / "graph.prototxt", **given)


def never(*_: Any) -> Any:
    raise AssertionError("Bolt asks such a function for sizes of results, which are known here")


def ones(inputs: Mapping[str, tuple[str, str, Sequence[int]]]) -> dict[str, Array]:
    kinds = {"FLOAT32": np.float32, "FLOAT16": np.float16, "UINT8": np.uint8, "UINT32": np.uint32}
    return {n: np.ones(dims, kinds[dtype]) for n, (dtype, _, dims) in inputs.items()}


def test_image_classification_of_a_phone(tmp_path: Path) -> None:
    """A name with a colon, a function before and behind, a second text of the model that is empty."""
    inputs = {"input:1": ("UINT8", "NCHW", (1, 224, 224, 3))}
    text = graph_of(
        "imageClassification_flow", inputs, ["output"], type="Inference", preprocess_parameter="pixelProcess",
        postprocess_parameter="postProcess", inference_parameter=[f"{PHONE}ghostnet_f32.bolt", ""],
    )  # fmt: skip
    functions = {
        "pixelProcess": lambda v: {"input:1": v["input:1"].transpose(0, 3, 1, 2).astype(np.float32) / 255},
        "postProcess": lambda v: {"output": np.argsort(v["scores"].reshape(-1))[-5:]},
    }
    models = {"ghostnet_f32.bolt": adds(["input:1"], ["scores"])}
    with opened(tmp_path, text, functions=functions, models=models) as flow:
        assert flow({"input:1": np.ones((1, 224, 224, 3), np.uint8)})["output"].shape == (5,)


def test_face_super_resolution_and_a_detector_of_eight_outputs(tmp_path: Path) -> None:
    """Inputs of f16 for a model of f32; names that are numbers; a second text that names a file of algorithms."""
    inputs = {"input": ("FLOAT16", "NCHW", (1, 3, 128, 128))}
    for outputs in (["output"], ["594", "nms_hm", "598", "nms_hm_kp", "wh", "kps", "reg", "kp_offset"]):
        text = graph_of("facesr", inputs, outputs, inference_parameter=["/data/local/tmp/CI/f16.bolt", "/data/test"])
        with opened(tmp_path, text, models={"f16.bolt": adds(["input"], outputs)}) as flow:
            made = flow(ones(inputs))
        assert list(made) == outputs
        assert all((x == 2).all() for x in made.values())


def test_texts_of_tinybert(tmp_path: Path) -> None:
    """Words of u32 for a model of i64; the function of sizes may be given, and is not called."""
    inputs = {f"tinybert_{n}": ("UINT32", "NORMAL", (1, 32)) for n in ("words", "positions", "token_type")}
    outputs = ["intent_softmax", "slot_softmax"]
    text = graph_of("tinybert_flow", inputs, outputs, infer_output_size_parameter="tinybertInferOutputSize",
                    inference_parameter="/data/local/tmp/tinybert_f32.bolt")  # fmt: skip
    models = {"tinybert_f32.bolt": adds(list(inputs), outputs, I64)}
    with opened(tmp_path, text, functions={"tinybertInferOutputSize": never}, models=models) as flow:
        assert all((x == 2).all() for x in flow(ones(inputs)).values())


def speech(part: str) -> tuple[dict[str, tuple[str, str, Sequence[int]]], list[str]]:
    """Inputs and outputs of the networks of a recogniser: what comes, and the memories of their layers."""
    if part == "joint":
        return dict.fromkeys(("encoder", "prediction_net_reshape"), ("FLOAT32", "NCHW", (1, 512))), ["joint_argmax"]
    first = {"encoder": ("sounds", ("FLOAT32", "NCHW", (1, 15, 128)))}
    name, kind = first.get(part, ("label", ("UINT32", "NORMAL", (1, 1))))
    count = {"encoder": 11, "prediction_net": 4}[part]
    layout = {"encoder": "NCHWC8", "prediction_net": "NCHW"}[part]
    memories = {f"{part}_layer{i}_{k}mem": ("FLOAT32", layout, (1, 3, 8, 64)) for i in range(count) for k in "kv"}
    return {name: kind, **memories}, [f"{part}_ln", *(m.replace("mem", "_neg_slice") for m in memories)]


def recogniser(folder: Path) -> dict[str, Flow]:
    """The four graphs of Bolt's speech recognition, which share one table of functions."""
    embedding = np.arange(24, dtype=np.float32).reshape(8, 3)
    embedding.tofile(folder / "pinyin_lm_embedding.bin")

    def looked_up(values: Mapping[str, Any], path: str, rows: str, columns: str) -> dict[str, Any]:
        table = np.fromfile(folder / path, np.float32).reshape(int(rows), int(columns))
        return {"embedded": table[values["pinyin"]]}

    functions = {
        "encoderPreProcess": lambda v: {"sounds": v["sounds"] * 0.5},
        "pinyin2hanziPreProcess": looked_up,
        **dict.fromkeys(("encoderInferOutputSize", "jointInferOutputSize", "predictionInferOutputSize"), never),
    }
    texts, models = {}, {}
    for part in ("encoder", "prediction_net", "joint"):
        inputs, outputs = speech(part)
        before = {"preprocess_parameter": "encoderPreProcess"} if part == "encoder" else {}
        texts[part] = graph_of(part, inputs, outputs, infer_output_size_parameter=f"{part}InferOutputSize", **before,
                               inference_parameter=f"/data/local/tmp/asr_{part}_f32.bolt")  # fmt: skip
        models[f"asr_{part}_f32.bolt"] = adds(list(inputs), outputs)
    texts["pinyin"] = graph_of(
        "pinyin2hanzi_flow", {"pinyin": ("UINT32", "NORMAL", (1, 4))}, ["hanzi_squeeze/Squeeze"],
        preprocess_parameter=["pinyin2hanziPreProcess", "./pinyin_lm_embedding.bin", "8", "3"],
        inference_parameter="/data/local/tmp/pinyin_f32.bolt",
    )  # fmt: skip
    models["pinyin_f32.bolt"] = adds(["embedded"], ["hanzi_squeeze/Squeeze"])
    words = Graph("words")
    label = words.add_input("label", TensorType(I64, (Sym("n"), 1)))
    words.add_output(Builder(words)(Gather(0), np.arange(5, dtype=np.float32), label), "prediction_net_ln")
    for name in list(speech("prediction_net")[0])[1:]:
        x = words.add_input(name, TensorType(F32, None))
        words.add_output(Builder(words)(Add(), x, x), name.replace("mem", "_neg_slice"))
    models["asr_prediction_net_f32.bolt"] = words
    return {part: opened(folder, text, functions=functions, models=models) for part, text in texts.items()}


def test_speech_recognition_is_four_graphs_in_one_executor(tmp_path: Path) -> None:
    with Flows(recogniser(tmp_path)) as flows:
        assert len(flows.flows["encoder"].inputs) == len(flows.flows["encoder"].outputs) == 23
        order = ["encoder", "prediction_net", "joint", "pinyin", "encoder", "joint"]
        for part in order:
            inputs = {"pinyin": ("UINT32", "NORMAL", (1, 4))} if part == "pinyin" else speech(part)[0]
            flows.enqueue(part, ones(inputs))
        made = []
        while flows.size():  # as a ported loop reads all that is under way
            made.append(flows.dequeue().result())
        with pytest.raises(FlowEmptyError, match="no task is left"):
            flows.dequeue()
    firsts = [next(iter(results)) for results in made]
    ends = {"pinyin": "hanzi_squeeze/Squeeze", "joint": "joint_argmax"}
    assert firsts == [ends.get(part, f"{part}_ln") for part in order]
    assert (made[0]["encoder_ln"] == 1).all()
    assert made[1]["prediction_net_ln"].tolist() == [[1.0]]
    np.testing.assert_array_equal(made[3]["hanzi_squeeze/Squeeze"], np.full((1, 4, 3), [6.0, 8.0, 10.0]))


def test_functions_that_a_graph_does_not_name_are_left(tmp_path: Path) -> None:
    text = graph_of("g", {"x": ("FLOAT32", "NCHW", (1,))}, ["y"], inference_parameter="NULL", preprocess_parameter="f")
    with opened(tmp_path, text, functions={"f": lambda v: {"y": v["x"]}, "g": never}) as flow:
        assert flow(x=3)["y"] == 3
    with pytest.raises(FlowError, match="functions: got none for 'f'"):
        opened(tmp_path, text, functions={"g": never})
