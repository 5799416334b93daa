"""Shape rules shared by operators: broadcasting, products, what operands must be; dimensions may be symbolic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bolt_numba.base.errors import ShapeError
from bolt_numba.base.types import Dim, Shape, Sym, TensorType
from bolt_numba.ops.registry import Op, fresh_dim, is_made_up, normalise_axis


def broadcast_dim(owner: Op, a: Dim, b: Dim) -> Dim:
    """One dimension of a broadcast result; raises ShapeError.

    A symbol against a number that is not 1 takes that number: were they different at run time, the operator would fail
    there, or the symbol is 1.  Two symbols that are told apart from each other make one of their own, as each may turn
    out as 1.  Of those that are computed from the same one, or made up, the first is taken.
    """
    if a == b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(a, Sym) and isinstance(b, Sym):
        return a if is_made_up(a) or is_made_up(b) else a.beside(b)
    if isinstance(a, Sym) or isinstance(b, Sym):
        return b if isinstance(a, Sym) else a
    raise owner.fail("shapes to broadcast", f"{a} against {b}", "equal dimensions or 1")


def broadcast_shapes(owner: Op, *shapes: Shape | None) -> Shape | None:
    """Shape of numpy broadcasting, None when the rank of any operand is unknown; raises ShapeError."""
    if len(shapes) > 1 and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    out: Shape = ()
    for shape in shapes:
        if shape is None:
            return None
        if not shape or shape == out:
            continue
        rank = max(len(out), len(shape))
        a, b = (1,) * (rank - len(out)) + out, (1,) * (rank - len(shape)) + shape
        out = tuple([x if x == y else broadcast_dim(owner, x, y) for x, y in zip(a, b, strict=True)])
    return out


def want_dim(owner: Op, what: str, got: Dim, wanted: Dim) -> None:
    """Raise ShapeError unless two dimensions are equal, or may be once symbols are known."""
    if isinstance(got, int) and isinstance(wanted, int) and got != wanted:
        raise owner.fail(what, got, wanted)


def product(dims: Iterable[Dim]) -> Dim:
    """Product of dimensions, exact as far as `Sym` allows."""
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def shape_of(owner: Op, what: str, t: TensorType | None, *ranks: int) -> Shape | None:
    """Shape of an operand whose rank must be one of ``ranks`` (any when none is given); raises ShapeError.

    None where that is not known, or the operand is omitted.
    """
    if t is None:
        return None
    if t.shape is not None and ranks and len(t.shape) not in ranks:
        raise owner.fail(f"rank of {what}", f"{len(t.shape)} ({t})", " or ".join(map(str, ranks)))
    return t.shape


def want_dims(owner: Op, what: str, t: TensorType | None, *wanted: Dim | tuple[Dim, ...] | None) -> None:
    """Raise ShapeError where a dimension that is known is not the one wanted, or one of those.

    Symbols are not compared, and None allows any size; an omitted operand is right.
    """
    if t is None or t.shape is None or t.shape == wanted:
        return
    allowed = [w if isinstance(w, tuple) else (w,) for w in wanted]
    fits = len(t.shape) == len(wanted) and all(
        not isinstance(d, int) or d in ways or any(not isinstance(w, int) for w in ways)
        for d, ways in zip(t.shape, allowed, strict=True)
    )
    if not fits:
        shown = ", ".join(" or ".join("any" if w is None else str(w) for w in ways) for ways in allowed)
        raise owner.fail(f"shape of {what}", t, f"[{shown}]")


def distinct_axes(owner: Op, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes in 0…rank-1; raises ShapeError for one that is not there or comes twice."""
    found = tuple(normalise_axis(owner, a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise owner.fail("axes", tuple(axes), "each axis once")
    return found


def want_one(owner: Op, **operands: TensorType | None) -> None:
    """Raise ShapeError for a named operand that has not exactly one element; an omitted one is right."""
    for what, t in operands.items():
        if t is not None and t.shape and any(isinstance(d, int) and d != 1 for d in t.shape):
            raise owner.fail(f"shape of {what}", t, "one element")


def want_within(owner: Op, what: str, t: TensorType | None, shape: Shape | None) -> None:
    """Raise ShapeError unless an operand broadcasts to ``shape`` as that is; an omitted one is right."""
    if t is None or t.shape is None or shape is None or t.shape == shape:
        return
    pairs = zip(reversed(t.shape), reversed(shape), strict=False)
    wider = any(isinstance(d, int) and d != 1 and isinstance(s, int) and d != s for d, s in pairs)
    if wider or len(t.shape) > len(shape):
        raise owner.fail(f"shape of {what}", t, f"one that broadcasts to [{', '.join(map(str, shape))}]")


def want_elements(owner: Op, what: str, *dims: Dim) -> None:
    """Raise ShapeError when one of the dimensions of an operand that must hold something is 0."""
    if 0 in dims:
        raise owner.fail(f"dimensions of {what}", dims, "at least 1")


def known_ints(t: TensorType) -> list[int] | None:
    """Content of an integer operand when all of it is known."""
    dims = known_dims(t)
    if dims is None or any(isinstance(d, Sym) for d in dims):
        return None
    return [d for d in dims if isinstance(d, int)]


def known_dims(t: TensorType) -> list[Dim] | None:
    """Content of an integer operand when it is known up to symbols."""
    if t.value is None:
        return [] if 0 in (t.shape or ()) else None
    return [v if isinstance(v, (Sym, int)) else int(v) for v in t.value.flat]


def shape_in(t: TensorType) -> Shape | None:
    """The shape that an integer operand holds, as far as it is known."""
    dims = known_dims(t)
    return unknown_shape(known_length(t)) if dims is None else tuple(dims)


def known_length(t: TensorType) -> int | None:
    """Number of elements of an operand of rank 1 (or 0) when it is known."""
    if t.value is not None:
        return int(t.value.size)
    return t.size if t.is_static else None


MAX_RANK = 64
"""Axes of the largest array that NumPy can hold."""
MAX_ELEMENTS = 1 << 58
"""Elements up to which a tensor is possible at all: offsets in bytes stay under 2**63."""


def want_possible(owner: Op, t: TensorType) -> None:
    """Raise ShapeError for a result that no memory could hold: negative or huge dimensions, too many axes.

    Axes of length 0 count as 1, as in NumPy.
    """
    shape = t.shape
    if not shape:
        return
    if t.is_static:
        for d in shape:  # each by itself: of two that are followed none need be the least
            if not d > 0:  # type: ignore[operator]  # none is a symbol
                break
        else:
            if math.prod(t.dims) <= MAX_ELEMENTS and len(shape) <= MAX_RANK:
                return
    dims = [d for d in shape if not isinstance(d, Sym)]
    if min(dims, default=0) < 0 or math.prod(d or 1 for d in dims) > MAX_ELEMENTS or len(shape) > MAX_RANK:
        raise owner.fail("result", t, f"at most {MAX_RANK} axes, none negative, and {MAX_ELEMENTS} elements")


def unknown_shape(count: int | None, hint: str = "d") -> Shape | None:
    """A shape of ``count`` fresh symbols; None when even the rank is unknown; raises ShapeError for a hostile rank."""
    if count is not None and count > MAX_RANK:
        raise ShapeError(f"rank: got {count}, wanted at most {MAX_RANK}")
    return None if count is None else tuple(fresh_dim(hint) for _ in range(count))
