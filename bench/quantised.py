"""Narrow twins of networks of the zoo: 8 bits as onnxruntime's own quantiser writes them, and f16.

    python -m bench.quantised resnet50_int8 bert_base_128_dynamic      # build them, name them and say where they are

``int8``: QuantizeLinear and DequantizeLinear around float operators, u8 activations with zero points, s8 weights for
each channel, ranges by minimum and maximum over `SAMPLES` inputs.  ``dynamic``: weights in s8, activations quantised by
their own range at every run.  The quantiser is a peer's, so that no figure depends on ours.  ``f16``: every float of
the file, inputs and outputs too.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bench.zoo import REVISION, ZOO, ZooModel, normal_feeds
from bolt_numba.types import Array
from tests.models import folder

SAMPLES = 4
STATIC = (
    "resnet50", "mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large", "squeezenet", "yolo_n", "bert_base_128",
    "minilm_128", "gemm1024",
)  # fmt: skip
DYNAMIC = ("bert_base_128", "minilm_32", "minilm_128", "lstm")
HALVES = ("resnet50", "mobilenet_v2", "bert_base_32", "bert_base_128", "minilm_32", "minilm_128", "lstm")


class Samples:
    """Inputs for calibration, in the form that onnxruntime's quantiser asks for."""

    def __init__(self, path: Path) -> None:
        self.left: Iterator[dict[str, Array]] = iter([normal_feeds(path, seed) for seed in range(SAMPLES)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)


def _static(source: Path, target: Path) -> None:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as scratch:
        ready = Path(scratch) / "ready.onnx"
        quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        reader: Any = type("Reader", (Samples, q.CalibrationDataReader), {})(source)
        q.quantize_static(
            str(ready), str(target), reader, per_channel=True, activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
        )  # fmt: skip


def _dynamic(source: Path, target: Path) -> None:
    from onnxruntime import quantization as q

    q.quantize_dynamic(str(source), str(target), per_channel=True, weight_type=q.QuantType.QInt8)


def _half(source: Path, target: Path) -> None:
    model = onnx.load(str(source))
    _halve(model.graph)
    onnx.save(model, str(target))


def _halve(graph: onnx.GraphProto) -> None:
    """Make f16 of f32: constants (what is too large becomes the largest), inputs, outputs, the targets of casts."""
    wide, half = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    attributes = [a for node in graph.node for a in node.attribute]
    most = float(np.finfo(np.float16).max)
    for tensor in (*graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        if tensor.data_type == wide:
            content = np.clip(onnx.numpy_helper.to_array(tensor), -most, most).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(content, tensor.name))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == wide:
            value.type.tensor_type.elem_type = half
    for attribute in attributes:
        if attribute.name == "to" and attribute.i == wide:
            attribute.i = half
        if attribute.HasField("g"):
            _halve(attribute.g)
    del graph.value_info[:]


@dataclass(frozen=True, slots=True)
class Twin:
    """A network of the zoo in fewer bits."""

    source: ZooModel
    family: str
    make: Callable[[Path, Path], None]

    def path(self) -> Path:
        """The file, built when it is not there yet."""
        target = folder() / f"zoo-{REVISION}" / f"{self.source.name}.{self.family}.onnx"
        if not target.is_file():
            source, partial = self.source.path(), target.with_name(f".{target.stem}.{os.getpid()}.onnx")
            logging.getLogger().setLevel(logging.ERROR)
            self.make(source, partial)
            if self.family != "f16":  # the zoo's outputs have no shapes, which the check wants
                onnx.checker.check_model(str(partial))
            partial.replace(target)
        return target

    def feeds(self) -> dict[str, Array]:
        made = self.source.feeds()
        if self.family == "f16":
            made = {k: a.astype(np.float16) if a.dtype == np.float32 else a for k, a in made.items()}
        return made


TWINS: dict[str, Twin] = {
    **{f"{name}_int8": Twin(ZOO[name], "int8", _static) for name in STATIC},
    **{f"{name}_dynamic": Twin(ZOO[name], "dynamic", _dynamic) for name in DYNAMIC},
    **{f"{name}_f16": Twin(ZOO[name], "f16", _half) for name in HALVES},
}


def main(names: Sequence[str]) -> None:
    for name in names or TWINS:
        sys.stdout.write(f"{name}: {TWINS[name].path()}\n")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(sys.argv[1:])
