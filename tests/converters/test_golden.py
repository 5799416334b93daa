"""Readers of TFLite, Caffe and Paddle on the golden cases: references and sessions compute what the originals do."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
import pytest

from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.errors import UnsupportedOpError
from tests import formats
from tests.missing import NO_SPELLING

MISSING = {
    "tflite/reduce_prod/i16_last": "LiteRT rounds after every factor, which takes the product two levels away",
    "paddle/unary/bfloat16_net_pir__pir": "Paddle rounds to bfloat16 after each operator; a session computes in f32",
}
"""Cases that do not pass, and why."""
NO_ONNX = {
    "caffe/Pooling/clip_k3s3": "onnx infers a window more than its operator has",
    "caffe/Pooling/clip_last": "the same",
    "caffe/Pooling/clip_last_ave": "the same",
    "caffe/SPP/h3_ave": "the same",
    "paddle/control/tensor_array__legacy": "onnx wants the rank of what a sequence holds",
    "paddle/control/tensor_array__pir": "the same",
    **dict.fromkeys(
        ("paddle/vision/bicubic_dyn__legacy", "paddle/vision/bicubic_dyn__pir"),
        "only the run tells whether a size is 1, which lies elsewhere in Paddle than in ONNX",
    ),
}
"""Cases whose ONNX models onnx does not take, and why."""

GROUPS = [(format, path.stem) for format in formats.FORMATS for path in sorted((formats.GOLDEN / format).glob("*.npz"))]


def check(format: str, group: str, engine: str) -> None:
    for case in formats.cases(format, f"^{group}/"):
        try:
            formats.check(case, engine)
        except Exception as error:
            if str(case) not in MISSING:
                raise AssertionError(f"{case} ({engine}): {type(error).__name__}: {error}") from error


@pytest.mark.parametrize(("format", "group"), GROUPS, ids=lambda v: str(v))
def test_what_the_original_computes(format: str, group: str) -> None:
    check(format, group, "interpreter")


@pytest.mark.parametrize(("format", "group"), GROUPS, ids=lambda v: str(v))
def test_sessions_compute_what_the_original_computes(format: str, group: str) -> None:
    check(format, group, "session")


@pytest.mark.parametrize("format", formats.FORMATS)
def test_every_graph_is_written_as_onnx(format: str) -> None:
    """And checked by onnx itself, types and shapes included."""
    wrong = []
    for case in formats.cases(format):
        if str(case) in {**MISSING, **NO_ONNX}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            graph = formats.load(case, Path(folder))
        try:
            onnx.checker.check_model(to_onnx(graph), full_check=True)
        except UnsupportedOpError as error:
            wrong += [f"{case}: {item}" for item in error.items if not item.startswith(tuple(NO_SPELLING))]
        except Exception as error:
            wrong.append(f"{case}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)


ALONE = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "ai_edge_litert", "paddle", "cv2", "caffe", "torch"}:
            raise AssertionError(name)
sys.meta_path.insert(0, Refused())
from pathlib import Path
import tempfile
from tests import formats
for format in formats.FORMATS:
    case = next(formats.cases(format, "nets/"))
    with tempfile.TemporaryDirectory() as folder:
        formats.load(case, Path(folder))
"""


def test_no_other_engine_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
