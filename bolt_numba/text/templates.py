"""Chat templates: texts of Jinja that come with a model, run by ``jinja2`` in its sandbox and within limits.

A template is hostile until proven otherwise.  The sandbox keeps it from files and from what objects hide.  All that it
makes is counted here: letters, elements and iterations.  They have a limit, and so has the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from bolt_numba.base.errors import BoltError, DataError, DTypeError, InvalidModelError
from bolt_numba.text.tokens import CUT

MOST_LETTERS, MOST_MADE, MOST_SECONDS = 1 << 16, 1 << 24, 5.0
"""Of a template, of what a run makes, and of its time."""
WIDEST_BLANKS = 16
"""Blanks that lines are indented by; exponents; digits to round to."""
INTEGER_SHIFT = 12
"""What numbers of 64 bits count is one."""
FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "indent", "int", "items", "join",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round",
    "select", "selectattr", "sort", "string", "title", "tojson", "trim", "truncate", "unique", "upper", "wordcount",
)  # fmt: skip
"""What templates get; others could make much of little."""
REFUSED = {"center", "expandtabs", "format", "format_map", "ljust", "rjust", "to_bytes", "translate", "zfill"}
"""Methods that make much of little."""
MAKING = ("BinExpr", "Call", "Compare", "Concat", "Dict", "Filter", "List", "TemplateData", "Test", "Tuple")
"""Parts of a template that make something, or may take long."""
METER, MADE, EACH = " meter", " made", " each"
"""No template can write these names."""


class _Meter:
    """Counts what one run of a template makes."""

    def __init__(self) -> None:
        self.left, self.end = MOST_MADE, time.monotonic() + MOST_SECONDS
        self.known: dict[int, tuple[Any, int]] = {}

    def spend(self, count: int) -> None:
        self.left -= count + 1
        if self.left < 0 or time.monotonic() > self.end:
            wanted = f"wanted at most {MOST_MADE} letters in {MOST_SECONDS:g} s"
            raise InvalidModelError(f"chat template: got one that makes too much, {wanted}")

    def made(self, value: Any) -> Any:
        """A value that was made, counted with all that it holds: what holds one thing twice shows it twice."""
        self.spend(self.weight(value))
        return value

    def weight(self, value: Any) -> int:
        if isinstance(value, (str, bytes)):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() ** 2 >> INTEGER_SHIFT  # as long as products and quotients of it take
        if not isinstance(value, (list, tuple, dict)):
            return 1
        if id(value) not in self.known:
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            self.known[id(value)] = value, len(inner) + sum(map(self.weight, inner))
        return self.known[id(value)][1]

    def each(self, values: Any) -> Iterator[Any]:
        for value in values:
            self.spend(1)
            yield value

    def listed(self, value: Any) -> Any:
        """A list of what comes one by one, and any other value."""
        return [*self.each(value)] if isinstance(value, Iterator) else value

    def before(self, name: str, given: Sequence[Any]) -> None:
        """Count what a filter, a method or an operator makes of these before it does."""
        counts = [one for one in given if isinstance(one, int)]
        widths = [abs(one) for one in (given if name == "**" else given[1:]) if isinstance(one, int)]
        texts = [one for one in given if isinstance(one, (str, bytes))]
        is_wide = name in ("**", "indent", "round", "tojson") and max(widths, default=0) > WIDEST_BLANKS
        if is_wide or (name == "%" and texts[:1] == [*given[:1]]):
            raise InvalidModelError(f"chat template: {name}: got {given!r:.80}, wanted what makes less")
        if name == "*" and counts:
            self.spend(max(counts) * sum(1 + self.weight(one) for one in given if one not in counts))
        elif name == "replace":
            text, old, new = (str(one) for one in (*given, "", "")[:3])
            self.spend(text.count(old) * len(new))
        elif name == "join":
            parts = max((len(one) for one in given if isinstance(one, (list, tuple, dict))), default=0)
            self.spend(parts * sum(map(len, texts)))
        elif name == "indent":
            self.spend(sum(text.count("\n") for text in map(str, texts)) * max(WIDEST_BLANKS, *map(len, texts)))


def _through(name: str, node: Any) -> Any:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Metered(NodeTransformer):
    """Has all that a template makes go through a meter."""

    def generic_visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.Output):
            node.nodes = [_through(MADE, one) for one in node.nodes]
        elif isinstance(node, nodes.For):
            node.iter = _through(EACH, node.iter)
        is_part = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        is_target = getattr(node, "ctx", "load") != "load"
        is_of_block = isinstance(node, nodes.Filter) and node.node is None
        makes = is_part or ((type(node).__name__ in MAKING or isinstance(node, nodes.BinExpr)) and not is_target)
        return _through(MADE, node) if makes and not is_of_block else node


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in REFUSED and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Texts have no methods to format: fields can be of any width."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        context[METER].before(operator, [left, right])
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter, own = context[METER], getattr(called, "__self__", None)
        args = tuple(map(meter.listed, args))
        if isinstance(own, (str, bytes)):
            meter.before(called.__name__, [own, *args, *kwargs.values()])
        return super().call(context, called, *args, **kwargs)

    def handle_exception(self, source: Any = None) -> Any:
        raise  # as it is: where it stands in the template takes long to find out

    def _parse(self, *given: Any) -> Any:
        return _Metered().visit(super()._parse(*given))


class _HeldNamespace(Namespace):
    def __repr__(self) -> str:
        """Does not show what it holds, which may be itself."""
        return "<namespace>"


def _counted(own: Any, name: str) -> Callable[..., Any]:
    """A filter that is counted before it makes something.  own: the environment with those that are not."""

    def called(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = context[METER].listed(value)
        context[METER].before(name, [value, *args, *kwargs.values()])
        return own.call_filter(name, value, args, kwargs, context=context)

    return called


@cache
def _environment() -> Any:
    plain: Any = _Sandbox()
    plain.filters["tojson"] = _json
    own: Any = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], optimized=False)
    own.filters = {name: pass_context(_counted(plain, name)) for name in FILTERS}
    own.filters[MADE] = pass_context(lambda context, value: context[METER].made(value))
    own.filters[EACH] = pass_context(lambda context, values: context[METER].each(values))
    own.globals = {name: own.globals[name] for name in ("range", "dict")}
    own.globals |= {"namespace": _HeldNamespace, "raise_exception": _refuse, "strftime_now": _now}
    return own


class ChatTemplate:
    """A template.

    marks: texts that it may name, such as ``bos_token``.  special: those of tokens that no message makes.  Raises
    InvalidModelError for what is none.
    """

    def __init__(self, text: str, marks: Mapping[str, str], special: Sequence[str] = ()) -> None:
        if len(text) > MOST_LETTERS:
            raise InvalidModelError(f"chat template: got {len(text)} letters, wanted at most {MOST_LETTERS}")
        self.marks, self.special = dict(marks), [one for one in special if len(one) > 1 and CUT not in one]
        try:
            self.own = _environment().from_string(text)
        except Exception as error:  # of any kind: texts are hostile
            raise InvalidModelError(f"chat template: got what jinja2 refuses: {error!s:.200}") from None

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The text of a chat, up to where the model answers; with `CUT` in special tokens that messages spell.

        tools: functions that it may call, as OpenAI has them.

        Raises DTypeError for what are no messages or tools, DataError where the template refuses them,
        InvalidModelError for a template that fails or makes too much.
        """
        given, meter = _plain("messages", messages), _Meter()
        if odd := [one for one in given if not _is_message(one)]:
            raise DTypeError(f"messages: got {odd[0]!r:.80}, wanted a role and content")
        own = self._cut({"messages": given, "tools": _plain("tools", tools) if tools else None})
        names = {**self.marks, **own, "add_generation_prompt": True, METER: meter}
        try:
            return "".join(self.own.generate(**names))
        except BoltError:
            raise
        except Exception as error:  # of any kind: templates compute
            raise InvalidModelError(f"chat template: got {type(error).__name__}: {error!s:.200}") from None

    def _cut(self, given: Any) -> Any:
        if isinstance(given, dict):
            return {self._cut(key): self._cut(value) for key, value in given.items()}
        if isinstance(given, list):
            return [self._cut(value) for value in given]
        for one in self.special if isinstance(given, str) else ():
            while one in given:
                given = given.replace(one, one[0] + CUT + one[1:])
        return given


def _json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _now(form: str) -> str:
    return f"{datetime.now():{form:.40}}"


def _refuse(text: Any) -> Any:
    raise DataError(f"chat template: got messages that it refuses: {text!s:.200}")


def _plain(what: str, given: Any) -> list[dict[str, Any]]:
    """A list of objects as plain ones, which have no methods of their own.  Raises DTypeError."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Sequence) or not given:
        raise DTypeError(f"{what}: got {given!r:.80}, wanted a list of {what}, each an object")
    try:
        found: list[Any] = json.loads(json.dumps([*given]))
    except (TypeError, ValueError, RecursionError) as error:
        raise DTypeError(f"{what}: got what is no JSON: {error!s:.100}") from None
    if odd := [one for one in found if not isinstance(one, dict)]:
        raise DTypeError(f"{what}: got {odd[0]!r:.80}, wanted an object")
    return found


def _is_message(given: Mapping[str, Any]) -> bool:
    """Whether it has what templates read: what calls tools may say nothing beside."""
    return isinstance(given.get("role"), str) and bool({"content", "tool_calls"} & {*given})
