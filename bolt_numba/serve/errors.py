"""What a request that cannot be answered raises, and what HTTP and gRPC call it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import reprlib
from typing import Any

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.errors import BoltError, BudgetError, DeviceError, InternalError, KernelError
from bolt_numba.flow.errors import FlowDeadlineError, FlowFullError
from bolt_numba.serve.metrics import FAILURES

log = logging.getLogger("bolt_numba.serve")

_shortly = reprlib.Repr()
_shortly.maxlevel, _shortly.maxstring = 2, 80

MOST_SAID = 2000
"""Letters of an error that are told: those of a request may be many, and gRPC tells them in its header."""

STATUS = {
    "invalid": (400, "INVALID_ARGUMENT"),
    "long": (400, "INVALID_ARGUMENT"),
    "denied": (401, "UNAUTHENTICATED"),
    "missing": (404, "NOT_FOUND"),
    "slow": (408, "DEADLINE_EXCEEDED"),
    "large": (413, "RESOURCE_EXHAUSTED"),
    "busy": (429, "RESOURCE_EXHAUSTED"),
    "cancelled": (499, "CANCELLED"),
    "internal": (500, "INTERNAL"),
    "unavailable": (503, "UNAVAILABLE"),
    "late": (504, "DEADLINE_EXCEEDED"),
}
"""Kinds of failures: status of HTTP, and of gRPC."""


class RequestError(BoltError):
    """A request that cannot be answered.  kind: a row of `STATUS`.  field: what of it is at fault, if that is told."""

    def __init__(self, text: str, kind: str = "invalid", field: str | None = None) -> None:
        super().__init__(text)
        self.kind, self.field = kind, field


def kind_of(error: BaseException) -> str:
    """The row of `STATUS` that an error belongs to."""
    if isinstance(error, RequestError):
        return error.kind
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, FlowFullError):
        return "busy"
    if isinstance(error, (FlowDeadlineError, TimeoutError)):
        return "late"
    if isinstance(error, (BudgetError, MemoryError)):
        return "large"
    if isinstance(error, (InternalError, KernelError, DeviceError)):
        return "internal"
    return "invalid" if isinstance(error, (BoltError, RecursionError)) else "internal"


def failure(error: Exception) -> tuple[str, str]:
    """The row of `STATUS` that an error belongs to, and what is told of it; it is counted, and logged if our fault."""
    kind = kind_of(error)
    FAILURES.labels(kind).inc()
    if kind == "internal":
        log.error("a request failed", exc_info=error)
    return kind, spelled(str(as_bolt_error(error, "request")) or kind)[:MOST_SAID]


def shown(given: Any) -> str:
    """What a request has, as an error tells it.  The text of all of a large list would take seconds."""
    return _shortly.repr(given)[: _shortly.maxstring]


def spelled(text: str) -> str:
    """A text in which what is no Unicode is spelled: names of files may have it, JSON and metrics may not."""
    return text.encode(errors="backslashreplace").decode()


def want_token(wanted: str | None, given: str) -> None:
    """Raises RequestError where a request's authorization is not that of the server."""
    if wanted is not None and not hmac.compare_digest(given.removeprefix("Bearer ").encode(), wanted.encode()):
        raise RequestError("authorization: got no token, or another, wanted 'Bearer' and the server's", "denied")


def want_few(what: str, count: int, most: int) -> None:
    """Raises RequestError for more than that."""
    if count > most:
        raise RequestError(f"{what}: got {count}, wanted at most {most}", "large")
