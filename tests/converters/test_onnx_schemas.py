"""Readers against the schemas of all opsets: what a schema allows, its reader takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as state

from bolt_numba.converters.onnx.reading.attributes import MAY_BE_ZERO
from bolt_numba.converters.onnx.reading.registry import READERS, find_reader, load_readers
from bolt_numba.converters.onnx.types import CODES
from bolt_numba.converters.readers import Reader
from tests.missing import readers_of_nothing, told

load_readers()

ALL = [s for s in defs.get_all_schemas_with_history() if s.domain == "" and not s.deprecated]
PAIRS = [(s, find_reader("", s.name, s.since_version)) for s in ALL]
READ = [pytest.param(s, r, id=f"{s.name}-{s.since_version}") for s, r in PAIRS if r is not None]
MEANINGLESS = {"consumed_inputs"}


@pytest.mark.parametrize(("schema", "reader"), READ)
def test_reader_takes_what_the_schema_allows(schema: Any, reader: Reader) -> None:
    names = set(schema.attributes) - MEANINGLESS
    assert names <= reader.attributes, f"attributes {names - reader.attributes} are unknown to the reader"
    required = {a.name for a in schema.attributes.values() if a.required}
    assert reader.mandatory <= required, f"attributes {reader.mandatory - required} are optional in the schema"
    if reader.allowed is not None:
        variadic = any(i.option == defs.OpSchema.FormalParameterOption.Variadic for i in schema.inputs)
        assert not variadic
        assert reader.allowed >= len(schema.inputs)
        optional = defs.OpSchema.FormalParameterOption.Optional
        needed = {i for i, p in enumerate(schema.inputs) if p.option != optional}
        assert set(reader.required) <= needed, "an optional input is required by the reader"


def test_no_reader_takes_what_no_schema_has() -> None:
    """An attribute that only our operator has would be obeyed."""
    schemas = defs.get_all_schemas_with_history()
    if hasattr(state, "get_all_operator_schema"):
        schemas += state.get_all_operator_schema()  # has what is onnxruntime's own
    stated: dict[tuple[str, str], set[str]] = {}
    for schema in schemas:
        stated.setdefault((schema.domain, schema.name), set()).update(schema.attributes)
    for key, readers in READERS.items():
        for reader in readers:
            ours = reader.attributes - stated[key] if key in stated else ()
            assert not ours, f"{key} since {reader.since}: no schema has {sorted(ours)}"


def test_a_dtype_of_zero_is_none_where_the_schema_says_so() -> None:
    for schema in ALL:
        reader = find_reader("", schema.name, schema.since_version)
        for name in reader.dtypes & schema.attributes.keys() if reader is not None else ():
            default = schema.attributes[name].default_value
            assert (name in MAY_BE_ZERO) == (default.type == default.INT and default.i == 0), (schema.name, name)


NOT_OF_ONNX = {"SimplifiedLayerNormalization"} | {
    name for (_, name), (reader, *_) in READERS.items() if reader.function.__module__.endswith("tables.bolt")
}
"""Operators that onnxruntime writes into ONNX's own domain, and those of Bolt."""


def test_every_reader_is_of_an_operator_that_its_domain_has() -> None:
    told(readers_of_nothing(READERS, NOT_OF_ONNX))


def test_most_operators_have_a_reader() -> None:
    names = {s.name for s in ALL}
    read = {name for domain, name in READERS if not domain}
    assert len(names & read) > 140


@pytest.mark.parametrize(("schema", "reader"), READ)
def test_defaults_are_those_of_the_schema(schema: Any, reader: Reader) -> None:
    import inspect

    parameters = inspect.signature(reader.function).parameters
    for attribute in schema.attributes.values():
        kind = {1: "f", 2: "i", 3: "s"}.get(attribute.default_value.type)
        default = None if attribute.name in MEANINGLESS else parameters[attribute.name].default
        if kind is None or default is None or default is inspect.Parameter.empty:
            continue
        wanted = getattr(attribute.default_value, kind)
        wanted = wanted.decode() if kind == "s" else wanted
        default = CODES.get(default, default) if isinstance(default, np.dtype) else default
        if kind == "f":
            assert default == pytest.approx(wanted, rel=1e-6), attribute.name
        elif (schema.name, attribute.name) not in ODD_DEFAULTS:
            assert default == wanted, attribute.name


ODD_DEFAULTS = {
    ("GRU", "direction"),  # opset 1 says "foward"
    ("GridSample", "mode"),  # opset 16 says "bilinear" for what is now "linear"
}
