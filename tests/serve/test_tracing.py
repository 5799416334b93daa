"""OpenTelemetry sees the requests of both doors, with the trace that their callers began."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.serve.test_command import BODY, WAIT_S, started
from tests.small import add

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_requests_are_spans_of_their_callers(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.instrumentation.starlette")
    with started(add(tmp_path / "sum.onnx"), before=[
        Path(sys.executable).parent / "opentelemetry-instrument", "--traces_exporter", "console",
        "--metrics_exporter", "none", "--logs_exporter", "none",
    ], stdout=subprocess.PIPE) as (process, address, _):  # fmt: skip
        told = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        with urlopen(Request(f"http://{address}/v2/models/sum/infer", BODY, told), timeout=WAIT_S) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [2, 4, 6]
        process.terminate()
        spans, _ = process.communicate(timeout=WAIT_S)
    assert '"name": "POST /v2/models/{model}/infer"' in spans
    assert TRACE in spans
