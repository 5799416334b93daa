"""A graph of tensors and operators, as the compiler takes it.  Images are NHWC, filters are OHWI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simnpu_sdk.errors import SimError

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("f4"), "u8": np.dtype("u1"), "i32": np.dtype("i4")}


@dataclass(frozen=True)
class Tensor:
    """A tensor.  shape: None for sizes that the run tells.  data: of a constant.

    A "u8" tensor stands for (stored - zero_point) * scale; scale has one element, or one for each filter.
    """

    dtype: str
    shape: tuple[int | None, ...]
    data: np.ndarray | None = None
    scale: tuple[float, ...] = ()
    zero_point: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes; a size that is not known counts as one."""
        return DTYPES[self.dtype].itemsize * int(np.prod([d or 1 for d in self.shape], dtype=np.int64))


@dataclass(frozen=True)
class Op:
    """An operator over tensors by number; its attributes are numbers, texts and lists of numbers."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


class Graph:
    """Tensors, operators in an order in which they can run, inputs and outputs."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.ops: list[Op] = []
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()

    def add_tensor(
        self,
        dtype: str,
        shape: Sequence[int | None],
        data: np.ndarray | None = None,
        scale: Sequence[float] = (),
        zero_point: int = 0,
    ) -> int:
        """Declare a tensor; its number."""
        if dtype not in DTYPES:
            raise SimError(f"tensor: got dtype {dtype!r}, wanted one of {', '.join(DTYPES)}")
        if data is not None and (data.dtype != DTYPES[dtype] or data.shape != tuple(shape)):
            raise SimError(f"tensor {dtype}{list(shape)}: got data {data.dtype}{list(data.shape)}")
        if dtype == "u8" and (not len(scale) or not 0 <= zero_point <= 255):
            raise SimError(f"tensor u8: got scale {tuple(scale)} and zero point {zero_point}, wanted both")
        self.tensors.append(Tensor(dtype, tuple(shape), data, tuple(map(float, scale)), int(zero_point)))
        return len(self.tensors) - 1

    def add_op(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], **attributes: Any) -> None:
        """Append an operator, whose operands are there."""
        self.ops.append(Op(kind, tuple(inputs), tuple(outputs), attributes))

    def identify_io(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Say which tensors the host gives and gets."""
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
