"""The engines; each joins by one class.  Nothing is imported before it is used."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from bench.peer import Peer


class Bolt(Peer):
    distribution = "bolt-numba"
    precisions = ("f32", "bf16", "f16")
    options: ClassVar[dict[str, Any]] = {}

    def imports(self) -> None:
        import bolt_numba

        self.package = bolt_numba

    def load(self) -> None:
        options = self.options if self.precision == "f32" else {**self.options, "precision": self.precision}
        missing = options.keys() - inspect.signature(self.package.compile).parameters.keys()
        if missing:
            raise NotImplementedError(f"compile has no {', '.join(missing)}")
        self.session = self.package.compile(self.model, threads=self.threads, **options)

    def run(self) -> Any:
        return self.session.run(None, self.feeds)


class BoltStrict(Bolt):
    """Direct sums only: what the bound of the error of each element costs."""

    options: ClassVar[dict[str, Any]] = {"numerics": "strict"}


class BoltBefore(Bolt):
    """Another version of this package: the checkout that ``BOLT_NUMBA_BEFORE`` names, with kernels of its own."""

    def imports(self) -> None:
        before = os.environ["BOLT_NUMBA_BEFORE"]
        os.environ["BOLT_NUMBA_CACHE_DIR"] = os.path.join(before, ".cache", "kernels")
        sys.path.insert(0, before)
        super().imports()
        found = Path(self.package.__file__).parents[1]
        if found != Path(before).resolve():
            raise FileNotFoundError(f"BOLT_NUMBA_BEFORE: got the package of {found}, wanted {before}")


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
    """Precision by name: the plug-in would choose bf16 on processors that have it.  Open shapes are closed first."""

    distribution = "openvino"
    precisions = ("f32", "bf16")

    def imports(self) -> None:
        self.package: Any = importlib.import_module("openvino")

    def load(self) -> None:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": self.precision,
        }
        core = self.package.Core()
        net = core.read_model(self.model)
        if net.is_dynamic():
            net.reshape({name: list(array.shape) for name, array in self.feeds.items()})
        self.request = core.compile_model(net, "CPU", options).create_infer_request()

    def run(self) -> Any:
        return list(self.request.infer(self.feeds, share_inputs=True, share_outputs=True).values())


class Ncnn(Peer):
    """STEM.ncnn.param and .bin as pnnx writes them; storage by name (the default would round dense layers to f16).

    ncnn's images have no batch axis, so it runs batch 1 only.  STEM.ncnn.npz holds the inputs where the file begins
    behind the table of embeddings.
    """

    distribution = "ncnn"
    suffix = ".ncnn.param"
    precisions = ("f32", "bf16", "f16")

    def imports(self) -> None:
        self.package: Any = importlib.import_module("ncnn")

    def load(self) -> None:
        self.net = self.package.Net()
        options = self.net.opt
        options.num_threads = self.threads
        options.use_fp16_packed = options.use_fp16_storage = self.precision == "f16"
        options.use_fp16_arithmetic = False
        options.use_bf16_storage = options.use_bf16_packed = self.precision == "bf16"
        path = os.fspath(self.file())
        if self.net.load_param(path) or self.net.load_model(path.removesuffix("param") + "bin"):
            raise RuntimeError("ncnn does not take the file")
        self.given = [(f"in{i}", self.unbatched(a)) for i, a in enumerate(self.fed().values())]

    def fed(self) -> dict[str, Any]:
        import numpy as np

        path = self.file().with_name(f"{self.model.stem}.ncnn.npz")
        if not path.is_file():
            return dict(self.feeds)
        with np.load(path) as stored:
            return {name: stored[name] for name in stored.files}

    def unbatched(self, array: Any) -> Any:
        import numpy as np

        if array.ndim > 2:
            axis = 0 if array.shape[0] == 1 else 1  # images begin with the batch, sequences have it behind the steps
            if array.shape[axis] != 1:
                raise ValueError(f"ncnn runs batch 1 only: got {array.shape}")
            array = array.squeeze(axis)
        return np.ascontiguousarray(array.astype(np.int32) if array.dtype == np.int64 else array)

    def run(self) -> Any:
        extractor = self.net.create_extractor()
        for name, array in self.given:
            extractor.input(name, self.package.Mat(array))
        code, made = extractor.extract("out0")
        if code:
            raise RuntimeError(f"ncnn: extract returned {code}")
        return [made]


class Mnn(Peer):
    """STEM.mnn as mnnconvert writes it, with precision "high" (f32), or "low" where bf16 is asked for."""

    distribution = "MNN"
    suffix = ".mnn"
    precisions = ("f32", "bf16")

    def imports(self) -> None:
        self.package: Any = importlib.import_module("MNN")
        importlib.import_module("MNN.nn")

    def load(self) -> None:
        import numpy as np

        nn, expr = self.package.nn, self.package.expr
        precision = "high" if self.precision == "f32" else "low"
        runtime = nn.create_runtime_manager(({"backend": 0, "numThread": self.threads, "precision": precision},))
        self.net = nn.load_module_from_file(os.fspath(self.file()), list(self.feeds), [], runtime_manager=runtime)
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
    native = (".tflite",)

    def imports(self) -> None:
        self.package: Any = importlib.import_module("ai_edge_litert.interpreter")

    def load(self) -> None:
        import numpy as np

        self.net = self.package.Interpreter(os.fspath(self.file()), num_threads=self.threads)
        self.net.allocate_tensors()
        self.given = []
        names = list(self.feeds)
        for place, wanted in enumerate(self.net.get_input_details()):
            named = [n for n in names if n == wanted["name"].removeprefix("serving_default_").split(":")[0]]
            array = self.feeds[(named or [names[place]])[0]]
            if self.model.suffix in self.native:
                array = self.feeds[names[place]]
            image = array.ndim == 4 and tuple(wanted["shape"]) != array.shape and self.model.suffix not in self.native
            value = array.transpose(0, 2, 3, 1) if image else array
            self.given.append((wanted["index"], np.ascontiguousarray(value.astype(wanted["dtype"]))))
        self.results = [d["index"] for d in self.net.get_output_details()]

    def run(self) -> Any:
        for index, value in self.given:
            self.net.set_tensor(index, value)
        self.net.invoke()
        return [self.net.get_tensor(index) for index in self.results]


class OpenCv(Peer):
    """cv2.dnn with its own kernels, on ONNX or on NAME.prototxt with NAME.caffemodel."""

    distribution = "opencv-python-headless"

    def imports(self) -> None:
        self.package: Any = importlib.import_module("cv2")
        self.package.setNumThreads(self.threads)

    def load(self) -> None:
        if self.model.suffix == ".prototxt":
            weights = self.model.with_suffix(".caffemodel")
            self.net = self.package.dnn.readNetFromCaffe(os.fspath(self.model), os.fspath(weights))
        else:
            self.net = self.package.dnn.readNetFromONNX(self.shaped())
        self.net.setPreferableBackend(self.package.dnn.DNN_BACKEND_OPENCV)
        self.names = self.net.getUnconnectedOutLayersNames()

    def shaped(self) -> Any:
        """The file, with the shapes of its results, which the reader may ask for."""
        import numpy as np

        onnx: Any = importlib.import_module("onnx")
        model = onnx.load(self.model)
        inferred = onnx.shape_inference.infer_shapes(model).graph.output
        for result, known in zip(model.graph.output, inferred, strict=True):
            result.CopyFrom(known)
        return np.frombuffer(model.SerializeToString(), np.uint8)

    def run(self) -> Any:
        for name, array in self.feeds.items():
            self.net.setInput(array, name)
        return [self.by_class(a) for a in self.net.forward(self.names)]

    def by_class(self, found: Any) -> Any:
        """Detections [1, 1, n, 7] in the order of SSD's Caffe: by class, not by score."""
        import numpy as np

        if found.shape[:2] != (1, 1) or found.shape[-1] != 7:
            return found
        return found[:, :, np.lexsort((found[0, 0, :, 1], found[0, 0, :, 0]))]


