"""Errors under onnxruntime's names, and bolt-numba's errors that are of these kinds, too.

What the drop-in raises can be caught by either name: a `ShapeError` that comes through it is an `InvalidArgument`.
Where onnxruntime has several names for one fault, ours has all of them.
"""

from __future__ import annotations

import errno
from typing import NoReturn

from bolt_numba.base import errors as ours
from bolt_numba.base.border import as_bolt_error, shortened


class Fail(Exception):
    """Anything that went wrong and has no name of its own."""


class InvalidArgument(Exception):
    """What a caller gave does not fit the model."""


class InvalidGraph(Exception):
    """The graph of a file breaks the rules of its format."""


class InvalidProtobuf(Exception):
    """The file is no protobuf of a model."""


class NoSuchFile(Exception):
    """There is no file of this name."""


class NotImplemented(Exception):
    """What was asked for is not provided."""


class RuntimeException(Exception):
    """A fault of the engine, or of the system below it."""


class EngineError(Exception):
    """A fault of the engine; nothing here raises it."""


class EPFail(Exception):
    """A fault of an execution provider; nothing here raises it."""


class ModelLoaded(Exception):
    """A session that has a model was asked to load one; nothing here raises it."""


class ModelLoadCanceled(Exception):
    """Loading was cancelled."""


class ModelRequiresCompilation(Exception):
    """A model must be compiled for its provider first; nothing here raises it."""


class NoModel(Exception):
    """A session without a model was run; nothing here raises it."""


class NotFound(Exception):
    """Something named was not found; nothing here raises it."""


class DeviceReset(Exception):
    """A device was lost; nothing here raises it."""


class OrtModelError(ours.InvalidModelError, InvalidProtobuf, InvalidGraph, InvalidArgument, Fail):
    """A file that is no valid model."""


class OrtShapeError(ours.ShapeError, RuntimeError, InvalidArgument, InvalidGraph, Fail):
    """Shapes that do not fit, of an input or in the model."""


class OrtDataError(ours.DataError, RuntimeError, InvalidArgument, Fail):
    """Content of an operand that asks for what is not there."""


class OrtDTypeError(ours.DTypeError, RuntimeError, InvalidArgument, InvalidGraph, Fail):
    """A dtype or a type of Python that is not the one wanted."""


class OrtUnsupportedError(ours.UnsupportedOpError, NotImplemented, InvalidGraph, Fail):
    """Operators that have no meaning here."""


class OrtBudgetError(ours.BudgetError, RuntimeException, Fail):
    """More memory or work than a session may take."""


class OrtTimeLimitError(ours.TimeLimitError, RuntimeException, Fail):
    """A run that took longer than it may."""


class OrtTerminatedError(ours.CancelledError, Fail):
    """A run whose options say that it is to end."""


class OrtDeviceError(ours.DeviceError, InvalidArgument, RuntimeException, Fail):
    """A device that does not exist here or failed."""


class OrtInternalError(ours.InternalError, RuntimeException, Fail):
    """A fault of bolt-numba."""


class OrtSimulationError(ours.SimulationError, RuntimeException, Fail):
    """A kernel that did on the simulated GPU what it must not."""


class OrtKernelError(ours.KernelError, RuntimeException, Fail):
    """A kernel that cannot be compiled."""


class OrtNoSuchFileError(FileNotFoundError, NoSuchFile, Fail):
    """A file that is not there."""


class OrtOptionError(ours.BoltError, ValueError, RuntimeError, InvalidArgument):
    """An option, a name or a value that cannot be."""


class OrtWrongOptionError(ours.OptionError, OrtOptionError, RuntimeException, Fail):
    """An option of bolt-numba's own that cannot be."""


class OrtRefusedError(ours.BoltError, NotImplementedError, RuntimeError, NotImplemented, Fail):
    """Something of onnxruntime's that the drop-in does not provide; docs/onnxruntime.md lists it."""


KINDS: dict[type[Exception], type[Exception]] = {
    ours.InvalidModelError: OrtModelError,
    ours.ShapeError: OrtShapeError,
    ours.DataError: OrtDataError,
    ours.DTypeError: OrtDTypeError,
    ours.UnsupportedOpError: OrtUnsupportedError,
    ours.BudgetError: OrtBudgetError,
    ours.TimeLimitError: OrtTimeLimitError,
    ours.CancelledError: OrtTerminatedError,
    ours.DeviceError: OrtDeviceError,
    ours.OptionError: OrtWrongOptionError,
    ours.InternalError: OrtInternalError,
    ours.KernelError: OrtKernelError,
    ours.SimulationError: OrtSimulationError,
    ours.BoltError: OrtOptionError,
}
"""Kind of an error as bolt-numba raises it -> its kind through the drop-in."""


def leave_as_theirs(error: Exception, what: str, *passing: type[Exception]) -> NoReturn:
    """Raise an error of bolt-numba's so that onnxruntime's name catches it, too; those in ``passing`` as they are."""
    is_absent = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENAMETOOLONG)
    if is_absent and FileNotFoundError not in passing:
        raise OrtNoSuchFileError(*error.args[:2], getattr(error, "filename", None)) from None
    if type(error) not in KINDS and not isinstance(error, passing):
        error = as_bolt_error(error, what)
    made = KINDS.get(type(error))
    if made is not None:
        error.__class__ = made  # keeps message, cause and trace
    raise shortened(error)
