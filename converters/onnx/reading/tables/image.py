"""Reader of encoded images."""

from __future__ import annotations

import importlib.util

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.data.image_decoder import ImageDecoder


@reader("ImageDecoder")
def image_decoder(b: NodeBuilder, stream: Value, *, pixel_format: str = "RGB") -> Value:
    if importlib.util.find_spec("PIL") is None:
        raise b.unsupported("decoding without Pillow: pip install pillow")
    return b(ImageDecoder(pixel_format), stream)
