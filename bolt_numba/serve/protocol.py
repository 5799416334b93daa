"""The Open Inference Protocol apart from how it is carried: what REST and gRPC answer alike, as dictionaries.

Version 2 with Triton's extensions for binary data, repositories, statistics, configuration and sequences
(https://github.com/open-inference/open-inference-protocol, https://github.com/triton-inference-server/server/tree/main/docs/protocol).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import bolt_numba
from bolt_numba.serve.errors import RequestError
from bolt_numba.serve.metrics import statistics
from bolt_numba.serve.models import ServedModel
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.tensors import described

SERVER = "bolt-numba"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "sequence", "statistics")
CONFIG_NAMES = {"BYTES": "TYPE_STRING"}
UNKNOWN_PARAMETERS = ("classification", "shared_memory_region")
"""Of tensors: extensions that are not served."""


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": bolt_numba.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(repository: Repository, model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.name, "versions": list(repository.models[model.name]), "platform": model.platform,
        "inputs": [described(s) for s in model.inputs], "outputs": [described(s) for s in model.outputs],
    }  # fmt: skip


def model_config(model: ServedModel) -> dict[str, Any]:
    """The configuration as Triton tells it; dims have the batch's axis where there is one, as its size is 0 then."""

    def rows(specs: Sequence[Any]) -> list[dict[str, Any]]:
        found = [described(s) for s in specs]
        return [
            {
                "name": d["name"],
                "data_type": CONFIG_NAMES.get(d["datatype"], f"TYPE_{d['datatype']}"),
                "dims": d["shape"],
            }
            for d in found
        ]

    batching = {"dynamic_batching": {"max_queue_delay_microseconds": int(model.settings.max_wait_us)}}
    return {
        "name": model.name, "platform": model.platform, "backend": SERVER, "max_batch_size": 0,
        "input": rows(model.inputs), "output": rows(model.outputs),
        **(batching if model.settings.max_batch > 1 else {}),
    }  # fmt: skip


def model_statistics(repository: Repository, name: str = "", version: str = "") -> dict[str, Any]:
    return {"model_stats": statistics([(m.name, m.version) for m in repository.versions(name, version)])}


def want_served(what: str, parameters: Mapping[str, Any]) -> None:
    """Raises RequestError for parameters of a tensor that ask for an extension that is not served."""
    if asked := [key for key in UNKNOWN_PARAMETERS if key in parameters]:
        raise RequestError(f"{what}: parameters: got {asked}, wanted none of it: this server does not have it")
