"""Ask a GPU everything in one run: ``python -m bench.gpu -o FOLDER`` writes gpu.json, gpu.md and pictures there.

Every part stands alone: one that fails leaves its error in the results, and the others go on.  Results are on disk
behind every case, and the run ends after ``--seconds``; parts that are named later go to the same files.  Without a GPU
``--device cuda-sim`` goes through all parts with small shapes, to see that they work; there are no times then.
``--prepare FOLDER`` runs nothing: it compiles what the parts need for a GPU that is elsewhere (`bench.gpu.prepare`).
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
from bench.gpu.findings import Findings
from bench.gpu.launches import is_simulated, nothing, time_launches, time_replay
from bench.zoo import ZOO, normal_feeds
from bolt_numba.devices import device as named
from bolt_numba.kernels.cuda import code, needs
from bolt_numba.kernels.cuda.code import CudaCode

MODELS = ("resnet50", "resnet50_b64", "mobilenet_v2", "mobilenet_v2_b64", "bert_base_128", "bert_base_128_b64")
SMALL_MODELS = ("kws_dscnn", "mlp")
REPLAYED = ("resnet50", "mobilenet_v2", "bert_base_128")
FAMILIES = ("product", "convolution", "attention", "memory")
PARTS = ("describe", "launches", *FAMILIES, "models", "checks")
"""In the order in which they are done: what takes longest comes last."""
CASE_S, MODEL_S = 10.0, 60.0
"""Seconds that an operator may take, and a model that torch compiles: none begins with less left."""


def describe(device: str) -> dict[str, Any]:
    """The GPU, all versions, and whether kernels can be compiled here."""
    import numba
    import numpy

    torch, gpu = peers.torch_with_gpu(), named(device)
    return {
        "device": gpu.describe(), "simulated": is_simulated(device), "python": sys.version.split()[0],
        "numpy": numpy.__version__, "numba": numba.__version__, "torch": torch and torch.__version__,
        "compilers": needs.versions(), "compiles": _compiles(gpu), "cached": len(code.cache_entries()),
        "prepared": _is_prepared(gpu),
    }  # fmt: skip


def _is_prepared(gpu: Any) -> bool:
    """Whether code that `bench.gpu.prepare` made serves here: it always makes that of an empty kernel."""
    return CudaCode(nothing, gpu.driver.arch, gpu.driver.kind)._found() is not None


def _compiles(gpu: Any) -> str:
    """"yes", or what is wrong; the cache is not asked."""
    try:
        return "yes" if CudaCode(nothing, gpu.driver.arch, gpu.driver.kind)._made() else "no code"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:400]


def time_family(family: str, device: str, small: bool, runs: int, findings: Findings) -> None:
    """Every case of a family with both sides, and what they differ by."""
    torch, found = peers.torch_with_gpu(), findings.rows(family)
    limit = peers.copy_bandwidth(torch, runs) if torch is not None and family == "memory" else None
    for case in cases(small):
        if case.family != family or not findings.has_time(family, case.name, CASE_S):
            continue
        row: dict[str, Any] = {"name": case.name, "unit": case.unit, "bar": case.bar}
        found.append(row)
        arrays = case.arrays()
        try:
            mine = ours.time_case(case, arrays, device, runs)
            row["runner"] = mine["runner"]
            if is_simulated(device):
                row["difference"] = ours.difference(mine["result"], ours.expected(case, arrays))
            else:
                row |= {"seconds": mine["seconds"], "rate": case.work / mine["seconds"]}
            if torch is not None:
                theirs = peers.time_case(torch, case, arrays, runs)
                row["peer_seconds"], row["ratio"] = theirs["seconds"], theirs["seconds"] / mine["seconds"]
                row["difference"] = ours.difference(mine["result"], theirs["result"])
            if limit:
                row["of_copy"] = row["rate"] / limit
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        findings.save()
        _tell(f"{family:12} {case.name:40} {_short(row)}")


def time_models(device: str, small: bool, runs: int, findings: Findings) -> None:
    torch, found = peers.torch_with_gpu(), findings.rows("models")
    for name in SMALL_MODELS if small else MODELS:
        if not findings.has_time("models", name, MODEL_S):
            continue
        row: dict[str, Any] = {"name": name}
        found.append(row)
        try:
            path = model_path(name)
            feeds = normal_feeds(path)
            mine = ours.time_model(path, feeds, device, "f16", runs)
            row |= {k: v for k, v in mine.items() if not (k.endswith(("seconds", "_s")) and is_simulated(device))}
            findings.save()  # compiling by torch takes longest
            if torch is not None:
                row["torch"] = peers.time_model(torch, path, feeds, "f16", runs)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:400]
        findings.save()
        _tell(f"{'model':12} {name:40} {_short(row)}")


def time_all_launches(device: str, small: bool, runs: int) -> dict[str, Any]:
    """An empty kernel, and the plans of models."""
    found: dict[str, Any] = {"empty": time_launches(device, runs), "plans": []}
    for name in SMALL_MODELS if small else REPLAYED:
        try:
            found["plans"] += time_replay(model_path(name), device, runs)
        except Exception as error:
            found["plans"].append({"name": name, "error": f"{type(error).__name__}: {error}"[:400]})
    for row in (*found["empty"], *found["plans"]):
        host = row.get("host_s")
        _tell(f"{'launches':12} {row['name']:40} {row.get('error') or (f'{1e6 * host:.1f} us' if host else '')}")
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
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all unless some are named")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="compile for --arch into this folder instead")
    parser.add_argument("--arch", default="sm_90a", help="of the GPU that --prepare is for")
    parser.add_argument("--small", action="store_true", help="the shapes of the simulator")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=570.0, help="after which nothing new begins (default: 570)")
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-results"))
    wanted = parser.parse_args()
    unknown = sorted({*wanted.parts} - {*PARTS})
    if unknown:
        parser.error(f"parts: got {', '.join(unknown)}, wanted some of {', '.join(PARTS)}")
    small = wanted.small or wanted.device.startswith("cuda-sim")
    if wanted.prepare is not None:
        from bench.gpu.prepare import prepare

        paths = [model_path(name) for name in (SMALL_MODELS if small else MODELS)]
        _tell(json.dumps(prepare(wanted.prepare, wanted.arch, wanted.parts or PARTS, paths, small), indent=1))
        return
    runs = 2 if small else wanted.runs
    parts: dict[str, Callable[[], Any]] = {
        "describe": lambda: describe(wanted.device),
        "checks": lambda: check_all(wanted.device, small, findings),
        "launches": lambda: time_all_launches(wanted.device, small, runs),
        **{f: lambda f=f: time_family(f, wanted.device, small, runs, findings) for f in FAMILIES},  # type: ignore[misc]
        "models": lambda: time_models(wanted.device, small, runs, findings),
    }
    ordered = [name for name in PARTS if name in (wanted.parts or PARTS)]
    findings = Findings(wanted.output, wanted.device, ordered, wanted.seconds)
    for name in ordered:
        run_part(name, parts[name], findings)
    if findings.by_part["left_out"]:
        _tell(f"left out for lack of time: {', '.join(findings.by_part['left_out'])}")


def run_part(name: str, work: Callable[[], Any], findings: Findings) -> None:
    """One part; it fails for itself alone."""
    begin = time.perf_counter()
    _tell(f"{name}: up to {findings.left(name):.0f} s")
    try:
        found = work()
        if found is not None:
            findings.by_part[name] = found
    except Exception as error:
        findings.by_part[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        _tell(f"{name}: failed: {findings.by_part[name]['error']:.300}")
    findings.end(name, time.perf_counter() - begin)


def check_all(device: str, small: bool, findings: Findings) -> dict[str, Any]:
    def keep(known: dict[str, Any]) -> None:
        findings.by_part["checks"] = known
        findings.save()

    found = check_kernels(device, small, findings.left("checks"), keep)
    _tell(", ".join(f"{found[how]} {how}" for how in ("passed", "failed", "skipped")))
    return found


if __name__ == "__main__":
    main()
