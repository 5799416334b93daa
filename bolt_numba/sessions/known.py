"""Sessions of files that an earlier process ran: they begin with what that left in the cache.

Such a session has what its operands are and what computes the results for some shapes: the device's compiled graph
(`sessions.known_parts`), or a program of the CPU (`sessions.known_plans`).  Whatever asks for more has it completed:
the model is read, and from then on it is a session like others.  So it is where the device fails, or gets other shapes.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bolt_numba.base.border import border
from bolt_numba.base.errors import InvalidModelError
from bolt_numba.base.files.regular import open_descriptor
from bolt_numba.base.files.stamps import is_in_place, is_same
from bolt_numba.base.files.trusted import read_whole
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import Options
from bolt_numba.base.types import Array, TensorSpec
from bolt_numba.runtime.copies import Spans, Views
from bolt_numba.sessions.inputs import check_buffer
from bolt_numba.sessions.session import Session

if TYPE_CHECKING:
    from bolt_numba.devices.parts.opened import Opened
    from bolt_numba.runtime.states import Choose

Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"


class Known(ABC):
    """What an earlier process left of a session.

    path, signature: what was asked for.  files: stamps of the model and of the files that it names.  threads: of runs.
    holds: bytes of a model that is held, should somebody write to its file.  metadata: of its graph, if that is kept.
    views: whether inputs that are not contiguous are copied for it; complete sessions may read them where they are.
    """

    holds = 0
    views = True
    name: str
    signatures: Sequence[str]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    metadata: Mapping[str, str] | None = None

    def __init__(self, path: str, signature: str | None, files: Sequence[Sequence[Any]], threads: int) -> None:
        self.path, self.signature, self.files, self.threads = path, signature, files, threads

    @property
    def already(self) -> Mapping[str, Opened]:
        """Plug-ins that it has opened."""
        return {}

    @abstractmethod
    def run(
        self, arrays: list[Array], targets: Sequence[Array | None] | None, bound: object = None
    ) -> list[Array] | None:  # fmt: skip
        """Results; None where it cannot, which the complete session tells.  Raises DeviceError where nobody else may.

        targets: for each result where it is written, if the caller says.  bound: who gives the same arrays, and says
        of all results where they are written, in each call.
        """

    @abstractmethod
    def results(self, shapes: Shapes) -> Shapes | None:
        """Shapes of the results for inputs of these, where they are known."""

    def can_overwrite(self, shapes: Shapes, output: int, source: int) -> bool:
        """Whether a run may write an output over an input of these shapes; a device may read inputs until the end."""
        return False

    @abstractmethod
    def is_ready(self, shapes: Shapes) -> bool:
        """Whether inputs of these shapes may come now."""

    @abstractmethod
    def close(self) -> None:
        """Let go what is loaded, and devices; what is asked next is loaded once more."""

    @abstractmethod
    def completed(self, session: Session, named: Sequence[Sequence[Any]]) -> None:
        """Have a session that is complete now go on with what was used.  named: stamps of files that it names."""

    def planned(self, session: Session, shapes: Shapes) -> None:
        """Have a complete session plan for what was run before."""
        operands = zip(session.inputs, shapes, strict=True)
        session._runner.prepare([np.broadcast_to(np.zeros((), s.dtype), d) for s, d in operands])


class KnownSession(Session):
    """A session that begins without its model; `Session` is its class once it is complete."""

    def __init__(self, known: Known, options: Options) -> None:
        self._known = known
        self._file = open_descriptor(known.path)  # another one may take its place
        weakref.finalize(self, os.close, self._file)
        if not is_same(os.fstat(self._file), known.files[0]):
            raise InvalidModelError(f"{known.path}: was written to while it was looked at")
        size = os.fstat(self._file).st_size
        self._held = read_whole(self._file, size) if size <= known.holds and len(known.files) == 1 else None
        self._take(options, known.threads)
        self._show(known.name, known.signatures, known.inputs, known.outputs)
        self._states, self._far, self._budget, self._already = None, (), None, known.already
        self._is_completing, self._completing = False, threading.RLock()
        renew_after_fork(self, "_completing", threading.RLock)
        for opened in self._already.values():
            weakref.finalize(self, opened.close)

    def __getattr__(self, name: str) -> Any:
        """What only complete sessions have."""
        if not name.startswith("__") and "_completing" in self.__dict__:
            with self._completing:
                if not self._is_completing:
                    KnownSession._complete(self)
                    return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _run(self, arrays: list[Array], choose: Choose | None = None) -> list[Array]:
        made = None
        if type(arrays) is not Views or self._known.views:
            arrays = self._dense(arrays)
            made = self._known.run(arrays, None if choose is None else choose(arrays))
        if made is None:  # another thread may complete it meanwhile, too
            KnownSession._complete(self)
            return Session._run(self, arrays, choose)
        return made

    def _targets(self, arrays: list[Array], buffers: Mapping[str, Array]) -> list[Array | None]:
        """As that of others."""
        given = tuple([a.shape for a in arrays])
        shapes = self._known.results(given)
        if shapes is None:
            KnownSession._complete(self)
            return Session._targets(self, arrays, buffers)
        made, inputs = list[Array | None]([None] * len(self.outputs)), Spans(arrays)
        for index, (spec, shape) in enumerate(zip(self.outputs, shapes, strict=True)):
            buffer = buffers.get(spec.name)
            if buffer is not None:
                check_buffer(spec.name, buffer, shape, spec.dtype)
                if inputs.is_apart(buffer, partial(self._known.can_overwrite, given, index)):
                    made[index] = buffer
        return made

    @border("warmup")
    def warmup(self, *args: Any, **shapes: Sequence[int]) -> None:
        """As that of others; the model is not read for what is known."""
        told = self._feeds(args, shapes)
        given: list[Any] = [told.get(spec.name, spec.shape) for spec in self.inputs]
        is_told = told.keys() <= {*self._input_names} and all(isinstance(dims, (tuple, list)) for dims in given)
        if not is_told or not self._known.is_ready(tuple(map(tuple, given))):
            KnownSession._complete(self)
            Session.warmup(self, told)

    def close(self) -> None:
        """As that of others; the model is not read for it."""
        self._known.close()
        if type(self) is not KnownSession:
            Session.close(self)

    # --- completing --------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Be a session like others."""
        with self._completing:
            if type(self) is not KnownSession:
                return
            self._is_completing = True
            try:
                from bolt_numba.sessions.loading import read_noting

                known, content = self._known, self._content()
                found, named = read_noting(known.path, content)
                if content is None and (content := self._content()) is not None:  # replaced meanwhile
                    found, named = read_noting(known.path, content)
                Session.__init__(self, found.graph(known.signature), self.options, signatures=found.signatures)
                known.completed(self, named)
            finally:
                self._is_completing = False
            self.__class__ = Session  # type: ignore[assignment]

    def _content(self) -> bytes | None:
        """What the file had in it where another one has taken its place; None where it is there.

        Raises InvalidModelError where it was written to, or is not there and names others, which nobody finds then.
        """
        found, (stamp, *others) = os.fstat(self._file), self._known.files
        if all(map(is_in_place, self._known.files)):
            return None
        if self._held is not None:
            return self._held
        if others or not is_same(found, stamp):
            raise InvalidModelError(f"{stamp[0]}: was written to since it was loaded; wanted the file as it was")
        os.lseek(self._file, 0, os.SEEK_SET)
        return read_whole(self._file, found.st_size)


def metadata_of(session: Session) -> Mapping[str, str]:
    """What the reader of a session's model noted of it; the model is not read for what is kept."""
    kept = session._known.metadata if type(session) is KnownSession else None
    return session.graph.metadata if kept is None else kept
