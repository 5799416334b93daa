"""A model behind MLServer, by the Open Inference Protocol.

    pip install mlserver .
    mlserver start FOLDER       # which has this file, and model-settings.json:

    {"name": "digits", "implementation": "with_mlserver.BoltModel",
     "parameters": {"uri": "./digits.onnx", "extra": {"threads": 1}}}

``extra`` has options of `bn.compile`.
"""

from __future__ import annotations

import asyncio

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import get_model_uri

import bolt_numba as bn


class BoltModel(MLModel):
    async def load(self) -> bool:
        parameters = self._settings.parameters
        options = (parameters.extra if parameters else None) or {}
        self.session = bn.compile(await get_model_uri(self._settings), **options)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        try:
            feeds = {given.name: NumpyCodec.decode_input(given) for given in payload.inputs}
            results = await asyncio.to_thread(self.session, feeds)
        except (bn.BoltError, ValueError) as error:
            raise InferenceError(str(error)) from error
        outputs = [NumpyCodec.encode_output(name, np.asarray(array)) for name, array in results.items()]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)

    async def unload(self) -> bool:
        self.session.close()
        return True
