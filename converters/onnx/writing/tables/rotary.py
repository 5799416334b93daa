"""Writer of rotary embedding in operators that every opset has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.converters.onnx.writing.registry import Named, NoSpellingError, writer
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.shape import Concat, Reshape, Split, Squeeze, Unsqueeze
from bolt_numba.ops.layers.rotary import RotaryEmbedding
from bolt_numba.ops.pointwise import Add, Mul, Sub

if TYPE_CHECKING:
    from bolt_numba.converters.onnx.writing.graph import GraphWriter


@writer(RotaryEmbedding)
def rotary_embedding(
    w: GraphWriter, op: Any, x: Named, cos: Named, sin: Named, positions: Named | None = None
) -> Any:
    """Products of the halves (or the neighbours) of each head, joined again."""
    half, size = (() if t.type.shape is None else t.type.shape[-1:] for t in (cos, x))
    if not half or not size or not isinstance(half[0], int) or not isinstance(size[0], int):
        raise NoSpellingError("heads of a size that is not known")
    turning, rest = 2 * half[0], size[0] - 2 * half[0]
    tail: list[Named] = []
    if rest:
        x, *tail = w.write(Split(-1, 2), x, _sizes(w, turning, rest))
    heads = _sizes(w, 1 if op.layout == "HSD" else 2)
    tables = [t if positions is None or not positions.name else w.write(Gather(0), t, positions) for t in (cos, sin)]
    c, s = (w.write(Unsqueeze(), t, heads) for t in tables)
    last = _sizes(w, -1)
    if op.interleaved:
        pairs = w.write(Split(-1, 2), w.write(Reshape(), x, _sizes(w, 0, 0, 0, half[0], 2)), _sizes(w, 1, 1))
        first, second = (w.write(Squeeze(), p, last) for p in pairs)
    else:
        first, second = w.write(Split(-1, 2), x, _sizes(w, half[0], half[0]))
    turned = [
        w.write(Sub(), w.write(Mul(), first, c), w.write(Mul(), second, s)),
        w.write(Add(), w.write(Mul(), first, s), w.write(Mul(), second, c)),
    ]
    if op.interleaved:
        y = w.write(Concat(-1), *(w.write(Unsqueeze(), t, last) for t in turned))
        turned = [w.write(Reshape(), y, _sizes(w, 0, 0, 0, turning))]
    return w.write(Concat(-1), *turned, *tail) if len(turned) + len(tail) > 1 else turned[0]


def _sizes(w: GraphWriter, *values: int) -> Named:
    return w.const(np.array(values, np.int64))
