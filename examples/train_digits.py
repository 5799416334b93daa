"""Train a small convolutional network on the handwritten digits of scikit-learn, in plain NumPy, and write it as ONNX.

    python examples/train_digits.py        # under a minute; needs scikit-learn

Writes ``examples/digits/digits.onnx`` and ``examples/digits/digits.npz`` (360 images that training never saw, with
their labels).  The seed is fixed.  Data: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten
Digits", UCI Machine Learning Repository, 1998 (CC BY 4.0), as shipped in scikit-learn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Parameters = dict[str, Floats]
FOLDER = Path(__file__).parent / "digits"
EPOCHS, BATCH, RATE = 60, 32, 2e-3


def patches(x: Floats) -> Floats:
    """[n, c, h, w] -> [n, h, w, c * 9]: the 3 x 3 surroundings of every pixel, zero outside."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.ascontiguousarray(windows.transpose(0, 2, 3, 1, 4, 5)).reshape(*x.shape[:1], *x.shape[2:], -1)


def unpatch(columns: Floats, shape: tuple[int, ...]) -> Floats:
    """The transpose of `patches`: gradients of all surroundings summed into their pixels."""
    n, c, h, w = shape
    gradient = np.zeros((n, c, h + 2, w + 2), np.float32)
    parts = columns.reshape(n, h, w, c, 3, 3).transpose(0, 3, 4, 5, 1, 2)
    for r in range(3):
        for s in range(3):
            gradient[:, :, r : r + h, s : s + w] += parts[:, :, r, s]
    return gradient[:, :, 1:-1, 1:-1]


def conv(x: Floats, w: Floats, b: Floats) -> tuple[Floats, Floats]:
    """3 x 3 convolution that keeps the size; also the patches, for the gradient."""
    columns = patches(x)
    return (columns @ w.reshape(len(w), -1).T + b).transpose(0, 3, 1, 2), columns


