"""Shape rules shared by operators: broadcasting and products, with symbolic dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from bolt_numba.errors import ShapeError
from bolt_numba.ops.registry import Op, fresh_dim
from bolt_numba.types import Dim, Shape, Sym, TensorType


def broadcast_dim(owner: Op, a: Dim, b: Dim) -> Dim:
    """One dimension of a broadcast result; raises ShapeError.

    A symbol against another dimension that is not 1 takes that dimension: were they different at run time, the
    operator would fail there.
    """
    if a == b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(a, Sym):
        return b if isinstance(b, int) else a
    if isinstance(b, Sym):
        return a
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


def shape_of(owner: Op, what: str, t: TensorType, *ranks: int) -> Shape | None:
    """Shape of an operand whose rank must be one of ``ranks`` (any when none is given); raises ShapeError."""
    if t.shape is not None and ranks and len(t.shape) not in ranks:
        raise owner.fail(f"rank of {what}", f"{len(t.shape)} ({t})", " or ".join(map(str, ranks)))
    return t.shape


def want_dims(owner: Op, what: str, t: TensorType | None, *wanted: Dim | tuple[Dim, ...] | None) -> None:
    """Raise ShapeError where a dimension that is known is not the one wanted, or one of those.

    Symbols are not compared, and None allows any size; an omitted operand is right.
    """
    if t is None or t.shape is None:
        return
    allowed = [w if isinstance(w, tuple) else (w,) for w in wanted]
    fits = len(t.shape) == len(wanted) and all(
        not isinstance(d, int) or d in ways or any(not isinstance(w, int) for w in ways)
        for d, ways in zip(t.shape, allowed, strict=True)
    )
    if not fits:
        shown = ", ".join(" or ".join("any" if w is None else str(w) for w in ways) for ways in allowed)
        raise owner.fail(f"shape of {what}", t, f"[{shown}]")


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
    return [v if isinstance(v, Sym) else int(v) for v in t.value.flat]


def known_length(t: TensorType) -> int | None:
    """Number of elements of an operand of rank 1 (or 0) when it is known."""
    if t.value is not None:
        return int(t.value.size)
    return t.size if t.is_static else None


MAX_RANK = 64
"""Axes of the largest array that NumPy can hold."""


def unknown_shape(count: int | None, hint: str = "d") -> Shape | None:
    """A shape of ``count`` fresh symbols; None when even the rank is unknown; raises ShapeError for a hostile rank."""
    if count is not None and count > MAX_RANK:
        raise ShapeError(f"rank: got {count}, wanted at most {MAX_RANK}")
    return None if count is None else tuple(fresh_dim(hint) for _ in range(count))
