"""The models that the benches run, with inputs: real files from their packages, and networks of the onnx wheel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bolt_numba.types import Array
from tests.models import fetch

Feeds = dict[str, Array]


def light(name: str) -> Path:
    """A network of the onnx package's backend tests (weights by ConstantOfShape: speed and topology)."""
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def image(name: str, *shape: int) -> Callable[[], Feeds]:
    """Normal deviates under the input's name."""
    return lambda: {name: np.random.default_rng(0).standard_normal(shape, np.float32)}


def tokens(length: int) -> Callable[[], Feeds]:
    def make() -> Feeds:
        ids = np.random.default_rng(0).integers(1000, 20000, (1, length))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}

    return make


def speech() -> Feeds:
    """Half a second's worth of a 16 kHz frame of 512 samples, with a fresh state."""
    samples = np.random.default_rng(0).standard_normal((1, 512), np.float32)
    return {"input": samples, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000)}


@dataclass(frozen=True)
class Model:
    """A file and its inputs.

    speed: whether it counts in the geometric mean of the foundation's bars.  family: ``real`` where the weights were
    learnt, ``light`` where only the topology is real.
    """

    path: Callable[[], Path]
    feeds: Callable[[], Feeds]
    speed: bool = True
    family: str = "real"


def light_model(name: str, feeds: Callable[[], Feeds], speed: bool = True) -> Model:
    return Model(lambda: light(name), feeds, speed, "light")


MODELS = {
    "resnet50": light_model("resnet50", image("gpu_0/data_0", 1, 3, 224, 224)),
    "squeezenet": light_model("squeezenet", image("data_0", 1, 3, 224, 224)),
    "vgg19": light_model("vgg19", image("data_0", 1, 3, 224, 224)),
    "densenet121": light_model("densenet121", image("data_0", 1, 3, 224, 224)),
    "ppocr_det": Model(lambda: fetch("ch_PP-OCRv4_det_infer.onnx"), image("x", 1, 3, 320, 480)),
    "ppocr_rec": Model(lambda: fetch("ch_PP-OCRv4_rec_infer.onnx"), image("x", 1, 3, 48, 320)),
    "minilm_128": Model(lambda: fetch("minilm.onnx"), tokens(128)),
    "open_nsfw": Model(lambda: fetch("open_nsfw.onnx"), image("input_0", 1, 224, 224, 3)),
    "silero_vad": Model(lambda: fetch("silero_vad.onnx"), speech, speed=False),
    "ppocr_cls": Model(lambda: fetch("ch_ppocr_mobile_v2.0_cls_infer.onnx"), image("x", 1, 3, 48, 192), speed=False),
    "basic_pitch": Model(lambda: fetch("nmp.onnx"), image("serving_default_input_2:0", 1, 43844, 1), speed=False),
    "alexnet": light_model("bvlc_alexnet", image("data_0", 1, 3, 224, 224), speed=False),
    "inception_v1": light_model("inception_v1", image("data_0", 1, 3, 224, 224), speed=False),
    "inception_v2": light_model("inception_v2", image("data_0", 1, 3, 224, 224), speed=False),
    "shufflenet": light_model("shufflenet", image("gpu_0/data_0", 1, 3, 224, 224), speed=False),
    "zfnet512": light_model("zfnet512", image("gpu_0/data_0", 1, 3, 224, 224), speed=False),
}
