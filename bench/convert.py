"""Models in the formats of engines that do not read ONNX, written once, before any measurement.

    python -m bench.convert --models main --python PEERS/bin/python --tflite-python TF/bin/python

``PEERS`` has pnnx, MNN and paddlepaddle, ``TF`` has onnx2tf with TensorFlow.  Files go to the folder of `CONVERTED`,
named STEM and an ending; what did not convert, and its last words, to ``convert.json`` there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.utils import Extractor

from bolt_numba.types import Array
from tests.models import folder

ROOT = Path(__file__).parents[1]
ENDINGS = {
    "ncnn": ".ncnn.param", "mnn": ".mnn", "tflite": ".tflite", "tflite_int8": ".int8.tflite", "paddle": ".json"
}  # fmt: skip


def converted() -> Path:
    """Where the files lie."""
    return folder() / "converted"


@dataclass(frozen=True, slots=True)
class Job:
    """A model to convert: the ONNX file, its inputs, the file to write, and the interpreters' folder or path."""

    model: Path
    feeds: Mapping[str, Array]
    target: Path
    python: Path

    @property
    def tools(self) -> Path:
        return self.python.parent

    def dims(self, form: str) -> list[str]:
        """Name and dimensions of every input by a format string."""
        return [
            form.format(name=n, dims=",".join(map(str, a.shape)), kind=_KINDS[a.dtype.kind])
            for n, a in self.feeds.items()
        ]


_KINDS = {"f": "f32", "i": "i64", "b": "bool"}


def body(model: onnx.ModelProto) -> onnx.ModelProto:
    """A transformer behind its table of embeddings: for ncnn, which has no Gather.

    Cut at the results of look-ups by an input, and where what is computed from another integer input alone (a mask)
    meets the rest.  A model without such inputs comes back as it is.
    """
    graph = model.graph
    whole = {i.name for i in graph.input if i.type.tensor_type.elem_type in (6, 7)}
    fixed = {t.name for t in graph.initializer}
    tables = {n.output[0] for n in graph.node if n.op_type == "Gather" and n.input[0] in fixed and n.input[1] in whole}
    looked = {n.input[1] for n in graph.node if n.output[0] in tables}
    chain, cut = whole - looked, []
    for node in graph.node:
        given = [name for name in node.input if name and name not in fixed]
        if given and all(name in chain for name in given):
            chain |= set(node.output)
        else:
            cut += [name for name in given if name in chain]
    if not tables:
        return model
    inputs = sorted(tables) + list(dict.fromkeys(cut))
    part: onnx.ModelProto = Extractor(onnx.shape_inference.infer_shapes(model)).extract_model(
        inputs, [o.name for o in graph.output]
    )
    return part


def embedded(job: Job) -> Job:
    """The job on the body of the model, its inputs computed by onnxruntime and kept beside the converted file."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    model = onnx.load(job.model)
    part = body(model)
    if part is model:
        return job
    names = [i.name for i in part.graph.input]
    head = Extractor(onnx.shape_inference.infer_shapes(model)).extract_model(list(job.feeds), names)
    session = onnxruntime.InferenceSession(head.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {i.name for i in session.get_inputs()}
    made = session.run(names, {n: a for n, a in job.feeds.items() if n in given})
    feeds = dict(zip(names, made, strict=True))
    np.savez(job.target.with_name(f"{job.model.stem}.ncnn.npz"), **feeds)
    path = job.target.with_name(f"{job.model.stem}.onnx")
    onnx.save(part, path)
    return Job(path, feeds, job.target, job.python)


def pnnx(tools: Path) -> Path:
    """The program inside the package of this name, whose Python part alone needs torch."""
    inside = next(iter(tools.parent.glob("lib/python*/site-packages/pnnx/pnnx")), None)
    if inside is None:
        raise FileNotFoundError(f"pnnx: not installed beside {tools}")
    return inside


def ncnn(job: Job, scratch: Path) -> list[str]:
    job = embedded(job)
    stem = job.target.name.removesuffix(".ncnn.param")
    words = {
        "ncnnparam": job.target, "ncnnbin": job.target.with_name(f"{stem}.ncnn.bin"), "ncnnpy": scratch / "n.py",
        "pnnxparam": scratch / "p.param", "pnnxbin": scratch / "p.bin", "pnnxpy": scratch / "p.py",
        "pnnxonnx": scratch / "p.onnx",
    }  # fmt: skip
    shapes = "inputshape=" + ",".join(job.dims("[{dims}]{kind}"))
    return [str(pnnx(job.tools)), str(job.model), shapes, "fp16=0", *(f"{k}={v}" for k, v in words.items())]


def mnn(job: Job, scratch: Path) -> list[str]:
    words = ["-f", "ONNX", "--modelFile", str(job.model), "--MNNModel", str(job.target), "--bizCode", "bench"]
    return [str(job.tools / "mnnconvert"), *words]


def tflite(job: Job, scratch: Path) -> list[str]:
    return [str(job.python), "-m", "bench.to_tflite", str(job.model), str(job.target), *job.dims("{name}:{dims}")]


def paddle(job: Job, scratch: Path) -> list[str]:
    feeds = scratch / "feeds.npz"
    np.savez(feeds, **job.feeds)  # type: ignore[arg-type]
    return [str(job.python), "-m", "bench.translate", str(job.model), str(feeds), str(job.target.with_suffix(""))]


TARGETS: dict[str, Callable[[Job, Path], list[str]]] = {
    "ncnn": ncnn, "mnn": mnn, "tflite": tflite, "tflite_int8": tflite, "paddle": paddle
}  # fmt: skip


def convert(kind: str, job: Job, limit_s: float) -> dict[str, Any]:
    """Run one converter; seconds, and the error where there is one."""
    start, error = time.perf_counter(), ""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            command = TARGETS[kind](job, Path(scratch))
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=limit_s, env=environment, cwd=ROOT,
                check=False,
            )  # fmt: skip
            if done.returncode or not job.target.is_file():
                words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
                error = f"ended with {done.returncode}: {words[-1].strip() if words else ''}"[:300]
        except subprocess.TimeoutExpired:
            error = f"not done in {limit_s:.0f} s"
        except Exception as problem:  # whatever a converter raises is its answer
            error = f"{type(problem).__name__}: {problem}"[:300]
    if error:
        job.target.unlink(missing_ok=True)
    return {"seconds": round(time.perf_counter() - start, 1), "error": error}


def main(argv: Sequence[str] | None = None) -> None:
    from bench.run import chosen, entries

    parser = argparse.ArgumentParser(
        prog="bench.convert", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="main", help="as of bench.run")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--tflite-python", type=Path, help="default: that of --python")
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--again", action="store_true", help="also what was tried before")
    args = parser.parse_args(argv)
    place = converted()
    place.mkdir(parents=True, exist_ok=True)
    log = place / "convert.json"
    known = entries()
    for kind in args.targets.split(","):
        for name in chosen(args.models):
            model = known[name].path()
            target, key = place / f"{model.stem}{ENDINGS[kind]}", f"{name} {kind}"
            done = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else {}
            if key in done and not args.again:
                continue
            python = args.tflite_python if kind.startswith("tflite") and args.tflite_python else args.python
            made = convert(kind, Job(model, known[name].feeds(), target, python.absolute()), args.limit_s)
            done = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else {}
            log.write_text(json.dumps({**done, key: made}, indent=1), encoding="utf-8")
            sys.stdout.write(f"{key}: {made['error'] or 'converted'} ({made['seconds']} s)\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
