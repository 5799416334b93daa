"""Readers of layers that make images larger or smaller."""

from __future__ import annotations

from bolt_numba.base.types import I64, Sym
from bolt_numba.converters.builder import ints
from bolt_numba.converters.caffe.reading.graph import LayerBuilder
from bolt_numba.converters.caffe.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import ScatterElements
from bolt_numba.ops.arrays.generate import ConstantOfShape
from bolt_numba.ops.arrays.shape import Reshape, Shape
from bolt_numba.ops.arrays.slicing import Pad
from bolt_numba.ops.layers.resize import Resize
from bolt_numba.ops.pointwise import Cast, Mul, Sub

MOST_SIDE = 1 << 20
"""The greatest height or width that a file may ask for."""


def _resized(b: LayerBuilder, x: Value, operator: Resize, height: int, width: int) -> Value:
    if not 0 < height <= MOST_SIDE or not 0 < width <= MOST_SIDE:
        raise b.invalid("height and width", (height, width), f"1 to {MOST_SIDE}")
    return b(operator, x, None, None, ints([height, width]))


@reader("Interp")
def interp(
    b: LayerBuilder,
    x: Value,
    like: Value | None = None,
    *,
    height: int = 0,
    width: int = 0,
    zoom_factor: float = 1.0,
    shrink_factor: int = 1,
    pad_beg: int = 0,
    pad_end: int = 0,
) -> Value:
    """Bilinear, corner pixels on corner pixels.  The size is that of a second bottom, or given, or a factor's.

    Pads of at most 0 cut pixels off before.  Source: DeepLab's layer.
    """
    if pad_beg > 0 or pad_end > 0 or shrink_factor < 1:
        raise b.invalid("pads and shrink_factor", (pad_beg, pad_end, shrink_factor), "at most 0, and at least 1")
    if pad_beg or pad_end:
        x = b(Pad("constant"), x, ints([pad_beg, pad_beg, pad_end, pad_end]), None, ints([2, 3]))
    operator = Resize("linear", "align_corners", axes=(2, 3))
    if like is not None:
        return b(operator, x, None, None, b(Shape(2, 4), like))
    if height and width:
        return _resized(b, x, operator, height, width)
    if any(isinstance(b.dim_of(x, i), Sym) for i in (2, 3)) and shrink_factor == 1 and zoom_factor == int(zoom_factor):
        factor = ints([int(zoom_factor)] * 2)
        return b(operator, x, None, None, b(Sub(), b(Mul(), b(Shape(2, 4), x), factor), factor - 1))
    made = [(b.static_dim(x, i) - 1) // shrink_factor + 1 for i in (2, 3)]
    return _resized(b, x, operator, *(round(n + (n - 1) * (zoom_factor - 1)) for n in made))


@reader("Resize")
def resize(b: LayerBuilder, x: Value, *, height: int = 0, width: int = 0, interp_mode: str = "LINEAR") -> Value:
    """To a given size, centres of pixels on centres.  Source: Bolt's layer, OpenCV's names of modes."""
    modes = {"LINEAR": "linear", "NEAREST": "nearest", "CUBIC": "cubic", "1": "linear", "3": "nearest", "4": "cubic"}
    b.unsupported_if(interp_mode not in modes, f"interp_mode {interp_mode}")
    return _resized(b, x, Resize(modes[interp_mode], axes=(2, 3)), height, width)


@reader("Upsample", "Unpooling")
def upsample(
    b: LayerBuilder,
    x: Value,
    mask: Value | None = None,
    *,
    scale: int = 0,
    stride: int = 0,
    scale_h: int = 0,
    scale_w: int = 0,
    kernel_size: int = 0,
    upsample_h: int = 0,
    upsample_w: int = 0,
    pad_out_h: bool = False,
    pad_out_w: bool = False,
) -> Value:
    """Every pixel several times; with a pool's mask, each number at the place where it was the greatest, else 0.

    pad_out_h, pad_out_w: the image that was pooled had an odd size.  Source: the layers of YOLOv3 and of SegNet.
    """
    factor = scale or stride or kernel_size or 2
    factors = scale_h or factor, scale_w or factor
    if mask is None:
        if upsample_h and upsample_w:
            return _resized(b, x, Resize("nearest", "asymmetric", "floor", axes=(2, 3)), upsample_h, upsample_w)
        b.invalid_if(not all(0 < f <= 1 << 10 for f in factors), "scale", factors, "1 to 1024")
        operator = Resize("nearest", "asymmetric", "floor", axes=(2, 3))
        if any(isinstance(b.dim_of(x, i), Sym) for i in (2, 3)):
            return b(operator, x, None, None, b(Mul(), b(Shape(2, 4), x), ints(factors)))
        return _resized(b, x, operator, *(b.static_dim(x, i) * f for i, f in zip((2, 3), factors, strict=True)))
    n, c, h, w = (b.static_dim(x, i) for i in range(4))
    height, width = (upsample_h or h * factors[0] - pad_out_h), (upsample_w or w * factors[1] - pad_out_w)
    if not 0 < height <= MOST_SIDE or not 0 < width <= MOST_SIDE or b.rank_of(x) != 4:
        raise b.invalid("height and width", (height, width), f"1 to {MOST_SIDE}")
    zeros = b(ConstantOfShape(0.0), ints([n * c, height * width]))
    places = b(Cast(I64), b(Reshape(), mask, ints([n * c, h * w])))
    y = b(ScatterElements(1), zeros, places, b(Reshape(), x, ints([n * c, h * w])))
    return b(Reshape(), y, ints([n, c, height, width]))
