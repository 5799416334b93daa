"""Kernel text for chains of pointwise operators: one loop nest, generic in shape, every step in registers.

Two forms.  *Vector*: every value is f32 or bool, or bytes that are converted; the loop works on vectors and masks.
*Scalar*: any plain dtypes; the loop works on scalars and LLVM makes vectors of it.  Only text and plan-time geometry
are made here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from bolt_numba.base.follow import pure
from bolt_numba.base.records import record
from bolt_numba.base.selects import divisor, either, greatest, least
from bolt_numba.base.types import BOOL, F32, I8, I16, U8, U16, AnyDType, Array, TensorType, dtype_name
from bolt_numba.codegen.conversions import conversion_text, known_sums, limited_text, open_codes
from bolt_numba.codegen.formula import Term, UntranslatableError, parameters, scalar_text, special_power, vector_text
from bolt_numba.ops.pointwise import Mod, Pow
from bolt_numba.ops.pointwise.chain import CONVERSIONS, Chain, ChainStep, step_dtype
from bolt_numba.ops.pointwise.row import Pointwise

ITEM = 4096
"""Elements of one work item: long enough to hide its start, short enough to share a small tensor evenly."""
BYTES = (U8, I8)
CODES = (*BYTES, U16, I16)
MAX_OUTER = 8
"""Loop dimensions around the innermost one that generated text may have."""


@record(frozen=True)
class LoopNest:
    """Loops over the result: ``outer`` sizes, then ``inner`` elements.

    strides[k]: for operand k, elements from one index to the next of every outer loop.  forms[k]: what operand k does
    in the innermost loop: ``v`` runs along, ``s`` stands still, ``g`` jumps as tables[k] says (an element each); ``n``
    is one number for all loops.
    """

    outer: tuple[int, ...]
    inner: int
    strides: tuple[tuple[int, ...], ...]
    forms: str
    tables: tuple[Array | None, ...]

    @property
    def rows(self) -> int:
        return math.prod(self.outer)

    @property
    def blocks(self) -> int:
        """Work items of one row."""
        return -(-self.inner // ITEM)

    @property
    def size(self) -> int:
        return self.rows * self.inner


def geometry(shape: Sequence[int], operands: Sequence[Sequence[int]], short: int = 0) -> LoopNest:
    """The fewest loops over dense operands broadcast to ``shape``; neighbours that all operands cross alike are one.

    short: an innermost loop of fewer elements is lengthened, at the price of form ``g``.
    """
    rank = len(shape)
    strides = []
    for dims in operands:
        padded = (1,) * (rank - len(dims)) + tuple(dims)
        steps, step = [0] * rank, 1
        for axis in range(rank - 1, -1, -1):
            steps[axis] = 0 if padded[axis] == 1 else step
            step *= padded[axis]
        strides.append(steps)
    sizes: list[int] = []
    columns: list[list[int]] = []  # of each loop, the stride of each operand
    for axis in range(rank):
        if shape[axis] == 1:
            continue
        column = [s[axis] for s in strides]
        if sizes and all(last == now * shape[axis] for last, now in zip(columns[-1], column, strict=True)):
            sizes[-1] *= shape[axis]
            columns[-1] = column
        else:
            sizes.append(shape[axis])
            columns.append(column)
    inner = sizes.pop() if sizes else 1
    innermost = columns.pop() if columns else [0] * len(strides)
    if sizes and inner < short:
        return _lengthened(sizes, columns, inner, innermost)
    outer = tuple(tuple(c[k] for c in columns) for k in range(len(strides)))
    forms = "".join("v" if s else "s" if any(steps) else "n" for s, steps in zip(innermost, outer, strict=True))
    return LoopNest(tuple(sizes), inner, outer, forms, (None,) * len(forms))


def _part(size: int, inner: int) -> int:
    """How many indices of a loop its inner one takes in: a divisor, or all where that would be few of not too many."""
    part = divisor(size, greatest(least(size, ITEM // inner), 1))
    is_small = (part * inner < ITEM // 64) & (size * inner <= 16 * ITEM)
    made: int = either(is_small, greatest(size, 1), part)
    return made


@pure
def _jumps(part: int, step: int, inner: int, unit: int) -> Array:
    """Element of each index of a lengthened loop."""
    return (np.arange(part)[:, None] * step + np.arange(inner) * unit).astype(np.int32).reshape(-1)


def _lengthened(sizes: list[int], columns: list[list[int]], inner: int, innermost: list[int]) -> LoopNest:
    """Nest whose innermost loop takes in a part of the next: a run of few elements costs as much as a long one."""
    size, steps = sizes[-1], columns[-1]
    part = _part(size, inner)
    outer_sizes, outer_columns = [*sizes[:-1], size // part], [*columns[:-1], [s * part for s in steps]]
    forms, tables = "", []
    for step, unit in zip(steps, innermost, strict=True):
        jumps = part > 1 and (step, unit) != (0, 0) and (step, unit) != (inner, 1)
        tables.append(_jumps(part, step, inner, unit) if jumps else None)
        forms += "g" if jumps else "v" if unit else "s"
    outer = tuple(tuple(c[k] for c in outer_columns) for k in range(len(steps)))
    forms = "".join("n" if f == "s" and not any(o) else f for f, o in zip(forms, outer, strict=True))
    return LoopNest(tuple(outer_sizes), part * inner, outer, forms, tuple(tables))


@record(frozen=True)
class KernelText:
    """Generated text of one kernel and its parameters' kinds (``"ptr"``, ``"i64"``, ``"f32"``, ``"f64"``) in order."""

    name: str
    text: str
    fields: dict[str, str]


