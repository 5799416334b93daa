"""What quantisation costs on real data: this package's against onnxruntime's and NNCF's (OpenVINO's), 8 bits each.

    python -m bench.accuracy [--only digits,minilm] [--options '{"method": "percentile"}'] [-o FILE.json]

Each contestant quantises the same float model with the same inputs and its usual options.  The figure of a task says
what each model gets right on inputs that none has seen.  Every model runs by its own engine.
Needs onnxruntime, scikit-learn, pillow, and, for the third contestant, nncf and openvino.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import accuracy_data as data
from bolt_numba.types import Array

Feed = dict[str, Array]
Run = Callable[[Feed], Sequence[Array]]


@dataclass
class Task:
    """A model, inputs to calibrate and to judge with, and the figure of outputs: more is better."""

    name: str
    model: Path
    calibration: list[Feed]
    test: list[Feed]
    figure: Callable[[list[Array], list[Array]], float]
    """From the first outputs of a quantised and of the float model."""
    what: str


def tasks() -> dict[str, Callable[[], Task]]:
    """All tasks, made when asked for: their data take a while."""
    return {
        "digits": lambda: Task(*data.digits(), "share of 260 digits"),
        "mobile_mnist": lambda: Task(*data.trained("mobile_mnist"), "share of 900 digits"),
        "residual_mnist": lambda: Task(*data.trained("residual_mnist"), "share of 900 digits"),
        "ocr_rec": lambda: Task(*data.recognition(), "share of characters read right in rendered lines"),
        "ocr_det": lambda: Task(*data.detection(), "F1 of rendered lines found"),
        "open_nsfw": lambda: Task(*data.nsfw(), "rank correlation of scores with the float model's"),
        "minilm": lambda: Task(*data.sentences(), "rank correlation of similarities with the float model's"),
    }


# --- contestants -----------------------------------------------------------------------------------------------------


def ours(task: Task, folder: Path, options: dict[str, Any]) -> Run:
    import bolt_numba as bn
    from bolt_numba.quantize import quantize

    made = quantize(task.model, task.calibration, threads=1, timed=False, **options)
    made.save(folder / "ours.onnx")
    session = bn.compile(folder / "ours.onnx", threads=1)
    return lambda feed: session.run(None, feed)


def by_onnxruntime(model: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def onnxruntimes(task: Task, folder: Path, options: dict[str, Any]) -> Run:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(task.calibration)

        def get_next(self) -> Feed | None:
            return next(self.left, None)

    quant_pre_process(str(plain_model(task.model, folder)), str(folder / "pre.onnx"), skip_symbolic_shape=True)
    target = folder / "ort.onnx"
    quantize_static(
        str(folder / "pre.onnx"), str(target), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return by_onnxruntime(target)


def nncfs(task: Task, folder: Path, options: dict[str, Any]) -> Run:
    import nncf
    import openvino

    kinds = {"model_type": nncf.ModelType.TRANSFORMER} if task.name == "minilm" else {}
    model = openvino.Core().read_model(plain_model(task.model, folder))
    made = nncf.quantize(model, nncf.Dataset(task.calibration), subset_size=len(task.calibration), **kinds)
    compiled = openvino.Core().compile_model(made, "CPU", {"INFERENCE_NUM_THREADS": 1})
    return lambda feed: [compiled(feed)[0]]


def plain_model(model: Path, folder: Path) -> Path:
    """The model with weights in f32: some files hold them in 8 bits, which other quantisers do not look into."""
    import bolt_numba as bn
    from bolt_numba import surgery

    target = folder / "plain.onnx"
    if not target.exists():
        surgery.save_onnx(surgery.simplify(bn.load(model), growth=1 << 30), target)
    return target


CONTESTANTS: dict[str, Callable[[Task, Path, dict[str, Any]], Run]] = {
    "bolt-numba": ours,
    "onnxruntime": onnxruntimes,
    "nncf": nncfs,
}


def judged(task: Task, options: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The figure of the float model and of each contestant, and the seconds that quantising took."""
    with tempfile.TemporaryDirectory() as temporary:
        plain = by_onnxruntime(plain_model(task.model, Path(temporary)))
        wanted = [np.asarray(plain(feed)[0]) for feed in task.test]
        row: dict[str, Any] = {"what": task.what, "float": task.figure(wanted, wanted)}
        for name in names:
            start = time.perf_counter()
            try:
                run = CONTESTANTS[name](task, Path(temporary), options)
                seconds = time.perf_counter() - start
                row[name] = task.figure([np.asarray(run(feed)[0]) for feed in task.test], wanted)
                row[f"{name}_seconds"] = round(seconds, 1)
            except Exception as error:  # a contestant that fails is a result, too
                row[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return row


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of tasks")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--options", type=json.loads, default={}, help="of bolt_numba.quantize, as JSON")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args(argv)
    made = tasks()
    rows: dict[str, Any] = {}
    for name in [n for n in given.only.split(",") if n] or made:
        rows[name] = judged(made[name](), given.options, given.contestants.split(","))
        sys.stdout.write(f"{name}: {json.dumps(rows[name])}\n")
        sys.stdout.flush()
    if given.output is not None:
        given.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
