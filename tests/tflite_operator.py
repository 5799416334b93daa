"""TFLite files of one operator, for tests of its reader; tensors are named t0, t1 ... as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bolt_numba.types import Array
from tests.tflite_files import TfliteFile

KINDS = {
    "float32": "FLOAT32", "float16": "FLOAT16", "float64": "FLOAT64", "int8": "INT8", "uint8": "UINT8",
    "int16": "INT16", "uint16": "UINT16", "int32": "INT32", "uint32": "UINT32", "int64": "INT64", "bool": "BOOL",
}  # fmt: skip


@dataclass
class Tensor:
    """A tensor of a file: a constant where it has data.  signature: sizes, -1 where they are open."""

    shape: Sequence[int]
    dtype: Any = np.float32
    data: Array | None = None
    scale: Sequence[float] = ()
    zero_point: Sequence[int] = ()
    axis: int = 0
    signature: Sequence[int] | None = None
    is_variable: bool = False

    def add_to(self, file: TfliteFile, name: str) -> int:
        """The number of the tensor in a file."""
        more: dict[str, Any] = {"shape_signature": self.signature, "kind": KINDS[np.dtype(self.dtype).name]}
        if self.is_variable:
            more["is_variable"] = True
        if len(self.scale):
            zero = self.zero_point or [0] * len(self.scale)
            more["quantization"] = {"scale": self.scale, "zero_point": zero, "quantized_dimension": self.axis}
        if self.data is not None:
            return file.constant(name, self.data, **more)
        return file.tensor(name, self.shape, **more)


def constant(data: Any, **quantisation: Any) -> Tensor:
    """A tensor with content."""
    array = np.asarray(data)
    return Tensor(array.shape, array.dtype, array, **quantisation)


def model(op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], kind: str = "", **options: Any) -> bytes:
    """A file of one operator.  Inputs without data are those of the model, unless they are variables.

    kind: the table of its options, less "Options".
    """
    file = TfliteFile()
    file.subgraph()
    numbers = [-1 if t is None else t.add_to(file, f"t{i}") for i, t in enumerate(inputs)]
    results = [t.add_to(file, f"t{len(inputs) + i}") for i, t in enumerate(outputs)]
    file.operator(op, numbers, results, (f"{kind}Options", options) if kind else None)
    pairs = zip(numbers, inputs, strict=True)
    file.ends([n for n, t in pairs if t is not None and t.data is None and not t.is_variable], results)
    return file.to_bytes()
