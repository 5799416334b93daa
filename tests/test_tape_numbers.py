"""The numbers of a tape are those of Python: operations, comparisons, tables, decisions, places of blocks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bolt_numba.base.follow import Followed, LostError, Trail, fixed, followed, value_of
from bolt_numba.base.selects import divisor, greatest, least, table
from bolt_numba.devices.tape_code import TapeCode
from bolt_numba.runtime.memory import Block, stacked


def evaluated(trail: Trail, numbers: Sequence[str], wanted: Sequence[Any], sizes: Sequence[int]) -> list[int] | None:
    """Plain numbers of a tape of these lines."""
    lines = TapeCode(trail, numbers, wanted)
    found = lines.at(sizes)
    return None if found is None else [int(found[0][lines.register(w)]) for w in wanted]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_stacked_blocks_never_meet(draw: st.DataObject) -> None:
    count = draw.draw(st.integers(1, 12))
    lives = [sorted(draw.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))) for _ in range(count)]
    first, other = (draw.draw(st.lists(st.integers(1, 4000), min_size=count, max_size=count)) for _ in "ab")
    trail = Trail()
    blocks = [Block(trail.number(f"n{i}_0", n), *life) for i, (n, life) in enumerate(zip(first, lives, strict=True))]
    total = stacked(blocks, [])
    wanted = [b.offset for b in blocks]
    names = [f"n{i}_0" for i in range(count)]
    for sizes in (first, other):
        made = evaluated(trail, names, [*wanted, total], sizes)
        assert made is not None
        *offsets, end = made
        for i in range(count):
            assert offsets[i] % 64 == 0
            assert offsets[i] + sizes[i] <= end
            for j in range(i):
                apart = lives[i][1] < lives[j][0] or lives[j][1] < lives[i][0]
                assert apart or offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


@pytest.mark.parametrize("ask", [lambda t: t == 3, lambda t: t[0] < 1, bool, int, hash, np.asarray, lambda t: t.any()])
def test_a_table_says_nothing_that_no_guard_holds(ask: Any) -> None:
    trail = Trail()
    with pytest.raises(LostError):
        ask(table([trail.number("n0_0", 3), 4]))
    assert not trail.lines


def test_a_table_folds_as_an_array() -> None:
    trail = Trail()
    names = [f"n0_{i}" for i in range(4)]
    made = table([(trail.number(names[0], 5), 2), (trail.number(names[1], 1), 7)])
    assert made.shape == (2, 2)
    wanted = [*made.max(axis=0).tolist(), made[:, 1].min(initial=9).item(), *made.reshape(-1, 4)[0].tolist()]
    for a, b in ((5, 1), (2, 8)):
        plain = np.array([(a, 2), (b, 7)])
        results = [*plain.max(axis=0), plain[:, 1].min(initial=9), *plain.reshape(-1, 4)[0]]
        assert evaluated(trail, names[:2], wanted, [a, b]) == results


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "max", "min")),
    *[st.integers(-(2**54), 2**54) | st.integers(-9, 9) | st.integers(2**53 - 2, 2**53 + 2)] * 4,
    st.floats(-1e9, 1e9), st.booleans(),
)  # fmt: skip
@example("+", 7, 2, 2**53 + 1, 1, 0.5, False)
def test_operations_on_reals_are_those_of_python(
    sign: str, a: int, b: int, c: int, d: int, real: float, is_first: bool
) -> None:
    """An integer that f64 does not hold, or a division by 0, and nothing holds."""
    trail, scope = Trail(), {"max": greatest, "min": least, "real": real}
    x, y = trail.number("n0_0", a), trail.number("n1_0", b)
    text = "real * x, y / 3.0" if is_first else "x / y, real"
    text = f"{sign}({text})" if sign in ("max", "min") else f"({text.replace(', ', f') {sign} (')})"
    try:
        made = eval(text, scope | {"x": x, "y": y})
    except ZeroDivisionError:
        return
    for one, two in ((a, b), (c, d)):
        try:
            wanted = eval(text, scope | {"x": one, "y": two})
        except ZeroDivisionError:
            wanted = None
        got = evaluated(trail, ["n0_0", "n1_0"], [made], [one, two])
        if wanted is None or (abs(two) >= 2**53 or abs(one) >= 2**53):
            assert got is None
        elif isinstance(wanted, bool):
            assert got == [wanted]
        else:
            assert got == np.array([wanted]).view(np.int64).tolist()


def test_an_integer_that_f64_does_not_hold_is_left_to_python() -> None:
    made_of: list[Callable[[Any, int], Any]] = [
        lambda x, n: x / 2 < n, lambda x, n: x / 2 >= n, lambda x, n: x / 2 == n, lambda x, n: x / 2 != n,
        lambda x, n: x / n, lambda x, n: n / x, lambda x, n: greatest(x / 2, n), lambda x, n: least(n, x / 2),
        lambda x, n: x / 0.5 == n, lambda x, n: x / 0.5 < n, lambda x, n: x / 0.5 > n,
    ]  # fmt: skip
    for integer in (2**53 + 1, -(2**53) - 1, 2**61 + 1):
        for make in made_of:
            trail = Trail()
            made = make(trail.number("n0_0", 6), integer)
            for x in (6, 7, 2**53 - 1, 2**52, -(2**52)):
                wanted = make(x, integer)
                bits = np.array([wanted]).view(np.int64).tolist() if isinstance(wanted, float) else [wanted]
                assert evaluated(trail, ["n0_0"], [made], [x]) in (bits, None)


@pytest.mark.parametrize(("n", "most"), [(12, 5), (12, 64), (97, 64), (0, 7), (5, 0), (6, -1), (1, 1)])
def test_divisors_are_those_of_python(n: int, most: int) -> None:
    trail = Trail()
    made = divisor(trail.number("n0_0", 8), trail.number("n1_0", 3))
    wanted = next((d for d in range(most, 0, -1) if n % d == 0), 0)
    assert divisor(n, most) == wanted
    assert evaluated(trail, ["n0_0", "n1_0"], [made], [n, most]) == [wanted]


_WORDS = st.integers(-(2**40), 2**40) | st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1) | st.just(-(2**63))
"""Sizes, and what else inputs and data may say."""
SIGNS = ("+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "<<", ">>", "max", "min")


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(SIGNS), *[st.integers(-(2**40), 2**40) | st.integers(-9, 9)] * 2, *[_WORDS] * 2)
@example("//", 7, 2, -(2**63), -1)
def test_operations_are_those_of_python(sign: str, a: int, b: int, c: int, d: int) -> None:
    """A number of 2 ** 62 and more, or a division by 0, and nothing holds; what is given may be of any size."""
    trail = Trail()
    x, y = trail.number("n0_0", a), trail.number("n1_0", b)
    text = f"{sign}(x, y)" if sign in ("max", "min") else f"x {sign} y"
    try:
        scope = {"x": x, "y": y, "max": greatest, "min": least}
        made = eval(text, scope)
    except (ZeroDivisionError, ValueError, OverflowError, MemoryError):
        return
    if type(made) is not Followed or abs(value_of(made)) >= 2**62:
        return
    for one, two in ((a, b), (c, d)):
        try:
            wanted: int | None = int(eval(text, {"x": one, "y": two}))
        except (ZeroDivisionError, ValueError, OverflowError, MemoryError):
            wanted = None
        if sign == "<<" and (two > 61 or two < 0):
            wanted = None
        got = evaluated(trail, ["n0_0", "n1_0"], [made], [one, two])
        is_told = wanted is not None and max(abs(wanted), abs(one), abs(two)) < 2**62
        assert got == [wanted] or (got is None and not is_told)


DECISIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{sign: lambda a, b, compare=compare: bool(compare(a, b)) for sign, compare in (
        ("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge), ("==", operator.eq),
        ("!=", operator.ne),
    )},
    "length": lambda a, b: len(followed(lambda n: (1,) * n, a)),
    "text": lambda a, b: followed(lambda n: str(n % 4), a),
    "none": lambda a, b: followed(lambda n: None if n == 5 else "some", a) is None,
    "fixed": lambda a, b: fixed(a),
}  # fmt: skip


@pytest.mark.parametrize("made", [(3, 5), (5, 5), (7, 5)])
def test_a_decision_holds_where_it_comes_out_alike(made: tuple[int, int]) -> None:
    for name, decide in DECISIONS.items():
        trail = Trail()
        a, b = (trail.number(f"n{i}_0", size) for i, size in enumerate(made))
        outcome, total = decide(a, b), a + b
        for sizes in ((3, 5), (5, 5), (7, 5), (6, 5), (4, 5)):
            got = evaluated(trail, ["n0_0", "n1_0"], [total], sizes)
            assert got == ([sum(sizes)] if decide(*sizes) == outcome else None), (name, sizes)


def test_what_changes_nothing_is_no_line() -> None:
    trail = Trail()
    n, x = trail.number("n0_0", 5), trail.number("n0_1", 0.5)
    assert all(same is n for same in (n + 0, 0 + n, n - 0, n * 1, 1 * n, n // 1))
    assert (n * 0, 0 * n, n == n, n < n) == (0, 0, True, False)
    assert not trail.lines
    made = [0 - n, 1 // n, x * 0, x + 0, x == x, (n > 3) * 1, n * 1.0]
    assert all(type(one) is Followed for one in made)
    assert list(map(value_of, made)) == [-5, 0, 0.0, 0.5, True, 1, 5.0]
