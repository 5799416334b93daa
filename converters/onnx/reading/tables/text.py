"""Readers of texts, and of encoded images."""

from __future__ import annotations

import importlib.util

import numpy as np

from bolt_numba.base.types import STRING
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import Ints
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import add_as_is, add_reader, reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.data.image_decoder import ImageDecoder
from bolt_numba.ops.data.ml import LabelEncoder
from bolt_numba.ops.data.text import RegexFullMatch, StringConcat, StringNormalizer, StringSplit, TfIdfVectorizer

add_as_is(StringSplit)
add_reader("StringConcat", AsIs(StringConcat, "x y"))
add_reader("StringNormalizer", AsIs(StringNormalizer, ignored={"locale": ""}))
# The schema calls the pattern optional and gives no default: the empty one matches the empty string.
add_reader("RegexFullMatch", AsIs(RegexFullMatch, pattern=""))


@reader("TfIdfVectorizer")
def tf_idf_vectorizer(
    b: NodeBuilder,
    x: Value,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints = (),
    pool_strings: tuple[str, ...] = (),
    weights: tuple[float, ...] = (),
) -> Value:
    b.invalid_if(pool_int64s and pool_strings, "pools", 2, "either pool_int64s or pool_strings")
    pool: tuple[str | int, ...] = pool_int64s or pool_strings
    if pool_strings and x.type.dtype == STRING:  # there is a kernel for n-grams of numbers
        places = {text: i for i, text in enumerate(dict.fromkeys(pool_strings))}
        pool = tuple(places[text] for text in pool_strings)
        x = b(LabelEncoder(), x, np.array(list(places), STRING), np.arange(len(places)), np.array([-1]))
    operator = TfIdfVectorizer(
        mode, min_gram_length, max_gram_length, max_skip_count, ngram_counts, ngram_indexes, pool, weights
    )
    return b(operator, x)


@reader("ImageDecoder")
def image_decoder(b: NodeBuilder, stream: Value, *, pixel_format: str = "RGB") -> Value:
    if importlib.util.find_spec("PIL") is None:
        raise b.unsupported("decoding without Pillow: pip install pillow")
    return b(ImageDecoder(pixel_format), stream)
