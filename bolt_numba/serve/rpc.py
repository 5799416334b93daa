"""gRPC: the Open Inference Protocol's service, by the messages of ``inference.proto``."""

from __future__ import annotations

from asyncio import iscoroutine
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.resources import files
from itertools import islice
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from bolt_numba.converters.wire import IrregularError, fields
from bolt_numba.serve import protocol
from bolt_numba.serve.errors import STATUS, RequestError, failure, want_few, want_token
from bolt_numba.serve.models import RequestTerms
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.settings import Doors
from bolt_numba.serve.tensors import DTYPES, SMALL_BODY, datatype_of, inputs_of, to_bytes, want_served

SERVICE = "inference.GRPCInferenceService"
CONTENTS = {
    "BOOL": "bool_contents", "BYTES": "bytes_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"), "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"), "UINT64": "uint64_contents",
}  # fmt: skip
"""Fields of typed contents by datatype; others are raw."""
FIELDS = 4
"""Of a message for each tensor that a request may name: input, its bytes, output and a parameter."""

POOL = DescriptorPool()  # one of our own: clients in the same process have messages of these names, too
for _file in FileDescriptorSet.FromString((files(__package__) / "inference.binpb").read_bytes()).file:
    POOL.Add(_file)
METHODS = POOL.FindServiceByName(SERVICE).methods
TYPES = {m.name: (GetMessageClass(m.input_type), GetMessageClass(m.output_type)) for m in METHODS}
"""Messages of a method: what is asked, and what is answered."""


class Rpc:
    """The service."""

    def __init__(self, repository: Repository, doors: Doors) -> None:
        self.repository, self.token, self.tensors = repository, doors.token, doors.max_tensors

    def handlers(self) -> Any:
        """What a server of grpc.aio takes."""
        there = self.repository
        calls: dict[str, Callable[[Any, Any], Any]] = {
            "ModelInfer": self.infer,
            "ServerLive": lambda g, _: {"live": True},
            "ServerReady": lambda g, _: {"ready": there.is_ready},
            "ModelReady": lambda g, _: {"ready": there.serves(g.name, g.version)},
            "ServerMetadata": lambda g, _: protocol.server_metadata(),
            "ModelMetadata": lambda g, _: protocol.model_metadata(there, g.name, g.version),
            "ModelConfig": lambda g, _: {"config": protocol.model_config(there, g.name, g.version)},
            "ModelStatistics": lambda g, _: protocol.model_statistics(there, g.name, g.version),
            "RepositoryIndex": lambda g, _: {"models": there.index(g.ready)},
            "RepositoryModelLoad": lambda g, _: there.change(g.model_name, g.parameters, loads=True),
            "RepositoryModelUnload": lambda g, _: there.change(g.model_name, (), loads=False),
        }
        made = {name: self._unary(name, call) for name, call in calls.items()}
        made["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self.stream, None, TYPES["ModelStreamInfer"][1].SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _unary(self, name: str, call: Callable[[Any, Any], Any]) -> Any:
        """A method whose errors become a status.  call: gives its message, or a dictionary of it; or waits for one."""
        kind = TYPES[name][1]

        async def answer(given: bytes, context: Any) -> Any:
            try:
                found = call(self._message(name, given, context), context)
                if iscoroutine(found):
                    found = await found
                return found if isinstance(found, kind) else ParseDict(found or {}, kind())
            except Exception as error:
                code, said = _failure(error)
                await context.abort(code, said)

        return grpc.unary_unary_rpc_method_handler(answer, None, kind.SerializeToString)

    def _message(self, name: str, given: bytes, context: Any) -> Any:
        """A request as its message; it is not looked at before its token."""
        if self.token is not None:
            want_token(self.token, str(dict(context.invocation_metadata()).get("authorization", "")))
        try:
            if len(given) > SMALL_BODY:  # an empty input of two bytes takes 90 as a message
                parts = islice(fields(memoryview(given), 0, len(given)), FIELDS * self.tensors + 1)
                want_few(f"{name}: fields", sum(1 for _ in parts), FIELDS * self.tensors)
            return TYPES[name][0].FromString(given)
        except (DecodeError, IrregularError) as error:
            raise RequestError(f"{name}: got what is no message: {error}") from None

    async def infer(self, given: Any, context: Any) -> Any:
        model = self.repository.find(given.model_name, given.model_version)
        asked = RequestTerms(_table(given.parameters), context.time_remaining())
        want_few("inputs, outputs", max(len(given.inputs), len(given.outputs)), self.tensors)
        for row in given.outputs:
            want_served(f"output {row.name!r}", row.parameters)
        made = await model.infer(inputs_of(_inputs(given)), [row.name for row in given.outputs], asked)
        reply = TYPES["ModelInfer"][1](model_name=model.name, model_version=model.version, id=given.id)
        for name, array in made.items():
            reply.outputs.add(name=name, datatype=datatype_of(name, array.dtype), shape=array.shape)
            reply.raw_output_contents.append(bytes(to_bytes(array)))
        return reply

    async def stream(self, given: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """An answer for each request, in their order; a request that fails ends nothing."""
        reply = TYPES["ModelStreamInfer"][1]
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


def _failure(error: Exception) -> tuple[Any, str]:
    kind, said = failure(error)
    return getattr(grpc.StatusCode, STATUS[kind][1]), said


def _table(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key: getattr(p, which) for key, p in parameters.items() if (which := p.WhichOneof("parameter_choice"))}


def _inputs(given: Any) -> Iterator[tuple[str, str, list[int], Any, Any]]:
    """Rows as `inputs_of` takes them, of raw contents or typed ones: a request has one of the two."""
    raw = list(given.raw_input_contents)
    if raw and len(raw) != len(given.inputs):
        raise RequestError(f"raw_input_contents: got {len(raw)}, wanted one for each of the {len(given.inputs)} inputs")
    for i, row in enumerate(given.inputs):
        if raw and row.HasField("contents"):
            raise RequestError(f"input {row.name!r}: got contents and raw_input_contents, wanted one of them")
        if not raw and row.datatype in DTYPES and row.datatype not in CONTENTS:
            raise RequestError(f"input {row.name!r}: got contents for {row.datatype}, wanted raw_input_contents")
        data = raw[i] if raw else list(getattr(row.contents, CONTENTS.get(row.datatype, "bool_contents")))
        yield row.name, row.datatype, list(row.shape), row.parameters, data
