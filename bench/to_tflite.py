"""ONNX to TFLite, through TensorFlow: ``python -m bench.to_tflite MODEL.onnx TARGET.tflite NAME:DIMS ...``.

Images by onnx2tf, transformers by `bench.translate`, because onnx2tf takes hours for them.  Runs under the
interpreter that has those packages.
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
        importlib.import_module("onnx2tf").convert(
            input_onnx_file_path=str(model), output_folder_path="made", non_verbose=True,
            overwrite_input_shape=list(shapes), copy_onnx_input_output_names_to_tflite=True, **options,
        )  # fmt: skip
        shutil.move(f"made/{model.stem}_float32.tflite", target)


if __name__ == "__main__":
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    convert(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
