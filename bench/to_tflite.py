"""ONNX to TFLite, through TensorFlow: ``python -m bench.to_tflite MODEL.onnx TARGET.tflite NAME:DIMS ...``.

Images by onnx2tf, transformers by `bench.translate`, because onnx2tf takes hours for them.  Runs under the
interpreter that has those packages.  A TARGET.int8.tflite has bytes from its inputs to its outputs, with a scale for
each channel of the weights, by TensorFlow's own quantiser over normal deviates.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

TRANSFORMERS = ("bert_", "minilm_", "vit_")
SAMPLES = "calibration_image_sample_data_20x128x128x3_float32.npy"
"""Images that onnx2tf would download; any of this shape serve."""

SAMPLED = 8
"""Images over which ranges of bytes are measured."""


def convert(model: Path, target: Path, shapes: Sequence[str]) -> None:
    """Write ``target``; shapes: ``NAME:dims`` of every input."""
    if any(word in model.stem for word in TRANSFORMERS):
        sizes = {s.rsplit(":", 1)[0]: list(map(int, s.rsplit(":", 1)[1].split(","))) for s in shapes}
        target.write_bytes(importlib.import_module("bench.translate").tflite_bytes(model, sizes))
        return
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        np.save(SAMPLES, np.random.default_rng(0).random((20, 128, 128, 3), np.float32))
        options: dict[str, object] = {}
        flat = [s.split(":")[0] for s in shapes if len(s.rsplit(":", 1)[1].split(",")) == 3]
        if flat:  # sequences stay as they are; four dimensions are taken for images and become channels-last
            options["keep_shape_absolutely_input_names"] = flat
        kind = "float32"
        if target.name.endswith(".int8.tflite"):
            options |= _in_bytes(shapes)
            kind = "full_integer_quant"
        importlib.import_module("onnx2tf").convert(
            input_onnx_file_path=str(model), output_folder_path="made", non_verbose=True,
            overwrite_input_shape=list(shapes), copy_onnx_input_output_names_to_tflite=True, **options,
        )  # fmt: skip
        shutil.move(f"made/{model.stem}_{kind}.tflite", target)


def _in_bytes(shapes: Sequence[str]) -> dict[str, object]:
    """Options for 8 bits everywhere; writes the images over which ranges are measured, channels last."""
    given = []
    for place, shape in enumerate(shapes):
        name, dims = shape.rsplit(":", 1)
        _, channels, *spatial = map(int, dims.split(","))
        images = np.random.default_rng(place).standard_normal((SAMPLED, *spatial, channels), np.float32)
        np.save(f"{place}.npy", images)
        given.append([name, f"{place}.npy", [[[[0.0] * channels]]], [[[[1.0] * channels]]]])
    kinds = {"input_quant_dtype": "int8", "output_quant_dtype": "int8"}
    return {"output_integer_quantized_tflite": True, "custom_input_op_name_np_data_path": given, **kinds}


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    convert(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
