"""`compile`: from a model in any form to a session, through quantisation where that is asked for.

What a file of Caffe says of the sizes of inputs a caller may change: `SizedSession`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import border, left
from bolt_numba.base.budget import Budget, within
from bolt_numba.base.errors import BoltError, OptionError
from bolt_numba.base.forks import renew_after_fork
from bolt_numba.base.options import INT8, Options, options_of, sign
from bolt_numba.base.types import Array
from bolt_numba.devices import others
from bolt_numba.ir.graph import Graph
from bolt_numba.sessions.clones import MAX_WIDER
from bolt_numba.sessions.outputs import Outputs
from bolt_numba.sessions.session import Session

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords
    from bolt_numba.quantize.data import Data
    from bolt_numba.runtime.reports.profile import Profile
    from bolt_numba.sessions.loading import File, Source


@border("compile", OSError)
def compile(
    model: Source,
    *,
    weights: File | None = None,
    signature: str | None = None,
    calibration: Data | None = None,
    **options: Unpack[OptionKeywords],
) -> Session:
    """Make a `Session` from a graph, a model or straight from a file.

    weights: as `load_model`.  signature: which graph of a model; None: the first.  calibration: inputs for
    ``precision="int8"``, which quantises as `bolt_numba.quantize.quantize` does by default.

    All others are those of `Options`.
    Raises what `load_model` raises for a file, OptionError for options, and DeviceError for a device that fails.
    """
    precision = options.get("precision", Options.precision)
    is_narrow = precision == INT8 or calibration is not None
    given = {**options, "precision": "f32"} if is_narrow else options
    how = options_of("compile", given, "weights", "signature", "calibration")
    if isinstance(model, (str, os.PathLike)) and weights is None and not is_narrow:
        if others(how.device):
            from bolt_numba.sessions.known_parts import session_of  # sessions without plug-ins do without
        else:
            from bolt_numba.sessions.known_plans import session_of
        made = session_of(model, signature, how)
        if made is not None:
            return made
    from bolt_numba.sessions.loading import read_model  # and sessions of files that are known without

    with nullcontext() if how.memory_limit is None else within(Budget(memory=how.memory_limit)):
        found = read_model(model, None, weights)
    graph = found.graph(signature)
    if is_narrow:
        graph = _quantised(graph, precision, calibration, how.threads)
    kind = Session if graph.anew is None else SizedSession
    return kind(graph, how, signatures=found.signatures)


sign(compile)


def _quantised(graph: Graph, precision: Any, calibration: Data | None, threads: int | None) -> Graph:
    """The graph in 8 bits; a precision and data belong together."""
    if precision != INT8:
        raise OptionError(f"calibration: got data for precision {precision!r}, wanted {INT8!r}")
    if calibration is None:
        raise OptionError(f"precision {INT8!r}: got no calibration, wanted inputs to find ranges with")
    from bolt_numba.quantize.tool import quantize  # others do without

    return quantize(graph, calibration, threads=threads, timed=False).graph


class SizedSession(Session):
    """A session that hands inputs of other sizes than its file says to a session for such.

    That has symbols in the place of these sizes and so serves any.  Where layers ask for numbers it has the numbers.
    A pickled one takes the sizes of the file alone.
    """

    def __init__(self, graph: Graph, options: Options | None = None, **given: Any) -> None:
        super().__init__(graph, options, **given)
        self._own: dict[str, Any] = {spec.name: spec.shape for spec in self.inputs if spec.shape is not None}
        self._begin()

    def _begin(self) -> None:
        self._others: dict[tuple[Any, ...], Session] = {}
        self._lock, self._making = threading.Lock(), threading.Lock()  # the second for as long as a session is made
        for name in ("_lock", "_making"):
            renew_after_fork(self, name, threading.Lock)

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        try:
            feeds = self._feeds(args, kwargs)
            other = self._other(_shapes_of(feeds))
        except Exception as error:
            error = left(error, self._name)
            raise error
        return super().__call__(feeds) if other is None else other(feeds)

    @border("run")
    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        other = self._other(_shapes_of(feeds))
        return super().run(names, feeds) if other is None else other.run(names, feeds)

    @border("run_into")
    def run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, Array]) -> None:
        other = self._other(_shapes_of(feeds))
        if other is None:
            super().run_into(feeds, buffers)
        else:
            other.run_into(feeds, buffers)

    @border("warmup")
    def warmup(self, *args: Any, **shapes: Sequence[int]) -> None:
        told = self._feeds(args, shapes)
        other = self._other({name: _sizes_of(shape) for name, shape in told.items()})
        if other is None:
            super().warmup(told)
        else:
            other.warmup(self._own | {**told})

    @border("profile")
    def profile(self, *args: Any, runs: int = 20, **kwargs: Any) -> Profile:
        feeds = self._feeds(args, kwargs)
        other = self._other(_shapes_of(feeds))
        return super().profile(feeds, runs=runs) if other is None else other.profile(feeds, runs=runs)

    def clone(self, threads: int | None = None) -> Session:
        made = super().clone(threads)
        if isinstance(made, SizedSession):
            made._begin()
        return made

    def close(self) -> None:
        super().close()
        with self._lock:
            self._others.clear()

    def _inner(self) -> list[Session]:
        with self._lock:
            return [*super()._inner(), *self._others.values()]

    def _other(self, given: Mapping[str, tuple[int, ...]]) -> Session | None:
        """The session for inputs of these shapes; None for this one."""
        changed: list[tuple[str, int]] = []
        for name, own in self._own.items():
            shape = given.get(name, ())
            if shape != own and len(shape) == len(own):
                changed += [(name, i) for i, d in enumerate(own) if isinstance(d, int) and d != shape[i]]
        sizes = tuple(given[name][i] for name, i in changed)
        if not changed or min(sizes) < 1:
            return None
        keys = tuple(changed), (*changed, *sizes)
        found = self._kept(*keys)
        if found is None:
            with self._making:
                found = self._kept(*keys) or self._made(*keys, given)  # another thread may have made it
        return found

    def _kept(self, *keys: tuple[Any, ...]) -> Session | None:
        """The session that is known by one of these keys; it is the last one used."""
        with self._lock:
            for key in keys:
                if key in self._others:
                    self._others[key] = found = self._others.pop(key)
                    return found
        return None

    def _made(self, changed: tuple[Any, ...], fixed: tuple[Any, ...], given: Mapping[str, tuple[int, ...]]) -> Session:
        """A new session for these sizes; nobody waits for it who runs others."""
        key, graph = self._anew(changed, fixed, given)
        made = Session(graph, self.options, signatures=self.signatures)
        with self._lock:
            self._others[key] = made
            for old in list(self._others)[:-MAX_WIDER]:
                self._others.pop(old, None)
        return made

    def _anew(
        self, changed: tuple[Any, ...], fixed: tuple[Any, ...], given: Mapping[str, tuple[int, ...]]
    ) -> tuple[tuple[Any, ...], Graph]:
        """The graph with symbols in the place of what changed, or else with the sizes; what it is known by."""
        from bolt_numba.ir.sizes import sized

        try:
            return changed, sized(self._source(), self._own, given)
        except BoltError:  # a layer asks for numbers; that it takes these is seen, and told if not, in the second try
            return fixed, sized(self._source(), given)


def _shapes_of(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays that are given; what is no mapping, or no array, `Session` refuses."""
    return {name: _shape_of(given) for name, given in feeds.items()} if hasattr(feeds, "items") else {}


def _shape_of(given: Any) -> tuple[int, ...]:
    try:
        return np.shape(given)
    except ValueError:  # lists of different lengths
        return ()


def _sizes_of(shape: Any) -> tuple[int, ...]:
    """Sizes that a caller names; what is no shape `Session` refuses."""
    is_shape = np.iterable(shape) and all(isinstance(d, (int, np.integer)) for d in shape)
    return tuple(shape) if is_shape else ()
