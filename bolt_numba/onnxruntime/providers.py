"""Execution providers: the CPU's is the only one, and it runs every model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from bolt_numba.onnxruntime.errors import OrtOptionError

PROVIDERS = ("CPUExecutionProvider",)
ELSEWHERE = tuple(
    f"{name}ExecutionProvider"
    for name in (
        *("Tensorrt", "NvTensorRTRTX", "CUDA", "ROCM", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi"),
        *("VSINPU", "ACL", "ArmNN", "TVM", "SNPE"),
        *("Js", "CoreML", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure"),
    )
)  # fmt: skip
"""Providers that onnxruntime has on other machines: programs name them in case they are there."""


def check_providers(providers: Any, options: Any, fallback: bool) -> None:
    """Warn of providers that are not here.

    fallback: warn of arguments that are wrong and of names that are no provider's, too, and raise for none.
    """
    try:
        names = _names(providers, options)
        if wrong := [name for name in names if name not in ELSEWHERE + PROVIDERS]:
            raise OrtOptionError(f"Unknown Provider Type: {wrong[0]}, wanted names of onnxruntime's providers")
    except OrtOptionError as error:
        if not fallback:
            raise
        warnings.warn(f"{error}; the CPU runs the model", stacklevel=3)
        return
    for name in dict.fromkeys(names):
        if name not in PROVIDERS:
            warnings.warn(f"provider {name!r} is not available here, {PROVIDERS[0]} runs the model", stacklevel=3)
        elif names.count(name) > 1:
            warnings.warn(f"provider {name!r} is named twice", stacklevel=3)


def check_and_normalize_provider_args(
    providers: Sequence[Any] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names of providers, each once, and the options of each as texts; those that are not available are warned of."""
    names = _names(providers, provider_options)
    given = provider_options or [row[1] if isinstance(row, tuple) else {} for row in providers or ()]
    made: dict[str, dict[str, str]] = {}
    for name, options in zip(names, given, strict=True):
        if name not in available_provider_names:
            warnings.warn(f"provider {name!r} is not available, available are {available_provider_names}", stacklevel=2)
        elif name in made:
            warnings.warn(f"provider {name!r} is named twice, the first one counts", stacklevel=2)
        else:
            made[name] = {str(key): str(value) for key, value in options.items()}
    return list(made), list(made.values())


def _names(providers: Any, options: Any) -> list[str]:
    if providers is None:
        return []
    rows = [providers] if isinstance(providers, str) else providers
    if not isinstance(rows, Sequence):
        raise OrtOptionError(f"providers: got {providers!r:.80}, wanted a list")
    if options is not None:
        if not isinstance(options, Sequence) or len(options) != len(rows):
            raise OrtOptionError(f"provider_options: got {options!r:.80}, wanted one for each of {list(rows)}")
        if not all(isinstance(row, Mapping) for row in options) or not all(isinstance(row, str) for row in rows):
            raise OrtOptionError(f"providers: got {rows!r:.80} with options, wanted names and dictionaries")
    return [_name(row) for row in rows]


def _name(row: Any) -> str:
    if isinstance(row, str):
        return row
    if isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], Mapping):
        return row[0]
    raise OrtOptionError(f"providers: got {row!r:.80}, wanted a name, or a name with a dictionary")


def get_available_providers() -> list[str]:
    return list(PROVIDERS)


get_all_providers = get_available_providers


def get_device() -> str:
    return "CPU"
