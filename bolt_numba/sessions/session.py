"""The public way to run a model: `compile` makes a `Session`, calling it gives `Outputs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.base.border import border, left
from bolt_numba.base.budget import limits_of, within
from bolt_numba.base.cancelling import cancelled_with_us
from bolt_numba.base.errors import BoltError, DeviceError, DTypeError, OptionError, ShapeError
from bolt_numba.base.files.mapped import check_intact, drop_maps
from bolt_numba.base.options import Options, count_of, not_among, options_of
from bolt_numba.base.types import STRING, Array, TensorSpec
from bolt_numba.devices import in_order, plug_ins
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.model import MAIN
from bolt_numba.runtime.copies import Views, dense
from bolt_numba.sessions import clones
from bolt_numba.sessions.inputs import (
    check_apart,
    check_buffer,
    check_no_plug_ins,
    contradiction,
    inputs_among,
    names_of,
    shared_symbols,
    spec_of,
    targets_among,
    threads_of,
    wanted_of,
    with_caches,
)  # fmt: skip
from bolt_numba.sessions.outputs import Outputs, specs_table

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords
    from bolt_numba.devices.parts.opened import Opened
    from bolt_numba.runtime.copies import Home
    from bolt_numba.runtime.device import Device
    from bolt_numba.runtime.packs import Packs
    from bolt_numba.runtime.region import Region
    from bolt_numba.runtime.reports.profile import Profile
    from bolt_numba.runtime.reports.report import Report
    from bolt_numba.runtime.runner import Runner
    from bolt_numba.runtime.states import Choose
    from bolt_numba.sessions.plugins import Plugins


class Session:
    """A compiled model.  May be called from many threads, pickled, and used after a fork.

    Parameters
    ----------
    graph: the model as loaded; it is not changed.
    options: a record of `bolt_numba.Options`, which says what there is; all of them may be keywords as well.
    signatures: names of all graphs of the model that ``graph`` is from.
    The constructor raises DTypeError for what is no graph, OptionError for an option, DeviceError for its device.
    """

    _already: Mapping[str, Opened] = MappingProxyType({})  # plug-ins that are open before the session is made

    @border("session")
    def __init__(
        self,
        graph: Graph,
        options: Options | None = None,
        *,
        signatures: Sequence[str] = (MAIN,),
        **given: Unpack[OptionKeywords],
    ) -> None:
        if not isinstance(graph, Graph):
            raise DTypeError(f"graph: got a {type(graph).__name__}, wanted a Graph, as bn.load gives it of a file")
        if options is not None and not isinstance(options, Options):
            raise DTypeError(f"options: got a {type(options).__name__}, wanted Options")
        if options is None or given:
            options = options_of("session", given if options is None else vars(options) | given)
        self._take(options, threads_of(options.threads))
        if self.options.stages is not None and graph.packed is not None:
            raise OptionError(f"stages: {graph.called!r}: got a packed graph, wanted one that is not optimised yet")
        self._budget = limits_of(self.options.memory_limit, self.options.time_limit)
        self.graph = graph = with_caches(graph, self.options.cache)
        inputs = [spec_of(v.name, v.type) for v in graph.caller_inputs]
        self._show(graph.called, signatures, inputs, [spec_of(n, v.type) for n, v in graph.caller_outputs])
        self._seen: Graph | None = None
        self._packs = self._new_packs()
        with self._granted():
            self._runner = self._new_runner(self._devices_of(self.device))
        self._far = self._runner.far
        self._wider: dict[tuple[str, ...], Session] = {}
        self._states = None
        if graph.states:
            from bolt_numba.runtime.states import States

            self._states = States(graph)

    def _take(self, options: Options, threads: int) -> None:
        """Be a session of these options, but for so many threads."""
        self.options, self.threads = options if options.threads == threads else options.but(threads=threads), threads
        self.device, self.precision, self.numerics = options.device, options.precision, options.numerics

    def _show(
        self, name: str, signatures: Sequence[str], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> None:
        """Be a session of this name and signatures, with these inputs and outputs."""
        self._name, self.signatures = name, tuple(signatures)
        self.inputs, self.outputs = list(inputs), list(outputs)
        self._input_names, self._output_names = [s.name for s in inputs], [s.name for s in outputs]
        self._wanted, self._shared = [wanted_of(s) for s in inputs], shared_symbols(inputs)

    def _devices_of(self, device: str | Sequence[str]) -> tuple[Device, ...]:
        """The devices in order of preference; plug-ins are opened."""
        named = plug_ins(device)
        self._plugins: Plugins | None = None
        if not named:
            check_no_plug_ins(self.options)
            found = in_order(device)
        else:
            from bolt_numba.sessions.plugins import plugins_of  # sessions without plug-ins do without

            if self.graph.packed is not None:
                raise DeviceError(f"device: got {named[0]!r} for a packed graph, wanted one that is not optimised yet")
            self._plugins = plugins_of(named, self.options, self._already)
            found = self._plugins.in_order((device,) if isinstance(device, str) else device)
        self._computes_halves = found[0].halves
        return found

    def _new_packs(self) -> Packs:
        from bolt_numba.runtime.packs import Packs

        return Packs(self.precision, self.numerics)

    def _new_runner(self, devices: tuple[Device, ...]) -> Runner:
        from bolt_numba.runtime.copies import elsewhere
        from bolt_numba.runtime.runner import Runner  # sessions of known files do without the runtime
        from bolt_numba.runtime.stand_ins import Serving, is_worth_it

        tuner = None
        if self.options.tune:
            from bolt_numba.runtime.reports.tune import Tuner

            tuner = Tuner(self.threads)
        is_early = not (elsewhere(devices) or self._plugins or self.options.time_limit) and is_worth_it()
        serves = Serving(self.graph.called, self.options.does_stand_in, is_early)
        return Runner(self._region(), self.threads, self._packs, devices, tuner, self.options.max_plans, serves)

    def _region(self) -> Region:
        """The optimised graph for the runner, whose constants the packs look after."""
        from bolt_numba.devices.seals import Sealed, check_sources, machine
        from bolt_numba.runtime.region import region_of

        graph, stored = self._optimise(), self.graph.packed
        self._packs.take(graph, self._weights(), self._optimise)
        self._texts = None
        if STRING in [v.type.dtype for v in (*graph.inputs, *graph.outputs)]:  # texts at its ends, if at all
            from bolt_numba.runtime.texts import texts_of

            self._texts = texts_of(graph)
        if stored is not None and stored.machine == machine():
            self._packs.take_packed(Sealed(stored), self.graph)
        elif stored is not None:
            check_sources(stored, self.graph)
        return region_of(graph) if self._texts is None else self._texts.region

    def _optimise(self) -> Graph:
        """An optimised graph of its own."""
        if self._seen is not None:
            return self._seen.clone()
        source = self._source()
        how: Any = {"numerics": self.numerics, "precision": self.precision, "halves": self._computes_halves}
        if source.packed is None:
            from bolt_numba.passes.pipeline import run_pipeline  # packed files do without

            made = run_pipeline(source, stages=self.options.stages, partition=self._plugins, **how)
            drop_maps(self._weights())
        else:  # all stages are done but the last one, "precision"
            made = source.clone()
            if self.precision != "f32" or self._computes_halves:
                from bolt_numba.passes.quantised.all_halves import narrow_for

                narrow_for(made, **how)
        if self._plugins is not None:  # a device that answers otherwise the next time would cut another graph
            self._seen = made
            return made.clone()
        return made

    def _source(self) -> Graph:
        """The model as loaded; raises InvalidModelError when the file that holds its weights was written to."""
        check_intact(self.graph.weights())
        return self.graph

    def _weights(self) -> list[Array]:
        """Constants of the model as loaded."""
        return [v.const for v in self.graph.constants() if v.const is not None]

    @property
    @border("optimised")
    def optimised(self) -> Graph:
        """The graph after all passes: for looking at."""
        if self._seen is None:
            self._seen = self._optimise()
        return self._seen

    # --- running -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Outputs:
        """Run once.  Inputs by name (keywords or one mapping) or by position.

        Raises ShapeError or DTypeError for them, DataError for content.
        """
        try:
            return Outputs(self._output_names, self._run(self._arrays(self._feeds(args, kwargs))))
        except Exception as error:
            error = left(error, self._name)
            raise error

    async def run_async(self, *args: Any, **kwargs: Any) -> Outputs:
        """As a call, in a thread; the event loop meanwhile does something else, and cancelling it ends the run."""
        return await cancelled_with_us(self, *args, **kwargs)

    def _run(self, arrays: list[Array], choose: Choose | None = None) -> list[Array]:
        if self._shared and (told := contradiction(self._shared, self.inputs, arrays)) is not None:
            return clones.run_apart(self, told, arrays, choose)
        if self._texts is not None:
            return self._texts.run(self._go, self._dense(arrays), self._budget)
        if self._states is None:
            return self._go(arrays, None if choose is None else choose(arrays))
        return self._states.run(self._go, arrays, choose, self._homes if self._far else None)

    def _homes(self, arrays: list[Array]) -> list[Home | None]:
        """Where states of a run of these inputs may stay."""
        with self._granted():
            return self._runner.homes(arrays, len(self.graph.states))

    def _go(self, arrays: list[Array], targets: Sequence[Array | None] | None = None) -> list[Array]:
        runner = self._runner
        if type(arrays) is Views:
            from bolt_numba.runtime.views import reading

            with self._granted():
                runner, arrays = reading(runner, arrays, self._input_names)
        if self._budget is None:
            return runner.run(arrays, targets)
        if self._budget.seconds is not None:
            with within(self._budget):
                runner.prepare(arrays)  # a plan and its kernels take none of the run's time
        with within(self._budget.begun()):
            return runner.run(arrays, targets)

    def _granted(self) -> AbstractContextManager[object]:
        """Hold what is done to the session's limit of memory."""
        return nullcontext() if self._budget is None else within(self._budget)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """As onnxruntime's: outputs in the order of ``names``, or all.  Names may be intermediate values.

        Raises as a call: ShapeError, DTypeError, DataError; BoltError for a name.
        """
        try:
            return self._run(self._arrays(feeds)) if names is None else self._run_named(names, feeds)
        except Exception as error:
            error = left(error, "run")
            raise error

    def _run_named(self, given: Sequence[str], feeds: Mapping[str, Any]) -> list[Array]:
        names = names_of(given)
        extra = tuple(sorted({n for n in names if n not in self._output_names}))
        if not extra:
            results = dict(zip(self._output_names, self._run(self._arrays(feeds)), strict=True))
        else:
            results = dict(clones.with_outputs(self, extra)(feeds).items())
        return [results[n] for n in names]

    @border("run_rows")
    def run_rows(self, rows: Iterable[Mapping[str, Any]], outputs: Sequence[str] | None = None) -> list[Outputs]:
        """Run rows of any lengths: each has inputs by name without the first axis; so have the results, in order.

        Every result is that of the row's own run, as a batch of one.  outputs: as the names of `run`.
        Raises as a call, with the number of the row, BoltError for a model with states.
        """
        from bolt_numba.sessions.rows import run_rows

        return run_rows(self, rows, outputs)

    @border("run_into")
    def run_into(self, feeds: Mapping[str, Any], buffers: Mapping[str, Array]) -> None:
        """Run once and write the outputs named in ``buffers`` into them.

        A buffer must be C-contiguous and writable, with the output's dtype and shape.  It may be an array on a device
        of the session (`bolt_numba.device_array`, or of another package).  It may be an input, as state
        is that goes in and out: it is written directly where the plan reads the input no later, else (and where it
        overlaps an input in any other way) the result is computed apart and copied.  Buffers must not overlap.
        Raises as a call, ShapeError or DTypeError for a buffer.
        """
        from bolt_numba.runtime.copies import imported, write

        arrays = self._dense(self._arrays(feeds))
        if not isinstance(buffers, Mapping):
            raise DTypeError(f"buffers: got a {type(buffers).__name__}, wanted arrays by name")
        if self._far:
            buffers = imported(self._far, buffers)
        check_apart(buffers)
        for name in buffers:
            if name not in self._output_names:
                raise ShapeError(not_among("output", [name], self._output_names))
        results = self._run(arrays, lambda given: self._targets(given, buffers))
        for name, result in zip(self._output_names, results, strict=True):
            buffer = buffers.get(name)
            if buffer is not None and buffer is not result:
                check_buffer(name, buffer, result.shape, result.dtype)
                write(buffer, result)

    def _targets(self, arrays: list[Array], buffers: Mapping[str, Array]) -> list[Array | None]:
        """For each output the buffer that a run of these inputs may write it to straight away."""
        with self._granted():
            prepared = self._fitting(arrays)._runner.prepare(arrays)
        return targets_among(prepared, self._output_names, arrays, buffers)

    def _feeds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not args:
            return kwargs
        if len(args) == 1 and isinstance(args[0], Mapping):
            return {**args[0], **kwargs} if kwargs else args[0]
        feeds = {**dict(zip(self._input_names, args, strict=False)), **kwargs}
        if len(args) > len(self._input_names) or len(feeds) < len(self._input_names):
            got = max(len(args), len(feeds))
            raise ShapeError(f"inputs: got {got}, wanted {len(self._input_names)}: {self._input_names}")
        return feeds

    def _arrays(self, feeds: Mapping[str, Any]) -> list[Array]:
        """The inputs of a run, states of this moment included."""
        arrays = self._inputs(feeds)
        return arrays if self._states is None else self._dense(arrays) + self._states.values

    def _dense(self, arrays: list[Array]) -> list[Array]:
        """Contiguous inputs."""
        if type(arrays) is not Views:
            return arrays
        with self._granted():
            return dense(arrays, self._input_names)

    def _inputs(self, feeds: Mapping[str, Any]) -> list[Array]:
        """The caller's inputs."""
        if self._far and isinstance(feeds, Mapping):
            from bolt_numba.runtime.copies import imported

            feeds = imported(self._far, feeds)
        if self._budget is None:
            arrays = inputs_among(self._wanted, feeds, self._far)
        else:  # some are copied
            with within(self._budget):
                arrays = inputs_among(self._wanted, feeds, self._far)
        if len(feeds) != len(arrays):
            self._check_known(feeds)
        return arrays

    def _check_known(self, names: Iterable[str]) -> None:
        unknown = [name for name in names if name not in self._input_names]
        if unknown:
            raise ShapeError(not_among("inputs", unknown, self._input_names))

    def _fitting(self, arrays: Sequence[Array]) -> Session:
        """The session that runs these inputs: another one inside where a symbol has several sizes."""
        told = contradiction(self._shared, self.inputs, arrays)
        if told is None:
            return self
        return clones.apart(self, told)

    # --- looking -----------------------------------------------------------------------------------------------------

    @border("warmup")
    def warmup(self, *args: Any, **shapes: Sequence[int]) -> None:
        """Plan for shapes, given as inputs are (static ones may be left out), wait for kernels and tapes; run nothing.

        Raises ShapeError for a name or size.
        """
        from bolt_numba.base.turns import wait
        from bolt_numba.sessions.warming import runner_at

        with self._granted():
            runner, arrays = runner_at(self, self._feeds(args, shapes))
            runner.prepare(arrays, waits=True)
        wait(runner.serving)

    @border("reset_state")
    def reset_state(self, states: Mapping[str, Array] | None = None) -> None:
        """Forget earlier runs: what the model keeps from run to run is as at first, or as ``states`` says by name.

        Threads that call one session share its state; their runs go one after another.
        Raises BoltError for names or values that are not the model's.
        """
        if self._states is not None:
            self._states.reset(states or {})
        elif states:
            raise BoltError(f"state: got {sorted(states)}, wanted none: the model keeps nothing")

    @property
    def states(self) -> dict[str, Array]:
        """Copies of what the model keeps from run to run, by name."""
        return {} if self._states is None else self._states.copies()

    @border("profile")
    def profile(self, *args: Any, runs: int = 20, **kwargs: Any) -> Profile:
        """Time every step: ``profile(x, runs=50)`` with inputs as for a call; after 20 s no further run begins.

        Raises as a call: ShapeError or DTypeError.
        """
        from bolt_numba.runtime.copies import is_elsewhere
        from bolt_numba.runtime.reports.profile import profile_runs

        with self._granted():
            given = self._dense(self._inputs(self._feeds(args, kwargs)))
            arrays = [np.asarray(a) if is_elsewhere(a) else a for a in given]
            arrays += [] if self._states is None else self._states.on_host()
            fitting = self._fitting(arrays)
            return profile_runs(fitting._runner, arrays, count_of("runs", runs), fitting._texts)

    def memory(self) -> dict[str, int]:
        """Bytes by use.

        ``weights`` of the model, which stay in its file, ``packed`` copies for the kernels, ``arena`` of the largest
        plan, ``naive``: that arena without sharing; ``uploaded`` to devices with a memory of their own, if to any,
        ``pinned`` of the host for copies there, which all sessions share, and ``states``, if the model keeps any, with
        the second places of those on a device.
        """
        return clones.memory_of(clones.inside(self))

    def packs(self) -> dict[tuple[int, str], Array]:
        """Weights packed so far, by the place of the constant they were packed from and the key of the packing.

        The sessions inside (of other sizes, or with other outputs) have theirs behind what they take as inputs.
        """
        return clones.packs_of(self)

    def report(self) -> Report:
        """What runs each node of the plans made so far.

        node, operator (op), output, runner: a kernel or ``reference``, device, packs: what it reads in the place of
        constants.  Sessions inside stand behind; ``inputs`` is what they take.  ``.tapes``: why new shapes need plans.
        """
        return clones.reported(self)

    @border("clone")
    def clone(self, threads: int | None = None) -> Session:
        """Another session of the model, with the same options and weights, and states of its own, as they are at first.

        threads: of its runs; None: as many, and it shares plans, too.  Each is closed by itself (docs/usage.md).
        """
        return clones.cloned(self, threads)

    def close(self) -> None:
        """Drop plans and packed weights, close plug-ins, but keep them for clones; a later call plans anew."""
        is_shared = clones.is_still_shared(self)
        if self._plugins is not None and not is_shared:
            self._plugins.close()
        self._packs = self._new_packs()
        if is_shared:
            self._runner = self._runner.anew(self.threads)
        self._runner.forget(self._packs, self._region)
        for each in self._inner():
            each.close()
        self._wider.clear()

    def _inner(self) -> list[Session]:
        """The sessions inside this one, which run what it cannot."""
        return list(self._wider.values())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        from bolt_numba.ir.store import to_bytes

        if self.options.stages is not None:
            raise BoltError(f"pickle: session of {self.graph.called!r}: got stages of its own, which are functions")
        return _restore, (to_bytes(self._source()), self.options, self.signatures)

    def __repr__(self) -> str:
        how = "" if self.precision == "f32" else f", precision={self.precision!r}"
        how += "" if self.numerics == "default" else f", numerics={self.numerics!r}"
        return f"Session({self._name!r}, device={self.device!r}, threads={self.threads}{how})"

    def _repr_html_(self) -> str:
        return specs_table(repr(self), self.inputs, self.outputs)


def _restore(data: bytes, options: Options, signatures: Sequence[str]) -> Session:
    from bolt_numba.ir.store import load_bolt

    return Session(load_bolt(data), options, signatures=signatures)
