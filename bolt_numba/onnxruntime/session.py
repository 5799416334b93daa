"""InferenceSession: onnxruntime's way to run a model, on top of `bolt_numba.Session`."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import IO, TYPE_CHECKING, Any, TypeVar

from bolt_numba.base.errors import ShapeError
from bolt_numba.base.types import OptionalType
from bolt_numba.onnxruntime.assigned import RECORD, OrtEpAssignedSubgraph, assigned
from bolt_numba.onnxruntime.binding import IOBinding
from bolt_numba.onnxruntime.errors import OrtDTypeError, OrtOptionError, OrtRefusedError, OrtShapeError, leave_as_theirs
from bolt_numba.onnxruntime.model import (
    Declared,
    ModelMetadata,
    NodeArg,
    are_loose,
    args_of,
    named_dimensions,
    read_declared,
)
from bolt_numba.onnxruntime.options import (
    RunOptions,
    SessionOptions,
    changes_of,
    check_load,
    check_run,
    engine_arguments,
    with_those_of_model,
)
from bolt_numba.onnxruntime.providers import PROVIDERS, check_providers
from bolt_numba.onnxruntime.values import HOST, OrtDevice, OrtMemoryInfo, OrtValue, OrtValueVector, texts_of, want
from bolt_numba.sessions.inputs import names_of

if TYPE_CHECKING:
    from bolt_numba.ir.graph import Graph
    from bolt_numba.ir.model import Model
    from bolt_numba.sessions.session import Session
T = TypeVar("T")

FROM_MODEL = "ORT_LOAD_CONFIG_FROM_MODEL"
"""Variable of the environment: 1 has sessions take the options that the model's file holds."""