def as_chain(op: Pointwise | Chain) -> Chain:
    """A single operator as a chain of one step."""
    if isinstance(op, Chain):
        return op
    return Chain(((op, tuple(range(op.arity))),), (op.arity,))


def value_dtypes(chain: Chain, ins: Sequence[AnyDType]) -> tuple[AnyDType, ...]:
    """Dtypes of the operands, then of every step; raises DTypeError."""
    dtypes = list(ins)
    for op, operands in chain.steps:
        dtypes.append(step_dtype(op, *[dtypes[i] for i in operands]))
    return tuple(dtypes)


Powers: TypeAlias = "tuple[tuple[int, float], ...]"
"""Steps with a shorter text: a Pow whose exponent is known and needs no logarithm, with the exponent, and conversions
that are `known_sums`, with 0."""


def known_powers(chain: Chain, ins: Sequence[TensorType]) -> Powers:
    """Find them by the contents of the operands."""
    found = []
    for i, (op, operands) in enumerate(chain.steps):
        known = ins[operands[1]].known if isinstance(op, Pow) and operands[1] < len(ins) else None
        if known is not None and known.size == 1 and special_power(float(known.reshape(-1)[0])):
            found.append((i, float(known.reshape(-1)[0])))
    return (*found, *((i, 0.0) for i in known_sums(chain, ins)))


def is_vector_form(chain: Chain, dtypes: Sequence[AnyDType]) -> bool:
    """Whether values of these dtypes fit the vector form, and every step has one (a remainder has not)."""
    if F32 not in dtypes or any(isinstance(op, Mod) for op, _ in chain.steps):
        return False
    if all(d in (F32, BOOL) for d in dtypes):
        return True
    computed = {i for op, operands in chain.steps if not isinstance(op, CONVERSIONS) for i in operands}
    first = len(dtypes) - len(chain.steps)
    computed |= {first + i for i, (op, _) in enumerate(chain.steps) if not isinstance(op, CONVERSIONS)}
    return all(d in (F32, BOOL) or (d in CODES and i not in computed) for i, d in enumerate(dtypes))


def has_conversions(chain: Chain) -> bool:
    """Whether there are bytes in it that are floats on the way."""
    return any(isinstance(op, CONVERSIONS) for op, _ in chain.steps)


