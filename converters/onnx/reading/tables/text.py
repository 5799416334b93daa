"""Readers of operators on strings."""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.ir.graph import Value
from bolt_numba.ops.data.text import RegexFullMatch, StringConcat, StringNormalizer, StringSplit, TfIdfVectorizer

Ints = tuple[int, ...]


@reader("StringConcat")
def string_concat(b: NodeBuilder, x: Value, y: Value) -> Any:
    return b(StringConcat(), x, y)


@reader("StringSplit")
def string_split(b: NodeBuilder, x: Value, *, delimiter: str = "", maxsplit: int | None = None) -> Any:
    return b(StringSplit(delimiter, maxsplit), x)


@reader("StringNormalizer")
def string_normalizer(
    b: NodeBuilder,
    x: Value,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: bool = False,
    locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> Any:
    return b(StringNormalizer(case_change_action, is_case_sensitive, stopwords), x)


@reader("RegexFullMatch")
def regex_full_match(b: NodeBuilder, x: Value, *, pattern: str = "") -> Any:
    """The schema calls the pattern optional and gives no default: the empty one matches the empty string."""
    return b(RegexFullMatch(pattern), x)


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
) -> Any:
    if pool_int64s and pool_strings:
        raise b.invalid("pools", 2, "either pool_int64s or pool_strings")
    pool: tuple[str | int, ...] = pool_int64s or pool_strings
    operator = TfIdfVectorizer(
        mode, min_gram_length, max_gram_length, max_skip_count, ngram_counts, ngram_indexes, pool, weights
    )
    return b(operator, x)
