"""One version of a model that is served: a session or a flow, its queue, and what its requests took."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.config import default_threads
from bolt_numba.base.errors import BoltError
from bolt_numba.base.options import flag_of
from bolt_numba.base.types import STRING, Array, TensorSpec
from bolt_numba.compiling import compile
from bolt_numba.flow.files import load as load_flow
from bolt_numba.flow.flow import Flow
from bolt_numba.serve.errors import RequestError, kind_of, shown, want_few
from bolt_numba.serve.metrics import MEMORY, OK, PLANS, SEQUENCES, WAITING, ModelCounts
from bolt_numba.serve.settings import US, ModelSettings, SettingsError
from bolt_numba.serve.tensors import described, is_optional, taken
from bolt_numba.sessions.guesses import complete_shapes, model_feeds
from bolt_numba.sessions.session import Session
from bolt_numba.text.layout import layout_of

if TYPE_CHECKING:
    from bolt_numba.text.encoder import Encoder
    from bolt_numba.text.generator import Generator
    from bolt_numba.text.tokens import TokenRow

log = logging.getLogger("bolt_numba.serve")

FLOWS = (".toml", ".prototxt")
QUICK_S = 3e-4
"""A run that takes less is done where the request came: to hand it to another thread would take as long."""
SHARE, FAR = 0.1, 2.0
"""Of the latest run in the time that the next is expected to take, and how many times as long it counts at most: a run
that the system held up says little."""
TRIALS, TRIAL_S = 3, 5e-3
WAKING = 1.25
"""Times as long as with the whole team a run may take by one thread to be as quick between others: none has to wake."""
MOST_SHAPES = 256
"""Shapes of inputs that are remembered with the time they take."""
MOST_NUMBER = 1 << 31
MOST_SEQUENCES, IDLE_S = 1024, 60.0
"""Sequences of a model that keeps a state; where there is no room, those go that were not asked for so many seconds."""
PAST = "past"
"""What names of inputs begin with that hold what a decoder has seen before."""
WARM_TOKENS = 300
"""Of a prompt that is tried before the first request: as many as run at once, and a few more."""
ROWS = 32
"""Texts that an encoder may run together where nothing else is said."""
USUAL_PRIORITY = 2
"""Of requests that name none: 1 goes before them."""


@dataclass(frozen=True)
class StoredVersion:
    """A version as it lies on the disk.  stamp: names, sizes and times of its files."""

    path: Path
    weights: Path | None
    settings: ModelSettings
    stamp: tuple[Any, ...]


class RequestTerms:
    """How one request wants to be served: seconds it may take, its priority (lower goes first), and its sequence.

    gone: waits until who asks is gone; the run is given up then.
    """

    __slots__ = ("begin", "gone", "limits", "parameters", "priority")

    def __init__(
        self, parameters: Mapping[str, Any], deadline: float | None = None, gone: Callable[[], Any] | None = None
    ) -> None:
        self.parameters, self.gone = parameters, gone
        self.limits, self.begin = (deadline, self._number(parameters, "timeout") * US), time.monotonic()
        self.priority = self._number(parameters, "priority") or USUAL_PRIORITY

    @staticmethod
    def _number(parameters: Mapping[str, Any], key: str) -> int:
        given = parameters.get(key, 0)
        if type(given) is not int or not 0 <= given <= MOST_NUMBER:
            raise RequestError(f"parameters: {key}: got {shown(given)}, wanted a whole number up to {MOST_NUMBER}")
        return given

    def left(self, usual: float | None) -> float | None:
        """Seconds that are left for the request.  usual: what it may take at most in all."""
        limits = [s for s in (usual, *self.limits) if s]
        return max(min(limits) + self.begin - time.monotonic(), US) if limits else None


class ServedModel:
    """A model that is loaded and warm.  It is made by any thread and used by that of the event loop.

    Raises what `bolt_numba.compile` and `bolt_numba.flow.load` raise, SettingsError for settings that do not fit it.
    """

    def __init__(self, name: str, version: str, stored: StoredVersion, session: Session | None = None) -> None:
        self.name, self.version, self.stored, self.settings = name, version, stored, stored.settings
        self.under_way, self.latest, self.expected = 0, 0.0, dict[Any, float]()
        self.texts = 0
        source = stored.path
        self.session = None if is_flow(source) else session or session_of(stored)
        self.encoder = None if self.session is None else self._encoder_of(self.session)
        self.generator = None if self.session is None or self.encoder else self._generator_of(self.session)
        if self.generator is None and self.settings.is_of_texts:
            raise SettingsError("sequences, context: got them for a model that makes no texts, wanted a decoder")
        self.platform = f"bolt_numba_{'flow' if self.session is None else source.suffix[1:].lower() or 'folder'}"
        self.flow = self._flow_of_file() if self.session is None else self._flow_of_model(self.session)
        for spec in (*self.inputs, *self.outputs):
            described(spec)  # raises for what the protocol has no name for
        self.counts, self.since = ModelCounts(name, version), int(time.time())
        self.flow.engine.watch = self._ran
        self.keeps, self.sequences = any(node.keeps for node in self.flow.nodes), dict[Any, float]()
        if self.session is not None and not self.keeps:
            self._try(self.session)

    def _flow_of_file(self) -> Flow:
        flow = load_flow(self.stored.path, capacity=self.settings.queue)
        if missing := [value for value in flow.inputs if value not in flow.types]:
            raise SettingsError(f"{self.stored.path}: inputs: got no types of {missing}, wanted such as x = 'f32[n,3]'")
        self.inputs = list(flow.types.values())
        made = [(value, flow.type_of_value(value) or TensorSpec(value, STRING, None)) for value in flow.outputs]
        self.outputs = [TensorSpec(value, s.dtype, s.shape, s.nested) for value, s in made]
        return flow

    def _encoder_of(self, session: Session) -> Encoder | None:
        """What makes embeddings by the model, where it is one that does and a tokenizer lies beside it."""
        table = dict(self.settings.embeddings or {})
        if "tokenizer" in table:
            table["tokenizer"] = self.stored.path.parent / str(table["tokenizer"])
        try:
            self.truncates = flag_of("truncate", table.pop("truncate", False))
            if self.settings.embeddings is None:
                layout_of(self.stored.path)  # raises where there is no tokenizer
            from bolt_numba.text.encoder import Encoder

            made = Encoder(self.stored.path, session=session, **table)
            rows = list(map(made.feeds, made.tokens(("a", "a", "a longer text"))))
            for count in (len(rows), 1):  # kernels of batches are compiled, too, and those of a short text by itself
                session.run_rows(rows[:count], [made.embedding])
            return made
        except (BoltError, ImportError) as error:
            if self.settings.embeddings is not None:
                raise SettingsError(f"embeddings: {as_bolt_error(error, self.name)}") from error
            log.debug("model %s: no embeddings: %s", self.name, error)
            return None

    def _generator_of(self, session: Session) -> Generator | None:
        """What makes texts by the model, where it is a decoder and its files have a tokenizer."""
        if not any(spec.name.startswith(PAST) for spec in session.inputs):
            return None
        try:
            from bolt_numba.text.generator import Generator

            count, context = self.settings.sequences, self.settings.context
            made = Generator(self.stored.path, session=session, sequences=count, context=context)
            first = made.layout.begin or 0  # kernels of prompts, and of steps of any number of texts, are compiled now
            length = min(WARM_TOKENS, made.context // 2)
            tried = [*((i % length + 1, i + 2) for i in range(count)), (length, 2)]  # tokens before and behind
            for answer in [made.submit([first] * before, max_tokens=behind) for before, behind in tried]:
                answer.result()
            return made
        except (BoltError, ImportError) as error:
            if self.settings.is_of_texts:
                raise SettingsError(f"sequences, context: {as_bolt_error(error, self.name)}") from error
            log.warning("model %s: no texts: %s", self.name, error)
            return None

    def _flow_of_model(self, session: Session) -> Flow:
        settings = self.settings
        self.inputs, self.outputs = list(session.inputs), list(session.outputs)
        flow = Flow(
            self.name, inputs=[s.name for s in self.inputs], outputs=[f"output {s.name}" for s in self.outputs],
            workers=settings.instances or _runs_at_once(settings), capacity=settings.queue,
        )  # fmt: skip
        is_encoder, is_free = self.encoder is not None, all(map(_has_rows, (*self.inputs, *self.outputs)))
        most = ROWS if is_encoder and is_free and settings.max_batch == 1 else settings.max_batch
        flow.model(
            session, {s.name: s.name for s in self.inputs}, {s.name: f"output {s.name}" for s in self.outputs},
            name=self.name, max_batch=most, max_wait=settings.max_wait_us * US, queue=settings.queue, pad=settings.pad,
            ragged=settings.ragged or (is_encoder and is_free and not settings.pad),
            each=flow.inputs if is_encoder else (),
        )  # fmt: skip
        return flow

    def _try(self, session: Session) -> None:
        """Find out how long runs take, by made-up numbers, which may be none that the model takes."""
        with suppress(BoltError):
            for shapes in _shapes(session, self.settings):
                feeds = model_feeds(session.graph, shapes)
                self.expected[self._key(feeds)] = _seconds(session, feeds)

    # --- requests ----------------------------------------------------------------------------------------------------

    def taken(self, given: Mapping[str, Array]) -> dict[str, Any]:
        """Inputs as the model declares them.  Raises RequestError for names, DTypeError or ShapeError for arrays."""
        names = [s.name for s in self.inputs]
        if given.keys() != set(names):
            needed = {s.name for s in self.inputs if not is_optional(s)}
            if not needed <= given.keys() <= set(names):
                raise RequestError(f"model {self.name!r}: inputs: got {list(given)}, wanted {names}")
        if (most := self.settings.max_rows) is not None:
            for spec in self.inputs:
                if spec.shape and isinstance(spec.shape[0], str) and (array := given[spec.name]).ndim:
                    want_few(f"input {spec.name!r}: rows", len(array), most)
        return {spec.name: taken(spec, given.get(spec.name)) for spec in self.inputs}

    async def infer(self, given: Mapping[str, Array], wanted: Sequence[str], asked: RequestTerms) -> dict[str, Array]:
        """Results by name: those that are wanted, or all.  Raises RequestError, and what a session or a flow raises."""
        with self.counted():
            feeds = self.taken(given)
            names = [s.name for s in self.outputs]
            if unknown := [name for name in wanted if name not in names]:
                raise RequestError(f"model {self.name!r}: outputs: got {unknown}, wanted some of {names}")
            made = await self._results(feeds, asked)
            return {
                name: _as_array(value) for name, value in zip(names, made, strict=True) if name in (wanted or names)
            }

    async def embed(self, rows: Sequence[TokenRow], dimensions: int | None, asked: RequestTerms) -> list[Array]:
        """Vectors of texts, by a model with an encoder, for who has it `counted`.

        Raises as `infer`, ShapeError for dimensions.
        """
        encoder: Encoder = self.encoder  # type: ignore[assignment]
        made, value = dict[int, Array](), f"output {encoder.embedding}"
        for part in encoder.parts(rows):
            made_of = [encoder.feeds(rows[number]) for number in part]
            feeds = {spec.name: [each[spec.name][None] for each in made_of] for spec in self.inputs}
            found = await self._found(feeds, asked)
            for number, result in zip(part, found[value], strict=True):
                made[number] = encoder.vector(result[0], len(rows[number].ids), dimensions)
        return [made[number] for number in range(len(rows))]

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A request is under way, so that the model is not let go; how it ended is counted."""
        begin, outcome = time.perf_counter(), OK
        self.under_way += 1
        try:
            yield
        except BaseException as error:
            outcome = kind_of(error)
            raise
        finally:
            self.under_way -= 1
            self.counts.ended(time.perf_counter() - begin, outcome)

    async def _results(self, feeds: dict[str, Any], asked: RequestTerms) -> list[Any]:
        key, session = self._key(feeds), self.session
        if session is not None and not self.keeps and self.under_way == 1 and self.expected.get(key, QUICK_S) < QUICK_S:
            begin = time.perf_counter()  # nobody waits, and another thread would begin it when it is done here
            made = session.run(None, feeds)
            self._ran([0.0], time.perf_counter() - begin)
            self._learn(key)
            return made
        takes_lists = self.encoder is not None
        if takes_lists:
            feeds = {name: [given] for name, given in feeds.items()}
        found = await self._found(feeds, asked)
        self._learn(key)
        return [found[value][0] if takes_lists else found[value] for value in self.flow.outputs]

    async def _found(self, feeds: Mapping[str, Any], asked: RequestTerms) -> Mapping[str, Any]:
        """What the flow makes of its inputs, by its outputs."""
        stream = self._sequence(asked) if self.keeps else None
        seconds = self.settings.deadline_ms and self.settings.deadline_ms / 1e3
        task = self.flow.submit(feeds, stream=stream, deadline=asked.left(seconds), timeout=0, priority=asked.priority)
        if stream is not None and asked.parameters.get("sequence_end"):
            self._end_sequence(stream)  # the run has its state: a request that comes now begins another sequence
        run, node = asyncio.wrap_future(task), f"node {self.name!r}: "
        try:
            return await (run if asked.gone is None else unless_gone(run, asked.gone))
        except BoltError as error:
            if self.session is None or not str(error).startswith(node):
                raise
            raise type(error)(f"model {self.name!r}: {str(error).removeprefix(node)}") from error

    def _sequence(self, asked: RequestTerms) -> Any:
        """The sequence of a request to a model that keeps a state.  Raises RequestError where there are too many."""
        key, now = asked.parameters.get("sequence_id") or None, time.monotonic()
        if not isinstance(key, (int, str)):
            raise RequestError(f"model {self.name!r}: sequence_id: got {shown(key)}, wanted one, to keep its state")
        if asked.parameters.get("sequence_start"):
            self._end_sequence(key)
        if key not in self.sequences and len(self.sequences) >= MOST_SEQUENCES:
            for old in [old for old, since in self.sequences.items() if now - since > IDLE_S]:
                self._end_sequence(old)
            if len(self.sequences) >= MOST_SEQUENCES:
                raise RequestError(f"model {self.name!r}: sequences: got one more than {MOST_SEQUENCES}", "busy")
        self.sequences[key] = now
        return key

    def _end_sequence(self, key: Any) -> None:
        self.flow.end_stream(key)
        self.sequences.pop(key, None)

    def _key(self, given: Mapping[str, Any]) -> Any:
        return tuple([getattr(given.get(spec.name), "shape", None) for spec in self.inputs])

    def _ran(self, waits: Sequence[float], seconds: float) -> None:
        self.latest = seconds
        self.counts.ran(waits, seconds)

    def _learn(self, key: Any) -> None:
        """Expect what the latest run took of the next of such shapes."""
        if self.under_way > 1:
            return  # it may have been another's
        if key not in self.expected and len(self.expected) >= MOST_SHAPES:
            self.expected.clear()
        before = self.expected.get(key, self.latest)
        self.expected[key] = before + SHARE * (min(self.latest, FAR * before) - before)

    def measure(self, is_gone: bool = False) -> None:
        """Tell the metrics what requests, memory and plans there are now."""
        WAITING.labels(self.name, self.version).set(self.under_way)
        if self.session is not None:
            for use, size in self.session.memory().items():
                MEMORY.labels(self.name, self.version, use).set(0 if is_gone else size)
            PLANS.labels(self.name, self.version).set(0 if is_gone else len(self.session._runner.prepared))

        if self.generator is not None:
            for state, count in zip(("made", "waiting"), self.generator.under_way, strict=True):
                SEQUENCES.labels(self.name, self.version, state).set(count)

    async def retire(self) -> None:
        """End what is under way, and let go of memory and threads."""
        while self.under_way:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.flow.close)
        self.flow.engine.watch = None  # who keeps the engine must not keep the model
        if self.generator is not None:
            await asyncio.to_thread(self.generator.close)
        self.measure(is_gone=True)
        if self.session is not None:
            self.session.close()


