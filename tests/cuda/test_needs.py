"""Every node of numbers of the zoo and of the real models has a kernel on the GPU, in f32 and f16."""

from __future__ import annotations

from pathlib import Path

import pytest

import bolt_numba as bn
from bench import zoo
from bench.models import MODELS
from tests.cuda.needs import lacking
from tests.models import FetchError

CONVOLUTIONAL = ("mobilenet_v2", "mobilenet_v3_large", "unet", "yolo_n", "kws_dscnn", "mlp")
ZOO = {
    **{name: zoo.ZOO[name].build for name in CONVOLUTIONAL},
    "bert": zoo.bert(1, layers=1, width=64, heads=4, seq=16),
    "lstm": zoo.recurrent("LSTM", 12, 4),
    "gru": zoo.recurrent("GRU", 13, 3, linear_before_reset=1),
}


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo(name: str, precision: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(ZOO[name](1).SerializeToString())
    assert lacking(bn.load(path), zoo.normal_feeds(path), precision) == []


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.family == "real"])
def test_real_models(name: str, precision: str) -> None:
    model = MODELS[name]
    try:
        path = model.path()
    except FetchError as error:
        pytest.skip(str(error))
    assert lacking(bn.load(path), model.feeds(), precision) == []
