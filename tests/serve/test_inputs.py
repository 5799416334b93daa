"""What inputs may be: bytes, bodies without JSON, inputs that are left out, and how many there may be."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bolt_numba.serve import Doors, ModelSettings, Repository, RequestError
from bolt_numba.serve.rest import Rest
from bolt_numba.serve.rpc import Rpc
from bolt_numba.serve.tensors import SMALL_BODY
from tests.serve.serving import Running, running
from tests.serve.test_rest import ask
from tests.small import add, same, save_model, softmax

JPEG = b"\xff\xd8\xff\xe0 a picture \x00\xff"
LENGTH = "Inference-Header-Content-Length"


def optional(path: Path) -> Path:
    """y = b where it is given, else a"""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("a", "y", "z")]
    inner = helper.make_value_info("b", helper.make_optional_type_proto(kind))
    given = helper.make_graph([helper.make_node("OptionalGetElement", ["b"], ["z"])], "given", [], [tensor[2]])
    missing = helper.make_graph([helper.make_node("Identity", ["a"], ["z"])], "missing", [], [tensor[2]])
    nodes = [
        helper.make_node("OptionalHasElement", ["b"], ["has"]),
        helper.make_node("If", ["has"], ["y"], then_branch=given, else_branch=missing),
    ]
    graph = helper.make_graph(nodes, "optional", [tensor[0], inner], [tensor[1]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def filled(path: Path) -> Path:
    """y = a + b, where b is in the file, and an input of it"""
    model = onnx.load(add(path))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "b"))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("inputs")
    files = {
        "add": add(folder / "add.onnx"), "texts": same(folder / "texts.onnx", TensorProto.STRING),
        "soft": softmax(folder / "soft.onnx"), "optional": optional(folder / "optional.onnx"),
        "filled": filled(folder / "filled.onnx"),
        "file": save_model(folder / "file.onnx", "Identity", {"x": (TensorProto.UINT8, ["n"])}, TensorProto.UINT8),
        "image": save_model(
            folder / "image.onnx", "Identity", {"x": (TensorProto.FLOAT, ["n", 3, "h"])}, TensorProto.FLOAT
        ),
    }  # fmt: skip
    with running(files=files, usual=ModelSettings(max_rows=40), max_tensors=3) as found:
        yield found


def binary(server: Running, name: str, datatype: str, shape: list[int], data: bytes) -> tuple[int, Any]:
    row = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [row]}).encode()
    return ask(server, f"/v2/models/{name}/infer", head + data, {LENGTH: str(len(head))})[:2]


def test_a_file_is_one_element_of_bytes(server: Running) -> None:
    status, found = binary(server, "file", "BYTES", [1], len(JPEG).to_bytes(4, "little") + JPEG)
    assert (status, bytes(found["outputs"][0]["data"])) == (200, JPEG)
    grpc, client = pytest.importorskip("grpc"), pytest.importorskip("tritonclient.grpc")
    with client.InferenceServerClient(server.grpc) as asked:
        given = client.InferInput("x", [1], "BYTES")
        given.set_data_from_numpy(np.array([JPEG], object))
        assert asked.infer("file", [given]).as_numpy("y").tobytes() == JPEG
    assert grpc


def test_texts_are_in_utf8(server: Running) -> None:
    status, found = binary(server, "texts", "BYTES", [1, 1], len(JPEG).to_bytes(4, "little") + JPEG)
    assert status == 400
    assert "input 'x': got an element of BYTES that is no text in UTF-8, wanted texts" in found["error"]
    two = b"".join(len(part).to_bytes(4, "little") + part for part in (b"a", b"b"))
    assert binary(server, "file", "BYTES", [2], two)[0] == 400


def raw(server: Running, name: str, body: bytes) -> tuple[int, dict[str, Any], bytes]:
    connection = HTTPConnection(server.http, timeout=30)
    connection.request("POST", f"/v2/models/{name}/infer", body, {LENGTH: "0"})
    answer = connection.getresponse()
    data = answer.read()
    end = int(answer.headers.get(LENGTH, len(data)))
    connection.close()
    return answer.status, json.loads(data[:end]), data[end:]


def test_bodies_without_json(server: Running) -> None:
    x = np.arange(6, dtype="f4")
    status, head, data = raw(server, "image", x.tobytes())
    assert (status, head["outputs"][0]["shape"], data) == (200, [1, 3, 2], x.tobytes())
    assert raw(server, "file", JPEG)[2] == JPEG
    status, head, data = raw(server, "texts", "größe".encode())
    assert (status, head["outputs"][0]["shape"], data[4:].decode()) == (200, [1, 1], "größe")
    assert raw(server, "soft", x.tobytes())[1]["outputs"][0]["shape"] == [1, 6]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("add", b"1234", "model 'add' has 2 inputs"),
        ("image", b"1234", "got 4 bytes and no JSON, wanted it: the shape is [-1, 3, -1]"),
        ("texts", JPEG, "no text in UTF-8"),
        ("file", b"", "no JSON"),
    ],
)
def test_bodies_without_json_that_do_not_fit(name: str, body: bytes, said: str, server: Running) -> None:
    status, head, _ = raw(server, name, body)
    assert status == 400
    assert said in head["error"]


def test_inputs_may_be_left_out(server: Running) -> None:
    rows = [{"name": n, "datatype": "FP32", "shape": [1, 3], "data": [i] * 3} for i, n in enumerate("ab")]
    for given, wanted in ((rows, 1), (rows[:1], 0)):
        status, found, _ = ask(server, "/v2/models/optional/infer", {"inputs": given})
        assert (status, found["outputs"][0]["data"] if status == 200 else found) == (200, [wanted] * 3)
    assert ask(server, "/v2/models/optional/infer", {"inputs": rows[1:]})[0] == 400
    config = ask(server, "/v2/models/optional/config")[1]
    assert [row.get("optional", False) for row in config["input"]] == [False, True]
    assert ask(server, "/v2/models/optional")[1]["inputs"][1] == {"name": "b", "datatype": "FP32", "shape": [-1, 3]}


def test_constants_that_a_file_lists_as_inputs_are_refused(server: Running) -> None:
    rows = [{"name": n, "datatype": "FP32", "shape": [1, 3], "data": [1] * 3} for n in "ab"]
    assert [row["name"] for row in ask(server, "/v2/models/filled")[1]["inputs"]] == ["a"]
    assert ask(server, "/v2/models/filled/infer", {"inputs": rows[:1]})[1]["outputs"][0]["data"] == [2] * 3
    status, found, _ = ask(server, "/v2/models/filled/infer", {"inputs": rows})
    assert (status, found["error"]) == (400, "model 'filled': inputs: got ['a', 'b'], wanted ['a']")


def test_rows_and_tensors_have_a_limit(server: Running) -> None:
    def rows(names: str, n: int) -> list[dict[str, Any]]:
        return [{"name": x, "datatype": "FP32", "shape": [n, 3], "data": [1] * 3 * n} for x in names]

    for path, body, status, said in (
        ("add", {"inputs": rows("ab", 40)}, 200, "y"),
        ("add", {"inputs": rows("ab", 41)}, 413, "input 'a': rows: got 41, wanted at most 40"),
        ("add", {"inputs": rows("abcd", 1)}, 413, "inputs: got 4, wanted at most 3"),
        ("add", {"inputs": rows("ab", 1), "outputs": [{"name": "y"}] * 4}, 413, "outputs: got 4, wanted at most 3"),
    ):
        found = ask(server, f"/v2/models/{path}/infer", body)
        assert found[0] == status
        assert said in str(found[1])
    grpc, client = pytest.importorskip("tritonclient.grpc"), pytest.importorskip("tritonclient.utils")
    with (
        grpc.InferenceServerClient(server.grpc) as asked,
        pytest.raises(client.InferenceServerException, match="wanted at most 3"),
    ):
        asked.infer("add", [grpc.InferInput(x, [1, 3], "FP32") for x in "abcd"])


@pytest.mark.parametrize("piece", [b"1,", b"[],", b"{},", b'"ab",', b'{"a":1},'])
def test_json_is_refused_before_it_takes_memory(piece: bytes) -> None:
    """As an object of Python, JSON may be 30 times as large as its text."""
    most = 4 << 20
    rest = Rest(Repository(None, {}, ModelSettings()), Doors(max_body=4))
    text = b'{"inputs": [' + piece * (most // len(piece) - 8) + b"0]}"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError, match="too many values in"):
        rest.read(text, len(text))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < most
    numbers = b'{"inputs": [' + b"0.12345678," * (most // 11 - 8) + b"0]}"
    assert len(rest.read(numbers, len(numbers))["inputs"]) > most // 12
    small = b'{"inputs": [' + piece * (SMALL_BODY // len(piece) - 8) + b"0]}"
    assert rest.read(small, len(small))


@pytest.mark.parametrize("piece", [b"\x2a\x00", b"\x3a\x00", b"\x22\x00"])
def test_messages_are_refused_before_they_take_memory(piece: bytes) -> None:
    rpc = Rpc(Repository(None, {}, ModelSettings()), Doors())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RequestError, match="ModelInfer: fields: got 4001, wanted at most 4000"):
        rpc._message("ModelInfer", piece * (4 << 20), None)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 16 << 20
    with pytest.raises(RequestError, match="got what is no message"):
        rpc._message("ModelInfer", b"\xff" * 2 * SMALL_BODY, None)
