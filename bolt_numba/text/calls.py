"""Calls of functions: in which form a model writes them, which its template tells, how they are read, and forced."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bolt_numba.base.errors import OptionError
from bolt_numba.text.grammars import SPACED, want_few_patterns


class CallForm(NamedTuple):
    """How calls are written: ``begin``, then for each ``before`` name ``middle`` arguments ``after``, at last ``end``.

    mark: what a text has where calls begin; none: they begin a text.  between: what stands between two.
    """

    mark: str
    begin: str
    before: str
    middle: str
    after: str
    between: str
    end: str


ARGUMENTS, PARAMETERS = '", "arguments": ', '", "parameters": '
FORMS: dict[str, CallForm | None] = {
    "<function=": None,
    "[ARGS]": CallForm("[TOOL_CALLS]", "", "[TOOL_CALLS]", "[ARGS]", "", "", ""),
    "[TOOL_CALLS]": CallForm("[TOOL_CALLS]", "[TOOL_CALLS][", '{"name": "', ARGUMENTS, "}", ", ", "]"),
    "<tool_call>": CallForm(
        "<tool_call>", "", '<tool_call>\n{"name": "', ARGUMENTS, "}\n</tool_call>", "\n", ""
    ),
    "ipython": CallForm("", "", '{"name": "', PARAMETERS, "}", "; ", ""),
}  # fmt: skip
"""By what a family's templates have, the first that fits: Mistral's newer and older ones, Hermes and Qwen, Llama 3.

None: calls are no JSON there, and are not done."""
MARKS = re.compile(r"(\[TOOL_CALLS\]|\[ARGS\]|</?tool_call>)")
"""What is one token, where the model has it."""
AROUND = re.compile(r"(?:</?tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|[;,\[\]\s])*")
"""What stands before, between and behind calls."""
NAMED = re.compile(r"([\w.-]+)\s*\[ARGS\]\s*")
FIRST = ("{", "<|python_tag|>")
"""How a text begins that is a call without a mark."""


class FunctionCall(NamedTuple):
    """A function's name, and its arguments as JSON."""

    name: str
    arguments: str


def form_of(template: str | None) -> CallForm | None:
    """How a model with this template writes calls; None: not in a form that is known here."""
    found = (form for sign, form in FORMS.items() if sign in (template or ""))
    return next(found, None) if "tools" in (template or "") else None


def forced(
    form: CallForm, functions: Mapping[str, Mapping[str, Any]], many: bool, token_of: Callable[[str], int | None]
) -> str:
    """A grammar of one call, or of many: functions by name, with the schema of their arguments.

    token_of: the token that a text is, if it is one.  Raises OptionError for schemas that could take for ever.
    """

    def spelled(text: str) -> str:
        parts = [part for part in MARKS.split(text) if part]
        tokens = {part: token_of(part) for part in parts if MARKS.match(part)}
        return " ".join(json.dumps(part) if tokens.get(part) is None else f"<[{tokens[part]}]>" for part in parts)

    want_few_patterns([*functions.values()], "tools")
    further = f"({spelled(form.between)} call)*" if many else ""
    rows = [f"start: {spelled(form.begin)} call {further} {spelled(form.end)}"]
    rows.append("call: " + " | ".join(f"call{i}" for i in range(len(functions))))
    for i, (name, schema) in enumerate(functions.items()):
        rows.append(f"call{i}: {spelled(form.before + name + form.middle)} given{i} {spelled(form.after)}")
        try:
            rows.append(f"given{i}: %json " + json.dumps({**schema, "type": "object", "x-guidance": SPACED}))
        except RecursionError:
            raise OptionError(f"tools: {name}: got parameters that are nested too deep, wanted fewer levels") from None
    return "\n".join(rows)


class CallReader:
    """Tells calls of some functions from what a text says beside them, as it comes.  most: calls that count."""

    def __init__(self, form: CallForm, names: Sequence[str], most: int | None = None) -> None:
        self.form, self.names, self.most = form, names, most
        self.text, self.told = "", 0

    def add(self, text: str, is_last: bool) -> tuple[str, list[FunctionCall]]:
        """What is certain to be no call, and with the last piece all calls: what is held back until then."""
        self.text += text
        begin = self._begin()
        found = self._calls(begin) if is_last else []
        end = len(self.text) if is_last and not found else begin
        said, self.told = self.text[self.told : end], max(end, self.told)
        return said, found[: self.most]

    def _begin(self) -> int:
        """Where calls begin, or might."""
        mark = self.form.mark
        if not mark:
            begun = self.text.lstrip()
            return 0 if not begun or begun.startswith(FIRST) else len(self.text)
        found = self.text.find(mark)
        tails = range(max(len(self.text) - len(mark) + 1, 0), len(self.text))
        return found if found >= 0 else next((i for i in tails if mark.startswith(self.text[i:])), len(self.text))

    def _calls(self, at: int) -> list[FunctionCall]:
        """Calls from there on; none where something else stands among them."""
        found = list[FunctionCall]()
        read = json.JSONDecoder(parse_constant=int).raw_decode  # a NaN is no number of JSON: int refuses its name
        try:
            while (at := _behind(AROUND, self.text, at)) < len(self.text):
                if named := NAMED.match(self.text, at):
                    given, at = read(self.text, named.end())
                    found.append(self._call(named[1], given))
                    continue
                given, at = read(self.text, at)
                found.append(self._call(given["name"], given.get("arguments", given.get("parameters"))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
        return found

    def _call(self, name: Any, arguments: Any) -> FunctionCall:
        if name not in self.names or not isinstance(arguments, dict):
            raise ValueError(name)
        return FunctionCall(name, json.dumps(arguments, ensure_ascii=False))


def _behind(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
