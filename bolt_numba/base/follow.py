"""Numbers that remember how they were computed, so that what a maker does once can be done again with other sizes.

A maker that is given followed numbers for the sizes of its operands takes the same way as with plain ones, as each has
a value.  What is computed from them goes on a *trail*, line by line, and so does every comparison, with its outcome.
The trail is then a function of the sizes: it gives the same steps with other numbers in them, or None where a
comparison comes out otherwise.  What could not be told from a number's value alone, such as an array filled by NumPy,
loses the trail: `LostError`, unless the function that makes it is declared `pure`.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, MethodType
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

PLAIN = (int, float, bool, str, bytes, type(None))
"""Types of constants that are written into the text of a trail's function."""
NUMBERS = (int, float, bool)
_SIMPLE, _ANY = (np.ndarray, np.generic, np.dtype, type), object()
_SAME = {"+": (0,), "-": (0,), "*": (0, 1), "//": (1,)}
"""Integers behind which a number is what it was, or 0."""
_UNARY = {"-": "neg", "+": "pos", "~": "invert"}
TABLES: set[type] = set()
"""Types of arrays of followed numbers."""
FORMS: dict[Any, str] = {max: "max", min: "min", abs: "abs"}
"""Functions whose calls are forms of lines."""


class LostError(BaseException):
    """Something was done with a followed number that a trail cannot say; no error of the maker's, nor of the user's."""


class UnpackedError(LostError):
    """Weights would have to be packed that no plan has packed so far."""


class Trail:
    """Lines of a function, in order: what was computed, called and decided since its first numbers.

    scope: names in it that are no results of lines.  values: of numbers and lines, by name.  stages: of numbers that
    are told one after another, behind how many others.  forms: of lines that are an operation on one or two texts: its
    sign, and these.  is_closed: no line may be added any more, and nothing be decided that was not.  turn: called
    often, where it lets others work.
    """

    def __init__(self, turn: Callable[[], Any] = tuple) -> None:
        self.turn = turn
        self.values: dict[str, Any] = {}
        self.stages: dict[str, int] = {}
        self.forms: dict[str, tuple[str, str, str]] = {}
        self.symbols: dict[Any, Any] = {}
        self.filled: dict[Any, Any] = {}
        self.is_closed, self.lines = False, list[tuple[str, str]]()
        self.scope: dict[str, Any] = {}
        self._constants: dict[int, str] = {}
        self._seen: dict[str, Any] = {}

    def number(self, name: str, value: Any, stage: int = 0) -> Any:
        """A number that the function is given by this name."""
        self.values[name] = value
        self.stages |= {name: stage} if stage else {}
        return Followed(self, name, value)

    def constant(self, value: Any) -> str:
        """Text for a value that is the same whatever the sizes are."""
        if type(value) in PLAIN and not (type(value) is float and not math.isfinite(value)):
            return f"({value!r})" if type(value) in (int, float) and value < 0 else repr(value)
        name = self._constants.get(id(value))
        if name is None:
            name = self._constants[id(value)] = f"c{len(self._constants)}"
            self.scope[name] = value  # keeps it alive, too, so that no other gets its id
        return name

    def text(self, value: Any) -> str:
        """Text for an operand of a line."""
        kind = type(value)
        if kind is Followed:
            if value._trail is not self:
                raise LostError("a number of another trail")
            return str(value._text)
        if kind in TABLES:
            return str(value.text())
        if kind is slice:
            return f"slice{self.text((value.start, value.stop, value.step))}"
        if kind is tuple or kind is list:
            inner = ", ".join(map(self.text, value))
            return f"[{inner}]" if kind is list else f"({inner},)" if value else "()"
        if kind not in PLAIN and not isinstance(value, _SIMPLE) and not callable(value):
            fields = getattr(value, "__dict__", None)
            if fields is None:
                raise LostError(f"a {kind.__name__}")
            if any(map(is_followed, fields.values())):
                inner = ", ".join([f"{name!r}: {self.text(field)}" for name, field in fields.items()])
                return f"{self.constant(_object)}({self.constant(kind)}, {{{inner}}})"
        return self.constant(value)

    def found(
        self, text: str, compute: Callable[[], Any], kind: Any = None, form: tuple[str, str, str] | None = None
    ) -> Any:
        """The result of a line, which is the same as that of an equal line before.

        It is followed; but what is no number is decided, unless it is of this kind.  form: see ``forms``.
        """
        self.turn()
        made = self._seen.get(text, _ANY)
        if made is _ANY:
            self._check_open()
            name = f"v{len(self.lines)}"
            value = self.values[name] = compute()
            self.lines.append((name, text))
            if form is not None:
                self.forms[name] = form
            made = self._seen[text] = Followed(self, name, value) if kind is bool else self._wrapped(name, value)
        return made

    def _wrapped(self, name: str, value: Any) -> Any:
        if isinstance(value, (bool, np.bool_)):
            self.decided(name if value else f"not {name}")
            return value
        if value is None or isinstance(value, (str, bytes)):
            self.decided(f"{name} == {value!r}" if value is not None else f"{name} is None")
            return value
        if is_followed(value):
            raise LostError("a followed number within a result")
        return Followed(self, name, value)

    def decided(self, text: str) -> None:
        """What has to be true for the trail to be taken again."""
        if text not in self._seen:
            self._check_open()
            self._seen[text] = None
            self.lines.append(("", text))

    def _check_open(self) -> None:
        if self.is_closed:
            raise LostError("a line behind the end of its trail")

    def function(self, head: str, results: str) -> Callable[..., Any]:
        """``head`` is the text of the parameters and of what unpacks them, ``results`` of what is returned."""
        needed, body = set(_names(results)), []
        for name, text in reversed(self.lines):
            if name and name not in needed:
                continue
            needed.update(_names(text))
            body.append(f"    {name} = {text}\n" if name else f"    if not ({text}): return None\n")
        source = f"{head}{''.join(reversed(body))}    return {results}\n"
        scope = dict(self.scope)
        exec(source, scope)
        made: Callable[..., Any] = scope["made"]
        return made


