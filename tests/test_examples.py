"""The examples do what they say: the demo runs, the training's gradients are right, text boxes are found."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
import wave
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.interpret import interpret
from bolt_numba.passes.pipeline import run_pipeline
from tests.models import FetchError, fetch

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_demo() -> None:
    done = subprocess.run([sys.executable, EXAMPLES / "demo.py"], capture_output=True, text=True, check=True)
    accuracy = re.search(r"accuracy: ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 98
    assert "latency, one image" in done.stdout
    assert "profile of one image" in done.stdout


def test_digits_are_small_and_read_well() -> None:
    files = list((EXAMPLES / "digits").iterdir())
    assert sum(f.stat().st_size for f in files) < 1 << 20
    data = np.load(EXAMPLES / "digits" / "digits.npz")
    p = np.asarray(bn.compile(EXAMPLES / "digits" / "digits.onnx")(image=(data["image"] / 16).astype(np.float32)))
    assert (p.argmax(1) == data["label"]).mean() > 0.99


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2", "w3", "b3", "w4", "b4"])
def test_gradients_of_the_training(name: str) -> None:
    """Against differences of the loss, along the gradient."""
    train = example("train_digits")
    rng = np.random.default_rng(0)
    p = train.initial(rng)
    x = rng.random((4, 1, 8, 8), np.float32)
    labels, keep = np.array([3, 1, 4, 1]), np.ones((4, 48), np.float32)
    gradient = train.gradients(p, train.forward(p, x), labels, keep)[name]
    assert gradient.shape == p[name].shape

    def loss(step: float) -> float:
        moved = p | {name: (p[name] + step * gradient).astype(np.float32)}
        return -float(np.log(train.forward(moved, x)["p"][np.arange(4), labels].astype(np.float64)).mean())

    size = 1e-2 / float(np.sqrt((gradient**2).sum()))
    slope = (loss(size) - loss(-size)) / (2 * size)
    assert slope == pytest.approx(float((gradient.astype(np.float64) ** 2).sum()), rel=0.03)


def test_binary_digits_run_on_bits_and_read_as_the_floats() -> None:
    data = np.load(EXAMPLES / "digits" / "digits.npz")
    image = (data["image"] / 16).astype(np.float32)
    graph = bn.load(EXAMPLES / "digits" / "binary.onnx")
    operators = [node.op.name for node in run_pipeline(graph).nodes]
    assert (operators.count("BinaryConv"), operators.count("BinaryMatMul")) == (2, 1)
    found = np.asarray(bn.compile(graph)(image=image))
    np.testing.assert_allclose(found, interpret(graph, {"image": image})["probabilities"], atol=1e-5)
    twin = np.asarray(bn.compile(EXAMPLES / "digits" / "twin.onnx")(image=image))
    right = [float((p.argmax(1) == data["label"]).mean()) for p in (found, twin)]
    assert right == pytest.approx([0.9889, 0.9944], abs=1e-3)


@pytest.mark.parametrize("name", ["w0", "w1", "w2", "w3", "g1", "b2"])
def test_gradients_of_the_twin(name: str) -> None:
    """Against differences of the loss, along the gradient."""
    example("train_digits")
    train = example("train_binary_digits")
    p = train.initial(rng := np.random.default_rng(0))
    x, labels = rng.random((4, 1, 8, 8), np.float32), np.array([3, 1, 4, 1])
    gradient = train.gradients(p, *train.forward(p, x, False, True), labels, False)[name]

    def loss(step: float) -> float:
        moved = p | {name: (p[name] + step * gradient).astype(np.float32)}
        return -float(np.log(train.forward(moved, x, False, True)[0][np.arange(4), labels].astype(np.float64)).mean())

    size = 3e-3 / float(np.sqrt((gradient**2).sum()))
    slope = (loss(size) - loss(-size)) / (2 * size)
    assert slope == pytest.approx(float((gradient.astype(np.float64) ** 2).sum()), rel=0.05)


@pytest.mark.parametrize("name", ["tokens", "places", "q0", "k1", "v0", "o1", "up0", "down1"])
def test_gradients_of_the_writer(name: str) -> None:
    """Against differences of the loss, along the gradient."""
    train = example("train_writer")
    p = train.initial(rng := np.random.default_rng(0))
    letters = rng.integers(0, train.LETTERS, (2, 17))
    given, wanted = letters[:, :-1], letters[:, 1:]
    gradient = train.gradients(p, train.forward(p, given), given, wanted)[name]

    def loss(step: float) -> float:
        moved = p | {name: (p[name] + step * gradient).astype(np.float32)}
        found = train.forward(moved, given)["p"][np.arange(wanted.size), wanted.ravel()]
        return -float(np.log(found.astype(np.float64)).mean())

    size = 3e-2 / float(np.sqrt((gradient**2).sum()))
    slope = (loss(size) - loss(-size)) / (2 * size)
    assert slope == pytest.approx(float((gradient.astype(np.float64) ** 2).sum()), rel=0.05)


def test_the_writer_remembers_what_it_has_seen() -> None:
    """Probabilities of each run are those of a decoder that is given the whole text, and another text begins anew."""
    writer, train = example("writer"), example("train_writer")
    session = bn.compile(writer.decoder())
    assert [s.name for s in (*session.inputs, *session.outputs)] == ["token", "probabilities"]
    first = "".join(writer.write(session, "A kernel ", 10**6, 3))
    assert len(first) == writer.LENGTH
    assert first.startswith("A kernel ")
    with pytest.raises(bn.DataError):
        session(np.array([0]))  # there is no place for it
    assert "".join(writer.write(session, "A kernel ", 20, 3)) == first[:29]
    stored = np.load(writer.FILE)
    weights = {k: stored[k] * stored[f"{k}_scale"] for k in stored if not k.endswith("_scale")}
    tokens = [writer.token_of(letter) for letter in first]
    wanted = train.forward(weights, np.array([tokens]))["p"].astype(np.float64) ** (1 / writer.TEMPERATURE)
    session.reset_state()
    found = [np.asarray(session(np.array([token]))[0]).reshape(-1) for token in tokens]
    np.testing.assert_allclose(found, wanted / wanted.sum(-1, keepdims=True), atol=1e-4)
    sentence = train.tokens_of("The session of a model keeps the results of the last run in memory of its own.")
    bits = -np.log2(train.forward(weights, sentence[None, :-1])["p"])[np.arange(len(sentence) - 1), sentence[1:]]
    assert bits.mean() < 2  # of 6.6 that letters have by chance


def test_regions_of_a_mask() -> None:
    pytest.importorskip("PIL")
    example("model_files")
    regions = example("ocr").regions
    text = ["##..#", "....#", "#..#.", "##..."]
    mask = np.array([[c == "#" for c in row] for row in text])
    assert sorted(regions(mask)) == [(0, 1, 0, 2), (0, 3, 3, 5), (2, 4, 0, 2)]
    u_shape = np.array([[1, 0, 1], [1, 0, 1], [1, 1, 1]], bool)
    assert regions(u_shape) == [(0, 3, 0, 3)]
    assert regions(np.zeros((3, 3), bool)) == []


def test_boxes_grow_and_come_in_reading_order() -> None:
    pytest.importorskip("PIL")
    example("model_files")
    ocr = example("ocr")
    probabilities = np.zeros((64, 128), np.float32)
    probabilities[40:50, 10:60] = 0.9
    probabilities[10:20, 70:120] = 0.8
    probabilities[11:21, 5:55] = 0.7
    boxes = ocr.reading_order(ocr.boxes_of(probabilities, 2.0, 2.0))
    assert [round(b.score, 1) for b in boxes] == [0.7, 0.8, 0.9]
    first = boxes[0]
    assert first.left < 10
    assert first.top < 22
    assert first.right > 110
    assert first.bottom > 42


def fetched(*names: str) -> None:
    for name in names:
        try:
            fetch(name)
        except FetchError as error:
            pytest.skip(str(error))


def test_a_flow_reads_what_the_plain_loop_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    example("model_files")
    ocr, flow_example = example("ocr"), example("ocr_flow")
    fetched(*(file for file, _ in ocr.MODELS.values()))
    monkeypatch.setattr(ocr, "SHORT_SIDE", 160)
    pages = [ocr.sample().crop((0, 100, 520, 320)).resize((480 - 20 * i, 200)) for i in range(2)]
    detect, recognise = (bn.compile(ocr.fetch(name), threads=1) for name in ocr.MODELS)
    alphabet = ocr.alphabet_of(recognise.graph)
    with flow_example.reader(threads=1) as flow:
        found = list(flow.map({"image": page} for page in pages))
        runs = flow.statistics().nodes["recognise"]
    for page, results in zip(pages, found, strict=True):
        assert results["boxes"] == ocr.find_lines(detect, page)
        want = [ocr.read_line(recognise, alphabet, page, box) for box in results["boxes"]]
        assert [text for text, _ in results["lines"]] == [text for text, _ in want]
        np.testing.assert_allclose([sure for _, sure in results["lines"]], [sure for _, sure in want], atol=0.03)
    assert "Neural networks in Python" in [text for text, _ in found[0]["lines"]]
    assert runs.pieces == sum(len(results["boxes"]) for results in found) > 3


def plain(speech: ModuleType, session: bn.Session, stream: list[Any]) -> tuple[list[float], list[tuple[float, float]]]:
    """Probabilities and speech of one stream, piece by piece."""
    state, before, listener = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), speech.Listener()
    probabilities, found = [], []
    for samples in stream:
        p, state = session(input=np.concatenate([before, samples])[None], state=state, sr=np.int64(16000))
        before = samples[-64:]
        probabilities.append(float(p[0, 0]))
        spoken, listener = listener.hear(p[0, 0])
        found += [] if spoken is None else [spoken]
    return probabilities, found


def test_recordings_of_another_kind_are_refused_before_any_is_heard(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "stereo.wav"), "w") as file:
        file.setparams((2, 2, 44100, 0, "NONE", "NONE"))
        file.writeframes(bytes(4096))
    done = subprocess.run(
        [sys.executable, EXAMPLES / "speech_flow.py", tmp_path / "stereo.wav"], capture_output=True, text=True
    )
    assert (done.returncode, "wanted 16000 samples a second" in done.stderr) == (1, True), done.stderr


def test_a_flow_hears_in_each_stream_what_a_plain_loop_hears() -> None:
    example("model_files")
    speech = example("speech_flow")
    fetched("silero_vad.onnx")
    try:
        streams = {name: list(samples) for name, samples in speech.microphones().items()}
    except subprocess.CalledProcessError as error:
        pytest.skip(str(error))
    probabilities: dict[str, list[float]] = {name: [] for name in streams}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in streams}
    with speech.detector(capacity=16) as flow:
        threading.Thread(target=speech.feed, args=(flow, {n: iter(x) for n, x in streams.items()})).start()
        for task in flow:
            probabilities[task.stream].append(float(task.result()["probability"][0, 0]))
            found[task.stream] += [spoken] if (spoken := task.result()["spoken"]) is not None else []
    with bn.compile(fetch("silero_vad.onnx"), threads=1) as session:
        for name, stream in streams.items():
            assert (probabilities[name], found[name]) == plain(speech, session, stream)
    assert [len(spoken) for spoken in found.values()] == [6, 6, 6]
    first, second, _ = found.values()
    assert max(abs(b[0] - a[0] - 1) for a, b in zip(first, second, strict=True)) < 0.1
