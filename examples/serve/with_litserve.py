"""A model behind LitServe: POST its inputs by name as JSON, and its results come back by name.

    pip install litserve .
    python examples/serve/with_litserve.py examples/digits/digits.onnx 8000
    curl --data @inputs.json --header 'Content-Type: application/json' http://localhost:8000/predict
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
from fastapi import HTTPException

import bolt_numba as bn


class BoltAPI(litserve.LitAPI):
    """model: any file that bolt-numba reads.  options: of `bn.compile`."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def setup(self, device: str) -> None:
        self.session = bn.compile(self.model, **self.options)

    def decode_request(self, request):  # LitServe would ask FastAPI to parse an annotated one
        try:
            return {spec.name: np.asarray(request[spec.name], spec.dtype) for spec in self.session.inputs}
        except (KeyError, TypeError, ValueError) as error:
            wanted = [str(spec) for spec in self.session.inputs]
            raise HTTPException(422, f"got what does not fit: {error!r}, wanted {wanted}") from error

    def predict(self, feeds: dict[str, Any]) -> Any:
        try:
            return self.session(feeds)
        except bn.BoltError as error:
            raise HTTPException(422, str(error)) from error

    def encode_response(self, results: Any) -> dict[str, Any]:
        return {name: array.tolist() for name, array in results.items()}


if __name__ == "__main__":
    server = litserve.LitServer(BoltAPI(sys.argv[1]), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
