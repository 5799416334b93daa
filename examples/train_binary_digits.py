"""Train a binary network and its float twin on the handwritten digits of scikit-learn, in plain NumPy, and write both.

    python examples/train_binary_digits.py        # two minutes; needs scikit-learn

Writes ``examples/digits/binary.onnx`` and ``examples/digits/twin.onnx``.  The binary one has activations and weights of
-1 and 1 behind its first layer.  Gradients pass its signs as if these were the identity between -1 and 1.  Source:
Courbariaux et al., Binarized Neural Networks, 2016, algorithm 1.  The data and the 360 images that training never sees
are those of ``train_digits.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from train_digits import FOLDER, Floats, Parameters, patches, shifted, unpatch

EPOCHS, BATCH, RATE, MOMENTUM, EPSILON = 60, 32, 4e-3, 0.9, 1e-4
LAYERS = ((1, 32, 1), (32, 64, 2), (64, 64, 1))
"""Channels in and out, and the stride, of each 3 x 3 convolution; a dense layer follows."""
WIDTH = 64 * 4 * 4


def signs(x: Floats) -> Floats:
    """1 from 0 on, else -1."""
    return np.where(x >= 0, np.float32(1), np.float32(-1))


def weight_of(p: Parameters, i: int, binary: bool) -> Floats:
    """What layer i multiplies by; the first one stays in floats."""
    return signs(p[f"w{i}"]) if binary and i > 0 else p[f"w{i}"]


def conv(x: Floats, w: Floats, stride: int) -> tuple[Floats, Floats]:
    """3 x 3 convolution, [n, h, w, k], and what its filters see, for the gradient."""
    seen = patches(x)[:, ::stride, ::stride]
    return seen @ w.reshape(len(w), -1).T, seen


def normalised(p: Parameters, i: int, z: Floats, training: bool) -> tuple[Floats, Floats, Floats]:
    """Batch normalization over all axes but the last: the result, the standardised z and its inverse deviation."""
    if training:
        axes = tuple(range(z.ndim - 1))
        mean, var = z.mean(axes), z.var(axes)
        p[f"mean{i}"] = MOMENTUM * p[f"mean{i}"] + (1 - MOMENTUM) * mean
        p[f"var{i}"] = MOMENTUM * p[f"var{i}"] + (1 - MOMENTUM) * var
    else:
        mean, var = p[f"mean{i}"], p[f"var{i}"]
    inverse = (1 / np.sqrt(var + np.float32(EPSILON))).astype(np.float32)
    standard = (z - mean) * inverse
    return standard * p[f"g{i}"] + p[f"b{i}"], standard, inverse


def forward(p: Parameters, x: Floats, binary: bool, training: bool = False) -> tuple[Floats, list[Any]]:
    """Probabilities, and what the gradients need of each layer."""
    kept: list[Any] = []
    for i, (_, _, stride) in enumerate(LAYERS):
        z, seen = conv(x, weight_of(p, i, binary), stride)
        y, standard, inverse = normalised(p, i, z, training)
        kept.append((x.shape, seen, y, standard, inverse))
        x = (signs(y) if binary else np.maximum(y, 0)).transpose(0, 3, 1, 2)
    flat, last = x.reshape(len(x), -1), len(LAYERS)
    y, standard, inverse = normalised(p, last, flat @ weight_of(p, last, binary), training)
    kept.append((x.shape, flat, y, standard, inverse))
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True), kept


def through_norm(p: Parameters, g: Parameters, i: int, d: Floats, standard: Floats, inverse: Floats) -> Floats:
    """The gradient before a batch normalization from that behind it."""
    axes = tuple(range(d.ndim - 1))
    g[f"g{i}"], g[f"b{i}"] = (d * standard).sum(axes), d.sum(axes)
    count = d.size // d.shape[-1]
    return p[f"g{i}"] * inverse * (d - g[f"b{i}"] / count - standard * (g[f"g{i}"] / count))


def gradients(p: Parameters, probabilities: Floats, kept: list[Any], labels: Any, binary: bool) -> Parameters:
    """Of the mean cross entropy."""
    n, last = len(labels), len(LAYERS)
    g: Parameters = {}
    d = probabilities.copy()
    d[np.arange(n), labels] -= 1
    shape, flat, _, standard, inverse = kept[last]
    d = through_norm(p, g, last, d / n, standard, inverse)
    g[f"w{last}"] = flat.T @ d
    d = (d @ weight_of(p, last, binary).T).reshape(shape)
    for i in reversed(range(last)):
        shape, seen, y, standard, inverse = kept[i]
        passes = np.abs(y) <= 1 if binary else y > 0
        d = through_norm(p, g, i, d.transpose(0, 2, 3, 1) * passes, standard, inverse)
        w, stride = weight_of(p, i, binary), LAYERS[i][2]
        g[f"w{i}"] = np.tensordot(d, seen, ((0, 1, 2), (0, 1, 2))).reshape(w.shape)
        columns = np.zeros((n, *shape[2:], seen.shape[-1]), np.float32)
        columns[:, ::stride, ::stride] = d @ w.reshape(len(w), -1)
        d = unpatch(columns, shape)
    return g


def initial(rng: np.random.Generator) -> Parameters:
    p: Parameters = {}
    shapes = [(out, c, 3, 3) for c, out, _ in LAYERS] + [(WIDTH, 10)]
    for i, shape in enumerate(shapes):
        out = shape[0] if len(shape) == 4 else shape[1]
        fan = int(np.prod(shape)) // out
        p[f"w{i}"] = (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
        for name, value in (("g", 1), ("b", 0), ("mean", 0), ("var", 1)):
            p[f"{name}{i}"] = np.full(out, value, np.float32)
    return p


def train(x: Floats, labels: Any, binary: bool) -> Parameters:
    """Adam with a rate that falls to zero; latent weights of signs stay between -1 and 1."""
    rng = np.random.default_rng(0)
    p = initial(rng)
    m: Parameters = {}
    v: Parameters = {}
    steps, t = EPOCHS * (len(x) // BATCH), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            t += 1
            index = order[start : start + BATCH]
            probabilities, kept = forward(p, shifted(x[index], rng), binary, training=True)
            for k, g in gradients(p, probabilities, kept, labels[index], binary).items():
                m[k] = 0.9 * m.get(k, np.zeros_like(g)) + 0.1 * g
                v[k] = 0.999 * v.get(k, np.zeros_like(g)) + 0.001 * g * g
                step = m[k] / (1 - 0.9**t) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
                p[k] = (p[k] - RATE * (1 - t / steps) * step).astype(np.float32)
                if binary and k[0] == "w":
                    p[k] = np.clip(p[k], -1, 1)
    return p


def accuracy(p: Parameters, x: Floats, labels: Any, binary: bool) -> float:
    return float((forward(p, x, binary)[0].argmax(1) == labels).mean())


def export(p: Parameters, path: Path, binary: bool) -> None:
    """Write a network as ONNX, opset 17, with a symbolic batch; signs are stored in bytes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    arrays: dict[str, Any] = {"zero": np.float32(0), "one": np.float32(1), "minus_one": np.float32(-1)}
    at = "image"

    def add(kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    for i in range(len(LAYERS) + 1):
        w, name = weight_of(p, i, binary), f"w{i}"
        arrays[name] = w
        if binary and i > 0:
            arrays[name] = w.astype(np.int8)
            name = add("Cast", name, out=f"signs{i}", to=TensorProto.FLOAT)
        if i < len(LAYERS):
            stride = LAYERS[i][2]
            at = add("Conv", at, name, out=f"conv{i}", kernel_shape=[3, 3], pads=[1] * 4, strides=[stride] * 2)
        else:
            at = add("MatMul", add("Flatten", at, out="flat"), name, out="dense")
        arrays |= {f"{k}{i}": p[f"{k}{i}"] for k in ("g", "b", "mean", "var")}
        statistics = (f"g{i}", f"b{i}", f"mean{i}", f"var{i}")
        at = add("BatchNormalization", at, *statistics, out=f"norm{i}", epsilon=EPSILON)
        if i == len(LAYERS):
            add("Softmax", at, out="probabilities", axis=-1)
        elif binary:
            at = add("Where", add("GreaterOrEqual", at, "zero", out=f"is{i}"), "one", "minus_one", out=f"sign{i}")
        else:
            at = add("Relu", at, out=f"relu{i}")
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items() if binary or name[-1] in "0123"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def main() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    x, labels = (pixels[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels[order]
    for name, binary in (("binary", True), ("twin", False)):
        p = train(x[360:], labels[360:], binary)
        export(p, FOLDER / f"{name}.onnx", binary)
        size = (FOLDER / f"{name}.onnx").stat().st_size
        print(f"{name}: {accuracy(p, x[:360], labels[:360], binary):.2%} of 360 images never seen, {size:,} bytes")


if __name__ == "__main__":
    main()
