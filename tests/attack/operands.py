"""Operands that do not fit: every operator with each operand in turn of a wrong rank, length, dtype or edge value.

Whole plans run, between guard pages (`tests.guarded_sessions`); constants stand between such pages, too.  Cases are
those of `tests.cases`; a number makes the same change to the same case every time.  The references judge: what a
session computes they compute, with the same result, and what it refuses for its content they refuse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

import bolt_numba as bn
from bolt_numba.errors import DataError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.binary import BinaryConv, BinaryMatMul, packed_bits
from bolt_numba.ops.registry import OPS, Op
from bolt_numba.types import STRING, U32, Array, Sym, TensorType, type_of
from tests.attack.child import LIFE, Result, at, drive, refusal
from tests.beyond import watched
from tests.cases import CASES, Case
from tests.guarded_sessions import copy_of, install, told

DRAWN = 40
"""Cases drawn for each operator."""
LOOSE = 1e-3
"""Relative to the greatest magnitude: more is a wrong result, not rounding."""
SHAPES = ("as drawn", "rank up", "rank down", "longer", "shorter", "double", "empty", "single", "omitted", "dtype")
_LARGE = (2**31 - 1, 2**31, -(2**31), 2**61, 2**63 - 1, -(2**63), -1, 0, 1, 255, 2**24 + 1)
_REAL = (np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-40, 0.0, 2.0**31, 2.0**63, -1.0)


@functools.cache
def drawn(op: type[Op]) -> tuple[Case, ...]:
    """The same cases every time."""
    found: list[Case] = []

    @settings(
        deadline=None, database=None, derandomize=True, max_examples=DRAWN, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=CASES[op]())
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return tuple(found)


def reshaped(kind: str, a: Array, rng: np.random.Generator) -> Array | None:
    """The operand with another shape or dtype; its content is repeated or cut."""
    axis = int(rng.integers(a.ndim)) if a.ndim else 0
    match kind:
        case "omitted":
            return None
        case "dtype":
            others = [d for d in (np.float32, np.int64, np.uint8, np.bool_, np.float64, np.int32) if d != a.dtype]
            if a.dtype == STRING:
                return np.zeros(a.shape, np.int64)
            with np.errstate(all="ignore"):
                return a.astype(others[rng.integers(len(others))])
        case "rank up":
            return a[None] if rng.random() < 0.5 else a[..., None]
        case "rank down":
            return a.reshape(-1) if a.ndim != 1 or not a.size else a[:1].reshape(())
    if not a.ndim:
        return np.repeat(a[None], 3)
    size = a.shape[axis]
    length = {"longer": size + 1, "shorter": max(size - 1, 0), "double": 2 * size, "empty": 0, "single": 1}[kind]
    if not a.size:
        return np.zeros([length if i == axis else d for i, d in enumerate(a.shape)], a.dtype)
    return np.take(a, np.arange(length) % size, axis)


def extreme(a: Array, rng: np.random.Generator, sizes: Iterable[int] = ()) -> Array:
    """The operand with one element, or all, of an edge value; bools may hold any byte.

    sizes: of axes that it may point into: an index is wrong first at those.
    """
    made = a.copy()
    flat = made.reshape(-1)
    if not flat.size or a.dtype == STRING:
        return made
    where = slice(None) if rng.random() < 0.3 else int(rng.integers(flat.size))
    if a.dtype == np.bool_:
        flat.view(np.uint8)[where] = (2, 128, 255)[rng.integers(3)]
    elif a.dtype.kind in "iu":
        info = np.iinfo(a.dtype)
        ends = sorted({a.size, *a.shape, *sizes})
        if rng.random() < 0.5:
            value = int(ends[rng.integers(len(ends))]) + int(rng.integers(2))
            value = -value if rng.random() < 0.5 else value
        else:
            value = _LARGE[rng.integers(len(_LARGE))]
        flat[where] = min(max(value, int(info.min)), int(info.max))
    else:
        with np.errstate(all="ignore"):
            flat[where] = np.asarray(_REAL[rng.integers(len(_REAL))]).astype(a.dtype)
    return made


def spoilt(case: Case, rng: np.random.Generator) -> tuple[str, list[Array | None], bool]:
    """One or two operands changed; whether all changes are of what is discrete, so that reals remain as they were."""
    operands = list(case.inputs)
    sizes = {d for a in operands if a is not None for d in a.shape}
    kinds, discrete = [], True
    for _ in range(1 + (rng.random() < 0.2)):
        present = [i for i, a in enumerate(operands) if a is not None]
        if not present:
            break
        index = present[rng.integers(len(present))]
        a = operands[index]
        assert a is not None
        kind = "extreme" if rng.random() < 0.5 else SHAPES[rng.integers(1, len(SHAPES))]
        operands[index] = extreme(a, rng, sizes) if kind == "extreme" else reshaped(kind, a, rng)
        kinds.append(kind)
        discrete &= kind != "extreme" or a.dtype.kind in "iub"
    return min(kinds, default="as drawn"), operands, discrete


def as_packed(op: Op, operands: Sequence[Array | None]) -> list[Array | None]:
    """The operands with the bits that packs never have made 0; binary products count on that (`PACKED`)."""
    x, w, *_ = (*operands, None, None)
    if not isinstance(op, (BinaryConv, BinaryMatMul)) or x is None or w is None or x.dtype != U32 or w.ndim < 2:
        return [*operands]
    axis = 1 if isinstance(op, BinaryConv) and op.layout == "NCHW" else -1
    if x.ndim <= max(axis, 0):
        return [*operands]
    channels = len(w) if isinstance(op, BinaryMatMul) else w.shape[1] * op.group
    bits = np.resize(packed_bits(np.ones(channels, bool), 0), x.shape[axis])
    return [np.moveaxis(np.moveaxis(x, axis, -1) & bits, -1, axis), *operands[1:]]


def placed(a: Array, right: bool) -> Array:
    """The operand in guarded memory."""
    return a if a.dtype == STRING else copy_of(a, right)


def graph_of(
    op: Op, operands: Sequence[Array | None], right: bool, rng: np.random.Generator
) -> tuple[Graph, dict[str, Array]]:
    """The operator alone with its feeds; some operands are constants, and the shapes of the others may be symbols.

    Symbols hide from inference what does not fit, until a plan is made.
    """
    graph = Graph(op.name)
    build = Builder(graph)
    hidden, feeds, given = rng.random() < 0.6, {}, []
    for i, a in enumerate(operands):
        if a is None or (i and rng.random() < 0.4):
            given.append(None if a is None else build.const(placed(a, right)))
            continue
        dims = tuple(Sym(f"d{i}_{axis}") if hidden else d for axis, d in enumerate(a.shape))
        name = f"x{i}"
        given.append(graph.add_input(name, TensorType(a.dtype, dims)))
        feeds[name] = placed(a, right)
    for out in build.node(op, *given).outputs:
        graph.add_output(out)
    return graph, feeds


def meant(op: Op, operands: Sequence[Array | None]) -> list[Any]:
    """What the references give.

    Inference knows the content of operands that shapes follow from.  Of others it refuses constants that make no
    sense, as a scale below 0; a run computes with such numbers.
    """
    graph = Graph(op.name)
    feeds = {f"x{i}": a for i, a in enumerate(operands) if a is not None}
    types = [None if a is None else type_of(a) for a in operands]
    known = [t if t is None or i in op.value_inputs else t.with_value(None) for i, t in enumerate(types)]
    given = [None if t is None else graph.add_input(f"x{i}", t) for i, t in enumerate(known)]
    for out in Builder(graph).node(op, *given).outputs:
        graph.add_output(out)
    return list(interpret(graph, feeds).values())


def agrees(got: Any, wanted: Any, exact: bool) -> bool:
    """Whether a result is what the reference gives, but for rounding.

    exact: levels of quantised results and casts of computed reals may not differ at a boundary of rounding.
    """
    wanted = np.asarray(wanted)
    if not isinstance(got, np.ndarray):
        return True
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if got.dtype.kind not in "fiub" or same(got, wanted):
        return got.dtype != STRING or same(got, wanted)
    if got.dtype.kind in "iub":
        return not exact and bool(np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max() <= 1)
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not (np.isfinite(got) == finite).all():
        return False
    scale = float(np.abs(wanted[finite]).max(initial=1e-30))
    return bool((np.abs(got[finite] - wanted[finite]) <= LOOSE * scale).all())


def same(got: Any, wanted: Any) -> bool:
    """Whether all elements are equal, NaN to NaN."""
    return np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f")


def attack(op: type[Op], seed: int) -> tuple[str, str, str]:
    """Kind, state and detail of one case."""
    rng = np.random.default_rng((seed, *op.__name__.encode()))
    cases = drawn(op)
    case = cases[rng.integers(len(cases))]
    kind, operands, discrete = spoilt(case, rng)
    operands = as_packed(case.op, operands)
    described = f"{case} {['-' if a is None else f'{a.dtype}{list(a.shape)}' for a in operands]}"
    raised: Exception | None = None
    results: list[Array] = []
    try:
        graph, feeds = graph_of(case.op, operands, bool(rng.random() < 0.5), rng)
        with np.errstate(all="ignore"), watched() as touched:
            results = bn.compile(graph, threads=int(rng.integers(1, 3))).run(None, feeds)
        if touched.first:
            return kind, "beyond", f"{told(touched)} {described}"
    except Exception as error:
        raised = error.with_traceback(None)  # which would keep arrays
        state, detail = refusal(error)
        if state != "refused":
            return kind, state, f"{detail} {described}"
        if not is_for_content(error):
            return kind, state, detail
    if case.op.has_side_state or (raised is None and not any(a.size for a in results)):
        return kind, "ran", ""  # nothing to compare; what was to become nothing is not looked at
    at("judge")
    try:
        wanted = meant(case.op, operands)
    except Exception as error:
        if raised is not None:
            return kind, "refused", type(raised).__name__
        return kind, "lax", f"the reference refuses: {type(error).__name__}: {error} {described}"
    if raised is not None:
        return kind, "timid", f"the reference computes what is refused: {raised} {described}"
    fits = same if kind == "extreme" and case.exact else functools.partial(agrees, exact=case.exact)
    if discrete and not all(fits(got, np.asarray(want)) for got, want in zip(results, wanted, strict=True)):
        return kind, "wrong", described
    return kind, "ran", ""


def is_for_content(error: Exception) -> bool:
    """Whether an operator was refused for what operands hold, or without a reason of ours: references must agree."""
    return isinstance(error, DataError) or "cannot be computed" in str(error)


def names() -> list[str]:
    """Every operator with cases."""
    return sorted(op.name for op in CASES if op.name in OPS and op.name != "RangeRounded")  # sessions leave that exact


def attack_one_of(ops: Sequence[type[Op]], seed: int) -> tuple[str, str, str]:
    """A case of each operator in turn."""
    return attack(ops[seed % len(ops)], seed // len(ops))


def prepare(chosen: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers for operators, given by name, with memory of plans between guard pages."""
    install()
    by_name = {op.name: op for op in CASES}
    return functools.partial(attack_one_of, [by_name[name] for name in chosen.split(",")]), ("ran", "")


def attack_operands(count: int, seed: int, only: Sequence[str] = ()) -> Iterator[Result]:
    """``count`` cases, the same number for every operator; a child that has run many is replaced."""
    chosen = [n for n in names() if not only or n in only]
    for first in range(seed, seed + count, LIFE):
        seeds = range(first, min(first + LIFE, seed + count))
        yield from drive("operands", ["-m", "tests.attack", "operands", "--work", ",".join(chosen)], seeds)
