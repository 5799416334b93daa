"""onnxruntime behind MLServer, with its adaptive batching: `bench.serving.servers` writes its settings.

Its REST has no binary tensors, and its batching joins lists without regard to lengths.  So an array comes as bytes in
Base64, one element of a list, which both take.
"""

from __future__ import annotations

import asyncio
import base64

from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from mlserver.utils import get_model_uri

from bench.serving.rivals.recipe import Recipe, text_of


class MLRecipe(MLModel):
    async def load(self) -> bool:
        self.recipe = Recipe(await get_model_uri(self._settings))
        self.sizes = {i.name: i.shape[1:] for i in self.recipe.session.get_inputs()}
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        columns = {given.name: [self._array(given.name, text) for text in given.data.root] for given in payload.inputs}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        made = await asyncio.to_thread(self.recipe.run_together, rows)
        outputs = [
            ResponseOutput(name=name, datatype="BYTES", shape=[len(rows), 1], data=[text_of(row[i]) for row in made])
            for i, name in enumerate(self.recipe.outputs)
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)

    def _array(self, name: str, text: str) -> object:
        """One row; the one size that is free follows from the bytes."""
        return self.recipe.of_bytes(name, [1, *(d if isinstance(d, int) else -1 for d in self.sizes[name])],
                                    base64.b64decode(text))  # fmt: skip