async def unless_gone(run: asyncio.Future[Any], gone: Callable[[], Awaitable[Any]]) -> Any:
    """What a run gives.  Raises RequestError, and gives the run up, where who asked goes away."""
    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((run, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not run.done():
            raise RequestError("request: got no client any more", "cancelled")
        return run.result()
    finally:
        leaving.cancel()
        run.cancel()


def _has_rows(spec: TensorSpec) -> bool:
    """Whether a tensor has a first axis of any size."""
    return spec.shape is not None and isinstance(next(iter(spec.shape), None), str)


def is_flow(source: Path) -> bool:
    """Whether a file is a flow."""
    return source.suffix.lower() in FLOWS and (source.suffix.lower() == ".toml" or source.stem.lower() == "flow")


def session_of(stored: StoredVersion) -> Session:
    """A session with its plans: for the shapes that are asked for, or such as are guessed, and batches of them."""
    settings = stored.settings
    given: dict[str, Any] = {"stand_ins": False, **settings.compile}
    if given.get("threads") is None:
        given["threads"] = max(1, default_threads() // (settings.instances or 1))
    session, planned = compile(stored.path, weights=stored.weights, **given), list[dict[str, Any]]()
    with suppress(BoltError) if not settings.warmup else nullcontext():
        for shapes in _shapes(session, settings):
            for batched in _batches(session, shapes, settings.max_batch):
                session.warmup(**batched)
                planned.append(batched)
    asks = settings.compile.get("threads") is not None or not _is_on_cpu(settings)
    return session if asks or session.graph.states else _quickest(session, planned)


def _is_on_cpu(settings: ModelSettings) -> bool:
    """Whether a model has no other device: one is told by its name or, on the command line, by a list of names."""
    return settings.compile.get("device", "cpu") in ("cpu", ["cpu"])


def _runs_at_once(settings: ModelSettings) -> int:
    """As many as there are threads, which runs share: one by itself has all of them, and of many none waits."""
    return settings.compile.get("threads") or default_threads() if _is_on_cpu(settings) else 1


def _quickest(session: Session, planned: Sequence[Mapping[str, Any]]) -> Session:
    """A session of one thread where that is about as quick in every shape: others sleep between requests."""
    if session.threads == 1 or not planned:
        return session
    alone = session.clone(threads=1)
    with suppress(BoltError):
        for shapes in planned:
            feeds = model_feeds(session.graph, shapes)
            seconds = _seconds(session, feeds)
            if seconds > QUICK_S or _seconds(alone, feeds) > WAKING * seconds:
                break
        else:
            session, alone = alone, session
    alone.close()
    return session


def _seconds(session: Session, feeds: Mapping[str, Any]) -> float:
    """What a run takes that has been made before, at the best of some."""
    spent: list[float] = []
    while len(spent) < TRIALS or sum(spent) < TRIAL_S:
        begin = time.perf_counter()
        session(feeds)
        spent.append(time.perf_counter() - begin)
    return min(spent)


def _shapes(session: Session, settings: ModelSettings) -> Sequence[Mapping[str, Any]]:
    """Raises ShapeError where none are told and none can be guessed."""
    return settings.warmup or (complete_shapes(session.graph),)


def _batches(session: Session, shapes: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Shapes of batches of every size that a run may have."""
    free = {s.name for s in session.inputs if _has_rows(s)}
    for size in (1 << i for i in range(most.bit_length() if free else 1)):
        yield {name: (shape[0] * size, *shape[1:]) if name in free else shape for name, shape in shapes.items()}


def _as_array(value: Any) -> Array:
    """A result as a tensor: what is none is a text of JSON."""
    if isinstance(value, np.ndarray):
        return value.astype(object) if value.dtype.kind in "US" else value
    if isinstance(value, (bool, int, float, np.generic)):
        return np.asarray(value)
    text = value if isinstance(value, (str, bytes)) else json.dumps(value, default=_plain)
    return np.array([text], object)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return str(value)