class Tinygrad(Peer):
    """Its ONNX runner under its jit; kernels by the LLVM or clang that it finds."""

    distribution = "tinygrad"

    def imports(self) -> None:
        os.environ.setdefault("DEV", "CPU")
        os.environ["NUM_CPU_THREADS"] = str(self.threads)
        self.package: Any = importlib.import_module("tinygrad")
        self.runner: Any = importlib.import_module("tinygrad.nn.onnx").OnnxRunner

    def load(self) -> None:
        net, names = self.runner(os.fspath(self.model)), list(self.feeds)

        def call(*given: Any) -> list[Any]:
            return [made.realize() for made in net(dict(zip(names, given, strict=True))).values()]

        self.jit = self.package.TinyJit(call)
        self.given = [self.package.Tensor(a).realize() for a in self.feeds.values()]
        for _ in range(2):  # the second call captures
            self.run()

    def run(self) -> Any:
        made = self.jit(*self.given)
        self.package.Device[self.package.Device.DEFAULT].synchronize()
        return made

    def arrays(self) -> list[Any]:
        return [made.numpy() for made in self.run()]


class Paddle(Peer):
    """STEM.json and .pdiparams as `bench.translate` writes them, in paddle.inference with oneDNN."""

    distribution = "paddlepaddle"
    suffix = ".json"
    native = (".json", ".pdmodel")
    precisions = ("f32", "bf16")

    def imports(self) -> None:
        self.package: Any = importlib.import_module("paddle.inference")

    def load(self) -> None:
        path = self.file()
        config = self.package.Config(os.fspath(path), os.fspath(path.with_suffix(".pdiparams")))
        config.disable_gpu()
        config.enable_mkldnn()
        if self.precision == "bf16":
            config.enable_mkldnn_bfloat16()
        config.set_cpu_math_library_num_threads(self.threads)
        config.disable_glog_info()
        self.net = self.package.create_predictor(config)
        self.given = [(self.net.get_input_handle(name), self.feeds[name]) for name in self.net.get_input_names()]
        self.results = [self.net.get_output_handle(name) for name in self.net.get_output_names()]

    def run(self) -> Any:
        for place, array in self.given:
            place.copy_from_cpu(array)
        self.net.run()
        return [place.copy_to_cpu() for place in self.results]


