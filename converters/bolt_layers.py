"""Images of cameras and bilateral grids, as Bolt's layers have them in files of Caffe and of ONNX.

An image of a camera is [n, 3 h / 2, w, 1]: brightness, and below it two numbers for each block of two by two pixels,
V and U (NV21) or U and V (NV12).  Source: Bolt's kernels.
"""

from __future__ import annotations

import numpy as np

from bolt_numba.base.budget import ask
from bolt_numba.base.types import F32
from bolt_numba.converters.builder import ForeignBuilder, ints
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Split, Transpose
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.layers.resize import GridSample
from bolt_numba.ops.pointwise import Add, Clip, Floor, Max, Mul, Round, Sub

CAMERAS = ("YUV_NV21", "YUV_NV12")
ORDERS = ("RGB", "BGR", "RGBA", "BGRA")
TO_YUV = {"R": (0.257, 0.439, -0.148), "G": (0.504, -0.368, -0.291), "B": (0.098, -0.071, 0.439), "A": (0, 0, 0)}
"""What a colour adds to Y, V and U.  Source: ITU-R BT.601, video range, with the coefficients of OpenCV."""
COEFFICIENTS = 12
"""Of a cell of a bilateral grid: a matrix of three colours from three colours and 1."""
OVER = 1.0001
"""By what a table's cells are wider than they would fit, so that none ends at the greatest byte."""


def convert_color(b: ForeignBuilder, x: Value, src: str, dst: str, *, as_bytes: bool) -> Value:
    """A camera's image as [n, h, w, c], or the other way; ``src`` and ``dst`` name an order of colours and a range.

    as_bytes: colours are rounded.  Brightness and the colours of a camera's image always are.
    """
    order, _, most = (dst if src in CAMERAS else src).partition("_0_")
    if (src in CAMERAS) == (dst in CAMERAS) or order not in ORDERS or most not in ("1", "255"):
        raise b.unsupported(f"colours from {src} to {dst}")
    if dst in CAMERAS:
        return _to_camera(b, x if most == "255" else b(Mul(), x, 255.0), order, dst)
    bright, rest, (n, h, w) = _parts(b, x)
    v, u = b.node(Split(3, 2), b(Sub(), _doubled(b, rest, n, h, w), 128.0)).outputs
    if src == "YUV_NV12":
        v, u = u, v
    y = b(Mul(), b(Max(), b(Sub(), bright, 16.0), 0.0), 1.164)
    green = b(Sub(), b(Sub(), y, b(Mul(), v, 0.813)), b(Mul(), u, 0.391))
    colours = {"R": b(Add(), y, b(Mul(), v, 1.596)), "G": green, "B": b(Add(), y, b(Mul(), u, 2.018))}
    made = b(Clip(0.0, 255.0), b(Concat(3), *(colours[c] for c in order[:3])))
    made = b(Round(), made) if as_bytes and most == "255" else made
    if len(order) == 4:
        made = b(Concat(3), made, b(ConstantOfShape(255, F32), ints([n, h, w, 1])))
    return made if most == "255" else b(Mul(), made, 1 / 255)


def _to_camera(b: ForeignBuilder, x: Value, order: str, dst: str) -> Value:
    """V and U are those of the upper left pixel of each block."""
    n, h, w = (b.static_dim(x, i) for i in range(3))
    if b.rank_of(x) != 4 or h % 2 or w % 2 or b.static_dim(x, 3) != len(order):
        raise b.invalid("shape of the image", x.type, f"[n, h, w, {len(order)}] of even sizes")
    weights = np.array([TO_YUV[c] for c in order], F32)
    made = b(Add(), b(MatMul(), x, weights), np.array([16.5, 128.5, 128.5], F32))
    made = b(Clip(0.0, 255.0), b(Floor(), made))
    y, v, u = b.node(Split(3, 3), made).outputs
    pairs = b(Concat(3), *((u, v) if dst == "YUV_NV12" else (v, u)))
    return _joined(b, y, pairs, n, h, w)


