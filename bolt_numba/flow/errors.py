"""What a flow raises beside the errors of sessions."""

import queue

from bolt_numba.base.errors import BoltError


class FlowError(BoltError, RuntimeError):
    """A graph of a flow is not sound, a function of a node failed (``__cause__`` is what it raised), or a flow ended.

    What to do: docs/flow.md#errors
    """


class FlowFullError(FlowError, queue.Full):
    """A flow holds as many tasks as it may, and the time to wait for room is over."""


class FlowEmptyError(FlowError, queue.Empty):
    """No task is finished in the time to wait, or no other will come."""


class FlowDeadlineError(FlowError, TimeoutError):
    """A task was not finished by its deadline."""
