"""Functions that tests have called in other processes; imports little, as each process imports it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

KEPT: list[Any] = []


def twice(x: Any) -> Any:
    return x * 2


def turned(values: Any) -> Any:
    """The same with each array turned round."""
    if isinstance(values, np.ndarray):
        return values[::-1]
    if isinstance(values, dict):
        return {key: turned(value) for key, value in values.items()}
    return type(values)(turned(value) for value in values) if isinstance(values, (list, tuple)) else values


def with_pid(x: Any) -> Any:
    return x, os.getpid()


def keeps(x: Any) -> Any:
    """The sums of all that came so far."""
    KEPT.append(x[1:])
    return [float(kept.sum()) for kept in KEPT]


def fails(x: Any) -> Any:
    if x < 0:
        raise ValueError(f"negative: {x}")
    return x


class StrangeError(Exception):
    """Can be pickled, and not read again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("strange")


def strange(x: Any) -> Any:
    raise StrangeError(1, 2)


def dies(x: Any) -> Any:
    if int(np.max(x)) == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    if int(np.max(x)) == 14:
        os._exit(5)
    return x, os.getpid()


def sleeps(x: Any) -> Any:
    time.sleep(float(x))
    return os.getpid()


def counted(x: Any, seen: int) -> Any:
    return seen, seen + 1


def cpus(x: Any) -> Any:
    return os.sched_getaffinity(0)


def missing(x: Any) -> Any:
    raise FileNotFoundError(2, "No such file", "nothing")


def only(x: Any) -> Any:
    """As `dies`, without its number."""
    return dies(x)[0]


class MuteError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def mute(x: Any) -> Any:
    raise MuteError
