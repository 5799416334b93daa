"""What leaves the package is a `BoltError`: every other exception gets a kind, the node it came from, and its cause.

Not so: KeyboardInterrupt and its like, TypeErrors of calls that Python itself refuses, OSErrors of files that the
caller names, what functions of the caller raise.

Tracebacks of what callers can mend end at the public function: frames inside say nothing to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bolt_numba.base.config import TRACEBACKS
from bolt_numba.base.errors import (
    BoltError,
    BudgetError,
    DTypeError,
    InternalError,
    InvalidModelError,
    KernelError,
    SimulationError,
    UnsupportedOpError,
)

P = ParamSpec("P")
T = TypeVar("T")

_OURS = "bolt-numba"


def as_bolt_error(error: Exception, what: str, whose: str = _OURS) -> BoltError:
    """The error itself, or the BoltError that says ``what`` met it; whose: what has the fault."""
    if isinstance(error, BoltError):
        return error
    said = str(error) or "no reason given"
    if isinstance(error, MemoryError):
        return BudgetError(f"{what}: memory: the system gave no more: {said}")
    if isinstance(error, RecursionError):
        return InvalidModelError(f"{what}: got what is nested too deep, wanted fewer levels")
    if isinstance(error, ModuleNotFoundError) and whose == _OURS and _package(error) != _PACKAGE:
        name = _package(error)
        return BoltError(f"{what}: package {name}: got none, wanted it: pip install {_INSTALLED_AS.get(name, name)}")
    return InternalError(f"{what}: {type(error).__name__}: {said} (this is a fault of {whose})")


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def at_node(error: Exception, op: Any, name: str) -> BoltError:
    """An error of one node, as a BoltError that names it.

    What `infer` or a reference raises because of the model or the data comes as a BoltError (`ir.build.infer_types`,
    `ops.registry.op`); all else is a fault of the package that the operator is of.
    """
    if isinstance(error, UnsupportedOpError):
        return error
    if isinstance(error, BoltError):
        return type(error)(f"node {name!r}: {error}")
    return as_bolt_error(error, f"node {name!r}: {op.name}", _owner(error, type(op).__module__))


def _owner(error: Exception, module: str) -> str:
    """Whose fault an error of an operator of a module is."""
    is_ours = module.partition(".")[0] == _PACKAGE
    return place_of(error) or (_OURS if is_ours else f"module {module}")


_PACKAGE = __package__.partition(".")[0]
_INSTALLED_AS = {"google": "protobuf"} | dict.fromkeys(("tokenizers", "jinja2", "llguidance"), "'bolt-numba[text]'")
"""Packages of another name than what they are imported by, and extras that have several."""
_NOBODYS = {
    _PACKAGE,
    "numpy",
    "ml_dtypes",
    "numba",
    "llvmlite",
    "onnx",
    "google",
    "flatbuffers",
} | sys.stdlib_module_names
"""Whose frames are no place in a module of the user's."""


def place_of(error: Exception) -> str:
    """Where in a module of another package an error was met, or ""; as ``module acme, function infer, line 27``."""
    from traceback import walk_tb  # 3 ms that starts do without

    place = ""
    for frame, line in walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module and module.partition(".")[0] not in _NOBODYS:
            place = f"module {module}, function {frame.f_code.co_name}, line {line}"
    return place


_THEIRS = "_raised_by_the_caller"


def theirs(what: str, function: Any) -> Callable[..., Any]:
    """A function of the caller's: what it raises leaves the package as it is.  Raises DTypeError where it is none."""
    if not callable(function):
        raise DTypeError(f"{what}: got {function!r:.80}, wanted a function")

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            vars(error)[_THEIRS] = True
            raise

    return called


def shortened(error: Exception) -> Exception:
    """The error without the frames that it went through, unless they say where a fault is; its cause stays."""
    if TRACEBACKS.value != "1" and not isinstance(error, (InternalError, KernelError, SimulationError)):
        error.__suppress_context__ = True
        error.__traceback__ = None
    return error


def left(error: Exception, what: str, *passing: type[Exception]) -> Exception:
    """What leaves the package in the place of an error; those of the kinds in ``passing`` and the caller's stay."""
    if _THEIRS in vars(error):
        return error
    if isinstance(error, (BoltError, Warning, *passing)):  # a warning is an error where the caller wants it
        return shortened(error)
    made = as_bolt_error(error, what, place_of(error) or _OURS)
    made.__cause__ = error
    return made


def warn_caller(text: str, kind: type[Warning]) -> None:
    """A warning that names the line by which the package was called."""
    import warnings

    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bolt_numba."):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def _mistaken(function: Any, arguments: dict[str, Any], what: str) -> DTypeError | None:
    """What to say where an argument is of another class than the function declares, which may be why it failed."""
    for name, value in arguments.items():
        wanted: Any = function.__globals__.get(function.__annotations__.get(name))
        is_ours = isinstance(wanted, type) and wanted.__module__.startswith("bolt_numba.")
        if is_ours and not getattr(wanted, "_is_protocol", False) and not isinstance(value, wanted):
            return DTypeError(f"{what}: {name}: got {value!r:.80}, wanted a {wanted.__name__}")
    return None


def border(what: str, *passing: type[Exception]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a public function so that only BoltErrors, and the kinds in ``passing``, leave it.

    A call costs 0.1 us more; what must be faster calls `left` itself.
    """

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                trace = error.__traceback__
                if isinstance(error, TypeError) and trace is not None and trace.tb_next is None:
                    raise  # the arguments are not those of the function
                if isinstance(error, (AttributeError, TypeError)) and not isinstance(error, BoltError):
                    error = _mistaken(function, {**dict(zip(names, args, strict=False)), **kwargs}, what) or error
                error = left(error, what, *passing)
                raise error

        return guarded

    return wrap
