"""onnxruntime behind LitServe, with its batching; arrays are bytes in Base64, as its documentation sends pictures.

MODEL=model.onnx python -m bench.serving.rivals.with_litserve PORT
"""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

import litserve

from bench.serving.rivals.recipe import MAX_BATCH, MAX_WAIT_S, Recipe, text_of


class LitRecipe(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.recipe = Recipe(os.environ["MODEL"])

    def decode_request(self, request):  # LitServe would ask FastAPI to parse an annotated one
        return {
            name: self.recipe.of_bytes(name, given["shape"], base64.b64decode(given["data"]))
            for name, given in request.items()
        }

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, feeds: Any) -> Any:
        return self.recipe.run_together(feeds) if isinstance(feeds, list) else self.recipe.run(feeds)

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: list[Any]) -> dict[str, str]:
        return {name: text_of(array) for name, array in zip(self.recipe.outputs, output, strict=True)}


if __name__ == "__main__":
    api = LitRecipe(max_batch_size=MAX_BATCH, batch_timeout=MAX_WAIT_S if MAX_BATCH > 1 else 0.0)
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/v2/health/ready")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error")
