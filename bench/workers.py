"""One engine, one model, one number of threads: an isolated process that `bench.run` drives through a pipe.

    python -m bench.workers '{"peer": "bolt", "model": PATH, "feeds": PATH.npz, "threads": 1, "cpus": [0]}'

It answers one line of JSON to each line of JSON: {"do": "load"}, {"do": "turn", "seconds": 0.2},
{"do": "save", "path": PATH.npz}, {"do": "stop"}.  An engine joins by a class with ``load`` and ``run`` in `PEERS`.
Only the standard library and NumPy are imported besides the engine, so that start and memory are the engine's.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar


class Peer:
    """An engine with one model.  model: the ONNX file; converted: the folder with files of other formats."""

    distribution: ClassVar[str] = ""
    suffix: ClassVar[str] = ""
    """Ending of the file in the engine's own format; empty where it reads ONNX."""

    def __init__(self, model: Path, converted: Path | None, threads: int, feeds: Mapping[str, Any]) -> None:
        self.model, self.converted, self.threads, self.feeds = model, converted, threads, feeds

    def imports(self) -> None:
        """Import the engine (timed apart from `load`)."""

    def load(self) -> None:
        """From the file to ready for the first run."""

    def run(self) -> Any:
        """One inference with fresh inputs given and results taken, as an application would."""
        raise NotImplementedError

    def arrays(self) -> list[Any]:
        """NumPy results of one run."""
        import numpy as np

        return [np.asarray(a) for a in self.run()]

    def file(self) -> Path:
        """The model in the engine's own format."""
        if self.converted is None:
            raise FileNotFoundError(f"no folder of converted models given, wanted {self.model.stem}{self.suffix} in it")
        path = self.converted / f"{self.model.stem}{self.suffix}"
        if not path.is_file():
            raise FileNotFoundError(f"{path.name}: not in the folder of converted models")
        return path

    def version(self) -> str:
        return importlib.metadata.version(self.distribution)


class Bolt(Peer):
    distribution = "bolt-numba"

    def imports(self) -> None:
        import bolt_numba

        self.package = bolt_numba

    def load(self) -> None:
        self.session = self.package.compile(self.model, threads=self.threads)

    def run(self) -> Any:
        return self.session.run(None, self.feeds)


class OnnxRuntime(Peer):
    distribution = "onnxruntime"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("onnxruntime")

    def load(self) -> None:
        options = self.package.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self.session = self.package.InferenceSession(os.fspath(self.model), options, providers=providers)

    def run(self) -> Any:
        return self.session.run(None, self.feeds)


class OpenVino(Peer):
    """f32 by name: the plug-in would choose bf16 on processors that have it."""

    distribution = "openvino"
    precision: ClassVar[str] = "f32"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("openvino")

    def load(self) -> None:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": self.precision,
        }
        self.request = self.package.Core().compile_model(self.model, "CPU", options).create_infer_request()

    def run(self) -> Any:
        return list(self.request.infer(self.feeds, share_inputs=True, share_outputs=True).values())


class OpenVinoBf16(OpenVino):
    precision = "bf16"


class TorchEager(Peer):
    """Through onnx2torch, which maps nodes to modules one by one."""

    distribution = "torch"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("torch")
        self.convert: Any = importlib.import_module("onnx2torch").convert
        self.package.set_num_threads(self.threads)

    def load(self) -> None:
        self.net = self.convert(os.fspath(self.model)).eval()
        self.given = [self.package.from_numpy(a) for a in self.feeds.values()]

    def run(self) -> Any:
        with self.package.inference_mode():
            made = self.net(*self.given)
        return made if isinstance(made, (list, tuple)) else [made]


class Ncnn(Peer):
    """STEM.ncnn.param and .bin as pnnx writes them; arithmetic and storage in f32.

    ncnn's images have no batch axis, so it runs batch 1 only.
    """

    distribution = "ncnn"
    suffix = ".ncnn.param"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("ncnn")

    def load(self) -> None:
        import numpy as np

        self.net = self.package.Net()
        options = self.net.opt
        options.num_threads = self.threads
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        options.use_bf16_storage = False
        path = os.fspath(self.file())
        if self.net.load_param(path) or self.net.load_model(path.removesuffix("param") + "bin"):
            raise RuntimeError("ncnn does not take the file")
        self.given = []
        for i, array in enumerate(self.feeds.values()):
            if array.ndim > 2 and array.shape[0] != 1:
                raise ValueError(f"ncnn runs batch 1 only: got {array.shape}")
            flat = array[0] if array.ndim > 2 else array
            flat = flat.astype(np.int32) if flat.dtype == np.int64 else flat
            self.given.append((f"in{i}", np.ascontiguousarray(flat)))

    def run(self) -> Any:
        extractor = self.net.create_extractor()
        for name, array in self.given:
            extractor.input(name, self.package.Mat(array))
        code, made = extractor.extract("out0")
        if code:
            raise RuntimeError(f"ncnn: extract returned {code}")
        return [made]


