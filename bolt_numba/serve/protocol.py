"""The Open Inference Protocol apart from how it is carried: what REST and gRPC answer alike, as dictionaries.

Version 2 with Triton's extensions for binary data, repositories, statistics, configuration and sequences
(https://github.com/open-inference/open-inference-protocol, https://github.com/triton-inference-server/server/tree/main/docs/protocol).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import bolt_numba
from bolt_numba.base.types import TensorSpec
from bolt_numba.serve.metrics import statistics
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.tensors import described, is_optional

SERVER = "bolt-numba"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "sequence", "statistics")
CONFIG_NAMES = {"BYTES": "TYPE_STRING"}


def server_metadata() -> dict[str, Any]:
    return {"name": SERVER, "version": bolt_numba.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(repository: Repository, name: str, version: str) -> dict[str, Any]:
    model = repository.find(name, version)
    return {
        "name": model.name, "versions": list(repository.models[model.name]), "platform": model.platform,
        "inputs": [described(s) for s in model.inputs], "outputs": [described(s) for s in model.outputs],
    }  # fmt: skip


def model_config(repository: Repository, name: str, version: str) -> dict[str, Any]:
    """The configuration as Triton tells it: where requests are batched, dims leave the axis of the batch out."""
    model = repository.find(name, version)
    most, wait = model.settings.max_batch, int(model.settings.max_wait_us)
    is_batched = most > 1 and all(described(s)["shape"][:1] == [-1] for s in (*model.inputs, *model.outputs))

    def rows(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        found = []
        for spec in specs:
            told = described(spec)
            kind = CONFIG_NAMES.get(told["datatype"], f"TYPE_{told['datatype']}")
            found.append({"name": spec.name, "data_type": kind, "dims": told["shape"][is_batched:]})
            found[-1] |= {"optional": True} if is_optional(spec) else {}
        return found

    return {
        "name": model.name, "platform": model.platform, "backend": SERVER, "max_batch_size": most if is_batched else 0,
        "input": rows(model.inputs), "output": rows(model.outputs),
        **({"dynamic_batching": {"max_queue_delay_microseconds": wait}} if most > 1 else {}),
    }  # fmt: skip


def model_statistics(repository: Repository, name: str, version: str) -> dict[str, Any]:
    return {"model_stats": statistics([(m.name, m.version) for m in repository.versions(name, version)])}
