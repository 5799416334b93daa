"""Pointwise operators as rows: name, formula, reference.  No kernels here; `ops.chain` is several of them fused.

The formula is a Python expression over ``x, y, z`` (the operands), the row's attributes and the functions of
`bolt_numba.codegen.formula`; generators turn it into vector code, fused chains and GEMM epilogues.  The reference is
written independently of it, in NumPy, and computes in a wider type than it returns where that matters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import ml_dtypes
import numpy as np

from bolt_numba.base.errors import BoltError, DTypeError
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
    Sym,
    TensorType,
    atom_of,
    dtype_name,
)
from bolt_numba.ops.arrays.conversion import ROUND_MODES, cast
from bolt_numba.ops.registry import Op, op, want_among, want_dtype
from bolt_numba.ops.shapes import broadcast_shapes

FLOATS = (F32, F64, F16, BF16)
BYTE_FLOATS = tuple(
    np.dtype(getattr(ml_dtypes, f"float8_{name}")) for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")
)
UNSIGNED = (U8, U16, U32, U64)
INTS = (I8, I16, I32, I64, *UNSIGNED)
NUMERIC = FLOATS + INTS
SIGNED = (*FLOATS, I8, I16, I32, I64)

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
            widened = [a.astype(_compute_dtype(a.dtype, self.wide), copy=False) for a in arrays]
            return np.asarray(compute(self, *widened)).astype(dtype, copy=False)


def _compute_dtype(dtype: AnyDType, wide: bool) -> AnyDType:
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
    if (module := sys._getframe(1).f_globals["__name__"]) != __name__:
        line = f'{name} = pointwise("{name}", ...)'
        raise BoltError(f"{name}: row of a pointwise operator: got module {module}, wanted {__file__}: write `{line}`")
    takes_op = bool(attributes)
    columns: dict[str, Any] = {
        "__doc__": f"{doc or name}: y = {formula if isinstance(formula, str) else 'by attribute'}.",
        "__module__": __name__,
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


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x.astype(F64)), F64)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), np.where(np.isnan(x), x, e / (1 + e)))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), x.dtype))


def _maximum(x: Array, y: Array) -> Array:
    """The greater; NaN where one is, and of zeros that of positive sign (`maximum` of IEEE 754-2019)."""
    made = np.maximum(x, y)
    return np.where((x == 0) & (y == 0), x + y, made) if made.dtype.kind not in "iu" else made


def _minimum(x: Array, y: Array) -> Array:
    return -_maximum(-x, -y) if x.dtype.kind not in "iu" else np.minimum(x, y)


def _at_least(x: Array, bound: float) -> Array:
    """What is less than the bound becomes the bound: NaN and a zero of either sign stay; a bound of NaN leaves NaN."""
    low = x.dtype.type(bound)
    return np.where((x < low) | (low != low), low, x)


def _at_most(x: Array, bound: float) -> Array:
    high = x.dtype.type(bound)
    return np.where((x > high) | (high != high), high, x)


def _clip(o: Any, x: Array) -> Any:
    made = x if o.lo is None else _at_least(x, o.lo)
    return made if o.hi is None else _at_most(made, o.hi)


def _gelu(o: Any, x: Array) -> Any:
    if o.approximate == "none":
        return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _scalar(f: Callable[[Any, Any], Any]) -> Callable[[Array, Array], Array]:
    made = np.frompyfunc(f, 2, 1)
    return lambda x, y: np.asarray(made(x, y), object)


def _divide_dims(a: Any, b: Any) -> Any:
    if isinstance(a, Sym) or isinstance(b, Sym):
        q = a // b
        floors = all(d.is_count if isinstance(d, Sym) else d >= 0 for d in (a, b))  # then flooring is truncation
        return q if floors or q * b == a else Sym(atom_of(f"({a})/({b})"))
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _div(x: Array, y: Array) -> Array:
    """Division; integers truncate toward zero and x / 0 is 0 (undefined in ONNX)."""
    if STRING in (x.dtype, y.dtype):
        return _scalar(_divide_dims)(x, y)
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    q = np.floor_divide(x, y)
    return np.where((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)), q + 1, q)


_MOST_WHOLE = 2**53 - 2


def _pow(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        return _integer_pow(x, y) if y.dtype.kind in "iu" else np.power(x.astype(F64), y.astype(F64))
    if y.dtype in (I64, U64):  # larger ones would lose whether they are odd, and nothing else depends on them
        odd = (y & y.dtype.type(1)).astype(I64)
        y = np.where(y > _MOST_WHOLE, _MOST_WHOLE + odd, np.where(y < -_MOST_WHOLE, -_MOST_WHOLE - odd, y.astype(I64)))
    made = np.power(x, y)  # of a scalar 0.5 NumPy takes the square root, which differs at -0 and -inf
    return np.where((y == 0.5) & ((x == 0) | np.isinf(x)), np.abs(x), made).astype(made.dtype, copy=False)


def _integer_pow(x: Array, y: Array) -> Array:
    """Power modulo 2**bits; 1 / x ** -y, cut, for a negative y, where 1 / 0 is 0 as in `Div`."""
    base, left = (a.copy() for a in np.broadcast_arrays(x.astype(U64), np.where(y < 0, 0, y).astype(U64)))
    made = np.ones_like(base)
    while left.any():
        made = np.where(left & U64.type(1), made * base, made)
        base, left = base * base, left >> U64.type(1)
    inverse = np.where(x == 1, 1, np.where((x == -1) & (y % 2 == 0), 1, np.where(x == -1, -1, 0)))
    return np.where(y < 0, inverse.astype(x.dtype), made.astype(x.dtype))


def _mod(o: Any, x: Array, y: Array) -> Array:
    return np.fmod(x, y) if o.fmod else np.mod(x, y)


def _shift(o: Any, x: Array, y: Array) -> Array:
    """Arithmetic shift; by less than 0 or by the width and more only the sign is left, and only of a right shift."""
    beyond = (y < 0) | (y >= 8 * x.dtype.itemsize)
    safe = np.where(beyond, y.dtype.type(0), y)
    if o.direction == "LEFT":
        return np.where(beyond, x.dtype.type(0), np.left_shift(x, safe))
    return np.where(beyond, -(x < 0).astype(x.dtype), np.right_shift(x, safe))


def _equal_dims(a: Any, b: Any) -> bool:
    """Equality as far as it is certain: a dimension is never negative; raises ValueError when it depends on the run."""
    if not (isinstance(a, Sym) or isinstance(b, Sym)) or a == b:
        return bool(a == b)
    number = b if isinstance(a, Sym) else a
    if not isinstance(number, Sym) and number < 0:
        return False
    raise ValueError(f"{a} = {b} is decided at run time")


def _equal(x: Array, y: Array) -> Array:
    if STRING in (x.dtype, y.dtype):
        return _scalar(_equal_dims)(x, y).astype(BOOL)
    return np.equal(x, y)


def _isinf(o: Any, x: Array) -> Array:
    return (np.isposinf(x) & bool(o.detect_positive)) | (np.isneginf(x) & bool(o.detect_negative))


def _isinf_text(o: Any) -> str:
    parts = [t for t, on in (("x == inf", o.detect_positive), ("x == -inf", o.detect_negative)) if on]
    return " or ".join(f"({t})" for t in parts) or "x != x and x == x"


class _Mixed(Pointwise):
    """Base of rows whose operands differ in dtype."""

    def reference(self, *inputs: Array) -> Array:
        arrays = [np.asarray(a) for a in inputs]
        compute = type(self).__dict__["compute"].__func__
        with np.errstate(all="ignore"):
            return np.asarray(compute(self, *arrays))


class _Power(_Mixed):
    """Pow: the exponent may have another numeric dtype than the base, whose dtype the result takes."""

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_dtype(self, "operand 0", dtypes[0], *self.dtypes)
        want_dtype(self, "operand 1", dtypes[1], *self.dtypes)
        return dtypes[0]

    def reference(self, *inputs: Array) -> Array:
        x, y = (np.asarray(a) for a in inputs)
        base = x.astype(_compute_dtype(x.dtype, True), copy=False)
        exponent = y.astype(_compute_dtype(y.dtype, True), copy=False)
        with np.errstate(all="ignore"):
            return cast(np.asarray(_pow(base, exponent)), x.dtype)


class _Select(_Mixed):
    """Where: the first operand is bool, the others share any dtype."""

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_dtype(self, "condition", dtypes[0], BOOL)
        want_dtype(self, "operand 2", dtypes[2], dtypes[1])
        return dtypes[1]


class _Convert(_Mixed):
    """Cast: any number to any other, and to or from strings."""

    converts = True
    to: AnyDType
    saturate: bool
    round_mode: str

    def result_dtype(self, *dtypes: AnyDType) -> AnyDType:
        want_among(self, ROUND_MODES, round_mode=self.round_mode)
        for what, dtype in (("operand 0", dtypes[0]), ("the result", self.to)):
            if dtype.kind in "SU":
                raise DTypeError(f"Cast: dtype of {what}: got {dtype_name(dtype)}, wanted a number")
        return self.to


def _cast(o: Any, x: Array) -> Array:
    return cast(x, np.dtype(o.to), o.saturate, o.round_mode)


_CONVERT: dict[str, Any] = {"to": np.dtype, "saturate": True, "round_mode": "up"}
_SQRT_HALF = math.sqrt(0.5)
_WITH_BOOL = (*NUMERIC, BOOL)
_WITH_BYTES = (*FLOATS, *BYTE_FLOATS)

# Unary, exact.
Abs = pointwise("Abs", "abs(x)", np.abs, dtypes=NUMERIC)
Neg = pointwise("Neg", "-x", np.negative, dtypes=SIGNED, on_symbols=True)
Reciprocal = pointwise("Reciprocal", "1 / x", lambda x: 1 / x)
Sqrt = pointwise("Sqrt", "sqrt(x)", np.sqrt, domain=(0, 100))
Floor = pointwise("Floor", "floor(x)", np.floor)
Ceil = pointwise("Ceil", "ceil(x)", np.ceil)
Round = pointwise("Round", "round(x)", np.rint, doc="Round, halves to even")
Sign = pointwise("Sign", "where(x > 0, 1, where(x < 0, -1, x + 0))", np.sign, dtypes=NUMERIC, doc="Sign, -0 gives 0")
Relu = pointwise("Relu", "max(x, 0)", lambda x: _at_least(x, 0), dtypes=SIGNED)
LeakyRelu = pointwise(
    "LeakyRelu", "where(x >= 0, x, alpha * x)", lambda o, x: np.where(x >= 0, x, o.alpha * x), alpha=0.01
)
ThresholdedRelu = pointwise(
    "ThresholdedRelu", "where(x > alpha, x, 0)", lambda o, x: np.where(x > o.alpha, x, 0), alpha=1.0
)
Clip = pointwise("Clip", "min(max(x, lo), hi)", _clip, dtypes=NUMERIC, lo=None, hi=None)
Shrink = pointwise(
    "Shrink",
    "where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))",
    lambda o, x: np.where(x < -o.lambd, x + o.bias, np.where(x > o.lambd, x - o.bias, 0)),
    bias=0.0,
    lambd=0.5,
)
Softsign = pointwise("Softsign", "x / (1 + abs(x))", lambda x: x / (1 + np.abs(x)), ulp=2)
HardSigmoid = pointwise(
    "HardSigmoid",
    "max(0, min(1, alpha * x + beta))",
    lambda o, x: np.clip(o.alpha * x + o.beta, 0, 1),
    ulp=2,
    alpha=0.2,
    beta=0.5,
)
HardSwish = pointwise(
    "HardSwish", "x * max(0, min(1, x * (1 / 6) + 0.5))", lambda x: x * np.clip(x / 6 + 0.5, 0, 1), ulp=4
)

# Unary, transcendental.
Exp = pointwise("Exp", "exp(x)", np.exp, domain=(-20, 20), ulp=2)
Log = pointwise("Log", "log(x)", np.log, domain=(1e-6, 100), ulp=2)
Erf = pointwise("Erf", "erf(x)", _erf, domain=(-5, 5), ulp=3)
Sigmoid = pointwise("Sigmoid", "sigmoid(x)", _sigmoid, domain=(-20, 20), ulp=3)
Tanh = pointwise("Tanh", "tanh(x)", np.tanh, ulp=3)
Softplus = pointwise("Softplus", "softplus(x)", _softplus, domain=(-20, 20), ulp=4)
Elu = pointwise(
    "Elu", "where(x < 0, alpha * expm1(x), x)", lambda o, x: np.where(x < 0, o.alpha * np.expm1(x), x), ulp=4, alpha=1.0
)
Celu = pointwise(
    "Celu",
    "where(x < 0, alpha * expm1(x * (1 / alpha)), x)",
    lambda o, x: np.where(x < 0, o.alpha * np.expm1(x / o.alpha), x),
    ulp=6,
    alpha=1.0,
)
Selu = pointwise(
    "Selu",
    "gamma * where(x < 0, alpha * expm1(x), x)",
    lambda o, x: o.gamma * np.where(x < 0, o.alpha * np.expm1(x), x),
    ulp=6,
    alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875,
)
Mish = pointwise("Mish", "mish(x)", lambda x: x * np.tanh(_softplus(x)), domain=(-20, 20), ulp=6)
Swish = pointwise("Swish", "x * sigmoid(alpha * x)", lambda o, x: x * _sigmoid(o.alpha * x), ulp=16, alpha=1.0)
Gelu = pointwise(
    "Gelu",
    lambda o: "gelu(x)" if o.approximate == "none" else "gelu_tanh(x)",
    _gelu,
    domain=(-6, 6),
    ulp=64,
    approximate="none",
)
Sin = pointwise("Sin", "sin(x)", np.sin, domain=(-100, 100), ulp=4)
Cos = pointwise("Cos", "cos(x)", np.cos, domain=(-100, 100), ulp=4)
Tan = pointwise("Tan", "tan(x)", np.tan, domain=(-1.5, 1.5), ulp=4)
Asin = pointwise("Asin", "asin(x)", np.arcsin, domain=(-1, 1), ulp=4)
Acos = pointwise("Acos", "acos(x)", np.arccos, domain=(-1, 1), ulp=4)
Atan = pointwise("Atan", "atan(x)", np.arctan, ulp=4)
Sinh = pointwise("Sinh", "sinh(x)", np.sinh, ulp=4)
Cosh = pointwise("Cosh", "cosh(x)", np.cosh, ulp=4)
Asinh = pointwise("Asinh", "asinh(x)", np.arcsinh, ulp=4)
Acosh = pointwise("Acosh", "acosh(x)", np.arccosh, domain=(1, 100), ulp=4)
Atanh = pointwise("Atanh", "atanh(x)", np.arctanh, domain=(-1, 1), ulp=4)

# Predicates, bits, conversion.
Not = pointwise("Not", "not x", np.logical_not, dtypes=(BOOL,))
BitwiseNot = pointwise("BitwiseNot", "~x", np.invert, dtypes=INTS)
IsNaN = pointwise("IsNaN", "x != x", np.isnan, dtypes=_WITH_BYTES, result="bool")
IsInf = pointwise(
    "IsInf", _isinf_text, _isinf, dtypes=_WITH_BYTES, result="bool", detect_negative=True, detect_positive=True
)
Cast = pointwise("Cast", "cast(x)", _cast, dtypes=_WITH_BOOL, on_symbols=True, base=_Convert, **_CONVERT)

# Binary.
Add = pointwise("Add", "x + y", np.add, arity=2, dtypes=NUMERIC, on_symbols=True)
Sub = pointwise("Sub", "x - y", np.subtract, arity=2, dtypes=NUMERIC, on_symbols=True)
Mul = pointwise("Mul", "x * y", np.multiply, arity=2, dtypes=NUMERIC, on_symbols=True)
Div = pointwise("Div", "x / y", _div, arity=2, dtypes=NUMERIC, on_symbols=True)
Pow = pointwise("Pow", "pow(x, y)", _pow, arity=2, dtypes=NUMERIC, domain=(0.1, 8), ulp=4, base=_Power)
Mod = pointwise("Mod", lambda o: "fmod(x, y)" if o.fmod else "x % y", _mod, arity=2, dtypes=NUMERIC, fmod=False)
PRelu = pointwise("PRelu", "where(x >= 0, x, x * y)", lambda x, y: np.where(x >= 0, x, x * y), arity=2, dtypes=NUMERIC)
Max = pointwise("Max", "max(x, y)", _maximum, arity=2, dtypes=NUMERIC)
Min = pointwise("Min", "min(x, y)", _minimum, arity=2, dtypes=NUMERIC)
Equal = pointwise("Equal", "x == y", _equal, arity=2, dtypes=(*_WITH_BOOL, STRING), result="bool", on_symbols=True)
Less = pointwise("Less", "x < y", np.less, arity=2, dtypes=NUMERIC, result="bool")
LessOrEqual = pointwise("LessOrEqual", "x <= y", np.less_equal, arity=2, dtypes=NUMERIC, result="bool")
Greater = pointwise("Greater", "x > y", np.greater, arity=2, dtypes=NUMERIC, result="bool")
GreaterOrEqual = pointwise("GreaterOrEqual", "x >= y", np.greater_equal, arity=2, dtypes=NUMERIC, result="bool")
And = pointwise("And", "x & y", np.logical_and, arity=2, dtypes=(BOOL,))
Or = pointwise("Or", "x | y", np.logical_or, arity=2, dtypes=(BOOL,))
Xor = pointwise("Xor", "x ^ y", np.logical_xor, arity=2, dtypes=(BOOL,))
BitwiseAnd = pointwise("BitwiseAnd", "x & y", np.bitwise_and, arity=2, dtypes=INTS)
BitwiseOr = pointwise("BitwiseOr", "x | y", np.bitwise_or, arity=2, dtypes=INTS)
BitwiseXor = pointwise("BitwiseXor", "x ^ y", np.bitwise_xor, arity=2, dtypes=INTS)
_LEFT = {True: "x << y", False: "x >> y"}
BitShift = pointwise("BitShift", lambda o: _LEFT[o.direction == "LEFT"], _shift, arity=2, dtypes=INTS, direction="LEFT")
Where = pointwise("Where", "where(x, y, z)", np.where, arity=3, dtypes=(BOOL,), on_symbols=True, base=_Select)
