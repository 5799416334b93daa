"""The page of a run of the scoreboard: ``python -m bench.scoreboard.page FOLDER > docs/onnx-results.md``."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.scoreboard.conftest import STATES

KINDS = {
    "OnnxBackendNodeModelTest": "single operators",
    "OnnxBackendSimpleModelTest": "small graphs",
    "OnnxBackendPyTorchConvertedModelTest": "modules that PyTorch converted",
    "OnnxBackendPyTorchOperatorModelTest": "operators that PyTorch exported",
    "OnnxBackendRealModelTest": "whole networks",
}


def page(report: Mapping[str, Any], trend: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of the newest run.  report, trend: as `bench/scoreboard/conftest.py` writes them."""
    versions = ", ".join(f"{each['name']} {each['version']}" for each in trend[-1]["versions"])
    counts = {state: collections.Counter(name.partition("::")[0] for name in report[state]) for state in STATES}
    lines = [
        "# Results of ONNX's tests",
        "",
        "The [scoreboard](https://onnx.ai/backend-scoreboard/) of ONNX runs the suite of the `onnx` package with each",
        "backend. This is our run, without Docker. `make scoreboard` does it and writes this page. The files that the",
        f"scoreboard keeps are left in `build/scoreboard/results`. The versions were {versions}.",
        "",
        "| tests | passed | failed | skipped |",
        "|---|---:|---:|---:|",
    ]
    for kind, words in KINDS.items():
        lines.append("| " + " | ".join([words, *(str(counts[state][kind]) for state in STATES)]) + " |")
    lines.append("| **all** | " + " | ".join(f"**{sum(counts[state].values()):,}**" for state in STATES) + " |")
    lines += ["", "[ONNX tests that do not pass](onnx-missing.md) says why each of these fails:", ""]
    lines += [f"- `{name.partition('::')[2]}`" for name in report["failed"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page of a folder of results."""
    folder = Path(sys.argv[1])
    report, trend = (json.loads((folder / name).read_text()) for name in ("report.json", "trend.json"))
    sys.stdout.write(page(report, trend))


if __name__ == "__main__":
    main()
