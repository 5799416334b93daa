"""The usual recipe that `bench.serving` compares with: FastAPI, lists of JSON, onnxruntime in the pool of threads.

MODEL=model.onnx uvicorn bench.serving_app:app
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime as ort
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

app = FastAPI()
_session = ort.InferenceSession(os.environ["MODEL"])
_dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
_kinds = {i.name: _dtypes[i.type] for i in _session.get_inputs()}


@app.get("/v2/health/ready")
async def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/infer")
async def infer(inputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    feeds = {name: np.array(value, _kinds[name]) for name, value in inputs.items()}
    made = await run_in_threadpool(_session.run, None, feeds)
    return {o.name: array.tolist() for o, array in zip(_session.get_outputs(), made, strict=True)}
