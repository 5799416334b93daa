"""SessionOptions and RunOptions.  docs/onnxruntime.md says of every field what it does here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bolt_numba.base.cancelling import CancelToken
from bolt_numba.base.options import OPTIONS, plain_kind
from bolt_numba.base.types import Array
from bolt_numba.onnxruntime.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from bolt_numba.onnxruntime.errors import (
    ModelLoadCanceled,
    OrtDTypeError,
    OrtOptionError,
    OrtRefusedError,
    OrtTerminatedError,
)
from bolt_numba.onnxruntime.model import Changes
from bolt_numba.onnxruntime.process import pool_threads
from bolt_numba.onnxruntime.settings import Configured, Setting, count, flag, one_of, text
from bolt_numba.onnxruntime.values import OrtValue, want

MAX_SEVERITY = 4
FOLDER = "session.model_external_initializers_file_folder_path"
"""Entry that says where external data lie of a model that is no file."""
OURS = "bolt_numba."
"""How keys of configuration begin that are options of `bolt_numba.Session`."""
_ELSEWHERE = ("threads", "fallback")
"""Options that have a field here, or no meaning."""
_READ: dict[str, Callable[[str], Any]] = {
    name: (lambda text: bool(int(text))) if kind is bool else kind
    for name, kind in ((name, plain_kind(name)) for name in OPTIONS if name not in _ELSEWHERE)
    if kind is not None
}
"""The others that are a text, a number or a flag, and how each is read from text."""


class SessionOptions(Configured):
    """How a session is made.

    Meant here: intra_op_num_threads, enable_profiling with profile_file_prefix, dimensions, initializers, and entries
    of the configuration ``bolt_numba.numerics`` and so on, for all of `bolt_numba.Options` that are texts, numbers or
    flags, but for threads and fallback.
    Methods raise OrtOptionError for values, and OrtRefusedError for what cannot be done here.
    """

    __slots__ = ("_cancelled", "_dimensions", "_files", "_initializers", "_meanings")

    intra_op_num_threads = Setting(count, 0)
    enable_profiling = Setting(flag, False)
    profile_file_prefix = Setting(text, "onnxruntime_profile_")
    optimized_model_filepath = Setting(text, "")
    inter_op_num_threads = Setting(count, 0)
    execution_mode = Setting(one_of(ExecutionMode), ExecutionMode.ORT_SEQUENTIAL)
    execution_order = Setting(one_of(ExecutionOrder), ExecutionOrder.DEFAULT)
    graph_optimization_level = Setting(one_of(GraphOptimizationLevel), GraphOptimizationLevel.ORT_ENABLE_ALL)
    enable_cpu_mem_arena = Setting(flag, True)
    enable_mem_pattern = Setting(flag, True)
    enable_mem_reuse = Setting(flag, True)
    use_deterministic_compute = Setting(flag, False)
    use_per_session_threads = Setting(flag, True)
    log_severity_level = Setting(count, -1)
    log_verbosity_level = Setting(count, 0)
    logid = Setting(text, "")

    def __init__(self) -> None:
        super().__init__()
        self._cancelled = False
        self._dimensions: dict[str, int] = {}
        self._meanings: dict[str, int] = {}
        self._initializers: dict[str, Array] = {}
        self._files: dict[str, bytes] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Any key is taken; those of onnxruntime's own engine have no meaning here, but for `FOLDER`.

        Raises OrtOptionError for an unknown key that begins with ``bolt_numba.``, and for a value it cannot have.
        """
        if str(key).startswith(OURS):
            name = key.removeprefix(OURS)
            if name not in _READ:
                known = [OURS + name for name in _READ]
                raise OrtOptionError(f"configuration: got {key}={value!r}, wanted one of {known}")
            try:
                _READ[name](value)
            except ValueError as error:
                raise OrtOptionError(f"configuration: {key}: got {value!r}, wanted a number") from error
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Every dimension of an input that has this name has this size."""
        self._dimensions[text("dimension", name)] = count(f"dimension {name!r}", size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Every dimension of an input that the file says to have this meaning has this size."""
        self._meanings[text("dimension", denotation)] = count(f"dimension {denotation!r}", size)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Take this value in the place of the file's initializer of this name, if there is one."""
        if not isinstance(value, OrtValue):
            raise OrtOptionError(f"initializer {name!r}: got a {type(value).__name__}, wanted an OrtValue")
        self._initializers[text("initializer", name)] = value.numpy()

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """As `add_initializer`, for several."""
        if len(names) != len(values):
            raise OrtOptionError(f"initializers: got {len(names)} names and {len(values)} values, wanted as many")
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def set_load_cancellation_flag(self, cancelled: bool) -> None:
        """True: sessions that are made with these options are not; a load that has begun ends."""
        self._cancelled = flag("cancelled", cancelled)

    def has_providers(self) -> bool:
        """False: providers are an argument of the session."""
        return False

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """The CPU's is there in any case; others are refused."""
        if name != "CPUExecutionProvider":
            raise OrtOptionError(f"add_provider: got {name!r}, wanted 'CPUExecutionProvider'")

    def register_custom_ops_library(self, path: str) -> NoReturn:
        """Refused: operators in a library of machine code are made for onnxruntime's own interface."""
        raise OrtRefusedError(
            f"register_custom_ops_library: got {path!r}, wanted a model of known operators "
            "(CONTRIBUTING.md says how to add one)"
        )

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[bytes], lengths: Sequence[int]
    ) -> None:
        """Take these contents in the place of files with external data; lengths: bytes that count of each."""
        if not len(names) == len(buffers) == len(lengths):
            raise OrtOptionError(f"files: got {len(names)}, {len(buffers)} and {len(lengths)}, wanted as many of each")
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            self._files[text("file", name)] = bytes(buffer)[: count(f"length of {name!r}", length)]