class Mnn(Peer):
    """STEM.mnn as mnnconvert writes it, with precision "high" (f32)."""

    distribution = "MNN"
    suffix = ".mnn"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("MNN")
        importlib.import_module("MNN.nn")

    def load(self) -> None:
        import numpy as np

        nn, expr = self.package.nn, self.package.expr
        runtime = nn.create_runtime_manager(({"backend": 0, "numThread": self.threads, "precision": "high"},))
        self.net = nn.load_module_from_file(os.fspath(self.file()), [], [], runtime_manager=runtime)
        self.given = []
        for array in self.feeds.values():
            value = array.astype(np.int32) if array.dtype == np.int64 else array
            kind = expr.int if value.dtype == np.int32 else expr.float
            self.given.append((expr.placeholder(list(value.shape), expr.NCHW, kind), value))

    def run(self) -> Any:
        for place, value in self.given:
            place.write(value)
        made = self.net.forward([place for place, _ in self.given])
        made = made if isinstance(made, (list, tuple)) else [made]
        for result in made:
            result.read()
        return made

    def arrays(self) -> list[Any]:
        expr = self.package.expr
        return [expr.convert(result, expr.NCHW).read().copy() for result in self.run()]


class LiteRt(Peer):
    """STEM.tflite; images are given channels-last where the file wants them so."""

    distribution = "ai-edge-litert"
    suffix = ".tflite"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("ai_edge_litert.interpreter")

    def load(self) -> None:
        import numpy as np

        self.net = self.package.Interpreter(os.fspath(self.file()), num_threads=self.threads)
        self.net.allocate_tensors()
        self.given = []
        for wanted, array in zip(self.net.get_input_details(), self.feeds.values(), strict=True):
            image = array.ndim == 4 and tuple(wanted["shape"]) != array.shape
            value = array.transpose(0, 2, 3, 1) if image else array
            self.given.append((wanted["index"], np.ascontiguousarray(value.astype(wanted["dtype"]))))
        self.results = [d["index"] for d in self.net.get_output_details()]

    def run(self) -> Any:
        for index, value in self.given:
            self.net.set_tensor(index, value)
        self.net.invoke()
        return [self.net.get_tensor(index) for index in self.results]


class Canary(Peer):
    """No engine: a fixed product of 512^3, which shows what the machine gives at the moment."""

    distribution = "numpy"

    def imports(self) -> None:
        import numpy as np

        self.a, self.b = np.random.default_rng(0).standard_normal((2, 512, 512), np.float32)

    def run(self) -> Any:
        return [self.a @ self.b]


PEERS: dict[str, type[Peer]] = {
    "bolt": Bolt,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "openvino_bf16": OpenVinoBf16,
    "torch": TorchEager,
    "ncnn": Ncnn,
    "mnn": Mnn,
    "litert": LiteRt,
    "canary": Canary,
}


def peak_rss_mib() -> float:
    """VmHWM of proc(5): ``ru_maxrss`` of a new process would begin with its parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status: no VmHWM")


def load(peer: Peer) -> dict[str, Any]:
    """Import, load and run once; seconds of each, and the largest memory so far."""
    times = [time.perf_counter()]
    for step in (peer.imports, peer.load, peer.run):
        step()
        times.append(time.perf_counter())
    seconds = [b - a for a, b in itertools.pairwise(times)]
    figures = dict(zip(("import_s", "load_s", "first_s"), seconds, strict=True))
    return {
        **figures,
        "peak_rss_mib": peak_rss_mib(),
        "version": peer.version(),
        "compiled": "numba" in sys.modules,
    }


def turn(peer: Peer, seconds: float) -> dict[str, Any]:
    """Seconds of every call in a turn; one call first brings caches and threads back and is not counted."""
    gc.collect()
    gc.disable()
    try:
        peer.run()
        spent: list[float] = []
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            peer.run()
            now = time.perf_counter()
            spent.append(now - start)
            if now >= end and len(spent) >= 2:
                return {"times": spent}
    finally:
        gc.enable()


def save(peer: Peer, path: str) -> dict[str, Any]:
    """Write the results of one run."""
    import numpy as np

    np.savez(path, *peer.arrays())
    return {}


def answer(peer: Peer, ask: Mapping[str, Any]) -> dict[str, Any]:
    match ask["do"]:
        case "load":
            return load(peer)
        case "turn":
            return turn(peer, ask["seconds"])
        case "save":
            return save(peer, ask["path"])
        case other:
            raise ValueError(f"worker: got {other!r}, wanted load, turn, save or stop")


def main(job: Mapping[str, Any]) -> None:
    """Answer requests until told to stop or the pipe ends."""
    os.sched_setaffinity(0, job["cpus"])
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print must not get between the answers
    import numpy as np

    feeds = {}
    if job["feeds"] is not None:
        with np.load(job["feeds"]) as stored:
            feeds = {name: np.ascontiguousarray(stored[name]).reshape(stored[name].shape) for name in stored.files}
    converted = Path(job["converted"]) if job.get("converted") else None
    peer = PEERS[job["peer"]](Path(job["model"] or "."), converted, job["threads"], feeds)
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "stop":
            return
        try:
            made = {"ok": True, **answer(peer, ask)}
        except Exception as error:  # whatever an engine raises is its answer
            made = {"ok": False, "error": f"{type(error).__name__}: {error}"[:300]}
        pipe.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
