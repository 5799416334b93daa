"""Einsum as operators that have kernels.

einsum(Einsum(a, b, ...)) -> Expand, Transpose, Reshape, ReduceSum, Mul, MatMul    operands joined from left to right

The order of summation changes: axes of one operand alone are summed first.  Integers stay: they have no product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bolt_numba.base.types import Dim, Sym
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.arrays.shape import Expand, Reshape, Squeeze, Transpose
from bolt_numba.ops.arrays.slicing import Slice
from bolt_numba.ops.layers.products.matmul import Einsum, MatMul, einsum_terms
from bolt_numba.ops.pointwise import Mul
from bolt_numba.passes.rewrite import Match, Pat, Result, Rule, rule

_FRESH = [chr(c) for c in range(0x3B1, 0x3CA)]
"""Letters for the axes of an ellipsis, counted from its end."""


class _UnknownSizeError(Exception):
    """A shape that has to be known is not."""


class _EinsumTerm:
    """An operand: a value and a letter for each of its axes."""

    def __init__(self, b: Builder, value: Value, letters: Sequence[str]) -> None:
        self.b, self.value, self.letters = b, value, list(letters)

    @property
    def dims(self) -> tuple[Dim, ...]:
        assert self.value.type.shape is not None
        return self.value.type.shape

    def size(self, letters: Sequence[str]) -> list[Dim]:
        return [self.dims[self.letters.index(c)] for c in letters]

    def made(self, op: Any, *operands: Any) -> None:
        value = self.b(op, self.value, *operands)
        assert isinstance(value, Value), "an operator of one output"
        self.value = value

    def arrange(self, letters: Sequence[str]) -> None:
        perm = tuple(self.letters.index(c) for c in letters)
        if perm != tuple(range(len(perm))):
            self.made(Transpose(perm))
        self.letters = list(letters)

    def sum_over(self, letters: Sequence[str]) -> None:
        if letters:
            axes = [self.letters.index(c) for c in letters]
            self.made(ReduceSum(keepdims=False), np.array(axes, np.int64))
            self.letters = [c for c in self.letters if c not in letters]

    def drop_ones(self, sizes: dict[str, Dim]) -> None:
        """Take away axes of length 1 that other operands have longer."""
        ones = [i for i, (c, d) in enumerate(zip(self.letters, self.dims, strict=True)) if d == 1 and sizes[c] != 1]
        if ones:
            self.made(Squeeze(), np.array(ones, np.int64))
            self.letters = [c for i, c in enumerate(self.letters) if i not in ones]

    def widen_to(self, other: _EinsumTerm, letters: Sequence[str]) -> None:
        """Repeat along axes of which only a run tells whether they are of length 1 or as long as the other's."""
        sizes = [1] * len(self.letters)
        for letter in letters:
            i, size = self.letters.index(letter), other.dims[other.letters.index(letter)]
            if isinstance(self.dims[i], Sym) and self.dims[i] != size:
                if isinstance(size, Sym):
                    raise _UnknownSizeError
                sizes[i] = size
        if max(sizes, default=1) > 1:
            self.made(Expand(), np.array(sizes, np.int64))

    def take_diagonals(self) -> None:
        """One axis for each letter: the elements whose indices on the axes of a letter are equal."""
        for letter in dict.fromkeys(self.letters):
            while self.letters.count(letter) > 1:
                i, j = [k for k, c in enumerate(self.letters) if c == letter][:2]
                rest = [k for k in range(len(self.letters)) if k not in (i, j)]
                n, others = self.dims[i], [self.dims[k] for k in rest]
                if isinstance(n, Sym):
                    raise _UnknownSizeError
                self.made(Transpose((*rest, i, j)))
                self.reshape([others, [n * n]])
                bounds = (np.array([v], np.int64) for v in (0, n * n, len(rest), n + 1))
                self.made(Slice(), *bounds)
                self.letters = [*(self.letters[k] for k in rest), letter]

    def reshape(self, groups: Sequence[Sequence[Dim]]) -> None:
        """To the axes of the groups one after the other; those of the first may be any that stay in their places."""
        dims = [d for group in groups for d in group]
        if list(self.dims) == dims:
            return
        target: list[int] = []
        for i, d in enumerate(dims):
            kept = i < len(groups[0]) and i < len(self.dims) and self.dims[i] == d
            target.append(0 if isinstance(d, Sym) and kept else -1 if isinstance(d, Sym) else int(d))
        if target.count(-1) > 1 or (-1 in target and 0 in dims):
            raise _UnknownSizeError
        self.made(Reshape(), np.array(target, np.int64))


