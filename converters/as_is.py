"""Readers of operators that a format has as the graph has them: rows of a table in the place of functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

from bolt_numba.base.forks import renew_cached_properties
from bolt_numba.base.records import field_rows
from bolt_numba.base.types import I64
from bolt_numba.converters.builder import ForeignBuilder, ints
from bolt_numba.ir.graph import Value
from bolt_numba.ops.registry import Op

REQUIRED = inspect.Parameter.empty
"""In the place of a default: the file must state the attribute."""
MARKS = "?:="
"""Behind names of operands; see `AsIs`."""
LISTS = {"tuple[int, ...]": "Ints", "tuple[float, ...]": "Floats", "tuple[str, ...]": "Texts"}
"""How readers spell the lists that fields of operators are."""
OF_PASSES = {("layout", "NCHW"), ("activation", None), ("residual", False), ("stats", False), ("to", None)}
"""Fields of operators, with their defaults, that no file states."""


class AsIs:
    """A reader that hands operands and attributes on to an operator of the graph.

    operator: its class, or one whose fields are fixed.  operands: names, by default those of `infer`; with "?" behind
    one that may be left out, ":" behind one that becomes i64, "=" behind one that is an attribute of integers in the
    file.  ignored: attributes that mean nothing here.  lacks: fields that are no attributes of the file's operator.
    then: makes the result of the builder, the operator and the operands; its keywords are further attributes.
    attributes: names and defaults in the order of the operator's other fields; by default these.
    """

    def __init__(
        self,
        operator: Op | type[Op],
        operands: str = "",
        ignored: dict[str, Any] | None = None,
        lacks: Collection[str] = (),
        then: Callable[..., Any] | None = None,
        **attributes: Any,
    ) -> None:
        self.operator, self.names, self.ignored, self.attributes = operator, operands.split(), ignored or {}, attributes
        self.lacks, self.then = lacks, then

    def __call__(self, b: ForeignBuilder, *operands: Value | None, **attributes: Any) -> Any:
        if self.names:
            operands = self._made(b, [*operands], attributes)
        operator: Any = self.operator
        if not isinstance(operator, Op):
            operator = operator(**{f: attributes.get(n, default) for n, (f, default, _) in self.keywords.items()})
        if self.then is None:
            return b(operator, *operands)
        return self.then(b, operator, *operands, **{n: attributes[n] for n in self.further if n in attributes})

    def _made(self, b: ForeignBuilder, given: list[Value | None], attributes: dict[str, Any]) -> tuple[Any, ...]:
        """Operands of the file, as i64 where the operator wants that, and those that are attributes there."""
        made: list[Any] = []
        for name in self.names:
            if "=" in name:
                numbers: Any = attributes.get(name.rstrip(MARKS))
                listed = (numbers,) if isinstance(numbers, int) else numbers
                made.append(None if "?" in name and not listed else ints(listed))
            else:
                x = given.pop(0) if given else None
                made.append(b.to(x, I64) if ":" in name and x is not None else x)
        return (*made, *given)

    @functools.cached_property
    def keywords(self) -> dict[str, tuple[str, Any, str]]:
        """Field of the operator, default and kind of each attribute."""
        if isinstance(self.operator, Op):
            return {}
        kinds = {name: kind for name, (kind, _) in field_rows(self.operator).items()}
        own = {name: getattr(self.operator, name, REQUIRED) for name in kinds}
        own = {n: default for n, default in own.items() if n not in self.lacks and (n, default) not in OF_PASSES}
        made = list(zip((self.attributes or own).items(), own, strict=False))
        spelled = {f: type(v).__name__ if kinds[f] is Any else str(kinds[f]) for (_, v), f in made}
        return {n: (f, v, LISTS.get(spelled[f], spelled[f])) for (n, v), f in made}

    @functools.cached_property
    def further(self) -> dict[str, inspect.Parameter]:
        """Attributes that only `then` knows."""
        known = {} if self.then is None else inspect.signature(self.then).parameters
        return {name: p for name, p in known.items() if p.kind == p.KEYWORD_ONLY}

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        """As a function has it; `Reader` asks for it when a file has the operator."""
        place, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        made = [inspect.Parameter("b", place)]
        arity = getattr(self.operator, "arity", 0)  # of a pointwise operator, whose `infer` has no names
        for name in self.names or ("x", "y")[:arity]:
            kind = "Value | None" if "?" in name else "Value"
            if "=" not in name:
                made.append(inspect.Parameter(name.rstrip(MARKS), place, annotation=kind))
        if len(made) == 1 and not self.names:
            cls = type(self.operator) if isinstance(self.operator, Op) else self.operator
            made += [*inspect.signature(cls.infer).parameters.values()][1:]
        for name in self.names:
            if "=" in name:
                default = None if "?" in name else REQUIRED
                made.append(inspect.Parameter(name.rstrip(MARKS), keyword, default=default))
        for name, (_, default, kind) in self.keywords.items():
            made.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
        for name, default in self.ignored.items():
            kind = "Ints" if isinstance(default, tuple) else type(default).__name__  # as readers spell what they take
            made.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
        return inspect.Signature([*made, *self.further.values()])


renew_cached_properties(AsIs)
