"""Libraries that run models of their user: converters, exporters, pipelines."""

from __future__ import annotations

import os

import numpy as np

from bench.clients import inputs
from bench.clients.scenario import client
from bench.clients.texts import SENTENCES, tokenizer


@client("skl2onnx", "a scaler and a forest of 50 trees on 200 rows")
def skl2onnx(folder):
    import onnxruntime
    from skl2onnx import to_onnx
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, labels = make_classification(600, 20, n_informative=8, n_classes=3, random_state=0)
    rows = rows.astype(np.float32)
    fitted = make_pipeline(StandardScaler(), RandomForestClassifier(50, random_state=0)).fit(rows[200:], labels[200:])
    file = to_onnx(fitted, rows[:1], options={"zipmap": False}).SerializeToString()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"X": rows[:200]})


@client("polygraphy", "runs a text detector through its OnnxrtRunner", tolerance=5e-3)
def polygraphy(folder):
    import rapidocr_onnxruntime
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    package = os.path.dirname(rapidocr_onnxruntime.__file__)
    runner = OnnxrtRunner(SessionFromOnnx(os.path.join(package, "models", "ch_PP-OCRv4_det_infer.onnx")))
    runner.activate()
    picture = inputs.page(640, 480).transpose(2, 0, 1)[None].astype(np.float32) / 127.5 - 1
    return lambda: [np.array(v) for v in runner.infer({"x": picture}).values()]


@client("mlflow-skinny", "predicts 200 rows by pyfunc (three dense layers, saved by mlflow.onnx)")
def mlflow(folder):
    import mlflow.onnx
    import mlflow.pyfunc
    import onnx
    import pandas
    from onnx import TensorProto, helper, numpy_helper

    home, rng, width = folder / "mlflow", np.random.default_rng(0), 64
    rows = pandas.DataFrame(np.random.default_rng(1).normal(size=(200, width)).astype("f4"))
    if not (home / "MLmodel").exists():
        weights = [numpy_helper.from_array(rng.normal(0, 0.2, (width, width)).astype("f4"), f"w{i}") for i in range(3)]
        nodes = [helper.make_node("MatMul", ["x", "w0"], ["y0"])]
        for i in (1, 2):
            nodes.append(helper.make_node("Relu", [f"y{i - 1}"], [f"z{i}"]))
            nodes.append(helper.make_node("MatMul", [f"z{i}", f"w{i}"], [f"y{i}"]))
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in ("x", "y2")]
        graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        mlflow.onnx.save_model(onnx.shape_inference.infer_shapes(made), str(home))
    model = mlflow.pyfunc.load_model(str(home))
    return lambda: model.predict(rows)["y2"].to_numpy()


@client("torch", "a small network exported as ONNXProgram and called", environment="torch")
def torch_program(folder):
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, 2, 1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()]
    for _ in range(4):
        layers += [torch.nn.Conv2d(32, 32, 3, 1, 1), torch.nn.BatchNorm2d(32), torch.nn.SiLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10), torch.nn.Softmax(1)]
    picture = torch.from_numpy(inputs.photo(224, 224).astype(np.float32)).permute(2, 0, 1)[None] / 255
    program = torch.onnx.export(torch.nn.Sequential(*layers).eval(), (picture,), dynamo=True, verbose=False)
    return lambda: [output.numpy() for output in program(picture)]


@client("optimum-onnx", "classifies eight sentences (ORTModel, six layers of 384)", environment="torch")
def optimum(folder):
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from transformers import AutoTokenizer, BertForSequenceClassification

    home = bert(folder / "classifier", BertForSequenceClassification)
    if not (home / "model.onnx").exists():
        ORTModelForSequenceClassification.from_pretrained(home, export=True).save_pretrained(home)
    model, words = ORTModelForSequenceClassification.from_pretrained(home), AutoTokenizer.from_pretrained(home)

    def use():
        return model(**words(list(SENTENCES), padding=True, return_tensors="pt")).logits.numpy()

    return use


@client("optimum-onnx (generation)", "writes 24 tokens (ORTModelForCausalLM, four layers of 256)", environment="torch")
def generation(folder):
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import GPT2Config, GPT2LMHeadModel

    home = folder / "writer"
    if not (home / "model.onnx").exists():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=800, n_embd=256, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None)
        GPT2LMHeadModel(config).save_pretrained(home)
        ORTModelForCausalLM.from_pretrained(home, export=True).save_pretrained(home)
    model, start = ORTModelForCausalLM.from_pretrained(home), torch.arange(5, 21)[None]

    def use():
        seen = torch.ones_like(start)
        made = model.generate(start, attention_mask=seen, max_new_tokens=24, do_sample=False, pad_token_id=0)
        return made.numpy()

    return use


@client("optimum-onnx (speech)", "hears ten seconds (ORTModelForSpeechSeq2Seq, Whisper of four layers of 256)", "torch")
def speech(folder):
    import torch
    from optimum.onnxruntime import ORTModelForSpeechSeq2Seq
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    home, features = folder / "listener", WhisperFeatureExtractor()
    if not (home / "encoder_model.onnx").exists():
        torch.manual_seed(0)
        sizes = {f"{part}_{key}": 4 for part in ("encoder", "decoder") for key in ("layers", "attention_heads")}
        tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2}
        config = WhisperConfig(
            vocab_size=800, d_model=256, encoder_ffn_dim=1024, decoder_ffn_dim=1024, **sizes, **tokens
        )
        WhisperForConditionalGeneration(config).save_pretrained(home)
        features.save_pretrained(home)
        ORTModelForSpeechSeq2Seq.from_pretrained(home, export=True).save_pretrained(home)
    model, sound = ORTModelForSpeechSeq2Seq.from_pretrained(home), inputs.voice(10.0)

    def use():
        heard = features(sound, sampling_rate=16000, return_tensors="pt").input_features
        return model.generate(heard, max_new_tokens=24, min_new_tokens=24, do_sample=False).numpy()

    return use


@client("sentence-transformers", "embeds eight sentences (backend onnx, six layers of 384)", environment="torch")
def sentence_transformers(folder):
    from sentence_transformers import SentenceTransformer
    from transformers import BertModel

    home = bert(folder / "embedder", BertModel)
    model = SentenceTransformer(str(home), backend="onnx", model_kwargs={"export": not (home / "onnx").exists()})
    if not (home / "onnx").exists():
        model.save_pretrained(str(home))
    return lambda: model.encode(list(SENTENCES))


def bert(home, kind):
    """A network of MiniLM's size with random weights and a tokenizer, in transformers' files."""
    import torch
    from transformers import BertConfig

    if not (home / "config.json").exists():
        torch.manual_seed(0)
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        kind(BertConfig(vocab_size=1000, **sizes)).save_pretrained(home)
        tokenizer(home)
    return home
