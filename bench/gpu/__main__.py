"""Ask a GPU everything in one run: ``python -m bench.gpu -o FOLDER`` writes gpu.json, gpu.md and pictures there.

Every part stands alone: one that fails leaves its error in the results, and the others go on.  Without a GPU
``--device cuda-sim`` goes through all parts with small shapes, to see that they work; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.gpu import ours, peers
from bench.gpu.cases import cases
from bench.gpu.checks import check_kernels
from bench.gpu.page import markdown, plots
from bench.zoo import ZOO, normal_feeds

MODELS = ("resnet50", "resnet50_b64", "mobilenet_v2", "mobilenet_v2_b64", "bert_base_128", "bert_base_128_b64")
SMALL_MODELS = ("kws_dscnn", "mlp")
FAMILIES = ("product", "convolution", "attention", "memory")


def describe(device: str) -> dict[str, Any]:
    """The GPU and all versions."""
    from bolt_numba.devices import device as named

    torch = peers.torch_with_gpu()
    return {"device": named(device).describe(), "torch": torch and torch.__version__}


def time_family(family: str, device: str, small: bool, runs: int) -> list[dict[str, Any]]:
    """Every case of a family with both sides, and what they differ by."""
    torch, found = peers.torch_with_gpu(), []
    limit = peers.copy_bandwidth(torch, runs) if torch is not None and family == "memory" else None
    for case in cases(small):
        if case.family != family:
            continue
        row: dict[str, Any] = {"name": case.name, "unit": case.unit, "bar": case.bar}
        found.append(row)
        arrays = case.arrays()
        try:
            mine = ours.time_case(case, arrays, device, runs)
            row |= {"seconds": mine["seconds"], "rate": case.work / mine["seconds"], "runner": mine["runner"]}
            if torch is not None:
                theirs = peers.time_case(torch, case, arrays, runs)
                row["peer_seconds"], row["ratio"] = theirs["seconds"], theirs["seconds"] / mine["seconds"]
                row["difference"] = ours.difference(mine["result"], theirs["result"])
            if limit:
                row["of_copy"] = row["rate"] / limit
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        _tell(f"{family:12} {case.name:40} {_short(row)}")
    return found


def time_models(device: str, small: bool, runs: int) -> list[dict[str, Any]]:
    torch, found = peers.torch_with_gpu(), []
    for name in SMALL_MODELS if small else MODELS:
        row: dict[str, Any] = {"name": name}
        found.append(row)
        try:
            path = model_path(name)
            feeds = normal_feeds(path)
            row |= ours.time_model(path, feeds, device, "f16", runs)
            if torch is not None:
                row["torch"] = peers.time_model(torch, path, feeds, "f16", runs)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        _tell(f"{'model':12} {name:40} {_short(row)}")
    return found


def model_path(name: str) -> Path:
    """A model of the zoo; ``_b64`` is made here, as the zoo has batches of 1 and 8."""
    base, _, batch = name.partition("_b64")
    if batch == "" and not name.endswith("_b64"):
        return ZOO[name].path()
    target = ZOO[base].path().with_name(f"{name}.onnx")
    if not target.is_file():
        target.write_bytes(ZOO[base].build(64).SerializeToString())
    return target


def _short(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])[:120]
    shown = [f"{1e6 * row['seconds']:.1f} us"] if "seconds" in row else []
    shown += [f"{row['ratio']:.2f} of the library"] if "ratio" in row else []
    return ", ".join(shown)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="describe, checks, product, convolution, attention, memory, models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-results"))
    wanted = parser.parse_args()
    small = wanted.device.startswith("cuda-sim")
    runs = 2 if small else wanted.runs
    parts: dict[str, Callable[[], Any]] = {
        "describe": lambda: describe(wanted.device),
        "checks": lambda: check_kernels(wanted.device, small),
        **{f: lambda f=f: time_family(f, wanted.device, small, runs) for f in FAMILIES},  # type: ignore[misc]
        "models": lambda: time_models(wanted.device, small, runs),
    }
    results: dict[str, Any] = {}
    wanted.output.mkdir(parents=True, exist_ok=True)
    for name in wanted.parts or parts:
        begin = time.perf_counter()
        try:
            results[name] = parts[name]()
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        results.setdefault("took_s", {})[name] = round(time.perf_counter() - begin, 1)
        (wanted.output / "gpu.json").write_text(json.dumps(results, indent=1, default=str) + "\n")
    (wanted.output / "gpu.md").write_text(markdown(results))
    plots(results, wanted.output)


if __name__ == "__main__":
    main()
