"""A server's repository and batching against a model of them: whatever happens, every request gets its own answer.

Requests carry a number that their answer shows, and files of models one that tells which file has computed it.  A gate
before all runs keeps requests in the queue as long as the machine wants.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from bolt_numba.errors import BoltError, DataError
from bolt_numba.flow import FlowDeadlineError, FlowFullError
from bolt_numba.flow.node import FunctionNode, ModelNode
from bolt_numba.serve import ModelSettings, RequestError, models, repository
from bolt_numba.serve.errors import kind_of
from bolt_numba.serve.metrics import OK, REGISTRY
from bolt_numba.serve.models import RequestTerms, ServedModel
from tests.level import few
from tests.serve.serving import Running, resident, running
from tests.small import look_up

ROWS, COLUMNS, KINDS = 4, 5, 4
TAG, KIND, COLUMN, ROW = 4096.0, 1024.0, 1 / 8, 1 / 64
"""What the file, the index, the column and the row add to an answer: float32 holds the sum with every bit."""
MOST_NUMBER = int(KIND)
BEYOND = KINDS + 3
"""An index that the model's table does not have."""
MARGIN_S = 5.0
"""A request with a deadline is answered so much later at most, on a machine that runs the rest of the suite."""
WAIT_S = 60.0
GROWTH = 24 << 20
"""Bytes that the second half of all examples may hold at most beyond what the first half held.

Against the most: the system takes pages of a process away and gives them back; those of other tests were 60 MB."""

_machines = itertools.count()
_seen: list[int] = []


def content(number: int, rows: int, columns: int) -> Any:
    return (number + ROW * np.arange(rows)[:, None] + COLUMN * np.arange(columns)).astype("f4")


SEQUENCES = """
inputs = { x = 'i64[n]' }
outputs = 'y'
[nodes.f]
function = 'MODULE:f'
inputs = 'x'
outputs = 'y'
states = { total = { output = 'total', initial = 0 } }
"""
STEPS = """
def f(x, total):
    if x[0] < 0:
        raise ValueError("negative")
    return x | total, x | total
"""


@dataclass(eq=False)
class Asked:
    """A request, and what became of it.

    tags: of files that may answer it.  ahead: requests to the same model that had no answer when it came.  epoch: of
    its sequence; bit: that it sets in the state of it.
    """

    given: dict[str, Any]
    number: int = 0
    tags: frozenset[int] = frozenset()
    bad: bool = False
    seconds: float | None = None
    epoch: tuple[str, int] | None = None
    served: Any = None
    ahead: int = 0
    begin: float = 0.0
    took: float = 0.0
    task: Any = None
    outcome: Any = None

    @property
    def said(self) -> str:
        """The outcome as metrics name it."""
        if isinstance(self.outcome, asyncio.CancelledError):
            return "cancelled"
        return kind_of(self.outcome) if isinstance(self.outcome, BaseException) else OK


