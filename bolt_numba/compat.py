"""A thin drop-in for onnxruntime's names; everything behind it is a `Session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bolt_numba.errors import DeviceError
from bolt_numba.session import Session, Source, load
from bolt_numba.types import Array, TensorSpec, dtype_name

_ORT_TYPES = {
    "f32": "float", "f64": "double", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "string": "string",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "u64": "uint64",
}  # fmt: skip
_PROVIDERS = ("CPUExecutionProvider",)


@dataclass
class SessionOptions:
    """The options of onnxruntime's class of this name that mean something here."""

    intra_op_num_threads: int = 0
    """Threads of one run; 0: as many as the process may use."""
    enable_profiling: bool = False
    """Profile one run per shape; `InferenceSession.end_profiling` writes it."""
    profile_file_prefix: str = "bolt_numba_profile"
    numerics: str = "default"
    """As of `Session`; onnxruntime has no such choice."""


@dataclass(frozen=True)
class NodeArg:
    """Name, onnxruntime's type string, and shape (a str for a symbolic dimension)."""

    name: str
    type: str
    shape: list[int | str] | None


@dataclass(frozen=True)
class ModelMetadata:
    """What the model file says of itself."""

    graph_name: str
    producer_name: str
    custom_metadata_map: dict[str, str]


def _node_arg(spec: TensorSpec) -> NodeArg:
    kind = dtype_name(spec.dtype)
    return NodeArg(spec.name, f"tensor({_ORT_TYPES.get(kind, kind)})", None if spec.shape is None else list(spec.shape))


class InferenceSession:
    """onnxruntime's way to run a model: ``run(names, feeds)`` gives a list of arrays.

    Raises DeviceError when none of ``providers`` is the CPU's.
    """

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    ) -> None:
        names = [p if isinstance(p, str) else p[0] for p in providers or _PROVIDERS]
        if not set(names) & set(_PROVIDERS):
            raise DeviceError(f"providers: got {names}, wanted one of {list(_PROVIDERS)}")
        self._options = sess_options or SessionOptions()
        threads = self._options.intra_op_num_threads or None
        self._session = Session(load(path_or_bytes), numerics=self._options.numerics, threads=threads)
        self._last_feeds: Mapping[str, Any] | None = None

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: object = None
    ) -> list[Array]:
        """Outputs in the order of ``output_names`` (None or empty: all).

        ``run_options`` is accepted and unused: every option of onnxruntime's class concerns its own providers.
        """
        if self._options.enable_profiling:
            self._last_feeds = input_feed
        return self._session.run(list(output_names) if output_names else None, input_feed)

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(s) for s in self._session.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(s) for s in self._session.outputs]

    def get_providers(self) -> list[str]:
        return list(_PROVIDERS)

    def get_modelmeta(self) -> ModelMetadata:
        found = self._session.graph.metadata
        return ModelMetadata(self._session.graph.name, found.get("producer_name", ""), dict(found))

    def end_profiling(self) -> str:
        """Write a Chrome trace of the last run's inputs, run again step by step; returns the file's name."""
        if self._last_feeds is None:
            raise DeviceError("end_profiling: got no run with enable_profiling, wanted at least one")
        path = f"{self._options.profile_file_prefix}.json"
        self._session.profile(self._last_feeds, runs=5).save(path)
        return path
