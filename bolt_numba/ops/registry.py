"""The operator registry: an operator is a frozen dataclass of its attributes with `infer` and `reference`.

Nothing here knows of kernels, converters or passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from bolt_numba.base.border import place_of
from bolt_numba.base.errors import BoltError, BudgetError, DTypeError, ShapeError
from bolt_numba.base.records import record
from bolt_numba.base.types import AnyDType, Array, Sym, TensorType, dtype_name


@record(frozen=True)
class Op:
    """Base of all operators.  Subclasses are made by `op` and are frozen, hashable dataclasses of attributes.

    Inputs, outputs and attributes are those of the newest ONNX opset where ONNX has the operator; an omitted
    optional input is None.
    """

    name: ClassVar[str]
    is_view: ClassVar[bool] = False
    """Output holds the first input's elements in the same order: planned as an alias, costs nothing."""
    on_symbols: ClassVar[bool] = False
    """The reference also works on object arrays that hold `Sym` dimensions (shape arithmetic)."""
    converts: ClassVar[bool] = False
    """The result is operand 0 in another dtype."""
    value_inputs: ClassVar[tuple[int, ...]] = ()
    """Operands whose content decides shapes or branches (shape, axes, pads, cond…): planned per value."""
    least_operands: ClassVar[int] = 0
    """Operands that a node always has; the last of them may be None."""
    bounds: ClassVar[dict[int, tuple[int, int]]] = {}
    """Those of them whose content decides only where it is greater than a dimension: (operand, axis)."""
    narrow_inputs: ClassVar[tuple[int, ...]] = ()
    """Operands that may stay f16 where all else is f32."""
    data_bounds: ClassVar[dict[str, str]] = {}
    """By operand: what its content may make a kernel read or write, and where that is bounded.

    For operands that are integers or bools by nature and those of `value_inputs`; what is only computed with needs none
    where floats may stand in its place.
    """
    widens_integers: ClassVar[bool] = False
    """Turns integers into the floats they stand for: a constant is left in its integers until stage ``quantise``."""
    moves_memory: ClassVar[bool] = False
    """The reference moves memory as fast as a kernel does: not worth a plan for every content of `value_inputs`."""
    reads_only_shape: ClassVar[bool] = False
    """The result follows from the operand's dimensions; its content is never read."""
    opaque: ClassVar[bool] = False
    """Holds a graph that is another's to compute: passes leave it as it is."""
    has_side_state: ClassVar[bool] = False
    """Random or stateful: never folded, never merged with an equal node."""

    @property
    def axis_order(self) -> tuple[int, ...] | None:
        """For operators that do nothing but reorder axes: the operand's axis that each of the result's is."""
        return None

    @property
    def joined_axis(self) -> int | None:
        """The axis along which the result is the operands one after another; None where it is not."""
        return None

    def infer(self, *inputs: Any) -> TensorType | tuple[TensorType, ...]:
        """Types of the outputs; validates.  ``inputs[i].known`` is the content where it is known."""
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Any) -> Any:
        """Naive NumPy meaning: the oracle of tests, the constant folder, the fallback.  Never writes its inputs."""
        raise NotImplementedError(self.name)

    def quick(self, *known: Array | None) -> Callable[..., Any] | None:
        """The only result as a function of the only operand that is not ``known``, for operators on texts.

        What follows from constants is worked out once.  Results may share memory, which nobody writes to.  None: there
        is no such function.
        """
        return None

    def fail(self, what: str, got: object, wanted: object) -> ShapeError:
        """A ShapeError in the house form."""
        return ShapeError(f"{self.name}: {what}: got {got}, wanted {wanted}")

    def fail_if(self, holds: object, what: str, got: object, wanted: object) -> None:
        """Raise `fail` where this holds."""
        if holds:
            raise self.fail(what, got, wanted)


OPS: dict[str, type[Op]] = {}

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True)
def op(name: str) -> Callable[[T], T]:
    """Turn a class into a frozen dataclass operator and register it under ``name``."""

    def register(cls: T) -> T:
        made: Any = record(frozen=True)(cls)
        made.name = name
        made.reference = _named(made.reference)
        before = OPS.get(name)
        # The same class comes again where an interrupt broke the import of its file off.
        if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"operator {name} is registered twice")
        OPS[name] = made
        return made  # type: ignore[no-any-return]

    return register


def _named(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A reference whose every failure is a BoltError: Python's and NumPy's own become errors that name it."""

    @functools.wraps(reference)
    def run(self: Op, *inputs: Any) -> Any:
        try:
            return reference(self, *inputs)
        except BoltError:
            raise
        except Exception as error:
            got = ", ".join(f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else str(type(a)) for a in inputs)
            kind, place = BudgetError if isinstance(error, MemoryError) else ShapeError, place_of(error)
            raise kind(
                f"{self.name}: cannot compute the result of {self} for ({got}): {error}{place and f' ({place})'}"
            ) from error

    return run


def want_dtype(owner: Op, what: str, got: AnyDType, *wanted: AnyDType) -> None:
    """Raise DTypeError unless ``got`` is one of ``wanted``."""
    if got not in wanted:
        names = ", ".join(map(dtype_name, wanted))
        raise DTypeError(f"{owner.name}: dtype of {what}: got {dtype_name(got)}, wanted {names}")


def want_dtypes(owner: Op, wanted: Sequence[AnyDType], **operands: TensorType | None) -> None:
    """Raise DTypeError unless each named operand is of one of the dtypes ``wanted``; an omitted one is right."""
    for what, t in operands.items():
        if t is not None:
            want_dtype(owner, what, t.dtype, *wanted)


def want_among(owner: Op, known: Iterable[object], **attributes: object) -> None:
    """Raise ShapeError unless each named attribute is one of those that are known."""
    for what, given in attributes.items():
        if given not in known:
            *first, last = map(str, known)
            raise owner.fail(what, given, f"{', '.join(first)} or {last}")


def normalise_axis(owner: Op, axis: int, rank: int) -> int:
    """Axis in 0…rank-1; raises ShapeError."""
    if not -rank <= axis < rank:
        raise owner.fail("axis", axis, f"{-rank} to {rank - 1}")
    return axis + rank if axis < 0 else axis


_fresh = 0
_hints: set[str] = set()


def fresh_dim(hint: str = "d") -> Sym:
    """A new symbol, for a dimension that only the run will tell."""
    global _fresh
    _fresh += 1
    _hints.add(hint)
    return Sym(f"{hint}_{_fresh}")


def is_made_up(dim: Sym) -> bool:
    """Whether a dimension is one of `fresh_dim`, which says nothing."""
    hint, _, number = str(dim).rpartition("_")
    return hint in _hints and number.isdecimal() and int(number) <= _fresh


def reserve_dims(number: int) -> None:
    """Keep `fresh_dim` from making symbols numbered up to ``number``: a stored graph uses them."""
    global _fresh
    _fresh = max(_fresh, number)


def result_tuple(result: Any) -> tuple[Any, ...]:
    """`infer` and `reference` may return one thing or several; always several here.

    A result that is itself a list comes as a tuple of one.
    """
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
