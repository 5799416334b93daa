"""Ranges of tensors in the files of others: Bolt's clip values (JSON) and TensorRT's calibration tables.

Bolt: ``{operator: {"inputs": {tensor: clip}, "weights": {...}, "outputs": {...}}}``; a clip is the greatest magnitude,
whose level is 127.  TensorRT: a line ``TRT-8600-EntropyCalibration2``, then ``tensor: 3c010a14`` lines, whose number is
the scale (magnitude over 127) as the eight hexadecimal digits of its f32.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from bolt_numba.base.border import border
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.regular import read_text, replaced
from bolt_numba.quantize.tool import Quantised

HEAD = "TRT-8600-EntropyCalibration2"
LEVELS = 127
MOST_BYTES = 64 << 20
DYNAMIC = -1
"""Bolt's clip of a tensor whose range each run finds."""


@border("read_scales", OSError)
def read_scales(path: str | os.PathLike[str]) -> dict[str, tuple[float, float]]:
    """Ranges by tensor, for ``quantize(ranges=...)``; the kind of file is told by its content.

    Raises InvalidModelError for what is neither.
    """
    text = read_text(path, MOST_BYTES, "a table of scales")
    try:
        pairs = _clips(json.loads(text)) if text.lstrip().startswith("{") else _table(text)
        return {name: (-reach, reach) for name, reach in pairs}
    except (ValueError, TypeError, RecursionError, struct.error, AttributeError) as error:
        raise InvalidModelError(f"{path}: is no file of clip values and no calibration table: {error}") from error


def _clips(content: Any) -> Iterator[tuple[str, float]]:
    for operator, parts in content.items():
        if not isinstance(parts, Mapping):  # "quantization": "static", and lists of operators
            continue
        for part in ("inputs", "outputs"):
            for tensor, clip in parts.get(part, {}).items():
                if clip != DYNAMIC:
                    yield tensor, _positive(clip, f"clip of {tensor!r} in {operator!r}")


def _table(text: str) -> Iterator[tuple[str, float]]:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("TRT-"):
        raise ValueError("it does not begin with TRT-")
    for line in filter(str.strip, lines[1:]):
        tensor, colon, digits = line.rpartition(":")
        if not colon:
            raise ValueError(f"got line {line[:40]!r}, wanted 'tensor: digits'")
        scale = struct.unpack(">f", bytes.fromhex(digits.strip().zfill(8)))[0]
        yield tensor.strip(), LEVELS * _positive(scale, f"scale of {tensor!r}")


def _positive(value: Any, what: str) -> float:
    number = float(value)
    if not math.isfinite(number) or number <= 0:
        raise ValueError(f"{what}: got {value!r}, wanted a positive number")
    return number


@border("write_clips", OSError)
def write_clips(made: Quantised, path: str | os.PathLike[str]) -> None:
    """Bolt's JSON: greatest magnitudes of the inputs and weights of each layer.  Raises BoltError for the path."""
    content = {}
    for layer in made.layers:
        inputs = {v.name: _reach(made, v.name) for i in layer.inputs if (v := layer.node.inputs[i]) is not None}
        known = {name: reach for name, reach in inputs.items() if reach is not None}
        if known:
            weight = None if layer.weight is None else layer.node.inputs[layer.weight]
            held = {} if weight is None or weight.const is None else {weight.name: float(abs(weight.const).max())}
            content[layer.name] = {"inputs": known, "weights": held, "outputs": {}}
    with replaced(path) as file:
        file.write(json.dumps(content, indent=2).encode())


@border("write_table", OSError)
def write_table(made: Quantised, path: str | os.PathLike[str]) -> None:
    """TensorRT's table: a symmetric scale for each quantised tensor.  Raises BoltError for the path."""
    rows = [f"{name}: {struct.pack('>f', (_reach(made, name) or 1.0) / LEVELS).hex()}" for name in made.tensors]
    with replaced(path) as file:
        file.write("\n".join([HEAD, *rows, ""]).encode())


def _reach(made: Quantised, tensor: str) -> float | None:
    how = made.tensors.get(tensor)
    return None if how is None else max(-how.low, how.high)