class Torch(Peer):
    """Eager, through `bench.translate`: the modules that a user would have written."""

    distribution = "torch"
    precisions = ("f32", "bf16")

    def imports(self) -> None:
        self.package: Any = importlib.import_module("torch")
        self.package.set_num_threads(self.threads)
        self.package.set_num_interop_threads(1)
        self.translate: Any = importlib.import_module("bench.translate")

    def load(self) -> None:
        torch = self.package
        self.net, names = self.translate.torch_module(
            Path(self.model), "bfloat16" if self.precision == "bf16" else "float32"
        )
        self.given = [torch.from_numpy(self.feeds[name]) for name in names]
        if self.precision == "bf16":
            self.given = [x.to(torch.bfloat16) if x.is_floating_point() else x for x in self.given]

    def run(self) -> Any:
        with self.package.no_grad():
            return self.net(*self.given)

    def arrays(self) -> list[Any]:
        return [made.float().numpy() for made in self.run()]


class TorchCompiled(Torch):
    """Inductor with frozen weights; it compiles C++ while it loads."""

    def load(self) -> None:
        super().load()
        self.net = self.package.compile(self.net, fullgraph=True, options={"freezing": True})
        self.run()


class Jax(Peer):
    """XLA, through `bench.translate`, compiled while it loads."""

    distribution = "jax"

    def imports(self) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        if self.threads == 1:
            os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        self.package: Any = importlib.import_module("jax")
        self.translate: Any = importlib.import_module("bench.translate")

    def load(self) -> None:
        import numpy as np

        forward, weights, names = self.translate.jax_function(Path(self.model))
        array = self.package.numpy.asarray
        self.weights = {name: array(w) for name, w in weights.items()}
        whole = [self.feeds[name] for name in names]
        self.given = [array(a.astype(np.int32) if a.dtype == np.int64 else a) for a in whole]
        self.call = self.package.jit(forward).lower(self.weights, *self.given).compile()

    def run(self) -> Any:
        return self.package.block_until_ready(self.call(self.weights, *self.given))


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
    "bolt_strict": BoltStrict,
    "bolt_before": BoltBefore,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "ncnn": Ncnn,
    "mnn": Mnn,
    "litert": LiteRt,
    "opencv": OpenCv,
    "paddle": Paddle,
    "torch": Torch,
    "torch_compile": TorchCompiled,
    "jax": Jax,
    "tinygrad": Tinygrad,
    "canary": Canary,
}