class Inner:
    """What clients call of the compiled session that `InferenceSession` is around there."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Any], run_options: RunOptions | None) -> list[Any]:
        return self._session.run(output_names, feeds, run_options)

    def run_with_ort_values(
        self, feeds: Mapping[str, OrtValue], output_names: Sequence[str], run_options: RunOptions | None
    ) -> OrtValueVector:
        return OrtValueVector(self._session.run_with_ort_values(output_names, feeds, run_options))

    def run_with_iobinding(self, binding: IOBinding, run_options: RunOptions | None) -> None:
        self._session.run_with_iobinding(binding, run_options)

    @property
    def inputs_meta(self) -> list[NodeArg]:
        return self._session.get_inputs()

    @property
    def outputs_meta(self) -> list[NodeArg]:
        return self._session.get_outputs()

    @property
    def model_meta(self) -> ModelMetadata:
        return self._session.get_modelmeta()


class InferenceSession:
    """A model ready to run: ``run(names, feeds)`` gives a list of arrays.

    Parameters
    ----------
    path_or_bytes: a file of any format that `bolt_numba.load` reads, its bytes, or a graph.
    sess_options: see `SessionOptions`.
    providers, provider_options: checked as there; an unknown one is warned of, and the CPU runs the model.
    kwargs: enable_fallback and disabled_optimizers are accepted and have no meaning here.
    Runs raise OrtShapeError, OrtDTypeError and OrtDataError for inputs, OrtOptionError for names and options.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | IO[bytes] | Graph | Model,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise OrtDTypeError(f"sess_options: got a {type(sess_options).__name__}, wanted SessionOptions")
        self._enable_fallback = bool(kwargs.pop("enable_fallback", True))
        kwargs.pop("disabled_optimizers", None)
        if kwargs:
            warnings.warn(f"InferenceSession: got {', '.join(kwargs)}, which are no options", stacklevel=2)
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        check_providers(providers, provider_options, self._enable_fallback)
        self._reads_options = os.environ.get(FROM_MODEL) == "1"
        self._source: Any = path_or_bytes.read() if hasattr(path_or_bytes, "read") else path_or_bytes
        is_path = isinstance(path_or_bytes, (str, os.PathLike))
        self._model_path = os.fspath(path_or_bytes) if is_path else None  # type: ignore[arg-type]
        self._model_bytes = self._source if isinstance(self._source, bytes) else None
        self._began_ns = time.time_ns() if self._sess_options.enable_profiling else 0
        self._profiled: Mapping[str, Any] | None = None
        self._ended = False
        self._loose = False
        self._variants: dict[tuple[frozenset[str], bool], Session] = {}
        try:
            check_load(self._sess_options)
            self._make()
            logging.getLogger("bolt_numba.onnxruntime").debug("session of %s", self._model_path or "bytes")
        except Exception as error:
            leave_as_theirs(error, str(self._model_path or "model"), OSError)

    def _make(self) -> None:
        from bolt_numba.converters.bounded import files_named

        with files_named() as read:
            self._session, declared = self._engine(frozenset(), loose=False)
        symbols = named_dimensions(declared.inputs)
        self._inputs_meta = args_of(self._session.inputs, declared.inputs, symbols, {})
        self._outputs_meta = args_of(self._session.outputs, declared.outputs, symbols, declared.kinds)
        self._overridable_initializers, self._model_meta = declared.overridable, declared.meta
        self._output_names = [arg.name for arg in self._outputs_meta]
        self._texts = {arg.name for arg in self._inputs_meta if arg.type == "tensor(string)"}
        nested = [s for s in self._session.inputs if s.nested is not None]
        self._optional = [s.name for s in nested if isinstance(s.nested, OptionalType)]
        self._is_plain = not (nested or self._texts or self._began_ns)  # arrays go to the session as they are
        if self._sess_options.optimized_model_filepath:
            from bolt_numba.onnxruntime.saving import save_optimised  # few sessions ask for it

            path, entries = self._sess_options.optimized_model_filepath, self._sess_options._entries
            save_optimised(self._session.graph, self._source, path, entries, read)

    def _engine(self, inputs: frozenset[str], loose: bool) -> tuple[Session, Declared]:
        """A session whose graph takes these initializers as inputs, and what the file declares; see `Changes`."""
        from bolt_numba.sessions.session import Session  # importing the drop-in is cheap

        graph, declared = read_declared(self._source, changes_of(self._sess_options, inputs, loose))
        if self._reads_options:
            self._sess_options = with_those_of_model(self._sess_options, declared.meta.custom_metadata_map)
            self._began_ns = time.time_ns() if self._sess_options.enable_profiling else 0
            self._reads_options = False
        return Session(graph, **engine_arguments(self._sess_options)), declared

    # --- running -----------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """Outputs in the order of ``output_names`` (None or empty: all).

        ``input_feed`` may also have initializers that the model lets a caller override.
        """
        try:
            if run_options is not None:
                check_run(run_options)
                with run_options._token:
                    return self.run(output_names, run_options._adapted(input_feed))
            names = self._names(output_names) if output_names else None
            if self._is_plain and type(input_feed) is dict and len(input_feed) == len(self._inputs_meta):
                try:
                    return self._session.run(names, input_feed)
                except ShapeError:
                    if not are_loose(self._inputs_meta, input_feed):
                        raise
            feeds = self._feeds(input_feed)
            if len(feeds) < len(self._inputs_meta):
                self._want_inputs(feeds)
            return self._with_engine(feeds, lambda engine: engine.run(names, feeds))
        except Exception as error:
            leave_as_theirs(error, "run")

    def _names(self, output_names: Sequence[str]) -> Sequence[str] | None:
        """What a session is asked for: None where that is everything."""
        if output_names == self._output_names:
            return None
        names = names_of(output_names)
        for name in names:
            if name not in self._output_names:
                raise OrtOptionError(f"output: got {name!r}, wanted one of {self._output_names}")
        return names

    def _feeds(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values as a session takes them: of OrtValues what they hold, None for optional inputs left out."""
        if not isinstance(given, Mapping):
            raise OrtDTypeError(f"input_feed: got a {type(given).__name__}, wanted arrays by name")
        feeds: Mapping[str, Any] = given
        if OrtValue in set(map(type, given.values())):
            feeds = {name: v._value if isinstance(v, OrtValue) else v for name, v in given.items()}
        for name in self._texts & feeds.keys():
            feeds = {**feeds, name: texts_of(feeds[name])}
        if self._optional:
            feeds = {**dict.fromkeys(self._optional), **feeds}
        if self._began_ns:
            self._profiled = feeds
        return feeds

    def _with_engine(self, feeds: Mapping[str, Any], work: Callable[[Session], T]) -> T:
        """Do ``work`` with the session that takes these inputs.

        onnxruntime does not hold inputs to being scalars.  The first inputs that are used so get a session that does
        not either, which is the one from then on.
        """
        was_loose = self._loose  # another thread may make it so meanwhile
        try:
            return work(self._engine_for(feeds))
        except ShapeError:
            if was_loose or not are_loose(self._inputs_meta, feeds):
                raise
            self._loose, self._is_plain = True, False
        return work(self._engine_for(feeds))

    def _engine_for(self, feeds: Mapping[str, Any]) -> Session:
        """The session's own engine, or one where overridden initializers are inputs."""
        extra: frozenset[str] = frozenset()
        if len(feeds) > len(self._inputs_meta) and self._overridable_initializers:
            extra = frozenset(arg.name for arg in self._overridable_initializers if arg.name in feeds)
        if not extra and not self._loose:
            return self._session
        key = extra, self._loose
        if key not in self._variants:
            self._variants[key] = self._engine(*key)[0]
        return self._variants[key]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """As `run`, from and to OrtValues."""
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Sequence[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in a thread, then ``callback(results, user_data, error)`` there; error: "" or what went wrong."""
        want(Mapping, "input_feed", input_feed)
        want(Callable, "callback", callback)
        self._want_inputs(input_feed)
        from threading import Thread  # few clients need it

        def work() -> None:
            try:
                results, said = self.run(output_names, input_feed, run_options), ""
            except Exception as error:
                results, said = [], str(error)
            callback(results, user_data, said)

        Thread(target=work, name="bolt_numba run_async", daemon=True).start()

    def _want_inputs(self, feeds: Mapping[str, Any]) -> None:
        missing = [arg.name for arg in self._inputs_meta if arg.name not in feeds and arg.name not in self._optional]
        if missing:
            raise OrtShapeError(f"Required inputs ({missing}) are missing from input feed ({list(feeds)})")

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[OrtDevice],
    ) -> None:
        """Run on values in a row, and add the results to ``fetches``; they are in the memory of the CPU."""
        given = dict(zip(feed_names, feeds, strict=True))
        fetches.extend(self.run_with_ort_values(fetch_names, given, run_options))

    @property
    def _sess(self) -> Inner:
        """What onnxruntime's class keeps its compiled session in, for clients that call that one."""
        return Inner(self)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound; results stand in `IOBinding.get_outputs`."""
        try:
            check_run(run_options)
            want(IOBinding, "iobinding", iobinding)
            if run_options is not None and run_options._adapters:
                warnings.warn("run_with_iobinding: adapters: got some, which it does not use", stacklevel=2)
            if iobinding._session is not self:
                raise OrtOptionError("iobinding: got that of another session, wanted one of this session")
            with nullcontext() if run_options is None else run_options._token:
                iobinding._run()
        except Exception as error:
            leave_as_theirs(error, "run_with_iobinding")

    # --- asking ------------------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that a run may be fed in the place of the file's."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        return self._model_meta

    def get_session_options(self) -> SessionOptions:
        return self._sess_options

    def get_providers(self) -> list[str]:
        return list(PROVIDERS)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in PROVIDERS}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Refuse what names no provider; the CPU stays the one that runs the model."""
        check_providers(providers, provider_options, fallback=False)

    def enable_fallback(self) -> None:
        """The constructor's option: the CPU runs the model in any case."""
        self._enable_fallback = True

    def disable_fallback(self) -> None:
        """The constructor's option, which `run` does not ask for here."""
        self._enable_fallback = False

    def get_input_epdevices(self) -> list[None]:
        """None for each input: the CPU is not chosen as a device."""
        return [None] * len(self._inputs_meta)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        return [HOST] * len(self._inputs_meta)

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [HOST] * len(self._outputs_meta)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """As `OrtValue.ortvalue_from_shape_and_type`."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """The nodes of an ONNX file, each as a part of its own, which the CPU runs.

        Raises OrtRefusedError where they were not recorded.
        """
        if self._sess_options._entries.get(RECORD) != "1":
            raise OrtRefusedError(f"Session configuration entry '{RECORD}' must be set to \"1\"")
        return assigned(self._source)

    # --- profiling ---------------------------------------------------------------------------------------------------

    def get_profiling_start_time_ns(self) -> int:
        """When the session was made, by Python's `time.time_ns`; 0 where it does not profile."""
        return self._began_ns

    def end_profiling(self) -> str:
        """Write a trace and return its file's name; "" where ``enable_profiling`` is off, and for a second call.

        The last run's inputs are run again step by step.
        """
        if not self._began_ns or self._ended:
            return ""
        self._ended = True
        from bolt_numba.onnxruntime.profiling import write_trace  # few sessions need it

        try:
            engine = self._session if self._profiled is None else self._engine_for(self._profiled)
            return write_trace(engine, self._profiled, self._sess_options.profile_file_prefix)
        except Exception as error:
            leave_as_theirs(error, "end_profiling", OSError)
