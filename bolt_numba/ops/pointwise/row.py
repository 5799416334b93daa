"""What a row of a pointwise operator is: its columns, and the class that is made of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import BoltError
from bolt_numba.base.types import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    AnyDType,
    Array,
    TensorType,
)
from bolt_numba.ops.registry import Op, op, want_dtype
from bolt_numba.ops.shapes import broadcast_shapes

FLOATS = (F32, F64, F16, BF16)
BYTE_FLOATS = tuple(
    np.dtype(getattr(ml_dtypes, f"float8_{name}")) for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
)
UNSIGNED = (U8, U16, U32, U64)
INTS = (I8, I16, I32, I64, *UNSIGNED)
NUMERIC = FLOATS + INTS
SIGNED = (*FLOATS, I8, I16, I32, I64)

ROWS = Path(__file__).with_name("__init__.py")
"""The file of all rows."""

Formula: TypeAlias = "str | Callable[[Any], str]"
Reference: TypeAlias = Callable[..., Any]


class Pointwise(Op):
    """An operator whose result at an index depends on its operands at that index only (numpy broadcasting).

    Class attributes are the columns of its row: ``formula`` and ``arity``; ``dtypes`` its operands may have;
    ``result``, ``"same"`` as the operands or ``"bool"``; ``domain``, where float operands are tested; ``ulp``, the
    error allowed to an f32 kernel; ``wide``, whether the reference computes one float type wider.
    """

    pointwise: ClassVar[bool] = True
    formula: ClassVar[Formula]
    arity: ClassVar[int]
    dtypes: ClassVar[tuple[AnyDType, ...]]
    result: ClassVar[str]
    domain: ClassVar[tuple[float, float]]
    ulp: ClassVar[float]
    wide: ClassVar[bool]
    compute: ClassVar[Reference]
    if TYPE_CHECKING:  # attributes are those of a row

        def __init__(self, *attributes: Any, **named: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

    @property
    def text(self) -> str:
        """The formula of this instance."""
        formula = type(self).__dict__["formula"]
        return formula if isinstance(formula, str) else str(formula(self))

    def infer(self, *inputs: TensorType) -> TensorType:
        if len(inputs) != self.arity or any(t is None for t in inputs):
            raise self.fail("number of operands", sum(t is not None for t in inputs), self.arity)
        if len(inputs) == 1:
            return TensorType(self.result_dtype(inputs[0].dtype), inputs[0].shape)
        return TensorType(
            self.result_dtype(*[t.dtype for t in inputs]), broadcast_shapes(self, *[t.shape for t in inputs])
        )

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        """Dtype of the result; raises DTypeError."""
        if dtypes[0] not in self.dtypes:
            want_dtype(self, "operand 0", dtypes[0], *self.dtypes)
        for i, other in enumerate(dtypes[1:], 1):
            if other is not dtypes[0]:
                want_dtype(self, f"operand {i}", other, dtypes[0])
        return BOOL if self.result == "bool" else dtypes[0]

    def reference(self, *inputs: Array) -> Array:
        arrays = [np.asarray(a) for a in inputs]
        compute = type(self).__dict__["compute"].__func__
        with np.errstate(all="ignore"):
            if any(a.dtype == STRING for a in arrays):
                return np.asarray(compute(self, *arrays))
            dtype = self.result_dtype(*(a.dtype for a in arrays))
            widened = [a.astype(compute_dtype(a.dtype, self.wide), copy=False) for a in arrays]
            return np.asarray(compute(self, *widened)).astype(dtype, copy=False)


def compute_dtype(dtype: AnyDType, wide: bool) -> AnyDType:
    if dtype in (F16, BF16, *BYTE_FLOATS):
        return F32
    return F64 if wide and dtype == F32 else dtype


def pointwise(
    name: str,
    formula: Formula,
    reference: Reference,
    *,
    arity: int = 1,
    dtypes: tuple[AnyDType, ...] = FLOATS,
    result: str = "same",
    domain: tuple[float, float] = (-8.0, 8.0),
    ulp: float = 0.0,
    on_symbols: bool = False,
    base: type[Pointwise] = Pointwise,
    doc: str = "",
    **attributes: Any,
) -> type[Pointwise]:
    """Make and register a pointwise operator.

    reference: gets the operands, and the operator first when the row has attributes.  attributes: name = default, in
    the order of the constructor; a type instead of a value makes the attribute mandatory.
    """
    if (module := sys._getframe(1).f_globals["__name__"]) != __package__:
        line = f'{name} = pointwise("{name}", ...)'
        raise BoltError(f"{name}: row of a pointwise operator: got module {module}, wanted {ROWS}: write `{line}`")
    takes_op = bool(attributes)
    columns: dict[str, Any] = {
        "__doc__": f"{doc or name}: y = {formula if isinstance(formula, str) else 'by attribute'}.",
        "__module__": __package__,
        "formula": formula if isinstance(formula, str) else staticmethod(formula),
        "arity": arity,
        "dtypes": dtypes,
        "result": result,
        "domain": domain,
        "ulp": ulp,
        "wide": ulp > 0,
        "on_symbols": on_symbols,
        "compute": staticmethod(reference if takes_op else lambda _, *xs: reference(*xs)),
    }
    columns["__annotations__"] = {k: v if isinstance(v, type) else Any for k, v in attributes.items()}
    columns |= {k: v for k, v in attributes.items() if not isinstance(v, type)}
    return op(name)(type(name, (base,), columns))
