"""Tables of drivers that translate node by node: how an operator becomes calls of an SDK, and what a call may ask.

A function of a table takes a `Site` and the operands (None where one is omitted), and returns what the SDK makes of
them.  It raises `NotThereError` with a reason for what the SDK lacks.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from bolt_numba.base.records import record
from bolt_numba.base.types import F32, I32, I64, AnyDType, Array, TensorType, dtype_name
from bolt_numba.ir.graph import Node
from bolt_numba.ops.registry import Op
from bolt_numba.plugins.drivers.alone import MOST_CONSTANT

Build: TypeAlias = Callable[..., Any]
PLACES = (I32, I64)
"""Dtypes of operands and results that say where, or how many."""


class NotThereError(Exception):
    """An SDK lacks this, or computes it in another way; the message says what."""


@record(frozen=True)
class Translation:
    """How an operator becomes calls of an SDK.

    dtypes: of operands and results.  others: those of single operands where they differ.  indices: operands that are
    places or lengths, which may be of 64 bits.  places: results that are.  by_rank: see `alone.kind_of`.
    """

    build: Build
    dtypes: tuple[AnyDType, ...]
    others: tuple[tuple[int, tuple[AnyDType, ...]], ...] = ()
    results: tuple[AnyDType, ...] | None = None
    indices: tuple[int, ...] = ()
    places: tuple[int, ...] = ()
    by_rank: bool = False


class Table:
    """Translations by the names of operators.  package: whose modules fill it when it is first asked; "" for none."""

    def __init__(self, package: str) -> None:
        self.package, self._translations, self._is_whole = package, dict[str, Translation](), not package

    def builds(
        self,
        *names: str,
        dtypes: tuple[AnyDType, ...] = (F32,),
        others: dict[int, tuple[AnyDType, ...]] | None = None,
        results: tuple[AnyDType, ...] | None = None,
        indices: tuple[int, ...] = (),
        places: tuple[int, ...] = (),
        by_rank: bool = False,
    ) -> Callable[[Build], Build]:
        """Register the function of operators; the rest as in `Translation`."""

        def register(build: Build) -> Build:
            for name in names:
                if name in self._translations:
                    raise ValueError(f"operator {name} has two functions")
                made = tuple((others or {}).items())
                self._translations[name] = Translation(build, dtypes, made, results, indices, places, by_rank)
            return build

        return register

    def load(self) -> dict[str, Translation]:
        """The whole table: imports every module of the package."""
        if not self._is_whole:
            for info in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                importlib.import_module(f"{self.package}.{info.name}")
            self._is_whole = True
        return self._translations

    def of(self, node: Node) -> Translation:
        """The translation of a node; raises NotThereError where there is none for what it is."""
        translation = self.load().get(node.op.name)
        if translation is None:
            raise NotThereError("no function of the table builds it")
        want_plain(node.op)
        return translation


class Site:
    """Where a node of ours becomes what an SDK has.  types, results: of the operands and of what it gives."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.types: list[TensorType | None] = [None if x is None else x.type for x in node.inputs]
        self.results = [x.type for x in node.outputs]

    def type(self, i: int) -> TensorType:
        """The type of an operand that is there."""
        t = self.types[i]
        assert t is not None, "its operator would have refused the graph"
        return t

    def shape(self, i: int = 0) -> tuple[Any, ...]:
        """Dimensions of an operand."""
        shape = self.type(i).shape
        if shape is None:
            raise NotThereError("an operand of unknown rank")
        return shape

    def dims(self, i: int = 0) -> tuple[int, ...]:
        """Sizes of an operand, where each is known."""
        if not self.type(i).is_static:
            raise NotThereError("sizes that only the run tells")
        return self.type(i).dims

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def given(self, i: int) -> bool:
        """Whether there is an operand."""
        return i < len(self.types) and self.types[i] is not None

    def is_small(self, i: int) -> bool:
        """Whether an operand is a small constant."""
        known = self.type(i).known if self.given(i) else None
        return known is not None and known.size <= MOST_CONSTANT

    def known(self, i: int, what: str) -> Array:
        """The content of an operand."""
        content = self.type(i).known
        if content is None:
            raise NotThereError(f"{what} that only the run tells")
        return content

    def ints(self, i: int, what: str) -> list[int]:
        """The whole numbers in an operand."""
        return [int(n) for n in self.known(i, what).reshape(-1)]

    def want(self, holds: bool, what: str) -> None:
        """Refuse unless something holds."""
        if not holds:
            raise NotThereError(what)


def want_dtypes(node: Node, translation: Translation, more: Sequence[AnyDType] = (), wide: str = "") -> None:
    """Refuse dtypes that an SDK lacks.

    more: dtypes that do wherever those of the translation do.  wide: what a reason says of numbers of 64 bits.
    """
    others = dict(translation.others)
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        places = i in translation.indices or i in node.op.value_inputs
        allowed = PLACES if places else (*others.get(i, translation.dtypes), *more)
        if i in node.op.value_inputs and value.const is not None:
            continue
        _want(value.type, allowed, f"operand {i}", wide)
    for i, value in enumerate(node.outputs):
        allowed = PLACES if i in translation.places else (*(translation.results or translation.dtypes), *more)
        _want(value.type, allowed, f"result {i}", wide)


def _want(t: TensorType, allowed: Sequence[AnyDType], what: str, wide: str) -> None:
    if t.dtype not in allowed:
        raise NotThereError(f"{what} of {dtype_name(t.dtype)}{wide if t.dtype.itemsize == 8 else ''}")
    if t.shape is None:
        raise NotThereError(f"{what} of unknown rank")
    if any(isinstance(d, int) and d == 0 for d in t.shape):
        raise NotThereError(f"{what} without elements")


def want_plain(op: Op) -> None:
    """Refuse what other rules take apart: channels last, and what is fused."""
    if getattr(op, "layout", "NCHW") == "NHWC":
        raise NotThereError("channels are last")
    if getattr(op, "residual", False) or getattr(op, "activation", None) is not None:
        raise NotThereError("other operators are fused to it")
