"""Kernel text for devices of many threads, each of which computes elements one by one: operators on scalars.

A value of f16 or bf16 is an f32 in a register, and is rounded where it is stored or cast.  All other values have
their own dtype.  The helpers that the text names are those of `kernels.geometry.scalars` and of the device.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence

from bolt_numba.base.records import record
from bolt_numba.base.types import BF16, F16, F32, F64, I8, I16, I32, U8, U16, AnyDType, dtype_name
from bolt_numba.codegen.chain import KernelText, Powers, indented, numbers, value_dtypes
from bolt_numba.codegen.conversions import limits
from bolt_numba.codegen.formula import (
    Operands,
    Scalar,
    Term,
    UntranslatableError,
    formula_names,
    scalar_text,
    special_power,
)
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.pointwise import Cast, Pow
from bolt_numba.ops.pointwise.chain import Chain
from bolt_numba.ops.pointwise.row import Pointwise
from bolt_numba.ops.registry import Op

WIDTH = 16
"""Bytes that a thread loads or stores at once."""
MOST_PER_THREAD = 8
"""Elements of a thread."""
_CODES = (U8, I8, U16, I16)
_PLAIN = {
    name: f"math.{name}"
    for name in (
        *("sqrt", "exp", "expm1", "log", "log1p", "asin", "acos", "atan"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "pow"),
    )
}
_OWN = {name: name for name in ("sigmoid", "softplus", "mish", "gelu", "gelu_tanh")}
_OWN |= {"sin": "sine", "cos": "cosine", "tan": "tangent"}
"""Functions of f32 that the device has helpers for."""
_SHORT_FORMS = ("exp", "sigmoid", "tanh", "mish", "gelu_tanh")
"""Functions that have a shorter form for values that are halves."""
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "rint"}


def register(dtype: AnyDType) -> AnyDType:
    """The dtype of a value in a register."""
    return F32 if dtype in (F16, BF16) else dtype


class _Thread(Scalar):
    """Scalars with the functions of f32, and the roundings of f64.  short: whether values are halves."""

    def __init__(self, names: Mapping[str, Term], dtype: AnyDType, short: bool) -> None:
        super().__init__(names, dtype)
        self.short = short

    def operation(self, kind: type, a: Term, b: Term) -> Term:
        if kind is ast.Mod and self.dtype.kind == "f":
            return self.typed(f"float_mod({self.number(a)}, {self.number(b)})")
        return super().operation(kind, a, b)

    def extreme(self, name: str, a: Term, b: Term) -> Term:
        if a.is_number or b.is_number:
            number, x = (a, b) if a.is_number else (b, a)
            return self.typed(f"at_{'least' if name == 'max' else 'most'}({x.text}, {self.number(number)})")
        if self.dtype == F32:
            return self.typed(f"{name}imum({a.text}, {b.text})")
        return super().extreme(name, a, b)

    def function(self, name: str, args: list[Term]) -> Term:
        given = ", ".join(self.number(a) for a in args)
        if self.dtype.kind == "f" and name in _ROUNDINGS:
            return self.typed(f"{_ROUNDINGS[name]}_{dtype_name(self.dtype)}({given})")
        if self.short and name in _SHORT_FORMS:
            return self.typed(f"{name}_short({given})")
        if self.dtype == F32 and name in _PLAIN:
            return self.typed(f"{_PLAIN[name]}({given})")
        if self.dtype == F32 and name in _OWN:
            return self.typed(f"{_OWN[name]}({given})")
        return super().function(name, args)


def thread_numbers(chain: Chain, dtypes: Sequence[AnyDType]) -> dict[str, tuple[AnyDType, float | int]]:
    """See `codegen.chain.numbers`."""
    return numbers(chain, [register(d) for d in dtypes])


def thread_text(op: Pointwise, operands: Operands, prefix: str, exponent: float | None = None) -> str:
    """Text of ``op`` on registers; the result is one.

    exponent: of a Pow, where it is known.  prefix: of the names of `formula.parameters`.  Raises `UntranslatableError`.
    """
    if isinstance(op, Cast) and op.to in (F16, BF16):
        x = operands[0]
        return (
            x.text if x.dtype == op.to else f"round_{dtype_name(op.to)}({scalar_text(Cast(F32), [_held(x)], prefix)})"
        )
    held = [_held(t) for t in operands]
    short = any(t.dtype in (F16, BF16) for t in operands)
    own = held[-1].dtype or F64
    names = formula_names(op, held, own, prefix)
    if isinstance(op, Pow) and held[0].dtype == F32 and (exponent is not None or own == F32):
        special = special_power(exponent) if exponent is not None else None
        made = _Thread(names, F32, short)
        return made.number(made.run(special or op.text))
    if isinstance(op, (Cast, Pow)):
        text = scalar_text(op, held, prefix)
        if "math.pow" in text:  # in f64 that is a call, with a stack
            raise UntranslatableError(f"{op.name} in f64")
        return text
    if any(t.dtype is None or t.dtype.kind not in "iubf" for t in held):
        raise UntranslatableError(f"{op.name} on {[t.dtype for t in held]}")
    thread = _Thread(names, own, short)
    return thread.number(thread.run(op.text))


def formula_text(text: str, **names: str) -> str:
    """Text of a formula of f32 on registers; names: what its names are called."""
    thread = _Thread({name: Term(own, F32, None, name != "x") for name, own in names.items()}, F32, False)
    return thread.number(thread.run(text))


def _held(term: Term) -> Term:
    return Term(term.text, None if term.dtype is None else register(term.dtype))


def conversion_text(op: Op, operands: Operands, to: AnyDType) -> str:
    """Text of a QuantizeLinear or DequantizeLinear; raises `UntranslatableError`."""
    x, scale, *zero = [_held(t) for t in operands]
    if scale.dtype != F32:
        raise UntranslatableError(f"{op.name} by {scale.dtype}")
    if isinstance(op, DequantizeLinear):
        if x.dtype not in (*_CODES, I32) or register(to) != F32:
            raise UntranslatableError(f"{op.name} of {x.dtype}")
        wide = "i64" if x.dtype == I32 else "i32"
        number = f"{wide}({x.text}) - {wide}({zero[0].text})" if zero else x.text
        return f"exact_product(f32({number}), {scale.text})"
    if to not in _CODES or x.dtype not in (F32, I32):
        raise UntranslatableError(f"{op.name} of {x.dtype} to {to}")
    low, high = limits(to)
    point = f"f32({zero[0].text})" if zero else "f32(0)"
    return f"{dtype_name(to)}(quantised(f32({x.text}), {scale.text}, {point}, f32({low}), f32({high})))"


@functools.lru_cache(maxsize=1024)
def thread_lines(chain: Chain, ins: tuple[AnyDType, ...], powers: Powers) -> tuple[str, ...] | None:
    """One assignment for each step, to ``v<index>``; None where a step has no text for threads."""
    try:
        dtypes = value_dtypes(chain, ins)
        special = dict(powers)
        lines = []
        for i, (op, operands) in enumerate(chain.steps):
            terms = [Term(f"v{k}", dtypes[k]) for k in operands]
            if isinstance(op, Pointwise):
                text = thread_text(op, terms, f"k{i}_", special.get(i))
            elif isinstance(op, (QuantizeLinear, DequantizeLinear)):
                text = conversion_text(op, terms, dtypes[len(ins) + i])
            else:
                return None
            lines.append(f"v{len(ins) + i} = {text}")
        thread_numbers(chain, dtypes)
    except UntranslatableError:
        return None
    return tuple(lines)


@record(frozen=True)
class ThreadText(KernelText):
    """element: text of the function of one element, which the kernel calls."""

    element: str


@functools.lru_cache(maxsize=1024)
def chain_for_threads(
    chain: Chain, ins: tuple[AnyDType, ...], powers: Powers, outer: int, forms: str, per: int, threads: int
) -> ThreadText:
    """Text of a kernel whose threads compute ``per`` neighbours of a row each, in blocks of ``threads``."""
    lines = thread_lines(chain, ins, powers)
    if lines is None:
        raise UntranslatableError(f"{chain} on {ins}")
    return _ThreadWriter(chain, value_dtypes(chain, ins), outer, forms, per, threads).kernel(lines)


class _ThreadWriter:
    """Writes one kernel.

    Parameters: ``o<k>`` results, ``a<k>`` operands, ``n`` elements of a row, ``items`` threads that have work;
    ``blocks`` of them to a row and ``d<j>`` sizes of the outer loops but the first, each with ``m_`` and ``h_`` for
    `quotient`; ``s<k>_<j>`` strides of operand k in bytes; ``k<i>_<name>`` attributes of step i.
    """

    def __init__(
        self, chain: Chain, dtypes: tuple[AnyDType, ...], outer: int, forms: str, per: int, threads: int
    ) -> None:
        self.outer, self.forms, self.dtypes, self.per, self.threads = outer, forms, dtypes, per, threads
        self.count, self.results = len(forms), chain.results
        self.names = [op.name.lower() for op, _ in chain.steps]
        self.numbers = {name: dtype for name, (dtype, _) in thread_numbers(chain, dtypes).items()}

    def kernel(self, lines: Sequence[str]) -> ThreadText:
        fields = self._fields()
        numbers = [f"{name} = {dtype_name(dtype)}({name})" for name, dtype in self.numbers.items()]
        body = [*numbers, f"item = u32(cuda.blockIdx.x) * u32({self.threads}) + u32(cuda.threadIdx.x)"]
        inner = [*self._place(), *self._standing()]
        if self.per > 1:
            inner += [f"if {self._is_whole()}:", *indented(self._wide()), "else:", *indented(self._single())]
        else:
            inner += self._one("lo")
        body += ["if item < u32(items):", *indented(inner)]
        text = "\n".join([f"def {self._name()}({', '.join(fields)}):", *indented(body)]) + "\n"
        made = ", ".join(f"v{i}" for i in self.results)
        element = [f"def element({', '.join(self._given([f'v{k}' for k in range(self.count)]))}):"]
        element += indented([*lines, f"return {made}"])
        return ThreadText(self._name(), text, fields, "\n".join(element) + "\n")

    def _name(self) -> str:
        label = "_".join(self.names if len(self.names) <= 4 else [*self.names[:3], f"{len(self.names) - 3}_more"])
        return f"{label}_{dtype_name(self.dtypes[self.count])}_{self.outer}{self.forms}_{self.per}"

    def _fields(self) -> dict[str, str]:
        fields = {f"o{k}": "ptr" for k in range(len(self.results))}
        fields |= {f"a{k}": "ptr" for k in range(self.count)}
        fields |= {"n": "i64", "items": "i64"}
        divisors = ["blocks", *[f"d{j}" for j in range(1, self.outer)]] if self.outer else []
        fields |= {f"{part}{d}": "i64" for d in divisors for part in ("", "m_", "h_")}
        fields |= {f"s{k}_{j}": "i64" for k, form in enumerate(self.forms) if form != "n" for j in range(self.outer)}
        return fields | {k: dtype_name(d) if d.kind == "f" else "i64" for k, d in self.numbers.items()}

    def _place(self) -> list[str]:
        """First element ``lo`` of the thread within the row; addresses ``b<k>`` and ``r<k>`` of the row."""
        if not self.outer:
            lines = [f"lo = i64(item) * {self.per}"]
            lines += [f"r{k} = o{k}" for k in range(len(self.results))]
            return lines + [f"b{k} = a{k}" for k in range(self.count)]
        lines = ["row = quotient(item, m_blocks, h_blocks)", f"lo = i64(u32(item - row * u32(blocks))) * {self.per}"]
        lines += [f"r{k} = o{k} + i64(row) * n * {self._size(i)}" for k, i in enumerate(self.results)]
        for j in range(self.outer - 1, 0, -1):
            lines += [f"rest = quotient(row, m_d{j}, h_d{j})", f"i{j} = i64(u32(row - rest * u32(d{j})))", "row = rest"]
        lines.append("i0 = i64(row)")
        for k, form in enumerate(self.forms):
            places = "" if form == "n" else "".join(f" + i{j} * s{k}_{j}" for j in range(self.outer))
            lines.append(f"b{k} = a{k}{places}")
        return lines

    def _size(self, value: int) -> int:
        return self.dtypes[value].itemsize

    def _standing(self) -> list[str]:
        return [f"v{k} = {self._load(k, f'b{k}')}" for k, form in enumerate(self.forms) if form != "v"]

    def _load(self, k: int, address: str) -> str:
        name = dtype_name(self.dtypes[k])
        return f"load_u8({address}) != 0" if name == "bool" else f"load_{name}({address})"

    def _store(self, i: int, address: str, value: str) -> str:
        name = dtype_name(self.dtypes[i])
        return f"store_u8({address}, u8({value}))" if name == "bool" else f"store_{name}({address}, {value})"

    def _given(self, values: Sequence[str]) -> list[str]:
        return [*values, *self.numbers]

    def _is_whole(self) -> str:
        """Whether the thread has all of its elements, and they lie where wide loads and stores may."""
        places = [(f"b{k}", self._size(k)) for k, form in enumerate(self.forms) if form == "v"]
        places += [(f"r{k}", self._size(i)) for k, i in enumerate(self.results)]
        bits = " | ".join(f"(({base} + lo * {size}) & {size * self.per - 1})" for base, size in places)
        return f"(lo + {self.per} <= n) & (({bits}) == 0)"

    def _wide(self) -> list[str]:
        lines = []
        for k, form in enumerate(self.forms):
            if form == "v":
                word = dtype_name(self.dtypes[k]).replace("bool", "u8")
                lines.append(f"w{k} = load{self.per}_{word}(b{k} + lo * {self._size(k)})")
        for e in range(self.per):
            values = []
            for k, form in enumerate(self.forms):
                value = f"w{k}[{e}]" if form == "v" else f"v{k}"
                values.append(f"{value} != 0" if form == "v" and dtype_name(self.dtypes[k]) == "bool" else value)
            made = ", ".join(f"y{k}_{e}" for k in range(len(self.results)))
            lines.append(f"{made} = element({', '.join(self._given(values))})")
        for k, i in enumerate(self.results):
            word = dtype_name(self.dtypes[i])
            cast = "u8({})" if word == "bool" else "{}"
            values = [cast.format(f"y{k}_{e}") for e in range(self.per)]
            at = f"r{k} + lo * {self._size(i)}"
            lines.append(f"store{self.per}_{word.replace('bool', 'u8')}({at}, {', '.join(values)})")
        return lines

    def _single(self) -> list[str]:
        return [f"for i in range(lo, min(lo + {self.per}, n)):", *indented(self._one("i"))]

    def _one(self, at: str) -> list[str]:
        values = [
            self._load(k, f"b{k} + {at} * {self._size(k)}") if form == "v" else f"v{k}"
            for k, form in enumerate(self.forms)
        ]
        made = ", ".join(f"y{k}" for k in range(len(self.results)))
        lines = [f"{made} = element({', '.join(self._given(values))})"]
        return lines + [self._store(i, f"r{k} + {at} * {self._size(i)}", f"y{k}") for k, i in enumerate(self.results)]
