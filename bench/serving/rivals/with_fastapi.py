"""The usual recipe: FastAPI, onnxruntime in the pool of threads; lists of JSON, or a body that is the input's bytes.

MODEL=model.onnx uvicorn bench.serving.rivals.with_fastapi:app
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from bench.serving.rivals.recipe import Recipe

app = FastAPI()
recipe = Recipe(os.environ["MODEL"])


@app.get("/v2/health/ready")
async def ready() -> dict[str, bool]:
    return {"ready": True}


@app.post("/infer")
async def infer(inputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    made = await run_in_threadpool(recipe.run, recipe.of_lists(inputs))
    return {name: array.tolist() for name, array in zip(recipe.outputs, made, strict=True)}


@app.post("/infer_bytes")
async def infer_bytes(request: Request, name: str, shape: str) -> Response:
    array = recipe.of_bytes(name, [int(size) for size in shape.split(",")], await request.body())
    made = await run_in_threadpool(recipe.run, {name: array})
    return Response(b"".join(np.ascontiguousarray(a) for a in made), media_type="application/octet-stream")
