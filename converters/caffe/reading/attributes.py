"""Fields of a layer's parameters as the attributes that its reader declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from bolt_numba.base.errors import InvalidModelError, UnsupportedOpError
from bolt_numba.converters.builder import Floats, Ints, Texts
from bolt_numba.converters.caffe.fields import ENUMS
from bolt_numba.converters.caffe.message import Message, dims, flag, integer, number, text
from bolt_numba.converters.caffe.net import Layer
from bolt_numba.converters.caffe.reading.registry import KINDS
from bolt_numba.converters.readers import Reader

Dims: TypeAlias = tuple[int, ...]
"""Sizes of a BlobShape."""

_SCALARS = {KINDS["int"]: integer, KINDS["float"]: number, KINDS["bool"]: flag}
_LISTS: dict[int, Any] = {KINDS["Ints"]: integer, KINDS["Floats"]: number, KINDS["Texts"]: text}

WITHOUT_EFFECT = frozenset((
    "engine", "force_nd_im2col", "stable_prod_grad", "debug_info", "share_in_parallel", "moving_average_fraction",
    "sparse", "fuse_type", "visualize", "visualize_threshold", "save_output_param", "save_file",
    "cudnn_convolution_algo", "bn_mode",
))  # fmt: skip
"""Fields that choose how a layer is computed or trained, or what is written down beside: results are the same."""


def attributes_of(layer: Layer, reader: Reader, what: str) -> dict[str, Any]:
    """Values of the attributes that a file states.  Raises UnsupportedOpError for a field that the reader lacks."""
    made: dict[str, Any] = {}
    unknown = []
    for message, fields in layer.parameters(what):
        for name, values in fields.items():
            if name in reader.attributes:
                if values:
                    enum = ENUMS.get(f"{message.removesuffix('_param')}.{name}", ENUMS.get(name))
                    made[name] = value_of(values, reader.kinds.get(name, 0), f"{what}: {name}", enum)
            elif name not in WITHOUT_EFFECT and not name.endswith("filler"):
                unknown.append(f"{message}.{name}")
    if unknown:
        raise UnsupportedOpError(what, [f"parameters {', '.join(unknown)}"])
    return made


def value_of(values: Sequence[Any], kind: int, what: str, enum: Sequence[str] | None = None) -> Any:
    """The values of a field as an attribute of a kind (`KINDS`)."""
    if kind in _LISTS:
        return tuple(_LISTS[kind](v, what) for v in values)
    value = values[-1]
    if kind in _SCALARS:
        return _SCALARS[kind](value, what)
    if kind in (KINDS["Dims"], KINDS["Message"]):
        if not isinstance(value, dict):
            raise InvalidModelError(f"{what}: got {value!r}, wanted a message")
        return dims(value, what) if kind == KINDS["Dims"] else value
    return _name(value, enum, what)


def _name(value: Any, enum: Sequence[str] | None, what: str) -> str:
    """A text, or the name of an enumeration's number."""
    is_number = isinstance(value, int) or (isinstance(value, str) and value.isdigit())
    if enum is None or not is_number:
        return text(value, what)
    at = integer(value, what)
    if not 0 <= at < len(enum) or not enum[at]:
        raise InvalidModelError(f"{what}: got {at}, wanted one of {[n for n in enum if n]}")
    return enum[at]


__all__ = ["Dims", "Floats", "Ints", "Message", "Texts", "attributes_of", "value_of"]