@functools.lru_cache(maxsize=1024)
def body_lines(chain: Chain, ins: tuple[AnyDType, ...], powers: Powers) -> tuple[str, ...] | None:
    """One assignment for each step, to ``v<index>``; None where a step has no kernel text."""
    dtypes = value_dtypes(chain, ins)
    vector, special = is_vector_form(chain, dtypes), dict(powers)
    lines = []
    try:
        for i, (op, operands) in enumerate(chain.steps):
            terms = [Term(f"v{k}", dtypes[k]) for k in operands]
            if not isinstance(op, Pointwise):
                if not vector:
                    return None
                text = conversion_text(chain, dtypes, len(ins) + i, terms, i in special)
            elif vector:
                text = vector_text(op, terms, special.get(i), f"k{i}_")
            else:
                text = scalar_text(op, terms, f"k{i}_")
            lines.append(f"v{len(ins) + i} = {text}")
    except UntranslatableError:
        return None
    return tuple(lines)


def numbers(chain: Chain, dtypes: Sequence[AnyDType]) -> dict[str, tuple[AnyDType, float | int]]:
    """Attributes of the steps that are parameters of the kernel: name, dtype and value; raises `UntranslatableError`.

    dtypes: see `value_dtypes`.
    """
    found: dict[str, tuple[AnyDType, float | int]] = {}
    for i, (op, operands) in enumerate(chain.steps):
        if not isinstance(op, Pointwise):
            continue
        own = dtypes[operands[-1]]
        found |= {f"k{i}_{name}": (own, value) for name, value in parameters(op, own).items()}
    return found


def number_args(chain: Chain, ins: Sequence[AnyDType]) -> dict[str, float | int]:
    """Arguments for `numbers`; integers of 64 bits without a sign as those with one that have the same bits."""
    found = numbers(chain, value_dtypes(chain, ins))
    return {k: v - 2**64 if isinstance(v, int) and v >= 2**63 else v for k, (_, v) in found.items()}


def can_generate(op: Pointwise | Chain, ins: Sequence[TensorType]) -> bool:
    """Whether there is kernel text for these operand types: fusion asks before it makes a chain."""
    return body_lines(as_chain(op), tuple(t.dtype for t in ins), ()) is not None


@functools.lru_cache(maxsize=1024)
def chain_kernel(chain: Chain, ins: tuple[AnyDType, ...], powers: Powers, outer: int, forms: str) -> KernelText:
    """Text of the kernel for operands of these dtypes, ``outer`` outer loops and an innermost pattern."""
    lines = body_lines(chain, ins, powers)
    if lines is None:
        raise UntranslatableError(f"{chain} on {ins}")
    return _ChainWriter(chain, value_dtypes(chain, ins), outer, forms, lines).kernel()


