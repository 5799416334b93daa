"""Positions of extremes along one axis; f32 in vectors, other dtypes in scalar loops."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import partial

from bolt_numba.base.types import F32, F64, AnyDType, TensorType, dtype_name
from bolt_numba.kernels.cpu.language.lang import I64, LANES, PTR
from bolt_numba.kernels.cpu.machine import PAYS_ELEMENTS
from bolt_numba.kernels.cpu.reductions.reduce import generated
from bolt_numba.kernels.extents import Numbers, Reach
from bolt_numba.kernels.registry import Argument, In, Scratch, Step

GATHERED_LINE = 4
"""Elements of lines of f32 up to which they are gathered, one line in each lane; longer ones are transposed."""
SHORT_LINE = 3 * LANES
"""Elements of lines of f32 up to which `LANES` of them are taken together, one in each lane."""
COLUMNS = 512
"""Columns that scalar loops take together."""


def _transposed_text() -> str:
    """Lines that compare the next `LANES` elements of as many lines: rows become columns by interleaving halves."""
    rows = [f"r{j} = vload_n(source + 4 * (min({j}, rows - 1) * n + i), n - i)" for j in range(LANES)]
    names, half, turn = [f"r{j}" for j in range(LANES)], LANES // 2, 0
    while 2**turn < LANES:
        made = [f"{'abcd'[turn]}{j}" for j in range(LANES)]
        for j in range(half):
            rows.append(f"{made[2 * j]} = interleave_low({names[j]}, {names[j + half]})")
            rows.append(f"{made[2 * j + 1]} = interleave_high({names[j]}, {names[j + half]})")
        names, turn = made, turn + 1
    rows += ["if i == 0:", f"    best = {names[0]}"]
    for j, name in enumerate(names):
        rows += [f"if n > i + {j}:", f"    v = {name}", "    wins = BEATS"]
        rows.append(f"    best, where = select(wins, v, best), select(wins, splat(i32(i + {j})), where)")
    return "\n".join(" " * 16 + row for row in rows)


_STORE = """
            if width == LANES:
                none = splat(i32(0))
                vstore(to, interleave_low(where, none))
                vstore(to + 4 * LANES, interleave_high(where, none))
            else:
                for j in range(width):
                    store_i64(to + 8 * j, i64(lane(where, j)))"""
"""Places as i64, two i32 each."""


def _vector_text(name: str, sign: str, last: bool) -> str:
    """Positions along axis 1 of ``[outer, n, inner]``; ``sign`` says when an element beats the best so far.

    The first (or last) NaN beats everything, as in NumPy.  short: 0, or how many short lines there are in blocks of
    `LANES`, of which ``outer`` are made.
    """
    unless = {">": "<=", "<": ">="}[sign]
    beats = f"(v {sign}= best) | (v != v)" if last else f"~(v {unless} best) & (best == best)"
    nan = 2147483647 if sign == ">" else -2147483648
    extreme = "reduce_max" if sign == ">" else "reduce_min"
    place = "reduce_max(select(hit, where, splat(i32(-1))))" if last else (
        "reduce_min(select(hit, where, splat(i32(2147483647))))")  # fmt: skip
    return f"""
def {name}(p, tid, nthreads):
    x, y, n, inner, blocks, short = p.x, p.y, p.n, p.inner, p.blocks, p.short
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        if short:
            width = min(LANES, short - o * LANES)
            rows = width
            source = x + 4 * o * LANES * n
            to = y + 8 * o * LANES
            where = splat(i32(0))
            best = splat(0.0)
            if n == 2 and width == LANES:
                u, w = vload(source), vload(source + 4 * LANES)
                best, v = even_lanes(u, w), odd_lanes(u, w)
                wins = {beats}
                where = select(wins, splat(i32(1)), where)
            elif n <= {GATHERED_LINE}:
                at = vmin(iota(), splat(i32(rows - 1))) * i32(n)
                best = vgather(source, at)
                for i in range(1, n):
                    v = vgather(source + 4 * i, at)
                    wins = {beats}
                    best, where = select(wins, v, best), select(wins, splat(i32(i)), where)
            else:
              for i in range(0, n, LANES):
{_transposed_text().replace("BEATS", beats)}{_STORE}
        elif inner == 1:
            source = x + 4 * o * n
            best = splat(load_f32(source))
            where = splat(i32(0))
            at = iota()
            for i in range(0, n - LANES + 1, LANES):
                v = vload(source + 4 * i)
                wins = {beats}
                best, where = select(wins, v, best), select(wins, at, where)
                at = at + LANES
            left = n % LANES
            if left:
                v = vload_n(source + 4 * (n - left), left)
                wins = ({beats}) & lanes_below(left)
                best, where = select(wins, v, best), select(wins, at, where)
            bits = bits_of(select(best == 0.0, splat(0.0), best))
            order = select(best != best, splat(i32({nan})), bits ^ ((bits >> i32(31)) & i32(2147483647)))
            hit = order == splat({extreme}(order))
            store_i64(y + 8 * o, i64({place}))
        else:
            column = (item - o * blocks) * LANES
            width = min(inner - column, LANES)
            source = x + 4 * (o * n * inner + column)
            best = vload_n(source, width)
            where = splat(i32(0))
            for i in range(1, n):
                v = vload_n(source + 4 * i * inner, width)
                wins = {beats}
                best, where = select(wins, v, best), select(wins, splat(i32(i)), where)
            to = y + 8 * (o * inner + column){_STORE}
