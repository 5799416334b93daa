"""What a model costs at least, and what the machine can do: operations, bytes, arithmetic peak, copy bandwidth."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import bolt_numba as bn
from bench.peak import bf16_peak_gflops, peak_gflops
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.types import Array

COPY_BYTES = 256 << 20


def limits() -> dict[str, float]:
    """GFLOP/s of one core, and GB/s read plus written by a copy larger than the caches, with one core and with two."""
    return {
        "peak_gflops": peak_gflops(),
        "peak_bf16_gflops": bf16_peak_gflops(),
        "copy_gb_s": copy_bandwidth(1),
        "copy_gb_s_2": copy_bandwidth(2),
    }


def copy_bandwidth(threads: int, repeat: int = 5) -> float:
    """GB/s, the best of some copies; each thread copies its own part."""
    source, target = np.ones(COPY_BYTES // 4, np.float32), np.zeros(COPY_BYTES // 4, np.float32)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    best = math.inf
    for _ in range(repeat):
        workers = [threading.Thread(target=np.copyto, args=(b, a)) for a, b in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best / 1e9


def work(path: Path, feeds: Mapping[str, Array]) -> dict[str, float | None]:
    """GFLOP of the products and convolutions (a multiply-add is two) and MB of weights, inputs and results.

    ``gflop`` is None when the shape of one of them is known only at run time.
    """
    is_onnx = path.suffix == ".onnx"
    model = onnx.load(path) if is_onnx else to_onnx(bn.load(path))
    fed = sum(a.nbytes for a in feeds.values())
    weights = sum(math.prod(t.dims) * _itemsize(t.data_type) for t in model.graph.initializer)
    shapes = _shapes(model, feeds) if is_onnx else _declared(model.graph)
    results = 4 * sum(math.prod(shapes.get(o.name) or ()) for o in model.graph.output)
    flop = _counted(model, shapes)
    return {"gflop": None if flop is None else flop / 1e9, "mb": (fed + weights + results) / 1e6}


def _counted(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...] | None]) -> float | None:
    costs = [_flop(node, shapes) for node in model.graph.node]
    known = [c for c in costs if c is not None]
    return sum(known) if len(known) == len(costs) else None


def _itemsize(kind: int) -> int:
    return helper.tensor_dtype_to_np_dtype(kind).itemsize


def _shapes(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...] | None]:
    """Shapes of all values where the inputs are those of ``feeds``; large weights are left out of the inference."""
    graph = model.graph
    for given in graph.input:
        if given.name in feeds:
            kind = given.type.tensor_type.elem_type
            given.CopyFrom(helper.make_tensor_value_info(given.name, kind, feeds[given.name].shape))
    small = [t for t in graph.initializer if math.prod(t.dims) <= 64]
    inputs = {i.name for i in graph.input}
    for tensor in graph.initializer:
        if math.prod(tensor.dims) > 64 and tensor.name not in inputs:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del graph.initializer[:]
    graph.initializer.extend(small)
    for result in graph.output:
        result.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    found = {t.name: tuple(t.dims) for t in small} | _declared(inferred)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t).shape
    return found


def _declared(graph: onnx.GraphProto) -> dict[str, tuple[int, ...] | None]:
    """Shapes of constants, and of other values as far as the file tells all of their sizes."""
    found: dict[str, tuple[int, ...] | None] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        known = value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
        found[value.name] = tuple(d.dim_value for d in dims) if known else None
    return found


def _flop(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...] | None]) -> float | None:
    """Floating-point (or integer) operations of one node's products; 0 for other operators, None when unknown."""
    if node.op_type in ("If", "Loop", "Scan"):
        return None
    kinds = ("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger", "LSTM", "GRU", "RNN")
    if node.op_type not in kinds:
        return 0.0
    a, b, made = (shapes.get(name) for name in (node.input[0], node.input[1], node.output[0]))
    if a is None or b is None:
        return None
    if node.op_type in ("LSTM", "GRU", "RNN"):
        directions, rows, width = b
        return 2.0 * a[0] * a[1] * directions * rows * (width + (shapes.get(node.input[2]) or (0,))[-1])
    if node.op_type == "ConvTranspose":
        return 2.0 * math.prod(a) * math.prod(b[1:])
    if made is None:
        return None
    if node.op_type in ("Conv", "ConvInteger"):
        return 2.0 * math.prod(made) * math.prod(b[1:])
    transposed = node.op_type == "Gemm" and any(t.name == "transA" and t.i for t in node.attribute)
    return 2.0 * math.prod(made) * (a[0] if transposed else a[-1])