def forward(p: Parameters, x: Floats) -> dict[str, Any]:
    """All activations; ``p`` are probabilities."""
    a: dict[str, Any] = {"x": x}
    z1, a["c1"] = conv(x, p["w1"], p["b1"])
    a["h1"] = np.maximum(z1, 0)
    z2, a["c2"] = conv(a["h1"], p["w2"], p["b2"])
    a["h2"] = np.maximum(z2, 0)
    n, c, h, w = a["h2"].shape
    blocks = a["h2"].reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5)
    a["blocks"] = blocks.reshape(n, c, h // 2, w // 2, 4)
    a["flat"] = a["blocks"].max(-1).reshape(n, -1)
    a["h3"] = np.maximum(a["flat"] @ p["w3"] + p["b3"], 0)
    logits = a["h3"] @ p["w4"] + p["b4"]
    e = np.exp(logits - logits.max(1, keepdims=True))
    a["p"] = e / e.sum(1, keepdims=True)
    return a


def gradients(p: Parameters, a: dict[str, Any], labels: npt.NDArray[Any], keep: Floats) -> Parameters:
    """Of the mean cross entropy; ``keep`` is the dropout mask that ``forward``'s hidden layer was multiplied with."""
    n = len(labels)
    d = a["p"].copy()
    d[np.arange(n), labels] -= 1
    d /= n
    g: Parameters = {"w4": a["h3"].T @ d, "b4": d.sum(0)}
    d = (d @ p["w4"].T) * keep * (a["h3"] > 0)
    g |= {"w3": a["flat"].T @ d, "b3": d.sum(0)}
    d = (d @ p["w3"].T).reshape(a["blocks"].shape[:4])
    first = a["blocks"].argmax(-1)[..., None] == np.arange(4)
    blocks = (d[..., None] * first).reshape(*d.shape, 2, 2)
    d = blocks.transpose(0, 1, 2, 4, 3, 5).reshape(a["h2"].shape) * (a["h2"] > 0)
    d = d.transpose(0, 2, 3, 1)
    g |= {"w2": np.tensordot(d, a["c2"], ((0, 1, 2), (0, 1, 2))).reshape(p["w2"].shape), "b2": d.sum((0, 1, 2))}
    d = unpatch(d @ p["w2"].reshape(len(p["w2"]), -1), a["h1"].shape) * (a["h1"] > 0)
    d = d.transpose(0, 2, 3, 1)
    g |= {"w1": np.tensordot(d, a["c1"], ((0, 1, 2), (0, 1, 2))).reshape(p["w1"].shape), "b1": d.sum((0, 1, 2))}
    return g


def initial(rng: np.random.Generator) -> Parameters:
    """He initialisation.  Source: He et al., Delving Deep into Rectifiers, 2015, equation 10."""

    def he(*shape: int, fan: int) -> Floats:
        return (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)

    weights = {"w1": he(16, 1, 3, 3, fan=9), "w2": he(32, 16, 3, 3, fan=144), "w3": he(512, 48, fan=512)}
    weights["w4"] = he(48, 10, fan=48)
    sizes = {"b1": 16, "b2": 32, "b3": 48, "b4": 10}
    return weights | {k: np.zeros(n, np.float32) for k, n in sizes.items()}


def shifted(x: Floats, rng: np.random.Generator) -> Floats:
    """Every image moved by at most one pixel: more data for nothing."""
    moved = np.zeros_like(x)
    for image, target in zip(x, moved, strict=True):
        dy, dx = rng.integers(-1, 2, 2)
        target[...] = np.roll(image, (dy, dx), (1, 2))
    return moved


def train(x: Floats, labels: npt.NDArray[Any], rng: np.random.Generator) -> Parameters:
    """Adam with a rate that falls to zero.  Source: Kingma, Ba, Adam, 2014, algorithm 1."""
    p = initial(rng)
    m = {k: np.zeros_like(v) for k, v in p.items()}
    v = {k: np.zeros_like(w) for k, w in p.items()}
    steps, t = EPOCHS * (len(x) // BATCH), 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            t += 1
            index = order[start : start + BATCH]
            keep = (rng.random((BATCH, 48)) < 0.8).astype(np.float32) / 0.8
            a = dropped(p, forward(p, shifted(x[index], rng)), keep)
            for k, g in gradients(p, a, labels[index], keep).items():
                m[k] = 0.9 * m[k] + 0.1 * g
                v[k] = 0.999 * v[k] + 0.001 * g * g
                step = m[k] / (1 - 0.9**t) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
                p[k] = (p[k] - RATE * (1 - t / steps) * step).astype(np.float32)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: accuracy in training {accuracy(p, x, labels):.2%}")
    return p


def dropped(p: Parameters, a: dict[str, Any], keep: Floats) -> dict[str, Any]:
    """The activations when the hidden layer is thinned out by ``keep``."""
    a["h3"] = a["h3"] * keep
    logits = a["h3"] @ p["w4"] + p["b4"]
    e = np.exp(logits - logits.max(1, keepdims=True))
    a["p"] = e / e.sum(1, keepdims=True)
    return a


def accuracy(p: Parameters, x: Floats, labels: npt.NDArray[Any]) -> float:
    return float((forward(p, x)["p"].argmax(1) == labels).mean())


def export(p: Parameters, path: Path) -> None:
    """Write the network as ONNX, opset 17, with a symbolic batch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def node(kind: str, *inputs: str, out: str, **attributes: Any) -> Any:
        return helper.make_node(kind, list(inputs), [out], name=out, **attributes)

    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "image", "w1", "b1", out="conv1", **same),
        node("Relu", "conv1", out="relu1"),
        node("Conv", "relu1", "w2", "b2", out="conv2", **same),
        node("Relu", "conv2", out="relu2"),
        node("MaxPool", "relu2", out="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "pool", out="flat"),
        node("Gemm", "flat", "w3", "b3", out="dense"),
        node("Relu", "dense", out="relu3"),
        node("Gemm", "relu3", "w4", "b4", out="logits"),
        node("Softmax", "logits", out="probabilities", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in p.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def main() -> None:
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    pixels, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(pixels))
    pixels, labels = pixels[order].reshape(-1, 1, 8, 8), labels[order]
    x = (pixels / 16).astype(np.float32)
    p = train(x[360:], labels[360:], rng)
    print(f"accuracy on {360} images never seen: {accuracy(p, x[:360], labels[:360]):.2%}")
    FOLDER.mkdir(exist_ok=True)
    export(p, FOLDER / "digits.onnx")
    np.savez_compressed(FOLDER / "digits.npz", image=pixels[:360].astype(np.uint8), label=labels[:360].astype(np.uint8))
    for file in sorted(FOLDER.iterdir()):
        print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
