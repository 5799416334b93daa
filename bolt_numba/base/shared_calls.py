"""Calls of a function in another process: arrays go through shared memory, all else is pickled; the child's loop.

The caller owns all segments of shared memory, so nothing of a child that is killed is left behind.  A child imports
this module, NumPy and the module of the function.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple

import numpy as np

ALIGN = 64
"""Bytes at whose multiples arrays begin."""
LEAST_SEGMENT = 1 << 16
"""Bytes of the smallest segment."""


class Call(NamedTuple):
    """A call for a child: pickled arguments, sizes of their arrays in the first segment, and the segments' names."""

    data: bytes
    sizes: list[int]
    inbox: str | None
    outbox: str | None


class Room(NamedTuple):
    """A child wants a segment for results of so many bytes; the answer is its name."""

    nbytes: int


class Done(NamedTuple):
    """Pickled results, sizes of their arrays, and whether the function kept some of the arrays that it was given."""

    data: bytes
    sizes: list[int]
    keeps: bool


class Failed(NamedTuple):
    """What a function raised, pickled where that is possible, its text, and where it was raised."""

    error: bytes | None
    said: str
    trace: str
    keeps: bool = False


READY = "ready"


class _CallPickler(pickle.Pickler):
    """Takes arrays that are not contiguous, such as parts of images, as contiguous ones."""

    def reducer_override(self, found: Any) -> Any:
        if type(found) is not np.ndarray or found.dtype.hasobject or found.flags.c_contiguous:
            return NotImplemented
        return NotImplemented if found.flags.f_contiguous else np.ascontiguousarray(found).__reduce_ex__(5)


def packed(value: Any) -> tuple[bytes, list[memoryview]]:
    """A value, pickled without the content of arrays, and this content."""
    stream, found = io.BytesIO(), list[pickle.PickleBuffer]()
    _CallPickler(stream, 5, buffer_callback=found.append).dump(value)
    return stream.getvalue(), [part.raw() for part in found]


def room_for(sizes: Sequence[int]) -> int:
    """Bytes that arrays of these sizes take."""
    return sum(-(-size // ALIGN) * ALIGN for size in sizes)


def _bytes(segment: SharedMemory) -> Any:
    return np.frombuffer(segment.buf, np.uint8)  # type: ignore[arg-type]  # it is open


def put(segment: SharedMemory, parts: Sequence[memoryview]) -> None:
    """Write the content of arrays to the begin of a segment."""
    whole, at = _bytes(segment), 0
    for part in parts:
        if part.nbytes:
            whole[at : at + part.nbytes] = np.frombuffer(part, np.uint8)
        at += -(-part.nbytes // ALIGN) * ALIGN


def parts_of(whole: Any, sizes: Sequence[int]) -> list[Any]:
    """The bytes of each array in those of a segment."""
    found, at = [], 0
    for size in sizes:
        found.append(whole[at : at + size])
        at += -(-size // ALIGN) * ALIGN
    return found


def taken(segment: SharedMemory | None, data: bytes, sizes: Sequence[int]) -> Any:
    """A value whose arrays are copies of what is in a segment."""
    if segment is None:
        return pickle.loads(data)
    return pickle.loads(data, buffers=[p.copy() for p in parts_of(_bytes(segment), sizes)])


# --- the child -------------------------------------------------------------------------------------------------------


def serve(connection: Any, function: bytes, cpus: frozenset[int] | None) -> None:
    """Call a pickled function for whoever is at the other end, until that closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has the terminal ends us
    if cpus is not None and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cpus)
    try:
        called = pickle.loads(function)
    except BaseException as error:
        connection.send(_failed(error))
        return
    connection.send(READY)
    segments = _Segments()
    with suppress(EOFError, OSError):  # the caller is gone
        while (call := connection.recv()) is not None:
            connection.send(_answer(connection, called, call, segments))


class _Segments:
    """Segments that the child has open, one for each direction."""

    def __init__(self) -> None:
        self.open: dict[str, SharedMemory] = {}
        self.old: list[SharedMemory] = []

    def get(self, what: str, name: str) -> SharedMemory:
        found = self.open.get(what)
        if found is None or found.name.lstrip("/") != name.lstrip("/"):
            if found is not None:
                self.old.append(found)
            for segment in list(self.old):
                with suppress(BufferError):  # the function has kept an array in it
                    segment.close()
                    self.old.remove(segment)
            found = self.open[what] = SharedMemory(name)
        return found


def _answer(connection: Any, called: Any, call: Call, segments: _Segments) -> Done | Failed:
    given: list[Any] = []
    try:
        data, parts = packed(_called(called, call, segments, given))
    except BaseException as error:
        made = _failed(error)
        del error
        return made._replace(keeps=_lives(given))
    sizes = [part.nbytes for part in parts]
    if parts:
        outbox = None if call.outbox is None else segments.get("outbox", call.outbox)
        if outbox is None or outbox.size < room_for(sizes):
            connection.send(Room(room_for(sizes)))
            outbox = segments.get("outbox", connection.recv())
        put(outbox, parts)
    del parts
    return Done(data, sizes, _lives(given))


def _lives(given: Sequence[Any]) -> bool:
    return any(found() is not None for found in given)


def _called(called: Any, call: Call, segments: _Segments, given: list[Any]) -> Any:
    """The result.  given: gets a weak reference to the bytes of the segment, which live as long as arrays in them."""
    buffers: list[Any] = []
    if call.inbox is not None:
        whole = _bytes(segments.get("inbox", call.inbox))
        given.append(weakref.ref(whole))
        buffers = parts_of(whole, call.sizes)
    args, named = pickle.loads(call.data, buffers=buffers)
    return called(*args, **named)


def _failed(error: BaseException) -> Failed:
    said = type(error).__name__
    with suppress(Exception):  # a class of the caller's may have no text
        said += f": {error}" if str(error) else ""
    trace = "".join(traceback.format_exception(error))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        found = pickle.dumps(error)
        pickle.loads(found)  # some that can be written cannot be read
    except Exception:
        return Failed(None, said, trace)
    return Failed(found, said, trace)