class _ChainWriter:
    """Writes one kernel.

    Parameters: ``o<k>`` results, ``a<k>`` operands, ``t<k>`` tables of jumps, ``n`` elements of a row, ``items`` work
    items in all, ``blocks`` of them in a row, ``d<j>`` sizes of the outer loops but the first, ``s<k>_<j>`` strides of
    operand k in bytes, ``k<i>_<name>`` attributes of step i.
    """

    def __init__(
        self, chain: Chain, dtypes: tuple[AnyDType, ...], outer: int, forms: str, lines: tuple[str, ...]
    ) -> None:
        self.outer, self.forms, self.lines, self.dtypes = outer, forms, lines, dtypes
        self.count = len(forms)
        self.steps: tuple[ChainStep, ...] = chain.steps
        self.results, self.open = chain.results, open_codes(chain, dtypes)
        self.vector = is_vector_form(chain, dtypes)
        self.numbers = {name: dtype for name, (dtype, _) in numbers(chain, dtypes).items()}

    def kernel(self) -> KernelText:
        outer = self.outer
        fields = {f"o{k}": "ptr" for k in range(len(self.results))}
        fields |= {f"a{k}": "ptr" for k in range(self.count)}
        fields |= {f"t{k}": "ptr" for k, form in enumerate(self.forms) if form == "g"}
        fields |= {"n": "i64", "items": "i64", "blocks": "i64"}
        fields |= {f"d{j}": "i64" for j in range(1, outer)}
        fields |= {f"s{k}_{j}": "i64" for k, form in enumerate(self.forms) if form != "n" for j in range(outer)}
        lines = [f"def {self.name()}(p, tid, nthreads):"]
        lines += [f"    {f} = p.{f}" for f in fields]
        for name, dtype in self.numbers.items():
            fields[name] = dtype_name(dtype) if dtype.kind == "f" else "i64"
            lines.append(f"    {name} = {'splat' if self.vector else dtype_name(dtype)}(p.{name})")
        if self.vector:
            lines += indented([self._standing(k, "a") for k, form in enumerate(self.forms) if form == "n"])
        lines += ["    first, last = split(items, tid, nthreads)", "    for item in range(first, last):"]
        body = [*self.place(), *(self.vector_loop() if self.vector else self.scalar_loop())]
        lines += ["        " + line for line in body]
        return KernelText(self.name(), "\n".join(lines) + "\n", fields)

    def name(self) -> str:
        """For people: the operators, the loops, the standing operands."""
        parts = [op.name.lower() for op, _ in self.steps]
        label = "_".join(parts if len(parts) <= 4 else [*parts[:3], f"{len(parts) - 3}_more"])
        return f"{label}_{dtype_name(self.dtypes[self.count])}_{self.outer}{self.forms}"

    def place(self) -> list[str]:
        """Where a work item begins: ``lo``, ``hi`` within the row; operands moved to the row."""
        outer = self.outer
        sizes = [self.dtypes[i].itemsize for i in self.results]
        if not outer:
            return [f"lo, hi = item * {ITEM}, min(item * {ITEM} + {ITEM}, n)"]
        lines = ["row = item // blocks", f"lo = (item - row * blocks) * {ITEM}", f"hi = min(lo + {ITEM}, n)"]
        lines += [f"r{k} = o{k} + row * n * {size}" for k, size in enumerate(sizes)]
        for j in range(outer - 1, 0, -1):
            lines += [f"rest = row // d{j}", f"i{j} = row - rest * d{j}", "row = rest"]
        lines.append("i0 = row")
        for k, form in enumerate(self.forms):
            places = "" if form == "n" else "".join(f" + i{j} * s{k}_{j}" for j in range(outer))
            lines.append(f"b{k} = a{k}{places}")
        return lines

    def _bases(self) -> tuple[str, str]:
        return ("b", "r") if self.outer else ("a", "o")

    def vector_loop(self) -> list[str]:
        source, target = self._bases()
        lines = [self._standing(k, source) for k, form in enumerate(self.forms) if form == "s"]
        full = ["i = lo"]
        if any(self.dtypes[i] in BYTES for i in self.results) and "g" not in self.forms:
            full += ["while i + 4 * LANES <= hi:", *indented(self._wide_body(source, target)), "    i += 4 * LANES"]
        full += ["while i + LANES <= hi:", *indented(self._vector_body(source, target, "", "")), "    i += LANES"]
        tail = ["left = hi - i", "if left:", *indented(self._vector_body(source, target, "_n", ", left"))]
        return lines + full + tail

    def _standing(self, k: int, source: str) -> str:
        """One element as a vector."""
        if self.dtypes[k] == BOOL:
            return f"v{k} = splat(i32(load_u8({source}{k}))) != 0"
        if self.dtypes[k] in CODES:
            return f"v{k} = splat(i32(load_{dtype_name(self.dtypes[k])}({source}{k})))"
        return f"v{k} = splat(load_f32({source}{k}))"

    def _wide_body(self, source: str, target: str) -> list[str]:
        """Four vectors at once, so that codes are stored as one vector of bytes."""
        moving = [k for k, form in enumerate(self.forms) if form in "vg"]
        own = re.compile(rf"\bv({'|'.join(map(str, (*moving, *range(self.count, len(self.dtypes)))))})\b")
        lines = []
        for part in range(4):
            body = [self._load(k, source, f"(i + {part} * LANES)", "", "") for k in moving]
            lines += [own.sub(rf"v\1_{part}", line) for line in (*body, *self.lines)]
        for k, i in enumerate(self.results):
            if self.dtypes[i] in BYTES:
                parts = ", ".join(f"v{i}_{part}" for part in range(4))
                made = f"codes_{dtype_name(self.dtypes[i])}({parts}, {self.open.get(i, 'splat(i32(0))')})"
                lines.append(f"vstore({target}{k} + i, {made})")
            else:
                at = [f"(i + {part} * LANES)" for part in range(4)]
                lines += [self._store(k, i, target, at[part], f"v{i}_{part}", "", "") for part in range(4)]
        return lines

    def _vector_body(self, source: str, target: str, suffix: str, left: str) -> list[str]:
        loads = [self._load(k, source, "i", suffix, left) for k, form in enumerate(self.forms) if form in "vg"]
        stores = [self._store(k, i, target, "i", f"v{i}", suffix, left) for k, i in enumerate(self.results)]
        return [*loads, *self.lines, *stores]

    def _load(self, k: int, source: str, at: str, suffix: str, left: str) -> str:
        if self.forms[k] == "g":
            return f"v{k} = vgather({source}{k}, vload_i32{suffix}(t{k} + 4 * {at}{left}))"
        if self.dtypes[k] == BOOL:
            return f"v{k} = vload_u8{suffix}({source}{k} + {at}{left}) != 0"
        if self.dtypes[k] in CODES:
            size = "" if self.dtypes[k] in BYTES else "2 * "
            return f"v{k} = vload_{dtype_name(self.dtypes[k])}{suffix}({source}{k} + {size}{at}{left})"
        return f"v{k} = vload{suffix}({source}{k} + 4 * {at}{left})"

    def _store(self, k: int, i: int, target: str, at: str, value: str, suffix: str, left: str) -> str:
        if self.dtypes[i] == BOOL:
            return f"vstore_u8{suffix}({target}{k} + {at}, select({value}, splat(i32(1)), splat(i32(0))){left})"
        if self.dtypes[i] in BYTES:
            code = f"({value} + {self.open[i]})" if i in self.open else value
            return f"vstore_u8{suffix}({target}{k} + {at}, {limited_text(code, self.dtypes[i])}{left})"
        if self.dtypes[i] in CODES:
            return f"vstore_u16{suffix}({target}{k} + 2 * {at}, {value}{left})"
        return f"vstore{suffix}({target}{k} + 4 * {at}, {value}{left})"

    def scalar_loop(self) -> list[str]:
        """Loop from 0 over views that begin at ``lo``: LLVM then sees that no index is negative, and makes vectors."""
        source, target = self._bases()
        lines = ["count = hi - lo"]
        for k, form in enumerate(self.forms):
            name, size = dtype_name(self.dtypes[k]), self.dtypes[k].itemsize
            if form == "v":
                lines.append(f"x{k} = view({source}{k} + {size} * lo, count, {name})")
            else:
                lines.append(f"x{k} = view({source}{k}, 1, {name})")
                lines.append(f"v{k} = x{k}[0]" if form in "sn" else f"j{k} = view(t{k} + 4 * lo, count, i32)")
        for k, i in enumerate(self.results):
            name, size = dtype_name(self.dtypes[i]), self.dtypes[i].itemsize
            lines.append(f"y{k} = view({target}{k} + {size} * lo, count, {name})")
        lines.append("for i in range(count):")
        index = {"v": "i", "g": "j{k}[i]"}
        lines += [f"    v{k} = x{k}[{index[f].format(k=k)}]" for k, f in enumerate(self.forms) if f in "vg"]
        lines += ["    " + line for line in self.lines]
        lines += [f"    y{k}[i] = v{i}" for k, i in enumerate(self.results)]
        return lines


def indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]


def unit_cost(chain: Chain) -> float:
    """Rough time of one element on one thread, in nanoseconds: 0.15 to move it, 0.3 for each elementary function."""
    return 0.15 + sum(0.3 if isinstance(op, Pointwise) and op.ulp else 0.02 for op, _ in chain.steps)


def operand_strides(nest: LoopNest, dtypes: Sequence[AnyDType]) -> dict[str, int]:
    """Values of the stride parameters, in bytes."""
    return {
        f"s{k}_{j}": step * np.dtype(dtypes[k]).itemsize
        for k, row in enumerate(nest.strides)
        for j, step in enumerate(row)
        if nest.forms[k] != "n"
    }
