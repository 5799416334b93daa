"""The public suite of ONNX as tests of pytest, as the scoreboard runs it."""

from __future__ import annotations

import importlib
import os

from onnx.backend.test import BackendTest

pytest_plugins = "onnx.backend.test.report"

BACKEND = importlib.import_module(os.environ["ONNX_BACKEND"])
globals().update(BackendTest(BACKEND, __name__).enable_report().test_cases)
