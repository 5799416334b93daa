"""Constants as makers see them: references to what is packed of them, and content that they must ask for.

A maker decides from operators, types and small constants.  So nodes alike share what it gave, whatever their weights
hold.  A step names weights by reference, and content that decides something has to be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, TypeVar

from bolt_numba.base.errors import InternalError
from bolt_numba.base.types import AnyDType, Array

Making: TypeAlias = Callable[..., Array]
"""Makes an array of the contents of constants."""


class Packed:
    """What a step reads in the place of constants: ``make`` of them, an array once a program is linked.

    operands: numbers of the node's inputs, or what is packed itself.  form: what the maker calls the result; equal
    ones of equal operands are one array for all plans.  least: bytes of it that steps reach, as the gate found.
    """

    __slots__ = ("form", "least", "make", "operands")

    def __init__(self, operands: tuple[int | Packed, ...], form: Hashable, make: Making, least: int = 0) -> None:
        self.operands, self.form, self.make, self.least = operands, form, make, least

    def __eq__(self, other: object) -> bool:
        return type(other) is Packed and (self.operands, self.form) == (other.operands, other.form)

    def __hash__(self) -> int:
        return hash((self.operands, self.form))

    def __repr__(self) -> str:
        return f"Packed({self.operands}, {self.form!r})"

    def need(self, nbytes: int) -> int:
        """Take note of how far steps reach into it."""
        self.least = max(self.least, nbytes)
        return nbytes

    @property
    def leaves(self) -> list[int]:
        """Numbers of all inputs that it is made of."""
        return [i for o in self.operands for i in (o.leaves if isinstance(o, Packed) else [o])]

    def moved(self, place: Callable[[int], int]) -> Packed:
        """The same of inputs that have other numbers."""
        operands = tuple([o.moved(place) if isinstance(o, Packed) else place(o) for o in self.operands])
        return Packed(operands, self.form, self.make, self.least)


class Unseen:
    """Stands for the content of a large constant in the types that makers see: its dtype and shape.

    of: number of the input, or what is packed.  `Context.packed` takes it, `content` opens it.  Who looks at it
    otherwise gets an InternalError: nodes alike share steps, so none may follow from numbers that nobody asked for.
    """

    __slots__ = ("dtype", "node", "of", "shape")
    base = None
    """It holds no memory."""

    def __init__(self, dtype: AnyDType, shape: tuple[int, ...], of: int | Packed, node: Any = None) -> None:
        self.dtype, self.shape, self.of, self.node = dtype, shape, of, node

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def _refuse(self, *_: Any, **__: Any) -> Any:
        what = f"content of constant operand {self.of}: {self.dtype}{list(self.shape)}"
        raise InternalError(f"{what}: got a look, wanted `content` of the registry around it")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith("__array"):
            raise AttributeError(name)
        return self._refuse()

    __array__ = __getitem__ = __iter__ = __len__ = __bool__ = __int__ = __float__ = __index__ = __contains__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __abs__ = __invert__ = _refuse
    __hash__ = None  # type: ignore[assignment]


KEYED_ELEMENTS = 64
"""Elements up to which a constant is small: its content is a part of what nodes alike have in common."""
T = TypeVar("T")


def tested(found: T | None) -> T:
    """What `accepts` has asked for before, as a maker sees it: it is there."""
    if found is None:
        raise InternalError("operand or form of a node: got none, wanted what accepts() has found")
    return found


def is_unseen(known: Any) -> bool:
    return type(known) is Unseen


def content(known: Any) -> Any:
    """The content of a constant of any size.  What follows from that of a large one is for nodes of this constant."""
    return known.node.content(known.of) if type(known) is Unseen else known


def derived(known: Any, key: Hashable, make: Making, dtype: AnyDType) -> Any:
    """``make`` of a constant's content, of the same shape, as the content of a constant for another maker."""
    return (
        Unseen(dtype, known.shape, Packed((known.of,), key, make), known.node) if type(known) is Unseen else make(known)
    )
