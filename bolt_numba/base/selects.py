"""Choices between numbers that a trail (`bolt_numba.base.follow`) has as lines, where an ``if`` would decide them."""

from __future__ import annotations

from typing import Any

from bolt_numba.base.follow import FORMS, followed


def greatest(a: Any, b: Any) -> Any:
    """The greater one, where `max` would decide which it is."""
    return followed(max, a, b)


def least(a: Any, b: Any) -> Any:
    """The lesser one, see `greatest`."""
    return followed(min, a, b)


def either(condition: Any, one: Any, other: Any) -> Any:
    """One of two integers."""
    return one if condition is True else other if condition is False else other + condition * (one - other)


def divisor(n: Any, most: Any) -> Any:
    """The greatest divisor of ``n``, of which ``most`` is the greatest that counts; 0 where that is less than 1."""
    return followed(_divisor, n, most)


def _divisor(n: int, most: int) -> int:
    return next((d for d in range(min(most, n) if n > 0 else most, 0, -1) if n % d == 0), 0)


FORMS[_divisor] = "divisor"
