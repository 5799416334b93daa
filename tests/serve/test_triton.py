"""Triton's own clients, as they are, against the server: the Open Inference Protocol and its extensions."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from bolt_numba.serve.tensors import DTYPES
from tests.serve.serving import Running, running
from tests.small import add, same

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")
pytestmark = pytest.mark.filterwarnings("ignore:Protobuf gencode", "ignore::DeprecationWarning")

KINDS = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16, "BYTES": TensorProto.STRING,
}  # fmt: skip
BOTH = pytest.mark.parametrize("client", [http, grpc], ids=["http", "grpc"])
A, B = np.arange(6, dtype="f4").reshape(2, 3), np.full((2, 3), 10, "f4")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("models")
    for version in ("1", "2"):
        add(folder / "add" / version / "model.onnx")
    (folder / "add" / "model.toml").write_text("versions = 'all'\nmax_batch = 4\nmax_wait_us = 500\n")
    for name, kind in KINDS.items():
        same(folder / f"same_{name.lower()}" / "1" / "model.onnx", kind)
    with running(folder) as found:
        yield found


def opened(client: Any, server: Running) -> Any:
    return client.InferenceServerClient(server.http if client is http else server.grpc)


def inputs(client: Any, binary: bool = True, **arrays: np.ndarray[Any, Any]) -> list[Any]:
    made = []
    for name, array in arrays.items():
        kind = next(k for k, d in DTYPES.items() if d == array.dtype)
        made.append(client.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array, **({"binary_data": binary} if client is http else {}))
    return made


@BOTH
def test_health_and_metadata(client: Any, server: Running) -> None:
    with opened(client, server) as asked:
        assert asked.is_server_live()
        assert asked.is_server_ready()
        assert asked.is_model_ready("add")
        assert asked.is_model_ready("add", "2")
        assert not asked.is_model_ready("add", "7")
        assert not asked.is_model_ready("other")
        more = {} if client is http else {"as_json": True}
        assert asked.get_server_metadata(**more)["name"] == "bolt-numba"
        found = asked.get_model_metadata("add", **more)
        assert found["versions"] == ["1", "2"]
        assert [row["name"] for row in found["inputs"]] == ["a", "b"]
        assert [int(d) for d in found["inputs"][0]["shape"]] == [-1, 3]
        config = asked.get_model_config("add", **more)
        config = config if client is http else config["config"]
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        assert int(config["dynamic_batching"]["max_queue_delay_microseconds"]) == 500
        assert int(config["max_batch_size"]) == 4  # the axis of the batch is not in dims then
        assert [int(d) for row in config["input"] for d in row["dims"]] == [3, 3]
        config = asked.get_model_config("same_fp32", **more)
        config = config if client is http else config["config"]
        assert int(config.get("max_batch_size", 0)) == 0
        assert [int(d) for d in config["input"][0]["dims"]] == [-1, -1]


@BOTH
def test_infer(client: Any, server: Running) -> None:
    with opened(client, server) as asked:
        found = asked.infer("add", inputs(client, a=A, b=B), model_version="1", request_id="seven")
        assert np.array_equal(found.as_numpy("y"), A + B)
        told = found.get_response() if client is http else {"id": found.get_response().id, "model_version": "1"}
        assert told["id"] == "seven"
        assert told["model_version"] == "1"
        only = asked.infer("add", inputs(client, a=A, b=B), outputs=[client.InferRequestedOutput("y")])
        assert np.array_equal(only.as_numpy("y"), A + B)


@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_json_and_packed(binary: bool, packing: str | None, server: Running) -> None:
    big = np.random.default_rng(0).normal(size=(400, 3)).astype("f4")
    with opened(http, server) as asked:
        found = asked.infer(
            "add", inputs(http, binary, a=big, b=big), outputs=[http.InferRequestedOutput("y", binary_data=binary)],
            request_compression_algorithm=packing, response_compression_algorithm=packing,
        )  # fmt: skip
        assert np.array_equal(found.as_numpy("y"), big + big)


@BOTH
@pytest.mark.parametrize("datatype", KINDS)
def test_every_datatype(datatype: str, client: Any, server: Running) -> None:
    if datatype == "BYTES":
        x = np.array([["one", "zwölf", ""], ["a\0b", "x" * 1000, "drei"]], object)
        wanted = np.vectorize(lambda s: s.encode(), otypes=[object])(x)
    else:
        wanted = x = np.array([[0, 1, 1], [1, 0, 1]]).astype(DTYPES[datatype])
    with opened(client, server) as asked:
        found = asked.infer(f"same_{datatype.lower()}", inputs(client, x=x)).as_numpy("y")
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("datatype", [k for k in KINDS if k not in ("FP16", "BF16")])
def test_every_datatype_as_json(datatype: str, server: Running) -> None:
    x = np.array([["a", "b"]], object) if datatype == "BYTES" else np.array([[1, 0]]).astype(DTYPES[datatype])
    with opened(http, server) as asked:
        out = [http.InferRequestedOutput("y", binary_data=False)]
        found = asked.infer(f"same_{datatype.lower()}", inputs(http, False, x=x), outputs=out).as_numpy("y")
        assert np.array_equal(found.astype(object), x.astype(object))


@BOTH
def test_errors_name_what_was_wanted(client: Any, server: Running) -> None:
    with opened(client, server) as asked:
        for given, said in [
            (partial(asked.infer, "nothing", inputs(client, a=A, b=B)), "nothing"),
            (partial(asked.infer, "add", inputs(client, a=A)), r"wanted \['a', 'b'\]"),
            (partial(asked.infer, "add", inputs(client, a=A, b=B.astype("f8"))), "got f64, wanted f32"),
            (partial(asked.infer, "add", inputs(client, a=A, b=B[:, :2])), r"wanted \(n, 3\)"),
            (partial(asked.infer, "add", inputs(client, a=A, b=B), model_version="9"), "'9'"),
            (partial(asked.infer, "add", inputs(client, a=A, b=B), outputs=[client.InferRequestedOutput("z")]), "'z'"),
        ]:
            with pytest.raises(utils.InferenceServerException, match=said):
                given()


@BOTH
def test_repository(client: Any, server: Running) -> None:
    with opened(client, server) as asked:
        name = "same_fp64" if client is http else "same_int8"
        more = {} if client is http else {"as_json": True}
        rows = asked.get_model_repository_index(**more)
        rows = rows if client is http else rows["models"]
        assert {r["name"]: r["state"] for r in rows}[name] == "READY"
        asked.unload_model(name)
        assert not asked.is_model_ready(name)
        asked.load_model(name)
        assert asked.is_model_ready(name)
        with pytest.raises(utils.InferenceServerException, match="wanted one of"):
            asked.load_model("..add")


@BOTH
def test_statistics(client: Any, server: Running) -> None:
    more = {} if client is http else {"as_json": True}

    def counts(asked: Any) -> tuple[int, int, int]:
        (row,) = asked.get_inference_statistics("add", "1", **more)["model_stats"]
        told = row.get("inference_stats", {})
        runs = sum(int(b["batch_size"]) * int(b["compute_infer"]["count"]) for b in row.get("batch_stats", []))
        return int(row.get("inference_count", 0)), int(told.get("fail", {}).get("count", 0)), runs

    with opened(client, server) as asked:
        before = counts(asked)
        for _ in range(3):
            asked.infer("add", inputs(client, a=A, b=B), model_version="1")
        with pytest.raises(utils.InferenceServerException, match="wanted"):
            asked.infer("add", inputs(client, a=A), model_version="1")
        now = counts(asked)
        assert [n - b for n, b in zip(now, before, strict=True)] == [3, 1, 3]
        assert len(asked.get_inference_statistics(**more)["model_stats"]) > 1


def test_many_at_once(server: Running) -> None:
    with http.InferenceServerClient(server.http, concurrency=8) as asked:
        jobs = [asked.async_infer("add", inputs(http, a=A + i, b=B)) for i in range(100)]
        for i, job in enumerate(jobs):
            assert np.array_equal(job.get_result().as_numpy("y"), A + i + B)


def test_callbacks_of_grpc(server: Running) -> None:
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with opened(grpc, server) as asked:
        for i in range(50):
            asked.async_infer(
                "add", inputs(grpc, a=A + i, b=B), callback=lambda result, error, i=i: done.put((i, result, error))
            )
        for _ in range(50):
            i, result, error = done.get(timeout=30)
            assert error is None
            assert np.array_equal(result.as_numpy("y"), A + i + B)


def test_streams_of_grpc(server: Running) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with opened(grpc, server) as asked:
        asked.start_stream(lambda result, error: done.put((result, error)))
        for i in range(10):
            asked.async_stream_infer("add", inputs(grpc, a=A + i, b=B), request_id=str(i))
        asked.async_stream_infer("nothing", inputs(grpc, a=A, b=B))
        for i in range(10):
            result, error = done.get(timeout=30)
            assert error is None
            assert result.get_response().id == str(i)
            assert np.array_equal(result.as_numpy("y"), A + i + B)
        result, error = done.get(timeout=30)
        assert result is None
        assert "nothing" in str(error)
        asked.stop_stream()


def test_asyncio_clients(server: Running) -> None:
    aio_http, aio_grpc = pytest.importorskip("tritonclient.http.aio"), pytest.importorskip("tritonclient.grpc.aio")

    async def main() -> None:
        for client, plain, where in ((aio_http, http, server.http), (aio_grpc, grpc, server.grpc)):
            async with client.InferenceServerClient(where) as asked:
                found = await asyncio.gather(*[asked.infer("add", inputs(plain, a=A + i, b=B)) for i in range(20)])
                for i, result in enumerate(found):
                    assert np.array_equal(result.as_numpy("y"), A + i + B)

    asyncio.run(main())


def test_messages_are_those_of_the_protocol() -> None:
    """Every field of ours has the name, number and type of Triton's."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    from bolt_numba.serve.rpc import POOL

    def shape(field: Any) -> tuple[Any, ...]:
        return field.number, field.type, field.is_repeated, (field.message_type or field.enum_type or field).name

    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}
    todo = [(m, theirs[m.name]) for m in POOL.FindFileByName("inference.proto").message_types_by_name.values()]
    assert len(todo) > 30
    while todo:
        ours, their = todo.pop()
        for field in ours.fields:
            assert shape(field) == shape(their.fields_by_name[field.name]), field.name
        todo += [(n, their.nested_types_by_name[n.name]) for n in ours.nested_types]
    assert ml_dtypes.bfloat16 == DTYPES["BF16"]


def test_the_stored_messages_are_those_of_the_proto(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    import bolt_numba.serve

    folder = Path(bolt_numba.serve.__file__).parent
    made = tmp_path / "inference.binpb"
    assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={made}", "inference.proto"]) == 0
    assert made.read_bytes() == (folder / "inference.binpb").read_bytes()