_names = re.compile(r"\bv\d+\b").findall
"""Results of lines that a text reads."""


def is_followed(value: Any) -> bool:
    """Whether a value is followed, or holds what is."""
    kind = type(value)
    return kind is Followed or kind in TABLES or (kind in (tuple, list) and any(map(is_followed, value)))


def _binary(symbol: str, compute: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    kind = bool if symbol in "&|^" else None  # of comparisons: a number, too, which decides nothing yet
    plain = () if swapped and symbol in "-//" else _SAME.get(symbol, ())

    def forward(self: Followed, other: Any) -> Any:
        trail = self._trail
        if type(other) is int and other in plain and type(self._value) is int:
            return self if other or symbol != "*" else 0
        if type(other) is bool and type(self._value) is bool and symbol in "&|":
            return self if other is (symbol == "&") else other
        if type(other) is not Followed and type(other) not in NUMBERS and not isinstance(other, np.generic):
            raise LostError(f"{symbol} with a {type(other).__name__}")
        sides = [(self._text, self._value), (trail.text(other), value_of(other))]
        (one, a), (two, b) = reversed(sides) if swapped else sides
        return trail.found(f"{one} {symbol} {two}", lambda: compute(a, b), kind, (symbol, one, two))

    return forward


def _unary(symbol: str, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def forward(self: Followed) -> Any:
        form = _UNARY[symbol], self._text, "0"
        return self._trail.found(f"{symbol}{self._text}", lambda: compute(self._value), None, form)

    return forward


def _compared(symbol: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def forward(self: Followed, other: Any) -> Any:
        if type(other) not in NUMBERS and type(other) is not Followed and not isinstance(other, np.generic):
            if other is None or isinstance(other, (str, type)):
                return symbol == "!="
            raise LostError(f"{symbol} with a {type(other).__name__}")
        found = compute(self._value, _value(other))
        if not isinstance(found, (bool, np.bool_)):
            raise LostError("a comparison of arrays")
        form = symbol, self._text, self._trail.text(other)
        if form[1] == form[2] and type(self._value) is int:
            return found
        return self._trail.found(f"{form[1]} {symbol} {form[2]}", lambda: found, bool, form)

    return forward


def lost(what: str) -> Callable[..., Any]:
    def forward(self: Followed, *args: Any, **kwargs: Any) -> Any:
        raise LostError(what)

    return forward


class Followed:
    """A number, or what a followed function gave: an array, a tuple, an object.  It passes for an object of its class.

    It is none for code in C, which asks it for a plain number, and loses the trail.
    """

    __slots__ = ("_text", "_trail", "_value")
    __array_ufunc__ = None

    def __init__(self, trail: Trail, text: str, value: Any) -> None:
        self._trail, self._text, self._value = trail, text, value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._trail.found(f"{self._text}.{name}", lambda: getattr(self._value, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self._value, (MethodType, BuiltinFunctionType)):
            raise LostError("a call")
        texts = [self._trail.text(a) for a in args] + [f"{k}={self._trail.text(a)}" for k, a in kwargs.items()]
        compute = functools.partial(self._value, *map(_value, args), **{k: _value(a) for k, a in kwargs.items()})
        return self._trail.found(f"{self._text}({', '.join(texts)})", compute)

    def __getitem__(self, key: Any) -> Any:
        return self._trail.found(f"{self._text}[{self._trail.text(key)}]", lambda: self._value[_value(key)])

    def __len__(self) -> int:
        count = len(self._value)
        self._trail.decided(f"len({self._text}) == {count}")
        return count

    def __iter__(self) -> Iterator[Any]:
        if not isinstance(self._value, (tuple, list)):
            raise LostError(f"a loop over {type(self._value)}")
        return iter([self[i] for i in range(len(self))])

    def __bool__(self) -> bool:
        found = bool(self._value)
        self._trail.decided(self._text if found else f"not {self._text}")
        return found

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __ceil__(self) -> Any:
        return followed(math.ceil, self)

    def __floor__(self) -> Any:
        return followed(math.floor, self)

    def __round__(self, *digits: Any) -> Any:
        return followed(round, self, *digits)

    def __abs__(self) -> Any:
        return followed(abs, self)

    __neg__, __pos__, __invert__ = (
        _unary(symbol, compute) for symbol, compute in (("-", operator.neg), ("+", operator.pos), ("~", operator.inv))
    )
    __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = (
        _compared(symbol, getattr(operator, name))
        for symbol, name in (("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq"), ("!=", "ne"))
    )
    __hash__ = lost("a hash")
    __index__ = __int__ = __float__ = __complex__ = __trunc__ = lost("a plain number")
    __str__ = __repr__ = __format__ = lost("a text")
    __reversed__ = lost("an array")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """An array of objects around a number, as for content that holds symbols."""
        if type(self._value) not in NUMBERS or dtype not in (None, object, np.dtype(object)):
            raise LostError("an array")
        made = np.empty((), object)
        made[()] = self
        return made


for _symbol, _name in (
    ("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "truediv"), ("//", "floordiv"), ("%", "mod"), ("**", "pow"),
    ("<<", "lshift"), (">>", "rshift"), ("&", "and"), ("|", "or"), ("^", "xor"),
):  # fmt: skip
    _compute = getattr(operator, _name, None) or getattr(operator, f"{_name}_")
    setattr(Followed, f"__{_name}__", _binary(_symbol, _compute, False))
    setattr(Followed, f"__r{_name}__", _binary(_symbol, _compute, True))


def _value(given: Any) -> Any:
    if type(given) is Followed:
        return given._value
    if type(given) in TABLES:
        return given.value
    if type(given) is slice:
        return slice(_value(given.start), _value(given.stop), _value(given.step))
    fields = None if callable(given) else getattr(given, "__dict__", None)
    if fields and any(map(is_followed, fields.values())):
        return _object(type(given), {name: _value(field) for name, field in fields.items()})
    return type(given)(map(_value, given)) if type(given) in (tuple, list) else given


def _object(kind: Any, fields: dict[str, Any]) -> Any:
    """One like that which had these fields."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def value_of(given: Any) -> Any:
    """The plain number behind one that may be followed."""
    return given._value if type(given) is Followed else given


def followed(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` as one line of the trail of the followed numbers among the arguments."""
    trail = trail_of(args)
    if trail is None:
        return function(*args)
    texts = [trail.text(a) for a in args]
    sign = FORMS.get(function)
    form = None if sign is None or len(texts) > 2 else (sign, texts[0], texts[-1])
    text = f"{trail.constant(function)}({', '.join(texts)})"
    return trail.found(text, lambda: function(*map(_value, args)), None, form)


def trail_of(args: Sequence[Any]) -> Trail | None:
    for arg in args:
        if type(arg) is Followed:
            return arg._trail
        if type(arg) in TABLES:
            trail: Trail = arg.trail
            return trail
        if type(arg) is tuple or type(arg) is list:
            found = trail_of(arg)
            if found is not None:
                return found
    return None


def pure(function: Function) -> Function:
    """Declare that a result follows from the arguments alone, numbers and tuples: one line of a trail, not many.

    For functions that fill tables, keep what they made, or take many decisions of which only the outcome matters.
    """

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return function(*args) if trail_of(args) is None else followed(function, *args)

    return called  # type: ignore[return-value]


def fixed(number: Any) -> Any:
    """The plain number; a trail holds for this one alone."""
    value = value_of(number)
    if type(number) is Followed:
        bool(number == (value.item() if isinstance(value, np.generic) else value))  # a guard
    return value
