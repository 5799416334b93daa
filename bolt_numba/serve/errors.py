"""What a request that cannot be answered raises, and what HTTP and gRPC call it."""

from __future__ import annotations

from bolt_numba.base.errors import BoltError, BudgetError
from bolt_numba.flow.errors import FlowDeadlineError, FlowFullError

STATUS = {
    "invalid": (400, "INVALID_ARGUMENT"),
    "denied": (401, "UNAUTHENTICATED"),
    "missing": (404, "NOT_FOUND"),
    "large": (413, "RESOURCE_EXHAUSTED"),
    "busy": (429, "RESOURCE_EXHAUSTED"),
    "cancelled": (499, "CANCELLED"),
    "internal": (500, "INTERNAL"),
    "unavailable": (503, "UNAVAILABLE"),
    "late": (504, "DEADLINE_EXCEEDED"),
}
"""Kinds of failures: status of HTTP, and of gRPC."""


class RequestError(BoltError):
    """A request that cannot be answered.  kind: a row of `STATUS`."""

    def __init__(self, text: str, kind: str = "invalid") -> None:
        super().__init__(text)
        self.kind = kind


def kind_of(error: BaseException) -> str:
    """The row of `STATUS` that an error belongs to."""
    if isinstance(error, RequestError):
        return error.kind
    if isinstance(error, FlowFullError):
        return "busy"
    if isinstance(error, (FlowDeadlineError, TimeoutError)):
        return "late"
    if isinstance(error, (BudgetError, MemoryError)):
        return "large"
    return "invalid" if isinstance(error, BoltError) else "internal"
