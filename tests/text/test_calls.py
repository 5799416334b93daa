"""Calls of functions: each family's form is known by its template, can be forced, and is read as it comes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bolt_numba.errors import DataError, OptionError
from bolt_numba.text.calls import FORMS, CallReader, FunctionCall, forced, form_of
from bolt_numba.text.grammars import Grammars
from bolt_numba.text.sampling import Sampling
from tests.text.decoders import CALLING

pytest.importorskip("tokenizers")
SIGNS = {
    "mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]",
    "newer mistral": "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]",
    "hermes": CALLING,
    "llama": "{% if tools %}Environment: ipython{% endif %}",
}
ONE, TWO = '"x": 1', '"x": 2, "y": "a"'
WRITTEN = {
    "mistral": f'[TOOL_CALLS][{{"name": "f", "arguments": {{{ONE}}}}}, {{"name": "g", "arguments": {{{TWO}}}}}]',
    "newer mistral": f"[TOOL_CALLS]f[ARGS]{{{ONE}}}[TOOL_CALLS]g[ARGS]{{{TWO}}}",
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {{{ONE}}}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "g", "arguments": {{{TWO}}}}}\n</tool_call>',
    "llama": f'{{"name": "f", "parameters": {{{ONE}}}}}; {{"name": "g", "parameters": {{{TWO}}}}}',
}
CALLS = [FunctionCall("f", f"{{{ONE}}}"), FunctionCall("g", f"{{{TWO}}}")]
PARTS = {"x": {"$ref": "#/$defs/number"}, "y": {"type": "string"}}
SCHEMA = {"properties": PARTS, "$defs": {"number": {"type": "integer"}}, "additionalProperties": False}
FUNCTIONS: dict[str, Any] = {"f": {**SCHEMA, "required": ["x"]}, "g": {**SCHEMA, "required": ["x", "y"]}}


def own_tokens() -> Any:
    """A tokenizer in which some marks are tokens, and special ones are among them."""
    from tokenizers import AddedToken, Tokenizer

    from tests.text.decoders import tokenizer

    own = Tokenizer.from_str(tokenizer())
    own.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    own.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("[ARGS]", special=False)])
    return own


@pytest.mark.parametrize("family", SIGNS)
def test_forms_are_read(family: str) -> None:
    form = form_of(SIGNS[family])
    assert form is not None
    rng = random.Random(0)
    for before, text, calls in (
        ("", WRITTEN[family], CALLS), ("Let me see.\n" if form.mark else "", WRITTEN[family], CALLS),
        ("", WRITTEN[family].replace(": {", ":\n  {") + " ", CALLS), ("Just a text [TOOL <tool", "", []),
        ("", WRITTEN[family][:-9], []), ("", WRITTEN[family].replace('g', 'unknown', 1), []), ("", "{}", []),
        ("", WRITTEN[family].replace('{"x": 1}', '[1]').replace('{"x": 1}', '[1]'), []), ("", "", []),
        ("", WRITTEN[family].replace('"x": 1', '"x": NaN'), []), ("", form.mark + "[" * 99999 + "{" * 99999, []),
    ):  # fmt: skip
        for _ in range(20):
            reader, pieces, left = CallReader(form, ["f", "g"]), list[str](), before + text
            while left and len(text) < 9999:
                count = rng.randint(1, 12)
                said, found = reader.add(left[:count], False)
                assert not found
                pieces.append(said)
                left = left[count:]
            said, found = reader.add(left, True)
            assert ("".join(pieces) + said, found) == (before + (text if not calls else ""), calls)
    assert CallReader(form, ["f", "g"], 1).add(WRITTEN[family], True) == ("", CALLS[:1])


def test_what_is_no_call_is_not_held_back() -> None:
    form = FORMS["<tool_call>"]
    assert form is not None
    reader = CallReader(form, ["f"])
    pieces = ["Hi", " <", "b>", "<tool", "_call>{", "x"]
    assert [reader.add(piece, False)[0] for piece in pieces] == ["Hi", " ", "<b>", "", "", ""]


@pytest.mark.parametrize("family", SIGNS)
def test_forms_are_forced(family: str) -> None:
    pytest.importorskip("llguidance")
    own, form = own_tokens(), form_of(SIGNS[family])
    assert form is not None
    grammars = Grammars(own.to_str(), own.get_vocab_size(), [257])

    def follows(text: str, functions: dict[str, Any], many: bool) -> bool:
        """Whether a text can be written, and end."""
        grammar = grammars.grammar(Sampling(grammar=forced(form, functions, many, own.token_to_id)))
        try:
            for token in own.encode(text, add_special_tokens=False).ids:
                grammar.take(token)
        except DataError:
            return False
        return bool(grammar.matcher.is_accepting())

    text = WRITTEN[family]
    first = text[: text.index("1}") + 2] + form.after + form.end
    assert follows(text, FUNCTIONS, True)
    assert follows(first, FUNCTIONS, False)
    assert not follows(text, FUNCTIONS, False)
    assert not follows(first, {"g": FUNCTIONS["g"]}, True)
    assert not follows(first.replace("1", '"1"'), FUNCTIONS, True)


def test_other_templates_have_no_form() -> None:
    for text in (None, "{{ messages }}", "{% if tools %}{{ tools }}{% endif %}", "[TOOL_CALLS]",
                 "{% if tools %}<tool_call><function=name>{% endif %}"):  # fmt: skip
        assert form_of(text) is None


def test_schemas_that_could_take_for_ever() -> None:
    form = FORMS["ipython"]
    assert form is not None
    patterns = [{"type": "string", "pattern": f"a.*{letter}"} for letter in "abcdefghijklmnop"]
    with pytest.raises(OptionError, match="tools: got 16 patterns"):
        forced(form, {"f": {"properties": {"x": {"allOf": patterns}}}}, True, lambda text: None)
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"items": deep}
    with pytest.raises(OptionError, match="tools: f: got parameters that are nested too deep"):
        forced(form, {"f": deep}, True, lambda text: None)