class ServerMachine(RuleBasedStateMachine):
    """A model `m` whose files change, and a flow `s` that keeps a state for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        self.folder = Path(self.ends.enter_context(tempfile.TemporaryDirectory()))
        number = next(_machines)
        self.m, self.s = f"m{number}", f"s{number}"
        self.gate = threading.Event()
        self.gate.set()
        self.numbers, self.tags, self.times = itertools.count(1), itertools.count(1), itertools.count(1)
        self.stored: dict[int, int | None] = {}
        """Versions on the disk and their tags; None: of a broken file."""
        self.serving: dict[int, int] = {}
        self.loading: tuple[Any, dict[int, int]] | None = None
        """A load that is under way, and what serves after it."""
        self.open: list[Asked] = []
        self.ended: list[Asked] = []
        self.wrong: Counter[str] = Counter()
        self.epochs: Counter[str] = Counter()
        self.sent: dict[tuple[str, int], list[Asked]] = {}
        self.gone: list[weakref.ref[ServedModel]] = []
        self.told: list[dict[str, Any]] = []

    @initialize(
        batch=st.sampled_from([1, 2, 4, 8]), wait=st.sampled_from([0, 500, 3000]),
        queue=st.sampled_from([2, 3, 6, 64]), instances=st.integers(1, 2), pads=st.booleans(),
        versions=st.sampled_from(["latest", "all"]), quick=st.sampled_from([0.0, 3e-4, 10.0]),
    )  # fmt: skip
    def begin(self, batch: int, wait: int, queue: int, instances: int, pads: bool, versions: str, quick: float) -> None:
        self.versions, self.queue, self.batch = versions, queue, batch
        usual = ModelSettings(
            batch, wait if batch > 1 else 0, {"x": 0} if pads and batch > 1 else {}, queue, instances,
            versions=versions, compile={"threads": 1},
        )  # fmt: skip
        for kind in (ModelNode, FunctionNode):
            self.ends.enter_context(patch.object(kind, "call", self._gated(kind.call)))
        self.ends.enter_context(patch.object(models, "QUICK_S", quick))
        self.ends.enter_context(patch.object(repository.log, "propagate", False))  # pytest keeps errors that are told
        steps = self.folder / self.s / "1"
        steps.mkdir(parents=True)
        (steps / f"steps_{self.s}.py").write_text(STEPS)
        (steps / "flow.toml").write_text(SEQUENCES.replace("MODULE", f"steps_{self.s}"))
        (self.folder / self.s / "model.toml").write_text(
            f"max_batch = 1\nmax_wait_us = 0\npad = {{}}\nqueue = {queue}\n"
        )
        self.write(1)
        self.serving = {1: self.stored[1] or 0}
        self.server: Running = self.ends.enter_context(running(self.folder, usual=usual, grpc_port=None))
        self.server.loop.set_exception_handler(lambda _, told: self.told.append(told))
        self.repository = self.server.server.repository
        assert self.repository.is_ready, self.repository.index()

    def _gated(self, call: Any) -> Any:
        def gated(*args: Any) -> Any:
            assert self.gate.wait(WAIT_S)
            return call(*args)

        return gated

    # --- requests ----------------------------------------------------------------------------------------------------

    def send(self, asked: Asked, name: str, version: str, parameters: dict[str, Any]) -> RequestError | None:
        """Begin a request, whose outcome is looked at when it comes; or give why there is nobody to ask."""

        async def one() -> None:
            try:
                asked.outcome = await asked.served.infer(asked.given, [], RequestTerms(parameters))
            except (BoltError, asyncio.CancelledError) as error:
                asked.outcome = error.with_traceback(None)
                error.__cause__ = error.__context__ = None  # their frames hold the model, which may go
            asked.took = time.monotonic() - asked.begin

        async def sent() -> RequestError | None:
            try:
                asked.served = self.repository.find(name, version)
            except RequestError as error:
                return error
            asked.ahead = sum(a.served is asked.served and not a.task.done() for a in self.open)
            asked.begin = time.monotonic()
            self.open.append(asked)
            asked.task = asyncio.ensure_future(one())
            await asyncio.sleep(0)  # it has begun
            return None

        return self.server.do(sent())  # type: ignore[no-any-return]

    def possible(self, version: int | None) -> frozenset[int]:
        """Tags that an answer may have now."""
        found = [self.serving] if self.loading is None else [self.serving, self.loading[1]]
        return frozenset(tags[version or max(tags)] for tags in found if (version in tags if version else tags))

    @rule(
        count=st.integers(1, 8), rows=st.integers(0, ROWS), columns=st.integers(0, COLUMNS),
        kinds=st.lists(st.sampled_from([*range(KINDS), BEYOND, 0, 1, 2]), min_size=ROWS, max_size=ROWS),
        priority=st.integers(0, 3), timeout=st.sampled_from([0, 0, 0, 1, 3000, 60_000]),
        version=st.sampled_from([None, None, None, 1, 2, 3]), varied=st.booleans(),
    )  # fmt: skip
    def ask(
        self, count: int, rows: int, columns: int, kinds: list[int], priority: int, timeout: int, version: int | None,
        varied: bool,
    ) -> None:  # fmt: skip
        for i in range(count):
            n, m = ((rows + i) % (ROWS + 1), (columns + i // 2) % (COLUMNS + 1)) if varied else (rows, columns)
            kind = np.array((kinds[i % ROWS :] + kinds)[:n], "i8")
            number = next(self.numbers) % MOST_NUMBER
            asked = Asked(
                {"x": content(number, n, m), "i": kind}, number, self.possible(version), bool((kind == BEYOND).any()),
                timeout / 1e6 if timeout else None,
            )  # fmt: skip
            parameters = {"priority": priority, "timeout": timeout}
            refused = self.send(asked, self.m, "" if version is None else str(version), parameters)
            assert refused is None or refused.kind in ("missing", "unavailable"), refused
            assert (refused is None) == bool(asked.tags) or self.loading is not None, (refused, asked.tags)

    @rule(
        key=st.sampled_from("ab"), starts=st.booleans(), ends=st.booleans(), bad=st.integers(0, 4),
        timeout=st.sampled_from([0, 0, 0, 3000]),
    )  # fmt: skip
    def say(self, key: str, starts: bool, ends: bool, bad: int, timeout: int) -> None:
        """A request of a sequence, whose state is the bits of all that were answered before."""
        self.epochs[key] += starts
        epoch = (key, self.epochs[key])
        line = self.sent.setdefault(epoch, [])
        if len(line) >= 60:
            return
        x = -1 if not bad else 1 << len(line)
        asked = Asked(
            {"x": np.array([x])}, len(line), bad=not bad, seconds=timeout / 1e6 if timeout else None, epoch=epoch
        )
        line.append(asked)
        parameters = {"timeout": timeout, "sequence_id": key, "sequence_start": starts, "sequence_end": ends}
        self.send(asked, self.s, "", parameters)
        refused = asked.task.done() and isinstance(asked.outcome, FlowFullError)
        self.epochs[key] += ends and not refused

    @rule(what=st.sampled_from(["name", "dtype", "axes", "fewer", "priority"]))
    def ask_wrongly(self, what: str) -> None:
        x, i = content(1, 2, 2), np.zeros(2, "i8")
        given = {
            "name": {"x": x, "j": i}, "dtype": {"x": x.astype("f8"), "i": i}, "axes": {"x": x[0], "i": i},
            "fewer": {"x": x, "i": np.zeros(3, "i8")}, "priority": {"x": x, "i": i},
        }[what]  # fmt: skip

        async def one() -> str:
            try:
                terms = RequestTerms({"priority": -1 if what == "priority" else 0})
                await self.repository.find(self.m).infer(given, [], terms)
            except BoltError as error:
                return kind_of(error)
            return OK

        if what == "fewer":  # it waits for its turn
            self.gate.set()
        said = self.server.do(one())
        assert said in ("invalid", "busy", *(("missing", "unavailable") if self.loading or not self.serving else ()))
        if what != "priority" and said in ("invalid", "busy"):
            self.wrong[said] += 1

    @rule(whose=st.lists(st.integers(0, 7), min_size=1, max_size=3))
    def cancel(self, whose: list[int]) -> None:
        for asked in [self.open[at] for at in whose if at < len(self.open)]:
            self.server.loop.call_soon_threadsafe(asked.task.cancel)
        self.wait(0.0)

    # --- time --------------------------------------------------------------------------------------------------------

    @rule()
    def shut(self) -> None:
        self.gate.clear()

    @rule()
    def let_go(self) -> None:
        self.gate.set()

    @rule(ms=st.sampled_from([0, 1, 5, 20]))
    def wait(self, ms: float) -> None:
        self.server.do(asyncio.sleep(ms / 1e3))

    @rule()
    def end_all(self) -> None:
        """All that was asked is answered, once nothing holds it back."""
        self.gate.set()

        async def main() -> None:
            if self.open:
                _, hanging = await asyncio.wait([a.task for a in self.open], timeout=WAIT_S)
                assert not hanging, [a for a in self.open if a.task in hanging]

        self.server.do(main())
        self.look_at_answers()
        assert not self.open

    # --- models ------------------------------------------------------------------------------------------------------

    def path(self, version: int) -> Path:
        return self.folder / self.m / str(version) / "model.onnx"

    @rule(version=st.integers(1, 3))
    def write(self, version: int) -> None:
        """A file that is new, or another."""
        self.end_load()
        if (tag := next(self.tags)) * TAG * (1 / ROW) < 1 << 24:
            look_up(self.path(version), tag * TAG + KIND * np.arange(KINDS))
            self.stored[version] = tag
            self.stamp(version)

    @rule(version=st.integers(1, 3), content=st.sampled_from([b"", b"broken", b"\x08\x07broken"]))
    def spoil(self, version: int, content: bytes) -> None:
        self.end_load()
        self.path(version).parent.mkdir(parents=True, exist_ok=True)
        self.path(version).write_bytes(content)
        self.stored[version] = None
        self.stamp(version)

    def stamp(self, version: int) -> None:
        """Each writing has a time of its own, also on a disk whose clock is slow."""
        when = next(self.times) * 10**9
        os.utime(self.path(version), ns=(when, when))

    @rule(version=st.integers(1, 3))
    def take_away(self, version: int) -> None:
        self.end_load()
        if self.stored.pop(version, 0) != 0:
            shutil.rmtree(self.path(version).parent)

    @rule(how=st.sampled_from(["load", "look", "poll"]), waits=st.booleans())
    def load(self, how: str, waits: bool) -> None:
        self.end_load()
        if how == "poll" and self.m in self.repository.unloaded:
            after = self.serving
        else:
            chosen = sorted(self.stored)[-1 if self.versions == "latest" else 0 :]
            good = {v: tag for v in chosen if (tag := self.stored[v]) is not None}
            after = good if chosen and len(good) == len(chosen) else {**self.serving, **good}

        async def one() -> str:
            try:
                await (self.repository.load(self.m) if how == "load" else self.repository.look(how == "look"))
            except RequestError as error:
                return error.kind
            return "invalid"

        self.remember()
        self.loading = (asyncio.run_coroutine_threadsafe(one(), self.server.loop), after)
        if waits:
            self.end_load()

    @rule()
    def end_load(self) -> None:
        if self.loading is not None:
            done, self.serving = self.loading
            assert done.result(WAIT_S) == "invalid"  # if it was refused at all
            self.loading = None
            assert {int(v) for v in self.repository.models.get(self.m, {})} == self.serving.keys()

    @rule()
    def unload(self) -> None:
        self.end_load()
        self.remember()
        if self.serving or self.repository.rows(self.m):
            self.server.do(self.repository.unload(self.m))
        self.serving = {}

    def remember(self) -> None:
        """Models that may go now."""
        self.gone += [weakref.ref(model) for model in self.repository.models.get(self.m, {}).values()]

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def look_at_answers(self) -> None:
        for asked in [a for a in self.open if a.task.done()]:
            self.open.remove(asked)
            self.ended.append(asked)
            assert asked.task.exception() is None, asked
            self.check(asked)
            asked.task = asked.served = None  # which may go
        asking = Counter(asked.served.flow.engine for asked in self.open)
        for engine in self.server.do(self.engines()):
            with engine.lock:
                assert engine.pending == len(engine.open) <= min(self.queue, asking[engine])

    async def engines(self) -> list[Any]:
        return [model.flow.engine for model in self.repository.versions()]

    def check(self, asked: Asked) -> None:
        """The answer is the request's own, or the refusal is one that it may get."""
        outcome = asked.outcome
        if asked.seconds is not None:
            assert asked.took < asked.seconds + MARGIN_S, asked
        if isinstance(outcome, dict):
            assert not asked.bad, asked
            if asked.epoch is None:
                x, i = asked.given["x"], asked.given["i"]
                sums = [x + (TAG * tag + KIND * i).astype("f4")[:, None] for tag in asked.tags]
                assert any(np.array_equal(outcome["y"], wanted) for wanted in sums), (asked, sums)
                assert np.array_equal(outcome["z"], -outcome["y"]), asked
        elif isinstance(outcome, FlowFullError):
            assert asked.ahead >= self.queue, asked
        elif isinstance(outcome, FlowDeadlineError):
            assert asked.seconds is not None, asked
            assert asked.took >= asked.seconds, asked
        elif asked.bad:
            wanted = DataError if asked.epoch is None else BoltError
            assert isinstance(outcome, (wanted, asyncio.CancelledError)), asked
        else:
            assert isinstance(outcome, asyncio.CancelledError), asked

    def check_sequences(self) -> None:
        """A state has all that was answered before, and nothing of other sequences."""
        for line in self.sent.values():
            must = may = 0
            for asked in line:
                bit = 1 << asked.number
                if isinstance(asked.outcome, dict):
                    found = int(asked.outcome["y"][0])
                    assert found & must == must, (line, asked)
                    assert found & ~(may | bit) == 0, (line, asked)
                    assert found & bit, (line, asked)
                    must |= bit
                if isinstance(asked.outcome, (dict, asyncio.CancelledError)):
                    may |= bit

    def counted(self) -> tuple[Counter[str], float, dict[str, float]]:
        """Requests by outcome, those that wait, and others, as metrics tell."""
        outcomes, waiting, others = Counter[str](), 0.0, Counter[str]()
        for sample in (s for metric in REGISTRY.collect() for s in metric.samples):
            if sample.labels.get("model") not in (self.m, self.s):
                continue
            if sample.name == "bolt_request_seconds_count":
                outcomes[sample.labels["outcome"]] += int(sample.value)
            elif sample.name == "bolt_waiting_requests":
                waiting += sample.value
            elif sample.name == "bolt_queue_seconds_count":
                others["queued"] += sample.value
            elif sample.name == "bolt_run_seconds_count":
                size = int(sample.labels["batch"])
                others["ran"] += sample.value * size
                others["largest"] = max(others["largest"], size)
        return outcomes, waiting, others

    def teardown(self) -> None:
        try:
            if hasattr(self, "server"):
                self.end_load()
                self.end_all()
                self.look_behind()
        finally:
            self.gate.set()
            self.ends.close()
        _seen.append(resident())
        names = [t.name for t in threading.enumerate() if t.name.startswith((f"{self.m}-", f"{self.s}-"))]
        assert not names, names

    def look_behind(self) -> None:
        """Counts add up, and nothing is left of what has ended."""
        self.check_sequences()
        serving, until = self.repository.versions(), time.monotonic() + WAIT_S
        for engine in self.server.do(self.engines()):
            while any(s.running for s in engine.stations) and time.monotonic() < until:
                time.sleep(0.001)  # what was given up ends soon
            assert (engine.pending, engine.open, list(engine.ended)) == (0, set(), [])
            assert not any(station.queue or station.running for station in engine.stations)
        assert all(model.under_way == 0 for model in serving)
        outcomes, waiting, others = self.counted()
        wanted = Counter(asked.said for asked in self.ended)
        assert outcomes == wanted + self.wrong
        assert waiting == 0
        assert others["queued"] == others["ran"] >= wanted[OK]
        assert others["largest"] <= self.batch
        assert not self.told, self.told
        left = [ref for ref in self.gone if ref() not in serving]
        while (self.repository.retiring or any(ref() is not None for ref in left)) and time.monotonic() < until:
            gc.collect()
            time.sleep(0.02)
        assert not self.repository.retiring
        assert not [ref() for ref in left if ref() is not None]


def test_requests_while_models_change() -> None:
    """In `make test-all` the process is looked at, too: it does not grow."""
    _seen.clear()
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    examples = settings(
        max_examples=few(150, 4), stateful_step_count=few(50, 25), suppress_health_check=checks,
        phases=[Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    run_state_machine_as_test(ServerMachine, settings=examples)
    if (half := len(_seen) // 2) >= 50:
        assert max(_seen[half:]) - max(_seen[:half]) < GROWTH, _seen
