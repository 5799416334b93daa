"""Translates the formulas of pointwise operators into kernel text: on f32 vectors, or on scalars of any plain dtype.

It only makes text; what the names in it stand for is the device's business (`kernels.cpu.elementwise.pointwise`).
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F32, F64, I32, I64, U32, U64, AnyDType, dtype_name
from bolt_numba.ops.pointwise import Cast, Pow
from bolt_numba.ops.pointwise.row import Pointwise


class UntranslatableError(NotImplementedError):
    """The formula has no kernel text for these dtypes; the reference has to run."""


@record(frozen=True)
class Term:
    """A piece of kernel text and its dtype: None for a number that is still known here; bound: a number at run time."""

    text: str
    dtype: AnyDType | None
    number: float | int | None = None
    bound: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it is the same for every element."""
        return self.dtype is None or self.bound


Operands: TypeAlias = Sequence[Term]

_FOLD: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SYMBOLS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Mod: "%",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_VECTOR_FUNCTIONS = {
    name: f"v{name}"
    for name in (
        *("abs", "sqrt", "floor", "ceil", "round", "exp", "expm1", "log", "log1p", "pow", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("sigmoid", "erf", "softplus", "mish", "gelu", "gelu_tanh"),
    )
}
_POWERS = {
    -2.0: "1 / (x * x)",
    -1.0: "1 / x",
    -0.5: "1 / sqrt(where(x == -inf, inf, x) + 0)",
    0.5: "sqrt(where(x == -inf, inf, x) + 0)",
    1.0: "x",
    2.0: "x * x",
    3.0: "x * x * x",
    4.0: "(x * x) * (x * x)",
}
"""Exponents that need no logarithm; the square roots of -0 and -inf are not what their powers are."""


def literal(value: float) -> str:
    """Text of a number; ``inf`` and ``nan`` are names in generated code."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(value)


class _FormulaWalk:
    """Walks a formula; subclasses say how operations are written."""

    def __init__(self, names: Mapping[str, Term]) -> None:
        self.names = names

    def run(self, text: str) -> Term:
        return self.visit(ast.parse(text, mode="eval").body)

    def visit(self, node: ast.expr) -> Term:
        match node:
            case ast.Constant(value=int() | float() as number):
                return Term(literal(number), None, number)
            case ast.Name(id=name):
                return self.names[name]
            case ast.BinOp(left=left, op=kind, right=right):
                return self.binary(type(kind), self.visit(left), self.visit(right))
            case ast.BoolOp(op=kind, values=values):
                made = self.visit(values[0])
                for value in values[1:]:
                    made = self.binary(ast.BitAnd if isinstance(kind, ast.And) else ast.BitOr, made, self.visit(value))
                return made
            case ast.UnaryOp(op=unary, operand=operand):
                return self.unary(type(unary), self.visit(operand))
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                return self.compare(type(kind), self.visit(left), self.visit(right))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(name, [self.visit(a) for a in args])
        raise UntranslatableError(f"formula: {ast.unparse(node)}")

    def binary(self, kind: type, a: Term, b: Term) -> Term:
        if a.number is not None and b.number is not None:
            value = _FOLD[kind](a.number, b.number)
            return Term(literal(value), None, value)
        return self.operation(kind, a, b)

    def unary(self, kind: type, a: Term) -> Term:
        if kind is ast.USub and a.number is not None:
            return Term(literal(-a.number), None, -a.number)
        return self.negation(kind, a)

    def call(self, name: str, args: list[Term]) -> Term:
        if name in ("max", "min"):
            kept = [a for a in args if a.text != "None"]  # an open end of a Clip
            lost = [a for a in kept if a.number is not None and a.number != a.number]
            return lost[0] if lost else kept[0] if len(kept) == 1 else self.extreme(name, *kept)
        return self.function(name, args)

    def operation(self, kind: type, a: Term, b: Term) -> Term:
        raise NotImplementedError

    def negation(self, kind: type, a: Term) -> Term:
        raise NotImplementedError

    def compare(self, kind: type, a: Term, b: Term) -> Term:
        raise NotImplementedError

    def extreme(self, name: str, a: Term, b: Term) -> Term:
        raise NotImplementedError

    def function(self, name: str, args: list[Term]) -> Term:
        raise NotImplementedError


class _Vector(_FormulaWalk):
    """Terms of dtype f32 are vectors of f32, terms of dtype bool are masks."""

    def operation(self, kind: type, a: Term, b: Term) -> Term:
        if BOOL in (a.dtype, b.dtype) and kind not in (ast.BitAnd, ast.BitOr, ast.BitXor):
            raise UntranslatableError("arithmetic on bool")
        if kind not in (*_FOLD, ast.BitAnd, ast.BitOr, ast.BitXor):
            raise UntranslatableError(f"{_SYMBOLS[kind]} on vectors")
        return Term(f"({a.text} {_SYMBOLS[kind]} {b.text})", a.dtype or b.dtype)

    def negation(self, kind: type, a: Term) -> Term:
        return Term(f"(-{a.text})" if kind is ast.USub else f"(~{a.text})", a.dtype)

    def compare(self, kind: type, a: Term, b: Term) -> Term:
        if a.dtype == BOOL or b.dtype == BOOL:
            different = f"({a.text} ^ {b.text})"
            return Term(different if kind is ast.NotEq else f"(~{different})", BOOL)
        return Term(f"({a.text} {_SYMBOLS[kind]} {b.text})", BOOL)

    def extreme(self, name: str, a: Term, b: Term) -> Term:
        if a.is_number or b.is_number:  # a number first: the second operand's NaN is kept
            number, vector = (a, b) if a.is_number else (b, a)
            return Term(f"v{name}({self.vector(number)}, {vector.text})", F32)
        return Term(f"v{name}imum({a.text}, {b.text})", F32)

    def function(self, name: str, args: list[Term]) -> Term:
        if name == "where":
            mask, x, y = args
            dtype = x.dtype or y.dtype or F32
            return Term(f"select({mask.text}, {self.vector(x)}, {self.vector(y)})", dtype)
        if name not in _VECTOR_FUNCTIONS:
            raise UntranslatableError(f"{name} on vectors")
        return Term(f"{_VECTOR_FUNCTIONS[name]}({', '.join(map(self.vector, args))})", F32)

    @staticmethod
    def vector(term: Term) -> str:
        return term.text if term.dtype is not None else f"splat({literal(float(term.number or 0))})"


class Scalar(_FormulaWalk):
    """Terms are scalars of ``dtype``; every result is converted back to it, as NumPy arithmetic would."""

    def __init__(self, names: Mapping[str, Term], dtype: AnyDType) -> None:
        super().__init__(names)
        self.dtype = dtype

    def number(self, term: Term) -> str:
        return term.text if term.dtype is not None else f"{dtype_name(self.dtype)}({term.text})"

    def typed(self, text: str) -> Term:
        return Term(f"{dtype_name(self.dtype)}({text})", self.dtype)

    def operation(self, kind: type, a: Term, b: Term) -> Term:
        x, y, integer = self.number(a), self.number(b), self.dtype.kind in "iu"
        if kind is ast.Div and integer:
            return self.typed(f"{x} // {y}" if self.dtype.kind == "u" else f"integer_div({x}, {y})")
        if kind in (ast.LShift, ast.RShift):
            bits = 8 * self.dtype.itemsize
            legal = f"{y} < {bits}" if self.dtype.kind == "u" else f"({y} >= 0) & ({y} < {bits})"
            name = dtype_name(self.dtype)  # numbers are typed: u64 and an untyped integer would meet as f64
            beyond = f"{name}(0)"
            if kind is ast.RShift and self.dtype.kind == "i":
                beyond = f"({name}(-1) if {x} < 0 else {beyond})"
            return self.typed(f"{name}({x} {_SYMBOLS[kind]} {y}) if {legal} else {beyond}")
        if BOOL in (a.dtype, b.dtype):
            return Term(f"({x} {_SYMBOLS[kind]} {y})", BOOL)
        return self.typed(f"{x} {_SYMBOLS[kind]} {y}")

    def negation(self, kind: type, a: Term) -> Term:
        if kind is ast.Not:
            return Term(f"(not {a.text})", BOOL)
        return self.typed(f"-{a.text}" if kind is ast.USub else f"~{a.text}")

    def compare(self, kind: type, a: Term, b: Term) -> Term:
        return Term(f"({self.number(a)} {_SYMBOLS[kind]} {self.number(b)})", BOOL)

    def extreme(self, name: str, a: Term, b: Term) -> Term:
        if a.is_number or b.is_number:  # only what is beyond it changes, so NaN stays
            number, x = (a, b) if a.is_number else (b, a)
            bound, sign = self.number(number), "<" if name == "max" else ">"
            return self.typed(f"({bound} if {x.text} {sign} {bound} else {x.text})")
        if self.dtype.kind == "f":
            return self.typed(f"float_{name}({a.text}, {b.text})")
        return self.typed(f"({a.text} if {a.text} {'>' if name == 'max' else '<'} {b.text} else {b.text})")

    def function(self, name: str, args: list[Term]) -> Term:
        if name == "where":
            mask, x, y = args
            if BOOL in (x.dtype, y.dtype):
                return Term(f"({x.text} if {mask.text} else {y.text})", BOOL)
            return self.typed(f"{self.number(x)} if {mask.text} else {self.number(y)}")
        if name == "abs":
            return self.typed(f"abs({self.number(args[0])})")
        if name == "fmod":
            function = "integer_fmod" if self.dtype.kind in "iu" else "float_fmod"
            return self.typed(f"{function}({self.number(args[0])}, {self.number(args[1])})")
        if name == "sqrt" and self.dtype.kind == "f":
            return self.typed(f"math.sqrt({self.number(args[0])})")
        raise UntranslatableError(f"{name} on {dtype_name(self.dtype)}")


def parameters(op: Pointwise, dtype: AnyDType) -> dict[str, float | int]:
    """The attributes that a kernel gets when it runs, as numbers of ``dtype``; raises `UntranslatableError`.

    NaN is none of them, it changes the formula; nor is a factor of 1, the usual one, which costs nothing if known.
    """
    values = {f.name: getattr(op, f.name) for f in fields(op)}
    found = {k: v for k, v in values.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and v == v}
    found = {k: v for k, v in found.items() if (k, v) != ("alpha", 1)}
    try:
        return {k: float(v) if dtype.kind == "f" else int(v) for k, v in found.items()}
    except OverflowError:
        raise UntranslatableError(f"{op} on {dtype}") from None


def formula_names(op: Pointwise, operands: Operands, dtype: AnyDType, prefix: str | None) -> dict[str, Term]:
    """What the names of a formula stand for; parameters are names that begin with ``prefix``, or numbers if None."""
    names = dict(zip("xyz", operands, strict=False))
    names |= {"inf": Term("inf", None, math.inf), "nan": Term("nan", None, math.nan)}
    given = {} if prefix is None else parameters(op, dtype)
    for attribute in fields(op):
        value = getattr(op, attribute.name)
        if attribute.name in given:
            names[attribute.name] = Term(f"{prefix}{attribute.name}", dtype, None, True)
        elif value is None or isinstance(value, (int, float)):
            names[attribute.name] = Term("None" if value is None else literal(value), None, value)
    return names


def special_power(exponent: float) -> str | None:
    """Formula of ``x ** exponent`` where it needs no logarithm."""
    return _POWERS.get(float(exponent))


def vector_text(op: Pointwise, operands: Operands, exponent: float | None = None, prefix: str | None = None) -> str:
    """Text of ``op`` on vectors: operands are f32 vectors or, for dtype bool, masks; so is the result.

    exponent: of a Pow, where it is known.  prefix: of the names of vectors that hold `parameters`; None: the text has
    their values.  Raises `UntranslatableError`.
    """
    dtypes = [t.dtype for t in operands]
    if any(d not in (F32, BOOL) for d in dtypes):
        raise UntranslatableError(f"{op.name} on {dtypes}")
    if isinstance(op, Cast):
        return _vector_cast(operands[0], op.to)
    special = special_power(exponent) if isinstance(op, Pow) and exponent is not None else None
    return _Vector.vector(_Vector(formula_names(op, operands, F32, prefix)).run(special or op.text))


def _vector_cast(x: Term, to: AnyDType) -> str:
    if to == x.dtype:
        return x.text
    if to == F32:
        return f"select({x.text}, splat(1.0), splat(0.0))"
    if to == BOOL:
        return f"({x.text} != 0.0)"
    raise UntranslatableError(f"Cast to {dtype_name(to)} on vectors")


def scalar_text(op: Pointwise, operands: Operands, prefix: str) -> str:
    """Text of ``op`` on scalars of integer, bool or float dtype; the result has the operator's dtype.

    prefix: of the names of scalars, of the last operand's dtype, that hold `parameters`.  Raises
    `UntranslatableError`, also for every function that has no exact scalar form here.
    """
    dtypes = [t.dtype for t in operands]
    if any(d is None or d.kind not in "iubf" or (d.itemsize < 4 and d.kind == "f") for d in dtypes):
        raise UntranslatableError(f"{op.name} on {dtypes}")
    if isinstance(op, Cast):
        return _scalar_cast(operands[0], op.to)
    if isinstance(op, Pow):
        return _scalar_power(*operands)
    own = operands[-1].dtype or F64
    scalar = Scalar(formula_names(op, operands, own, prefix), own)
    return scalar.number(scalar.run(op.text))


def _scalar_power(x: Term, y: Term) -> str:
    """In 64 bits: of integers, and of f32 to integers, by multiplication; else by the C library."""
    assert x.dtype is not None, "operands have dtypes"
    assert y.dtype is not None, "operands have dtypes"
    if x.dtype == y.dtype == F32:
        raise UntranslatableError("Pow of f32 is for vectors")
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        power, sign = "reduced_power" if y.dtype == U64 else "i64", "" if x.dtype.kind == "i" else "un"
        return f"{dtype_name(x.dtype)}({sign}signed_pow(i64({x.text}), {power}({y.text})))"
    power = f"bounded_power({y.text})" if y.dtype in (I64, U64) else y.text
    if x.dtype == F32 and y.dtype.kind in "iu":  # the error of products in f64 is lost when it is rounded
        return f"f32(whole_pow(f64({x.text}), i64({power})))"
    made = f"math.pow(f64({x.text}), f64({power}))"
    return whole_text(made, x.dtype) if x.dtype.kind in "iu" else f"{dtype_name(x.dtype)}({made})"


def _scalar_cast(x: Term, to: AnyDType) -> str:
    if to == BOOL:
        return f"({x.text} != 0)"
    if to.kind not in "iuf" or (to.kind == "f" and to.itemsize < 4):
        raise UntranslatableError(f"Cast to {dtype_name(to)}")
    if x.dtype is not None and x.dtype.kind == "f" and to.kind in "iu":
        return whole_text(x.text, to)
    return f"{dtype_name(to)}({x.text})"


def whole_text(x: str, to: AnyDType) -> str:
    """Text of the float scalar ``x`` as an integer, by the rule of `ops.conversion`."""
    if to == U64:
        return f"whole_u64({x})"
    cut = "whole_i64" if to in (U32, I64) else "whole_i32" if to == I32 else "whole_low"
    return f"{dtype_name(to)}({cut}({x}))"


@functools.lru_cache(maxsize=256)
def activation_text(op: Pointwise) -> str:
    """Text of a unary operator over the f32 vector ``v``, for epilogues of other kernels; raises `UntranslatableError`.

    The names of vectors that hold `parameters` begin with ``k_``.
    """
    if op.arity != 1:
        raise UntranslatableError(f"{op.name} is not unary")
    return vector_text(op, [Term("v", F32)], prefix="k_")
