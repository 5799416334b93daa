"""A model behind KServe's own server, by the Open Inference Protocol.

    pip install kserve .
    python examples/serve/with_kserve.py examples/digits/digits.onnx --model_name digits --http_port 8080

In a cluster this file makes a custom predictor.  `kserve.yaml` needs none: `bolt-numba serve` is the server there.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import kserve
import numpy as np
from kserve import InferOutput, InferRequest, InferResponse
from kserve.errors import InvalidInput
from kserve.utils.numpy_codec import from_np_dtype

import bolt_numba as bn


class BoltModel(kserve.Model):
    """path: any file that bolt-numba reads.  options: of `bn.compile`."""

    def __init__(self, name: str, path: str, **options: Any) -> None:
        super().__init__(name)
        self.path, self.options = path, options

    def load(self) -> bool:
        self.session = bn.compile(self.path, **self.options)
        self.ready = True
        return self.ready

    async def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> InferResponse:
        try:
            feeds = {given.name: given.as_numpy() for given in payload.inputs}
            results = await asyncio.to_thread(self.session, feeds)
        except (bn.BoltError, ValueError) as error:
            raise InvalidInput(str(error)) from error
        return InferResponse(payload.id or "", self.name, [_output(name, array) for name, array in results.items()])


def _output(name: str, array: np.ndarray[Any, Any]) -> InferOutput:
    made = InferOutput(name, list(array.shape), from_np_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=False)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument("path")
    args, _ = parser.parse_known_args()
    model = BoltModel(args.model_name, args.path)
    model.load()
    kserve.ModelServer().start([model])
