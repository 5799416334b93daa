"""Tools of OpenAI's chats: which functions a request offers, which it asks for, and calls within messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bolt_numba.serve.errors import RequestError, shown
from bolt_numba.text.calls import CallForm, CallReader, forced, form_of

if TYPE_CHECKING:
    from bolt_numba.text.calls import FunctionCall
    from bolt_numba.text.generator import Generator

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
MOST_TOOLS, LETTERS_OF_ID = 128, 9
"""Functions of a request; letters of what names a call, as Mistral's templates want them."""
CHOICES = ("none", "auto", "required")
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Arguments of a function that says nothing of them."""


class Tools:
    """The functions that a chat offers.  The constructor raises RequestError for what does not fit.

    own: as templates get them; none where nothing may be called.  functions: schemas of arguments by name.  forced:
    the names that a call must have; none: the model may do without one.  many: whether several calls may come.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        given, choice = asked.get("tools", []), asked.get("tool_choice", "auto")
        if len(given) > MOST_TOOLS:
            raise RequestError(f"tools: got {len(given)}, wanted at most {MOST_TOOLS}")
        self.functions = dict(map(_function, given))
        named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
        name = named.get("name") if isinstance(named, dict) else None
        known = CHOICES if given else CHOICES[:-1]
        if not (choice in known if isinstance(choice, str) else isinstance(name, str) and name in self.functions):
            wanted = f"wanted {', '.join(known)}, or one of the functions of tools"
            raise RequestError(f"tool_choice: got {shown(choice)}, {wanted}")
        self.own = [] if choice == "none" else given
        self.forced = [name] if name is not None else [*self.functions] if choice == "required" else []
        self.many = asked.get("parallel_tool_calls", True)
        self.form: CallForm | None = None

    def settings(self, generator: Generator) -> dict[str, Any]:
        """What the generator is asked for.  Raises RequestError where the model's template has no place for tools."""
        if not self.own:
            return {}
        self.form = form_of(generator.layout.template)
        if self.form is None:
            wanted = "wanted them for a model whose template has a form of calls that is known here"
            raise RequestError(f"tools: got {len(self.own)} for another model, {wanted}")
        made: dict[str, Any] = {"special_tokens": True}
        if self.forced:
            functions = {name: self.functions[name] for name in self.forced}
            text = forced(self.form, functions, self.many, generator.tokenizer.token_to_id)
            made |= {"grammar": text, "json_schema": None}
        return made

    def reader(self) -> CallReader | None:
        """What finds the calls of one text; None where none can be."""
        return None if self.form is None else CallReader(self.form, [*self.functions], None if self.many else 1)


def told_calls(calls: Sequence[FunctionCall], is_part: bool) -> list[dict[str, Any]]:
    """Calls as answers tell them."""
    return [
        {**({"index": i} if is_part else {}), "id": uuid4().hex[:LETTERS_OF_ID], "type": "function",
         "function": call._asdict()}
        for i, call in enumerate(calls)
    ]  # fmt: skip


def _function(given: Any) -> tuple[str, dict[str, Any]]:
    own = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    name = own.get("name") if isinstance(own, dict) else None
    parameters = own.get("parameters") if isinstance(own, dict) else None
    if not (isinstance(name, str) and NAME.fullmatch(name)) or not isinstance(parameters, (dict, type(None))):
        raise RequestError(f"tools: got {shown(given)}, wanted functions, each with a name and parameters")
    return name, NOTHING if parameters is None else parameters


def calls_within(what: str, given: Any) -> list[dict[str, Any]]:
    """Calls of a message as templates take them: arguments are objects.  Raises RequestError, with what has them."""
    try:
        found = [{**one, "function": {**one["function"], "arguments": _object(one)}} for one in given]
        if all(isinstance(one["function"]["name"], str) for one in found):
            return found
    except (TypeError, KeyError, ValueError, RecursionError):
        pass
    wanted = "wanted functions, each with a name and arguments, an object as JSON"
    raise RequestError(f"{what}: tool_calls: got {shown(given)}, {wanted}", field="messages")


def _object(call: Mapping[str, Any]) -> dict[str, Any]:
    found = json.loads(call["function"]["arguments"] or "{}")
    if not isinstance(found, dict):
        raise TypeError
    return found