def _product(dims: Sequence[Dim]) -> Dim:
    """Of one dimension of any kind, or of known ones."""
    if len(dims) == 1:
        return dims[0]
    known = [d for d in dims if not isinstance(d, Sym)]
    if len(known) < len(dims):
        raise _UnknownSizeError
    return math.prod(known)


def _join(a: _EinsumTerm, z: _EinsumTerm, wanted: set[str]) -> _EinsumTerm:
    """Product of two terms, summed over the letters that nobody wants any more."""
    a.sum_over([c for c in a.letters if c not in z.letters and c not in wanted])
    z.sum_over([c for c in z.letters if c not in a.letters and c not in wanted])
    batch = [c for c in a.letters if c in z.letters and c in wanted]
    inner = [c for c in a.letters if c in z.letters and c not in wanted]
    rows = [c for c in a.letters if c not in z.letters]
    columns = [c for c in z.letters if c not in a.letters]
    a.widen_to(z, inner)
    z.widen_to(a, inner)
    a.arrange([*batch, *rows, *inner])
    shared, others, own, last = a.size(batch), z.size(batch), a.size(rows), z.size(columns)
    if not inner:
        z.arrange([*batch, *columns])
        a.reshape([[*shared, *own], [1] * len(columns)])
        z.reshape([others, [1] * len(rows), last])
        a.made(Mul(), z.value)
    else:
        depths = _product(a.size(inner)), _product(z.size(inner))
        z.arrange([*batch, *inner, *columns])
        z.reshape([others, [depths[1]], [_product(last)]])
        if batch or not rows:
            a.reshape([shared, [_product(own)] if len(rows) != 1 else own, [depths[0]]])
        else:
            a.reshape([own, [depths[0]]])
        a.made(MatMul(), z.value)
        a.reshape([[*a.dims[: len(batch)], *own], last])
    a.letters = [*batch, *rows, *columns]
    return a


def _spelled(terms: Sequence[str], out: str, operands: Sequence[Value]) -> tuple[list[list[str]], list[str]]:
    """Letters of every axis, with letters for those of an ellipsis."""
    made, most = [], 0
    for term, value in zip(terms, operands, strict=True):
        head, dots, tail = term.partition("...")
        extra = len(value.type.shape or ()) - len(head) - len(tail) if dots else 0
        most = max(most, extra)
        made.append([*head, *_FRESH[:extra][::-1], *tail])
    head, dots, tail = out.partition("...")
    return made, [*head, *(_FRESH[:most][::-1] if dots else []), *tail]


def _lowered(b: Builder, op: Einsum, operands: Sequence[Value]) -> Value:
    terms, out = einsum_terms(op, op.equation, len(operands))
    spelled, result = _spelled(terms, out, operands)
    left = [_EinsumTerm(b, value, letters) for value, letters in zip(operands, spelled, strict=True)]
    sizes: dict[str, Dim] = {}
    for term in left:
        for letter, d in zip(term.letters, term.dims, strict=True):
            sizes[letter] = d if sizes.get(letter, 1) == 1 else sizes[letter]
    for term in left:
        term.take_diagonals()
        term.drop_ones(sizes)
    made = left.pop(0)
    while left:
        wanted = {*result}.union(*(t.letters for t in left[1:]))
        made = _join(made, left.pop(0), wanted)
    made.sum_over([c for c in made.letters if c not in result])
    made.arrange(result)
    return made.value


@rule(Pat(Einsum))
def einsum(m: Match, b: Builder) -> Result:
    operands = [v for v in m.root.inputs if v is not None]
    if any(v.type.shape is None for v in operands):
        return m.refuse("a rank is not known")
    if operands[0].type.dtype.kind not in "fV" and len(operands) > 1:
        return m.refuse("a product of integers")
    try:
        return _lowered(b, m.root.op, operands)  # type: ignore[arg-type]
    except _UnknownSizeError:
        return m.refuse("a size that has to be known is not")


RULES: tuple[Rule, ...] = (einsum,)
