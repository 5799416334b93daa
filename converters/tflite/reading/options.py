"""Options of an operator as the keywords of its reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bolt_numba.base.errors import UnsupportedOpError
from bolt_numba.converters.readers import Reader
from bolt_numba.converters.tflite.container import Container
from bolt_numba.converters.tflite.flex import flex_value

IGNORED = frozenset(
    (
        *("asymmetric_quantize_inputs", "quantized_bias_type", "pot_scale_int16", "validate_indices", "weights_format"),
        *("precision_config", "indices_are_sorted", "unique_indices", "composite_attributes", "values_count"),
        *("composite_attributes_format", "depth_multiplier", "idx_out_type", "in_data_type", "out_data_type"),
        *("out_type", "key_dtype", "value_dtype", "quant_spec", "name", "version"),
    )
)
"""Options that say how LiteRT computes, not what, or what operands and results say, too."""
RAW = "options"
"""The keyword of a reader that wants the bytes of its custom options."""


def options_of(container: Container, node: Mapping[str, Any], reader: Reader, what: str) -> dict[str, Any]:
    """The options that a reader takes; others must have their defaults.

    Those of a custom operator are a map in a FlexBuffer, of which names that begin with "_" are the converter's own.
    """
    if node["domain"]:
        data = container.custom_options(node["operator"])
        if RAW in reader.attributes:
            return {RAW: data}
        found = flex_value(data, what)
        return {k: v for k, v in found.items() if not k.startswith("_")} if isinstance(found, dict) else {}
    found = container.options_of(node["operator"])
    if found is None:
        return {}
    kind, table = found
    defaults = {f.name: f.default for f in container.flat.fields[kind] if f is not None}
    options: dict[str, Any] = {}
    for name, value in table.items():
        value = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
        if name in reader.attributes:
            if value is not None:
                options[name] = value
        elif name not in IGNORED and value != defaults[name]:
            raise UnsupportedOpError(what, [f"option {name} = {value}"])
    return options
