"""Attributes of an ONNX node as Python values, checked against the operator's schema."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.bounded import Folders, text_of, texts_of
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.tensor import array_of, dense_of
from bolt_numba.converters.readers import Reader

_A = onnx.AttributeProto
Attributes: TypeAlias = dict[str, onnx.AttributeProto]

_FIELDS = {
    _A.FLOAT: "f",
    _A.INT: "i",
    _A.STRING: "s",
    _A.TENSOR: "t",
    _A.GRAPH: "g",
    _A.SPARSE_TENSOR: "sparse_tensor",
    _A.TYPE_PROTO: "tp",
    _A.FLOATS: "floats",
    _A.INTS: "ints",
    _A.STRINGS: "strings",
    _A.TENSORS: "tensors",
    _A.GRAPHS: "graphs",
}
"""Where the value of an attribute of each type is.  Source: onnx.proto, AttributeProto."""


MAY_BE_ZERO = ("output_dtype",)
"""Attributes of dtypes whose default is 0, so that a file may say so: none is stated."""


@functools.cache
def schema_of(domain: str, name: str, opset: int) -> Any:
    """The `OpSchema` of an operator, None when onnx has none."""
    from onnx import defs  # most models need none

    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def newest_opset() -> int:
    """Version of the default domain that onnx knows."""
    from onnx import defs

    return int(defs.onnx_opset_version())


@functools.cache
def _schema_types(domain: str, name: str, opset: int) -> dict[str, int]:
    schema = schema_of(domain, name, opset)
    return {} if schema is None else {a.name: int(a.type.value) for a in schema.attributes.values()}


def kind_of(attribute: onnx.AttributeProto) -> int:
    """Type of an attribute; files of IR 1 do not state it."""
    if attribute.type:
        return int(attribute.type)
    filled = {field.name for field, _ in attribute.ListFields()}
    return next((int(kind) for kind, field in _FIELDS.items() if field in filled), int(_A.UNDEFINED))


def bound(attributes: Iterable[onnx.AttributeProto], outer: Mapping[str, onnx.AttributeProto], what: str) -> Attributes:
    """Attributes of a node by name; references to those of the enclosing function are replaced or dropped."""
    made: Attributes = {}
    for attribute in attributes:
        if attribute.name in made:
            raise InvalidModelError(f"{what}: attribute '{attribute.name}': got it twice, wanted it once")
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in outer:
                made[attribute.name] = outer[attribute.ref_attr_name]
        else:
            made[attribute.name] = attribute
    return made


def value_of(attribute: onnx.AttributeProto, folders: Folders, what: str, as_array: bool = False) -> Any:
    """Python value: int, float, str, array, tuple of these, or the GraphProto or TypeProto as it is.

    as_array: lists of numbers become arrays.
    """
    kind: Any = kind_of(attribute)
    if kind not in _FIELDS:
        raise InvalidModelError(f"{what}: got type {kind}, wanted an AttributeProto.AttributeType")
    value = getattr(attribute, _FIELDS[kind])
    match kind:
        case _A.STRING:
            return text_of(value, what)
        case _A.STRINGS:
            return texts_of(value, what)
        case _A.TENSOR:
            return array_of(value, folders, what)
        case _A.SPARSE_TENSOR:
            return dense_of(value, folders, what)
        case _A.TENSORS:
            return tuple(array_of(t, folders, what) for t in value)
        case _A.FLOATS | _A.INTS if as_array:
            return np.array(value, np.int64 if kind == _A.INTS else np.float32)
        case _A.FLOATS | _A.INTS | _A.GRAPHS:
            return tuple(value)
        case _:
            return value


def values_of(
    attributes: Attributes, key: tuple[str, str, int], reader: Reader, legacy: bool, folders: Folders, what: str
) -> dict[str, Any]:
    """Values of all attributes of a node of operator ``key`` (domain, name, opset).

    reader: says the types of most attributes; the schema knows the others.
    legacy: before opset 6, where ``consumed_inputs`` may stand at any operator and means nothing.
    """
    made = {}
    for name, attribute in attributes.items():
        if legacy and name == "consumed_inputs":
            continue
        kind = kind_of(attribute)
        # Only what differs from the reader's annotation is held against the schema.
        wanted = kind if kind == reader.kinds.get(name) else _schema_types(*key).get(name, kind)
        if kind != wanted:
            known = onnx.AttributeProto.AttributeType.Name
            got = known(kind) if kind in _FIELDS else str(kind)
            raise InvalidModelError(f"{what}: attribute '{name}': got type {got}, wanted {known(wanted)}")
        made[name] = value_of(attribute, folders, f"{what}: attribute '{name}'", name in reader.arrays)
    return made


def without_unknown(values: dict[str, Any], reader: Reader, what: str) -> dict[str, Any]:
    """The values of known names, with a warning, where an attribute that has a default is missing.

    Exporters spell such an attribute wrongly, and other engines then run with the default.
    """
    unknown = sorted(values.keys() - reader.attributes)
    spared = sorted(reader.attributes - reader.mandatory - values.keys())
    if not spared:
        return values
    warnings.warn(f"{what}: attributes: got unknown {unknown}, which are ignored; known are {spared}", stacklevel=2)
    return {name: value for name, value in values.items() if name in reader.attributes}


def with_defaults(attributes: Attributes, schema: Any) -> Attributes:
    """Attributes for the body of a schema's function: those of the node over the schema's defaults."""
    defaults = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.type}
    return {**defaults, **attributes}
