"""Tokens of strings, and spectra of plain signals: what onnxruntime takes beyond the standard, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.errors import BoltError
from bolt_numba.ops.data.text import texts
from bolt_numba.types import STRING, Array

onnxruntime = pytest.importorskip("onnxruntime")
SENTENCES = texts(["a b,c", "", " the  end", "naïve été 日本", "x\ny", "aab1b22", "A_b c|d.e"], (7,))
PATTERNS = (
    " ", ",", "ab", "[a-z]", "[a-zA-Z0-9_]+", "[ ,]+", r"\|", r"\.", ".", "b.", "a|ab", "ab*?", "|a", "x*", r"\b",
    r"\b\w\w+\b", "(?i)[a-c]+", "[^a]+", "^a", "e$", "日.?", "[z-a]", "(",
)  # fmt: skip


def model(name: str, domain: str, inputs: dict[str, Array], held: dict[str, Array], **attributes: Any) -> bytes:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), [None] * a.ndim)
        for n, a in inputs.items()
    ]
    node = helper.make_node(name, [*inputs, *held], ["y"], domain=domain, **attributes)
    constants = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph([node], "one", infos, [onnx.ValueInfoProto(name="y")], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return content


def theirs(content: bytes, x: Array) -> Array | None:
    """What onnxruntime gives; None where it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        result: Array = onnxruntime.InferenceSession(content, options).run(None, {"x": x})[0]
    except Exception:
        return None
    return result


def tokens_agree(x: Array, **attributes: Any) -> None:
    content = model("Tokenizer", "com.microsoft", {"x": x}, {}, **attributes)
    wanted = theirs(content, x)
    if wanted is None:
        with pytest.raises(BoltError):
            bn.compile(content)
        return
    assert bn.compile(content)(x)[0].tolist() == wanted.tolist()
    written = to_onnx(bn.load(content)).SerializeToString()
    again = theirs(written, x)
    assert again is not None
    assert again.tolist() == wanted.tolist()


@given(
    st.lists(st.sampled_from(SENTENCES.tolist()), min_size=1, max_size=4),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_tokens(words: list[str], patterns: list[str], mark: bool, whole: bool, shortest: int) -> None:
    cut: dict[str, Any] = {"tokenexp": patterns[0]} if whole else {"separators": patterns}
    tokens_agree(texts(words, (len(words),)), mark=int(mark), mincharnum=shortest, pad_value="#", **cut)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("how", ["separators", "tokenexp"])
def test_each_pattern(pattern: str, how: str) -> None:
    tokens_agree(SENTENCES, mark=1, mincharnum=1, pad_value="#", **{how: [pattern] if how == "separators" else pattern})


def test_characters_and_matrices() -> None:
    tokens_agree(SENTENCES.reshape(7, 1), mark=1, mincharnum=1, pad_value="", separators=[""])
    tokens_agree(SENTENCES[:6].reshape(2, 3), mark=0, mincharnum=1, pad_value="~", tokenexp="[a-z]+")
    tokens_agree(texts(["", ""], (2,)), mark=1, mincharnum=1, pad_value="#", separators=[" "])
    tokens_agree(SENTENCES, mark=0, mincharnum=1, pad_value="#")  # neither separators nor an expression: refused
    tokens_agree(SENTENCES.reshape(7, 1, 1), mark=0, mincharnum=1, pad_value="#", separators=[" "])


def test_no_strings_are_no_tokens() -> None:
    given = {"mark": 1, "mincharnum": 1, "pad_value": "", "tokenexp": "a"}
    content = model("Tokenizer", "com.microsoft", {"x": SENTENCES}, {}, **given)
    assert bn.compile(content)(np.empty(0, STRING))[0].shape == (0, 0)


def test_time_is_linear_in_the_text() -> None:
    """Each of a million letters is looked at once or twice, whatever the pattern."""
    x = texts(["a" * 1_000_000], (1,))
    for cut in ({"separators": ["[a-z]b", " "]}, {"tokenexp": "[a-z]+b"}, {"tokenexp": "(a*)*b"}):
        content = model("Tokenizer", "com.microsoft", {"x": x}, {}, mark=0, mincharnum=1, pad_value="", **cut)
        assert bn.compile(content)(x)[0].shape[0] == 1


def test_spectrum_of_a_signal_without_a_last_axis() -> None:
    x = np.random.default_rng(2).standard_normal((2, 64)).astype(np.float32)
    held = {"step": np.array(16), "window": np.hanning(32).astype(np.float32)}
    content = model("STFT", "", {"x": x}, held)
    wanted = theirs(content, x)
    assert wanted is not None
    np.testing.assert_allclose(bn.compile(content)(x)[0], wanted, rtol=1e-4, atol=1e-4)
