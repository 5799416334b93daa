"""torch on the same GPU, timed by its events: one operator, or a model of the zoo in three ways."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.cases import BURST, Case
from bench.translate import torch_module
from bolt_numba.types import Array

WARM = 3


def torch_with_gpu() -> Any:
    """torch, or None where it is not installed or sees no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def timed(torch: Any, call: Callable[[], Any], runs: int) -> float:
    """Median seconds of a call on the GPU: several in a row, so that it does not wait for the host."""
    for _ in range(WARM):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for begin, end in pairs:
        begin.record()
        for _ in range(BURST):
            call()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([begin.elapsed_time(end) for begin, end in pairs])) * 1e-3 / BURST


def tensor(torch: Any, array: Array) -> Any:
    """An array on the GPU; NumPy knows bfloat16 by another package, torch by its bits."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def time_case(torch: Any, case: Case, arrays: list[Array], runs: int) -> dict[str, Any]:
    """Seconds of the library's call, and its result."""
    call = case.peer(torch, [tensor(torch, a) for a in arrays])
    seconds = timed(torch, call, runs)
    result = call()
    if case.family == "convolution" or (case.family == "memory" and result.dim() == 4):
        result = result.permute(0, 2, 3, 1)
    return {"seconds": seconds, "result": result.float().cpu().numpy()}


def copy_bandwidth(torch: Any, runs: int) -> float:
    """Bytes a second that a copy within the GPU reads and writes."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / timed(torch, lambda: target.copy_(source), runs)


def time_model(torch: Any, path: Path, feeds: Mapping[str, Array], precision: str, runs: int) -> dict[str, Any]:
    """Seconds of a run on the GPU, inputs there already: eager, compiled, and as a graph that is replayed.

    A way that fails has its error in the place of seconds.
    """
    values = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[precision]
    module, names = torch_module(path, values)
    model = module.cuda().to(memory_format=torch.channels_last) if "image" in names else module.cuda()
    given = [tensor(torch, feeds[name]) for name in names]
    given = [x.to(getattr(torch, values)) if x.is_floating_point() else x for x in given]
    ways: dict[str, Callable[[], Callable[[], Any]]] = {
        "eager": lambda: functools.partial(model, *given),
        "compile": lambda: functools.partial(torch.compile(model, mode="reduce-overhead"), *given),
        "graph": lambda: _captured(torch, functools.partial(model, *given)),
    }
    found: dict[str, Any] = {}
    with torch.inference_mode():
        for name, make in ways.items():
            try:
                found[name] = timed(torch, make(), runs)
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:200]
    return found


def _captured(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """A call as a graph that is replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], Any] = graph.replay
    return replay
