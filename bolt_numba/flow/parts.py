"""What nodes of a flow are described by: workers, states, options, and types of the values between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from bolt_numba.base.config import MAX_THREADS
from bolt_numba.base.types import TensorSpec, dtype_from_name, dtype_name
from bolt_numba.devices import choices, is_known, plug_ins
from bolt_numba.flow.errors import FlowError

_TYPE = re.compile(r"(\w+)\[([^\[\]]*)\]")
_SIZE = re.compile(r"[0-9]{1,18}$|[^\W\d]")
"""A size: a number, or a text that does not begin as one."""
MAX_CPUS = 1 << 16
"""Numbers of processors."""


@dataclass(frozen=True)
class Workers:
    """Threads that serve nodes, all on one device.

    count: how many; None: one for each entry of ``cpus``, or one.
    cpus: for each worker the processor, or the processors, that it is pinned to, where the system can do that.
    device: of the sessions that they run, as `bn.compile` takes it; None: the session's own, or the CPU.
    threads: of these sessions; None: the session's own, or the processors shared among the workers.
    """

    count: int | None = None
    cpus: Sequence[int | Iterable[int]] | None = None
    device: str | Sequence[str] | None = None
    threads: int | None = None

    def pins(self) -> list[frozenset[int] | None]:
        """For each worker the processors that it is pinned to, or None.  Raises FlowError for unfit ones."""
        if self.cpus is None:
            return [None] * want_count("workers", 1 if self.count is None else self.count, MAX_THREADS)
        said = f"workers: cpus: got {self.cpus!r:.80}"
        try:
            sets = [frozenset([c] if isinstance(c, int) else c) for c in self.cpus]
        except TypeError:
            raise FlowError(f"{said}, wanted a processor, or several, for each worker") from None
        if not all(is_count(c) and c < MAX_CPUS for s in sets for c in s):
            raise FlowError(f"{said}, wanted whole numbers from 0 to {MAX_CPUS - 1}")
        if self.count not in (None, len(sets)):
            raise FlowError(f"workers: got {self.count} with {len(sets)} entries of cpus, wanted as many")
        if not 1 <= len(sets) <= MAX_THREADS or not all(sets):
            raise FlowError(f"{said}, wanted processors for each worker")
        return list(sets)


@dataclass(frozen=True)
class State:
    """What a node keeps from task to task of one stream.

    output: the name of the output that is fed back.  initial: what a stream begins with; None: zeros of the declared
    shape, where a model declares one of numbers.
    """

    output: str
    initial: Any = None


@dataclass(frozen=True)
class NodeOptions:
    """How a node is served; docs/flow.md explains each.

    workers: its own; None: those of the flow.  each: values that are lists, of which the node gets one item at a time.
    states: inputs that come back from an output, by the input's name.  fixed: inputs that are the same for all tasks.
    max_batch, max_wait: pieces of work that run as one, and seconds that the first waits for others.
    pad: numbers that a model's inputs of different sizes are filled up with in a batch, by the input's name; what it
        makes of the filling is cut off.
    ragged: rows of a model's batch may differ in shape, and run by `Session.run_rows`.
    queue: pieces that may wait before nodes that feed this one pause.
    types: of outputs, such as ``"f32[n,3]"``, which are then held to them.
    process: call the function in other processes: True: one for each worker; a number: so many, with a worker for each.
    """

    workers: int | Workers | Sequence[Workers] | None = None
    each: str | Sequence[str] = ()
    states: Mapping[str, State | str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    max_batch: int = 1
    max_wait: float = 0.0
    pad: Mapping[str, float] = field(default_factory=dict)
    ragged: bool = False
    queue: int = 16
    types: Mapping[str, str] = field(default_factory=dict)
    process: bool | int = False

    def __post_init__(self) -> None:
        want_count("max_batch", self.max_batch)
        want_count("queue", self.queue)
        want_seconds("max_wait", self.max_wait)
        if self.process is not True and self.process is not False:
            if self.workers is not None:
                raise FlowError(f"process: got {self.process!r:.80} with workers, wanted True, or no workers")
            object.__setattr__(self, "workers", want_count("process", self.process))
        if self.workers is not None:
            workers_of(self.workers)
        if self.max_wait and self.max_batch == 1:
            raise FlowError("max_wait: got a time to wait for others with max_batch 1, wanted a larger max_batch")
        for name in ("states", "fixed", "types", "pad"):
            if not isinstance(getattr(self, name), Mapping):
                raise FlowError(f"{name}: got {getattr(self, name)!r:.80}, wanted a mapping by name")
        for name in ("pad", "ragged"):
            if getattr(self, name) and self.max_batch == 1:
                raise FlowError(f"{name}: got it with max_batch 1, wanted a larger max_batch")
        if self.states and (self.max_batch > 1 or self.each):
            raise FlowError("states: got them with max_batch or each, wanted one piece after another")


OPTIONS = frozenset(f.name for f in fields(NodeOptions))


def workers_of(given: int | Workers | Sequence[Workers]) -> tuple[Workers, ...]:
    """Workers as they may be given; raises FlowError for counts and processors that mean nothing."""
    several = (given,) if isinstance(given, Workers) else given
    if not isinstance(several, Sequence) or not several or not all(isinstance(w, Workers) for w in several):
        several = (Workers(want_count("workers", given)),)
    for one in several:
        one.pins()
        if one.threads is not None:
            want_count("workers: threads", one.threads, MAX_THREADS)
        if one.device is not None:
            want_devices("workers: device", one.device)
    return tuple(several)


def want_devices(what: str, given: Any) -> None:
    """A device that there is, or several; plug-ins are not opened."""
    named = [given] if isinstance(given, str) else given
    is_list = isinstance(named, (list, tuple)) and named and all(isinstance(n, str) for n in named)
    if not is_list or (unknown := [name for name in named if not plug_ins(name) and not is_known(name)]):
        wrong = unknown[0] if is_list else given
        raise FlowError(f"{what}: got {wrong!r:.80}, wanted {choices(wrong)}")


def is_count(given: Any) -> bool:
    """Whether something is a whole number, 0 or more."""
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool) and bool(given >= 0)


def want_count(what: str, given: Any, most: int | None = None) -> int:
    """A whole number above 0, and not above ``most``."""
    if not is_count(given) or given == 0:
        raise FlowError(f"{what}: got {given!r:.80}, wanted a whole number above 0")
    if most is not None and given > most:
        raise FlowError(f"{what}: got {given!r:.80}, wanted at most {most}")
    return int(given)


def want_seconds(what: str, given: Any) -> float:
    """A number of seconds, 0 or more."""
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not 0 <= given < 1e9:
        raise FlowError(f"{what}: got {given!r:.80}, wanted seconds")
    return float(given)


def seconds_of(what: str, given: Any) -> float | None:
    """As `want_seconds`; None stays None."""
    return None if given is None else want_seconds(what, given)


def wait_of(block: bool, timeout: Any) -> float | None:
    """Seconds that ``dequeue`` waits; None: as long as tasks are under way."""
    seconds = seconds_of("timeout", timeout)
    return seconds if block else 0.0


def names_in(what: str, given: Any) -> tuple[str, ...]:
    """One name, or several that differ."""
    several = isinstance(given, Iterable) and not isinstance(given, Mapping)
    names = (given,) if isinstance(given, str) else tuple(given) if several else (None,)
    if not all(isinstance(n, str) and n for n in names):
        raise FlowError(f"{what}: got {given!r:.80}, wanted names")
    if len(set(names)) != len(names):
        raise FlowError(f"{what}: got {given!r:.80}, wanted each name once")
    return tuple(map(str, names))


def type_of(name: str, text: Any) -> TensorSpec:
    """The type that a text such as ``f32[n,3,h,w]`` says; ``f32[...]`` is of any shape."""
    found = _TYPE.fullmatch(text.replace(" ", "")) if isinstance(text, str) else None
    try:
        if found is None:
            raise KeyError(text)
        dtype, sizes = dtype_from_name(found[1]), found[2].split(",") if found[2] else []
        if not all(d == "..." or _SIZE.match(d) for d in sizes) or "..." in sizes[1:]:
            raise KeyError(text)
    except KeyError:
        raise FlowError(f"type of {name!r}: got {text!r:.80}, wanted a text such as 'f32[n,3,h,w]'") from None
    if sizes == ["..."]:
        return TensorSpec(name, dtype, None)
    return TensorSpec(name, dtype, tuple(int(d) if d.isdecimal() else d for d in sizes))


def text_of(spec: TensorSpec) -> str:
    """A type as `type_of` reads it."""
    sizes = "..." if spec.shape is None else ",".join(map(str, spec.shape))
    return str(spec.nested) if spec.nested is not None else f"{dtype_name(spec.dtype)}[{sizes}]"


def fits(made: TensorSpec, wanted: TensorSpec) -> bool:
    """Whether a value of one type may be one of the other: sizes that are not known fit any."""
    if made.nested is not None or wanted.nested is not None:
        return (made.nested is None) == (wanted.nested is None)
    if made.dtype != wanted.dtype:
        return False
    if made.shape is None or wanted.shape is None:
        return True
    pairs = list(zip(made.shape, wanted.shape, strict=False))
    return len(made.shape) == len(wanted.shape) and all(a == b for a, b in pairs if not {type(a), type(b)} & {str})
