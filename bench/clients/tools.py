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
