"""Readers of linear models, scalers and encoders of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.types import F32, I64, STRING, AnyDType, Array, MapType
from bolt_numba.converters.builder import Floats, Ints, Texts, ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.ml.scores import (
    ML,
    as_float,
    as_rows,
    class_labels,
    pick_labels,
    post_transformed,
)
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceL2, ReduceMax, ReduceSum
from bolt_numba.ops.arrays.shape import Concat, Reshape, Unsqueeze
from bolt_numba.ops.arrays.slicing import Pad, Slice
from bolt_numba.ops.data.ml import CastMap, DictVectorizer, LabelEncoder, OneHotEncoder, ZipMap
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Abs, Cast, Div, Equal, Greater, IsNaN, Mul, Neg, Sub, Where

_LAST = np.array([-1])


def texts(values: Texts) -> Array:
    return np.array(values, STRING)


@reader("Scaler", domain=ML)
def scaler(b: NodeBuilder, x: Value, *, offset: Floats = (), scale: Floats = ()) -> Value:
    data = b(Cast(F32), x)
    if offset:
        data = b(Sub(), data, np.array(offset, F32))
    return b(Mul(), data, np.array(scale, F32)) if scale else data


@reader("Normalizer", domain=ML)
def normalizer(b: NodeBuilder, x: Value, *, norm: str = "MAX") -> Value:
    """A row whose norm is 0 stays as it is."""
    data = b(Cast(F32), x)
    match norm:
        case "MAX":
            size = b(ReduceMax(), data, _LAST)
        case "L1":
            size = b(ReduceSum(), b(Abs(), data), _LAST)
        case "L2":
            size = b(ReduceL2(), data, _LAST)
        case _:
            raise b.invalid("norm", norm, "MAX, L1 or L2")
    return b(Div(), data, b(Where(), b(Equal(), size, 0.0), np.array(1, F32), size))


@reader("Binarizer", domain=ML)
def binarizer(b: NodeBuilder, x: Value, *, threshold: float = 0.0) -> Value:
    return b(Cast(x.type.dtype), b(Greater(), b(Cast(F32), x), threshold))


@reader("Imputer", domain=ML)
def imputer(
    b: NodeBuilder,
    x: Value,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Ints = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    if x.type.dtype.kind == "f":
        values, replaced = np.array(imputed_value_floats, x.type.dtype), replaced_value_float
        is_missing = b(IsNaN(), x) if np.isnan(replaced) else b(Equal(), x, replaced)
    else:
        values = np.array(imputed_value_int64s, x.type.dtype)
        is_missing = b(Equal(), x, replaced_value_int64)
    b.invalid_if(not values.size, "imputed values", "none", f"values of {x.type}")
    return b(Where(), is_missing, values, x)


@reader("LinearRegressor", domain=ML)
def linear_regressor(
    b: NodeBuilder,
    x: Value,
    *,
    coefficients: Floats = (),
    intercepts: Floats = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Value:
    return post_transformed(b, _linear(b, x, coefficients, intercepts, targets), post_transform)


def _linear(b: NodeBuilder, x: Value, coefficients: Floats, intercepts: Floats, rows: int) -> Value:
    """x: [n, features] or [features] times coefficients [rows, features], plus intercepts: [n, rows]."""
    if rows < 1 or not coefficients or len(coefficients) % rows or len(intercepts) not in (0, 1, rows):
        raise b.invalid("coefficients and intercepts", (len(coefficients), len(intercepts)), f"{rows} rows")
    weights = np.ascontiguousarray(np.array(coefficients, F32).reshape(rows, -1).T)
    offsets = np.broadcast_to(np.array(intercepts, F32), rows) if intercepts else None
    return b(MatMul(), as_rows(b, b(Cast(F32), x)), weights, offsets)


@reader("LinearClassifier", domain=ML)
def linear_classifier(
    b: NodeBuilder,
    x: Value,
    *,
    coefficients: Floats,
    classlabels_ints: Ints = (),
    classlabels_strings: Texts = (),
    intercepts: Floats = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """One row of coefficients for two labels gives the score of the second, and its negative for the first."""
    labels = class_labels(b, classlabels_ints, classlabels_strings)
    features = b.dim_of(x, -1)
    if isinstance(features, int):
        rows = len(coefficients) // features if features else 0
    else:
        rows = 1 if len(labels) == 2 and len(intercepts) == 1 else len(labels)
    scores = _linear(b, x, coefficients, intercepts, rows)
    if rows == 1 and len(labels) == 2:
        scores = b(Concat(1), b(Neg(), scores), scores)
    elif rows != len(labels):
        raise b.invalid("rows of coefficients", rows, len(labels))
    return pick_labels(b, scores, labels), post_transformed(b, scores, post_transform)


@reader("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(b: NodeBuilder, x: Value, places: Value) -> Value:
    rank = b.rank_of(x)
    y = b(Gather(rank - 1), x, b(Reshape(), places, ints([-1])))
    return b(Unsqueeze(), y, np.array([0])) if rank == 1 else y


@reader("FeatureVectorizer", domain=ML)
def feature_vectorizer(b: NodeBuilder, *xs: Value, inputdimensions: Ints = ()) -> Value:
    """Columns of all operands, each cut or filled with zeros to its number of columns."""
    parts = []
    for i, x in enumerate(xs):
        part = as_rows(b, b(Cast(F32), x))
        if i < len(inputdimensions) and inputdimensions[i] != b.dim_of(part, 1):
            filled = b(Pad("constant"), part, ints([0, 0, 0, inputdimensions[i]]))
            part = b(Slice(), filled, ints([0]), ints([inputdimensions[i]]), ints([1]))
        parts.append(part)
    return b(Concat(1), *parts)


def _given(what: str, *choices: tuple[Any, AnyDType]) -> Array:
    """The one list that is not empty, as an array."""
    found = [(v, dtype) for v, dtype in choices if v is not None and len(v)]
    if len(found) != 1:
        raise InvalidModelError(f"{what}: got {len(found)} lists, wanted one")
    return np.asarray(found[0][0], found[0][1]).reshape(-1)


@reader("LabelEncoder", since=2, domain=ML)
def label_encoder(
    b: NodeBuilder, x: Value, *,
    keys_floats: Floats = (), keys_int64s: Ints = (), keys_strings: Texts = (), keys_tensor: Array | None = None,
    values_floats: Floats = (), values_int64s: Ints = (), values_strings: Texts = (),
    values_tensor: Array | None = None,
    default_float: float = -0.0, default_int64: int = -1, default_string: str = "_Unused",
    default_tensor: Array | None = None,
) -> Value:  # fmt: skip
    keys = _given("keys", (keys_floats, F32), (keys_int64s, I64), (keys_strings, STRING), _tensor(keys_tensor))
    values = _given(
        "values", (values_floats, F32), (values_int64s, I64), (values_strings, STRING), _tensor(values_tensor)
    )
    whole = values.dtype.kind in "iu"
    default: Any = default_string if values.dtype == STRING else default_int64 if whole else default_float
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    return _encoded(b, x, keys.astype(x.type.dtype, copy=False), values, np.array([default]).astype(values.dtype))


def _encoded(b: NodeBuilder, x: Value, keys: Array, values: Array, default: Array) -> Value:
    """Texts by numbers are found by the place of the number, for which there are kernels."""
    if keys.dtype == STRING or values.dtype != STRING:
        return b(LabelEncoder(), x, keys, values, default)
    places = b(LabelEncoder(), x, keys, np.arange(len(keys)), np.array([len(keys)]))
    return b(Gather(), np.concatenate([values, default]), places)


def _tensor(array: Array | None) -> tuple[Any, AnyDType]:
    return array, I64 if array is None else array.dtype


@reader("LabelEncoder", domain=ML)
def label_encoder_1(
    b: NodeBuilder, x: Value, *, classes_strings: Texts = (), default_int64: int = -1, default_string: str = "_Unused"
) -> Value:
    """Places of strings, or the strings at places."""
    return _mapped(b, x, np.arange(len(classes_strings)), texts(classes_strings), default_int64, default_string)


@reader("CategoryMapper", domain=ML)
def category_mapper(
    b: NodeBuilder,
    x: Value,
    *,
    cats_int64s: Ints = (),
    cats_strings: Texts = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Value:
    if len(cats_int64s) != len(cats_strings):
        raise b.invalid("lengths of the categories", (len(cats_int64s), len(cats_strings)), "the same")
    return _mapped(b, x, np.array(cats_int64s, I64), texts(cats_strings), default_int64, default_string)


def _mapped(b: NodeBuilder, x: Value, numbers: Array, names: Array, number: int, name: str) -> Value:
    if x.type.dtype == STRING:
        return b(LabelEncoder(), x, names, numbers, np.array([number], I64))
    return _encoded(b, x, numbers, names, texts((name,)))


@reader("OneHotEncoder", domain=ML)
def one_hot_encoder(
    b: NodeBuilder, x: Value, *, cats_int64s: Ints = (), cats_strings: Texts = (), zeros: bool = True
) -> Value:
    categories = class_labels(b, cats_int64s, cats_strings)
    data = x if x.type.dtype == categories.dtype else b(Cast(categories.dtype), x)
    return b(OneHotEncoder(zeros), data, categories)


@reader("ZipMap", domain=ML)
def zip_map(b: NodeBuilder, x: Value, *, classlabels_int64s: Ints = (), classlabels_strings: Texts = ()) -> Value:
    return b(ZipMap(), as_float(b, x), class_labels(b, classlabels_int64s, classlabels_strings))


@reader("DictVectorizer", domain=ML)
def dict_vectorizer(b: NodeBuilder, x: Value, *, int64_vocabulary: Ints = (), string_vocabulary: Texts = ()) -> Value:
    if not isinstance(x.type, MapType):
        raise b.unsupported(f"operand of type {x.type}")
    return b(DictVectorizer(x.type.element.dtype), x, class_labels(b, int64_vocabulary, string_vocabulary))


@reader("CastMap", domain=ML)
def cast_map(
    b: NodeBuilder, x: Value, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
) -> Value:
    kinds: dict[str, AnyDType] = {"TO_FLOAT": F32, "TO_INT64": I64, "TO_STRING": STRING}
    if cast_to not in kinds or map_form not in ("DENSE", "SPARSE"):
        raise b.invalid("cast_to and map_form", (cast_to, map_form), "values of the standard")
    return b(CastMap(kinds[cast_to], max_map if map_form == "SPARSE" else None), x)
