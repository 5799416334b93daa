"""gRPC: the Open Inference Protocol's service, by the messages of ``inference.proto``."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import grpc
import numpy as np
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from bolt_numba.base.types import STRING, Array
from bolt_numba.serve import protocol
from bolt_numba.serve.errors import STATUS, RequestError, failure, want_token
from bolt_numba.serve.models import RequestTerms
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.tensors import dtype_of, from_bytes, name_of, texts, to_bytes, want_shape

SERVICE = "inference.GRPCInferenceService"
CONTENTS = {
    "b": ("bool_contents",), "i": ("int_contents", "int64_contents"), "u": ("uint_contents", "uint64_contents"),
    "f": ("fp32_contents", "fp64_contents"), "O": ("bytes_contents",),
}  # fmt: skip
"""Fields of typed contents by kind of dtype: the second is for elements of 64 bits."""
WIDE = 8

POOL = DescriptorPool()  # one of our own: clients in the same process have messages of these names, too
for _file in FileDescriptorSet.FromString((files(__package__) / "inference.binpb").read_bytes()).file:
    POOL.Add(_file)


class Rpc:
    """The service.  token: that requests must bring."""

    def __init__(self, repository: Repository, token: str | None) -> None:
        self.repository, self.token = repository, token
        self.types = {m.name: (GetMessageClass(m.input_type), GetMessageClass(m.output_type)) for m in _methods()}

    def handlers(self) -> Any:
        """What a server of grpc.aio takes."""
        calls: dict[str, Callable[[Any], Any]] = {
            "ServerLive": self.server_live, "ServerReady": self.server_ready, "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata, "ModelMetadata": self.model_metadata,
            "ModelConfig": self.model_config, "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.index, "RepositoryModelLoad": self.load, "RepositoryModelUnload": self.unload,
        }  # fmt: skip
        made = {name: self._unary(name, self._told(name, call)) for name, call in calls.items()}
        made["ModelInfer"] = self._unary("ModelInfer", self.infer)
        made["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.stream, None, self.types["ModelStreamInfer"][1].SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _unary(self, name: str, call: Callable[[Any, Any], Any]) -> Any:
        async def answer(given: bytes, context: Any) -> Any:
            try:
                return await call(self._message(name, given, context), context)
            except Exception as error:
                code, said = _failure(error)
                await context.abort(code, said)

        return grpc.unary_unary_rpc_method_handler(answer, None, self.types[name][1].SerializeToString)

    def _message(self, name: str, given: bytes, context: Any) -> Any:
        """A request as its message; it is not looked at before its token."""
        want_token(self.token, str(dict(context.invocation_metadata()).get("authorization", "")))
        try:
            return self.types[name][0].FromString(given)
        except DecodeError as error:
            raise RequestError(f"{name}: got what is no message: {error}") from None

    def _told(self, name: str, call: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        """A method that gives a dictionary, as one that gives its message."""

        async def answer(given: Any, context: Any) -> Any:
            return ParseDict(await call(given), self.types[name][1]())

        return answer

    # --- what there is -----------------------------------------------------------------------------------------------

    async def server_live(self, given: Any) -> dict[str, Any]:
        return {"live": True}

    async def server_ready(self, given: Any) -> dict[str, Any]:
        return {"ready": self.repository.is_ready}

    async def model_ready(self, given: Any) -> dict[str, Any]:
        try:
            self.repository.find(given.name, given.version)
        except RequestError:
            return {"ready": False}
        return {"ready": True}

    async def server_metadata(self, given: Any) -> dict[str, Any]:
        return protocol.server_metadata()

    async def model_metadata(self, given: Any) -> dict[str, Any]:
        return protocol.model_metadata(self.repository, self.repository.find(given.name, given.version))

    async def model_config(self, given: Any) -> dict[str, Any]:
        return {"config": protocol.model_config(self.repository.find(given.name, given.version))}

    async def model_statistics(self, given: Any) -> dict[str, Any]:
        return protocol.model_statistics(self.repository, given.name, given.version)

    async def index(self, given: Any) -> dict[str, Any]:
        return {"models": self.repository.index(given.ready)}

    async def load(self, given: Any) -> dict[str, Any]:
        await self.repository.change(given.model_name, given.parameters, loads=True)
        return {}

    async def unload(self, given: Any) -> dict[str, Any]:
        await self.repository.change(given.model_name, (), loads=False)
        return {}

    # --- inference ---------------------------------------------------------------------------------------------------

    async def infer(self, given: Any, context: Any) -> Any:
        model = self.repository.find(given.model_name, given.model_version)
        asked = RequestTerms(_table(given.parameters), context.time_remaining())
        made = await model.infer(_arrays(given), _outputs(given), asked)
        reply = self.types["ModelInfer"][1](model_name=model.name, model_version=model.version, id=given.id)
        for name, array in made.items():
            reply.outputs.add(name=name, datatype=name_of(name, array), shape=array.shape)
            reply.raw_output_contents.append(bytes(to_bytes(array)))
        return reply

    async def stream(self, given: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """An answer for each request, in their order; a request that fails ends nothing."""
        reply = self.types["ModelStreamInfer"][1]
        async for data in given:
            asked = ""
            try:
                request = self._message("ModelStreamInfer", data, context)
                asked = request.id
                made = reply(infer_response=await self.infer(request, context))
            except Exception as error:
                made = reply(error_message=_failure(error)[1])
                made.infer_response.id = asked
            yield made


def _methods() -> Sequence[Any]:
    return POOL.FindServiceByName(SERVICE).methods  # type: ignore[no-any-return]


def _failure(error: Exception) -> tuple[Any, str]:
    kind, said = failure(error)
    return getattr(grpc.StatusCode, STATUS[kind][1]), said


def _table(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: getattr(p, which) for key, p in parameters.items() if (which := p.WhichOneof("parameter_choice"))}


def _arrays(given: Any) -> dict[str, Array]:
    """Inputs by name, from raw contents or from typed ones: the protocol allows one of the two in a request."""
    raw, found = list(given.raw_input_contents), dict[str, Array]()
    if raw and len(raw) != len(given.inputs):
        raise RequestError(f"raw_input_contents: got {len(raw)}, wanted one for each of the {len(given.inputs)} inputs")
    for i, row in enumerate(given.inputs):
        if row.name in found:
            raise RequestError(f"inputs: got {row.name!r} twice, wanted each name once")
        if row.parameters:
            protocol.want_served(f"input {row.name!r}", row.parameters)
        shape = want_shape(row.name, list(row.shape))
        if raw:
            if row.HasField("contents"):
                raise RequestError(f"input {row.name!r}: got contents and raw_input_contents, wanted one of them")
            found[row.name] = from_bytes(row.name, row.datatype, shape, raw[i])
        else:
            found[row.name] = _typed(row, shape)
    return found


def _typed(row: Any, shape: tuple[int, ...]) -> Array:
    """An input of typed contents."""
    dtype = dtype_of(row.name, row.datatype)
    fields = CONTENTS.get(dtype.kind)
    if fields is None or row.datatype == "FP16":
        raise RequestError(f"input {row.name!r}: got contents for {row.datatype}, wanted raw_input_contents")
    values = getattr(row.contents, fields[-1] if dtype.itemsize == WIDE or len(fields) == 1 else fields[0])
    count = math.prod(shape)
    if len(values) != count:
        raise RequestError(f"input {row.name!r}: contents: got {len(values)}, wanted {count} for {list(shape)}")
    if dtype == STRING:
        return texts(row.name, list(values), shape)
    try:
        return np.array(values, dtype).reshape(shape)
    except (OverflowError, ValueError) as error:
        raise RequestError(f"input {row.name!r}: got a number that {row.datatype} does not hold: {error}") from None


def _outputs(given: Any) -> list[str]:
    for row in given.outputs:
        if row.parameters:
            protocol.want_served(f"output {row.name!r}", row.parameters)
    return [row.name for row in given.outputs]
