"""What the rivals' servers share: onnxruntime as tutorials use it, and several requests as one run.

Only NumPy and onnxruntime are imported: each server runs in an environment of its own.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

MAX_BATCH, MAX_WAIT_S = int(os.environ.get("MAX_BATCH", "8")), float(os.environ.get("MAX_WAIT_S", "0.002"))
DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


class Recipe:
    """A session with its defaults: as many threads as there are processors."""

    def __init__(self, model: str) -> None:
        self.session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.dtypes = {i.name: DTYPES[i.type] for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        return self.session.run(None, dict(feeds))

    def run_together(self, rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """The results of each of several requests of one row.  Shorter ones are filled up with zeros."""
        feeds = {name: filled([row[name] for row in rows]) for name in self.dtypes}
        made = self.run(feeds)
        return [[result[i : i + 1] for result in made] for i in range(len(rows))]

    def of_lists(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.array(given[name], dtype) for name, dtype in self.dtypes.items()}

    def of_bytes(self, name: str, shape: Sequence[int], data: bytes) -> Any:
        return np.frombuffer(data, self.dtypes[name]).reshape(shape)


def filled(arrays: Sequence[Any]) -> Any:
    """Arrays one below the other, as large as the largest of them."""
    if len({array.shape for array in arrays}) == 1:
        return np.concatenate(arrays)
    sizes = np.max([array.shape for array in arrays], axis=0)[1:]
    made = np.zeros((len(arrays), *sizes), arrays[0].dtype)
    for row, array in zip(made, arrays, strict=True):
        row[tuple(map(slice, array.shape[1:]))] = array[0]
    return made


def text_of(array: Any) -> str:
    """The bytes of an array as text."""
    return base64.b64encode(np.ascontiguousarray(array)).decode()
