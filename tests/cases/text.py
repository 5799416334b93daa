"""Cases of operators on strings."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st

from bolt_numba.ops.data import text as t
from bolt_numba.ops.data.image_decoder import ImageDecoder, pillow
from bolt_numba.ops.data.search import Between, BifurcationDetector
from bolt_numba.ops.data.tokens import Tokenizer
from bolt_numba.types import I32, I64, Array
from tests.cases import Case, cases
from tests.cases.draw import Draw, flags, pick, shapes, small, whole

WORDS = ("", "a", "ab", "Monday", "monday", "two words", " padded  text ", "a,b,,c", "naïve", "été", "x@y.org", "42")


def strings(draw: Draw, dims: tuple[int, ...], words: tuple[str, ...] = WORDS) -> Array:
    return t.texts([pick(draw, *words) for _ in range(int(np.prod(dims)))], dims)


@cases(t.StringConcat)
def string_concat(draw: Draw, op: type[t.StringConcat]) -> Case:
    dims = shapes(draw, 0, 3, 12)
    other = dims[draw(st.integers(0, len(dims))) :]
    return Case(op(), (strings(draw, dims), strings(draw, other)))


@cases(t.StringSplit)
def string_split(draw: Draw, op: type[t.StringSplit]) -> Case:
    made = op(pick(draw, "", ",", " "), pick(draw, None, 0, 1, 5))
    return Case(made, (strings(draw, shapes(draw, 1, 2, 12), WORDS[1:]),))  # engines differ on the empty string


@cases(t.StringNormalizer)
def string_normalizer(draw: Draw, op: type[t.StringNormalizer]) -> Case:
    stop = tuple(draw(st.lists(st.sampled_from(("monday", "a", "ab")), unique=True)))
    made = op(pick(draw, "NONE", "LOWER", "UPPER"), draw(flags), stop)
    words: tuple[str, ...] = ("a", "ab", "monday", "two words")  # the oracle drops accents
    if made.is_case_sensitive:  # and always minds the case
        words = (*words, "Monday", "A")
    dims = shapes(draw, 1, 1, 8)
    return Case(made, (strings(draw, dims if draw(flags) else (1, *dims), words),))


@cases(t.RegexFullMatch)
def regex_full_match(draw: Draw, op: type[t.RegexFullMatch]) -> Case:
    made = op(pick(draw, r"[a-z]*", r"\w+@\w+\.(org|com)", r".*", r"\d+", r"(?i)MONDAY", r"[[:alpha:]]+"))
    return Case(made, (strings(draw, shapes(draw, 1, 2, 12)),))


@cases(Tokenizer)
def tokenizer(draw: Draw, op: type[Tokenizer]) -> Case:
    cut = pick(draw, (("",), ""), ((" ", ","), ""), ((), "[a-z]+"), ((), r"\w|\d+"))
    made = op(draw(flags), 1 if cut[0] == ("",) else pick(draw, 1, 2), "#", *cut)
    return Case(made, (strings(draw, shapes(draw, 1, 2, 12)),))


@cases(Between)
def between(draw: Draw, op: type[Between]) -> Case:
    low, x, high = (np.array(v, I64) for v in sorted(draw(st.lists(small, min_size=3, max_size=3))))
    return Case(op("x"), (x, low, high), exact=True)


@cases(BifurcationDetector)
def bifurcation_detector(draw: Draw, op: type[BifurcationDetector]) -> Case:
    source, words = (whole(draw, (draw(st.integers(0, 8)),), 0, 2, I64) for _ in range(2))
    start = draw(st.integers(0, len(source)))
    guess = np.append(source[start:], draw(st.integers(0, 2)))
    guess[draw(st.integers(0, len(guess) - 1))] += draw(st.integers(0, 1))
    least = draw(st.integers(1, 3))
    made = op(least, draw(st.integers(least, 4)))
    return Case(made, (source, words, np.array([start]), guess if draw(flags) else None))


@cases(t.TfIdfVectorizer)
def tf_idf_vectorizer(draw: Draw, op: type[t.TfIdfVectorizer]) -> Case:
    low = pick(draw, 1, 2)
    words = draw(flags)
    ones: tuple[Any, ...] = ("a", "b", "c") if words else (1, 2, 3)
    if low == 2 and draw(flags):  # onnxruntime refuses what comes twice where it counts
        ones = (ones[0], *ones[:2])
    twos: tuple[Any, ...] = ("a", "b", "b", "c") if words else (1, 2, 2, 3)
    made = op(
        pick(draw, "TF", "IDF", "TFIDF"), low, pick(draw, *range(low, 3)), pick(draw, 0, 1, 3), (0, 3), (0, 1, 2, 4, 3),
        ones + twos, (1.0, 2.0, 0.5, 3.0, 4.0),
    )  # fmt: skip
    dims = shapes(draw, 1, 2, 24)
    x = strings(draw, dims, ("a", "b", "c", "d")) if words else whole(draw, dims, 1, 4, pick(draw, I32, I64))
    return Case(made, (x,))


@cases(ImageDecoder)
def image_decoder(draw: Draw, op: type[ImageDecoder]) -> Case:
    dims = (*shapes(draw, 2, 2, 100), 3)
    file = io.BytesIO()
    pillow().fromarray(whole(draw, dims, 0, 255, np.dtype("u1"))).save(file, pick(draw, "PNG", "BMP", "PPM"))
    made = op(pick(draw, "RGB", "BGR", "Grayscale"))
    return Case(made, (np.frombuffer(file.getvalue(), np.uint8),))