def engine_arguments(options: SessionOptions) -> dict[str, Any]:
    """Arguments of `bolt_numba.Session`."""
    own = {k.removeprefix(OURS): v for k, v in options._entries.items() if k.startswith(OURS)}
    made = {name: _READ[name](value) for name, value in own.items()}
    if options.use_deterministic_compute:
        made.setdefault("stand_ins", False)
    threads = options.intra_op_num_threads if options.use_per_session_threads else pool_threads()
    if threads > 0:
        made["threads"] = threads
    return made


def changes_of(options: SessionOptions, inputs: frozenset[str], loose: bool) -> Changes:
    """What is to be changed of the file."""
    folder = options._entries.get(FOLDER)
    return Changes(
        options._dimensions, options._meanings, options._initializers, inputs, loose, options._files,
        () if folder is None else (Path(folder),),
    )  # fmt: skip


OF_MODELS: dict[str, Callable[[Any], Any]] = {
    "intra_op_num_threads": lambda value: value, "inter_op_num_threads": lambda value: value,
    "execution_mode": ExecutionMode, "graph_optimization_level": GraphOptimizationLevel,
    "enable_profiling": lambda value: bool(value) if value in (0, 1) else value,
}  # fmt: skip
"""Fields that a model's file may set, as in onnxruntime: none that names a file."""


def with_those_of_model(options: SessionOptions, metadata: Mapping[str, str]) -> SessionOptions:
    """Options with what a model's metadata say under ``ort_config``: JSON with fields of `OF_MODELS`.

    Others are left out with a warning.
    """
    import copy
    import json  # few sessions ask for it

    if "ort_config" not in metadata:
        return options
    options = copy.copy(options)
    options._settings = dict(options._settings)
    try:
        found = dict(json.loads(metadata["ort_config"]).get("session_options", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise OrtOptionError(f"ort_config: got {metadata['ort_config']!r:.80}, wanted JSON: {error}") from error
    for name, value in found.items():
        if name not in OF_MODELS:
            warnings.warn(f"ort_config: {name!r:.80} is left out, a model may set {', '.join(OF_MODELS)}", stacklevel=2)
            continue
        try:
            setattr(options, name, OF_MODELS[name](value))
        except (ValueError, TypeError) as error:
            raise OrtOptionError(f"ort_config: {name}: got {value!r:.80}: {error}") from error
    return options


class Terminate(Setting[bool]):
    """Whether runs end, those under way, too."""

    def __set__(self, owner: Any, value: Any) -> None:
        super().__set__(owner, value)
        (owner._token.cancel if owner.terminate else owner._token.reset)()


class RunOptions(Configured):
    """How one run is done.  Meant here: ``terminate``, which also ends runs that are under way, and adapters."""

    __slots__ = ("_adapters", "_token")

    terminate = Terminate(flag, False)
    only_execute_path_to_fetches = Setting(flag, False)
    log_severity_level = Setting(count, -1)
    log_verbosity_level = Setting(count, 0)
    logid = Setting(text, "")

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Any key is taken; none has a meaning here."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        return self._entry(key)

    def __init__(self) -> None:
        super().__init__()
        self._adapters: list[Any] = []
        self._token = CancelToken()

    def add_active_adapter(self, adapter: Any) -> None:
        """Let the parameters of a `LoraAdapter` take the place of initializers of their names."""
        from bolt_numba.onnxruntime.adapters import LoraAdapter  # few clients have any

        want(LoraAdapter, "add_active_adapter", adapter)
        self._adapters.append(adapter)

    def _adapted(self, feeds: Any) -> Any:
        """The inputs of a run, with the parameters of adapters."""
        if not self._adapters or not isinstance(feeds, Mapping):
            return feeds
        return {n: v for part in (*(a._parameters for a in self._adapters), feeds) for n, v in part.items()}


class OrtCancelledError(OrtOptionError, ModelLoadCanceled):
    """A session whose options say that it is not to be made."""


def check_load(options: SessionOptions) -> None:
    """Raise where a session must not be made."""
    if options._cancelled:
        raise OrtCancelledError("set_load_cancellation_flag: got True, wanted False for a session")
    if not -1 <= options.log_severity_level <= MAX_SEVERITY:
        raise OrtOptionError(f"log_severity_level: got {options.log_severity_level}, wanted -1 to {MAX_SEVERITY}")


def check_run(options: Any) -> None:
    """Raise where a run must not begin."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise OrtDTypeError(f"run_options: got a {type(options).__name__}, wanted RunOptions")
    if options.terminate:
        raise OrtTerminatedError("run_options: got terminate=True, wanted False for a run")