def lut_preprocess(b: ForeignBuilder, x: Value) -> Value:
    """[n, 3, h / 2, w / 2] of a block's upper right brightness and its two numbers, each times 0.003921."""
    bright, rest, (n, h, w) = _parts(b, x)
    corner = b.sliced(b.sliced(bright, 1, 0, step=2), 2, 1, step=2)
    both = b(Concat(3), corner, b.reshaped(rest, [n, h // 2, w // 2, 2]))
    return b(Mul(), b(Transpose((0, 3, 1, 2)), both), 0.003921)


def lut(b: ForeignBuilder, x: Value, table: Value, kind: str) -> Value:
    """An image by a table [3, d, d, d] of its three numbers, from the last axis on brightness, first and second number.

    Between entries it is linear.  A block's numbers are those that its upper left pixel finds.  Results are cut to
    bytes, never rounded up.
    """
    b.unsupported_if(kind != "YUV_NV21", f"type {kind}")
    bright, rest, (n, h, w) = _parts(b, x)
    sizes = [b.static_dim(table, i) for i in range(4)] if b.rank_of(table) == 4 else []
    if not sizes or sizes[0] != 3 or sizes[1] < 2 or len(set(sizes[1:])) > 1:
        raise b.invalid("shape of the table", table.type, "[3, d, d, d], d at least 2")
    values = b(Concat(3), bright, _doubled(b, rest, n, h, w))
    points = b.unsqueezed(b(Sub(), b(Mul(), values, 2 / 255 / OVER), 1.0), 0)
    found = b(GridSample("linear", "border", True), b.unsqueezed(table, 0), points)
    found = b(Transpose((1, 2, 3, 0)), b.reshaped(found, [3, n, h, w]))
    made = b(Clip(0.0, 255.0), b(Floor(), b(Mul(), found, 255.0)))
    return _joined(b, b.sliced(made, 3, 0, 1), b.sliced(made, 3, 1), n, h, w)


def bilateral_slice_apply(b: ForeignBuilder, x: Value, grid: Value, guide: Value | None, mode: str) -> Value:
    """Each pixel times a matrix, which its place and its guide choose from a grid, linearly between cells.

    x: [n, h, w, 3] · grid: [n, gh, gw, d * 12] · guide: [n, h, w], 0 to 1 along d -> like x.
    Source: Gharbi and others, Deep Bilateral Learning for Real-Time Image Enhancement.
    """
    b.unsupported_if(mode != "null", f"mode {mode}, whose guide is one network's and compiled into Bolt")
    if guide is None or b.rank_of(x) != 4 or b.rank_of(grid) != 4:
        raise b.invalid("operands", [v if v is None else v.type for v in (x, grid, guide)], "an image, a grid, a guide")
    n, h, w, colours = (b.static_dim(x, i) for i in range(4))
    count, rows, columns, cells = (b.static_dim(grid, i) for i in range(4))
    if colours != 3 or count != n or cells % COEFFICIENTS or not cells or not h * w:
        raise b.invalid("shapes", (x.type, grid.type), "[n, h, w, 3] and [n, gh, gw, d * 12]")
    ask(40 * h * w, b.what)
    across, down = np.meshgrid((2 * np.arange(w) + 1) / w - 1, (2 * np.arange(h) + 1) / h - 1)
    places = b.expanded(np.stack([across, down], -1)[None, None].astype(F32), [n, 1, h, w, 2])
    depth = b(Sub(), b(Mul(), b.reshaped(guide, [n, 1, h, w, 1]), 2.0), 1.0)
    split = b.reshaped(grid, [n, rows, columns, cells // COEFFICIENTS, COEFFICIENTS])
    found = b(GridSample("linear", "border"), b(Transpose((0, 4, 1, 2, 3)), split), b(Concat(4), depth, places))
    pixels = b(Concat(1), b(Transpose((0, 3, 1, 2)), x), b(ConstantOfShape(1, F32), ints([n, 1, h, w])))
    each = b(Mul(), b.reshaped(found, [n, 3, 4, h, w]), b.unsqueezed(pixels, 1))
    return b(Transpose((0, 2, 3, 1)), b(ReduceSum(keepdims=False), each, ints([2])))


def _parts(b: ForeignBuilder, x: Value) -> tuple[Value, Value, tuple[int, int, int]]:
    """Brightness [n, h, w, 1] of a camera's image, what is below it, and n, h and w."""
    n, rows, w = (b.static_dim(x, i) for i in range(3))
    if b.rank_of(x) != 4 or rows % 3 or w % 2 or b.static_dim(x, 3) != 1:
        raise b.invalid("shape of the image", x.type, "[n, 3 h / 2, w, 1] of even sizes")
    h = rows // 3 * 2
    bright, rest = b.node(Split(1, 2), x, ints([h, rows - h])).outputs
    return bright, rest, (n, h, w)


def _doubled(b: ForeignBuilder, rest: Value, n: int, h: int, w: int) -> Value:
    """The two numbers of its block for each pixel, [n, h, w, 2]."""
    blocks = b.reshaped(rest, [n, h // 2, 1, w // 2, 1, 2])
    return b.reshaped(b.expanded(blocks, [n, h // 2, 2, w // 2, 2, 2]), [n, h, w, 2])


def _joined(b: ForeignBuilder, bright: Value, pairs: Value, n: int, h: int, w: int) -> Value:
    """A camera's image of brightness and of the numbers [n, h, w, 2], of which those of the upper left pixels stay."""
    corner = b.sliced(b.sliced(pairs, 1, 0, step=2), 2, 0, step=2)
    return b(Concat(1), bright, b.reshaped(corner, [n, h // 2, w, 1]))