"""


def _scalar_text(name: str, sign: str, last: bool, dtype: AnyDType) -> str:
    """The same for any other dtype; room: `COLUMNS` times 8 bytes for each thread."""
    t, unit, equal = dtype_name(dtype), dtype.itemsize, "=" if last else ""
    beats = f"v {sign}{equal} b"
    if dtype == F64:
        beats += " or v != v" if last else " or (v != v and b == b)"
    return f"""
def {name}(p, tid, nthreads):
    n, inner, blocks = p.n, p.inner, p.blocks
    first, last = split(p.outer * blocks, tid, nthreads)
    for item in range(first, last):
        o = item // blocks
        column = (item - o * blocks) * {COLUMNS}
        width = min(inner - column, {COLUMNS})
        y = view(p.y + 8 * (o * inner + column), width, i64)
        if inner == 1:
            x = view(p.x + {unit} * o * n, n, {t})
            b, place = x[0], 0
            for i in range(n):
                v = x[i]
                if {beats}:
                    b, place = v, i
            y[0] = place
            continue
        best = view(p.room + {8 * COLUMNS} * tid, width, {t})
        x = view(p.x + {unit} * (o * n * inner + column), width, {t})
        for j in range(width):
            best[j] = x[j]
            y[j] = 0
        for i in range(n):
            x = view(p.x + {unit} * ((o * n + i) * inner + column), width, {t})
            for j in range(width):
                v, b = x[j], best[j]
                wins = {beats}
                best[j] = v if wins else b
                y[j] = i if wins else y[j]
"""


_FIELDS = dict.fromkeys(("x", "y", "room"), PTR) | dict.fromkeys(("outer", "n", "inner", "blocks", "short"), I64)


def _reach(unit: int, has_room: bool, a: Numbers) -> dict[str, Reach]:
    lines = (a.short or a.outer) * a.inner
    return {"x": unit * lines * a.n, "y": 8 * lines, "room": 8 * COLUMNS * a.threads if has_room else 0}


def step(x: TensorType, form: tuple[int, int, int], y: Argument, least: bool, last: bool, threads: int) -> Step:
    """Positions of the first or the ``last`` extreme along axis 1 of In(0)."""
    (outer, n, inner), sign = form, "<" if least else ">"
    name = f"arg_{'min' if least else 'max'}_{'last' if last else 'first'}_{dtype_name(x.dtype)}"
    vectors = x.dtype == F32
    text = _vector_text(name, sign, last) if vectors else _scalar_text(name, sign, last, x.dtype)
    blocks = 1 if inner == 1 else -(-inner // (LANES if vectors else COLUMNS))
    args: dict[str, Argument] = {"x": In(0), "y": y, "room": None if vectors else Scratch(8 * COLUMNS * threads)}
    short = outer if vectors and inner == 1 and n <= SHORT_LINE else 0
    outer = -(-outer // LANES) if short else outer
    args |= {"outer": outer, "n": n, "inner": inner, "blocks": blocks, "short": short}
    extents = partial(_reach, x.dtype.itemsize, not vectors)
    return Step(generated(text, name, extents, **_FIELDS), args, (x.size > 2 * PAYS_ELEMENTS) & (outer * blocks > 1))
