"""Models in the formats of other engines, each measured against the engine whose format it is.

Families of `bench.run`: ``tflite`` and ``tflite_int8`` (networks of the zoo that `bench.convert --targets
tflite,tflite_int8` wrote), judged by LiteRT; ``caffe`` (nets of `bench.caffe_nets`), judged by OpenCV below 5;
``paddle`` (PP-OCR as programs, twins of ``ppocr_det`` and others in ONNX), judged by Paddle.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import bolt_numba as bn
from bench.caffe_nets import NETS, file
from bench.convert import ENDINGS, converted
from bolt_numba.sessions.guesses import random_feeds
from bolt_numba.sessions.inputs import spec_of
from bolt_numba.types import Array
from tests.models import fetch

NETWORKS = ("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_large", "resnet50", "squeezenet")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file of another format.

    reference: the peer that runs it as its own.  shapes: of inputs whose sizes the file leaves open.
    """

    path: Callable[[], Path]
    family: str
    reference: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def feeds(self) -> dict[str, Array]:
        """Normal deviates; bytes over their whole range."""
        specs = [spec_of(v.name, v.type) for v in bn.load(self.path()).inputs]
        made = random_feeds(specs, dict(self.shapes))
        rng = np.random.default_rng(0)
        for name, array in made.items():
            if array.dtype.itemsize == 1 and array.dtype.kind in "iu":
                made[name] = rng.integers(0, 256, array.shape, np.uint8).view(array.dtype)
        return made


def _converted(name: str, kind: str) -> Callable[[], Path]:
    return lambda: converted() / f"{name}{ENDINGS[kind]}"


def program(name: str) -> Path:
    """A program of Paddle, whose weights are fetched with it."""
    fetch(f"{name}.pdiparams")
    return fetch(f"{name}.pdmodel")


FOREIGN = {
    f"{name}_{kind}": Foreign(_converted(name, kind), kind, "litert")
    for kind in ("tflite", "tflite_int8")
    for name in NETWORKS
}
FOREIGN |= {f"{name}_caffe": Foreign(functools.partial(file, name), "caffe", "opencv") for name in NETS}
FOREIGN |= {
    f"{name}_paddle": Foreign(functools.partial(program, name), "paddle", "paddle", (("x", shape),))
    for name, shape in (("ppocr_det", (1, 3, 320, 480)), ("ppocr_rec", (1, 3, 48, 320)), ("ppocr_cls", (1, 3, 48, 192)))
}
