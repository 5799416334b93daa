"""A model behind Ray Serve: POST its inputs by name as JSON, and its results come back by name.

    pip install 'ray[serve]' .
    python examples/serve/with_ray.py examples/digits/digits.onnx 8000
    curl --data @inputs.json http://localhost:8000
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import bolt_numba as bn

THREADS = 1
"""Of a replica: Ray counts as many processors for it.  More replicas are `num_replicas=` of `serve.deployment`."""


@serve.deployment(ray_actor_options={"num_cpus": THREADS}, max_ongoing_requests=16)
class BoltDeployment:
    """model: any file that bolt-numba reads, where the workers find it.  options: of `bn.compile`."""

    def __init__(self, model: str, **options: Any) -> None:
        self.session = bn.compile(model, threads=THREADS, **options)

    async def __call__(self, request: Request) -> JSONResponse:
        try:
            given = await request.json()
            feeds = {spec.name: np.asarray(given[spec.name], spec.dtype) for spec in self.session.inputs}
            results = await asyncio.to_thread(self.session, feeds)
        except (bn.BoltError, KeyError, TypeError, ValueError) as error:
            wanted = [str(spec) for spec in self.session.inputs]
            return JSONResponse({"error": f"got what does not fit: {error!r}, wanted {wanted}"}, 422)
        return JSONResponse({name: array.tolist() for name, array in results.items()})


if __name__ == "__main__":
    serve.start(http_options={"port": int(sys.argv[2])})
    serve.run(BoltDeployment.bind(str(Path(sys.argv[1]).resolve())), blocking=True)
