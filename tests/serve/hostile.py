"""Mutated requests to a server in a process of its own, over its sockets: each is refused, or its answer is right.

    python -m tests.serve.hostile 200000

REST gets JSON and binary tensors with something changed, broken framing, chunks, several requests at once, bodies that
are packed or come in pieces, and clients that go away.  So do OpenAI's interfaces for embeddings and texts.  Meanwhile
a model comes and goes, and changes are asked for that cannot be.  gRPC gets messages with changed bytes, streams,
cancelled calls, and what is no HTTP/2.  No status may be 500 or beyond but where a deadline was asked for, nothing may
hang or be logged as an error, and memory, files and threads of the server stay what they were.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from onnx import TensorProto

from bolt_numba.serve.rpc import SERVICE, TYPES
from bolt_numba.text import Encoder, Generator
from bolt_numba.text.tokens import TokenRow
from tests.serve.mangled import TEXTS, WAIT_S, Client, Rng, good_chat, mutated, request, spoiled_bytes
from tests.serve.serving import resident
from tests.serve.test_command import started, status
from tests.small import add, same
from tests.text.decoders import CALLING, whole
from tests.text.encoders import WIDTH, WORDS, folder

CLIENTS = 16
FIRST_REFUSED = 500
LATE = 504
MOST_BODY = 1 << 16
GROWTH = 40 << 20
"""Bytes that the server may grow by after the first tenth of all requests, however many there are.

The words that the package ``tokenizers`` keeps take up to 30 MiB, and grammars some: 6,000 requests grew by 13 MiB,
160,000 by 24.
"""
QUIET = ("RepositoryModelUnload", "RepositoryModelLoad")
"""Methods that change the server: what asks for them is asked of another model."""
SHORT = CALLING.replace("| default({}) | tojson", "| default({}) | tojson | length")
"""A template of little text: the package ``tokenizers`` keeps 10,000 words, which a prompt is one of here."""
CHANGED = "brief"
"""The model that comes and goes."""


# --- requests and what is right --------------------------------------------------------------------------------------


def packed(texts: list[bytes]) -> bytes:
    """Elements of BYTES."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def good(rng: Rng) -> tuple[str, dict[str, Any], bytes]:
    """A model's name, and a request to it as JSON and the bytes behind it."""
    head: dict[str, Any] = {"id": "1", "inputs": []}
    n, blob, is_sum = rng.randint(0, 3), b"", rng.random() < 0.8
    for name in "ab" if is_sum else "x":
        values: list[Any] = [rng.randrange(1 << 20) / 16 if is_sum else f"ä{rng.random()}" for _ in range(3 * n)]
        row: dict[str, Any] = {"name": name, "datatype": "FP32" if is_sum else "BYTES", "shape": [n, 3]}
        if rng.random() < 0.5:
            data = np.float32(values).tobytes() if is_sum else packed([v.encode() for v in values])
            row["parameters"] = {"binary_data_size": len(data)}
            blob += data
        else:
            row["data"] = values
        head["inputs"].append(row)
    if rng.random() < 0.2:
        head["parameters"] = {"binary_data_output": True}
    return "add" if is_sum else "texts", head, blob


def elements(data: Any, blob: bytes, datatype: str) -> list[Any]:
    """Elements of an input, or of an output."""
    if data is not None:
        flat = [data]
        while flat and isinstance(flat[0], list):
            flat = [x for row in flat for x in row]
        return flat
    if datatype != "BYTES":
        return [*np.frombuffer(blob, "f4").tolist()]
    found, at = list[Any](), 0
    while at < len(blob):
        size = struct.unpack_from("<I", blob, at)[0]
        found.append(blob[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return found


def tensors(head: dict[str, Any], blob: bytes, key: str) -> dict[str, list[Any]]:
    """Inputs or outputs by name."""
    found, at = dict[str, list[Any]](), 0
    for row in head[key]:
        size = (row.get("parameters") or {}).get("binary_data_size")
        found[row["name"]] = elements(row.get("data"), blob[at : at + (size or 0)], row["datatype"])
        if size is not None:
            found[row["name"]] = elements(None, blob[at : at + size], row["datatype"])
            at += size
    return found


def want_right(given: dict[str, list[Any]], made: list[Any], what: Any) -> None:
    """An answer is the sum of the inputs, or the input."""
    if "x" in given:
        assert made == given["x"], (what, given, made)
    else:
        sums = np.float32(given["a"]) + np.float32(given["b"])
        assert np.array_equal(np.float32(made), sums, equal_nan=True), (what, given, made)


def good_texts(rng: Rng) -> dict[str, Any]:
    """A request for embeddings."""
    texts = [" ".join(rng.choices(WORDS[4:], k=rng.randint(0, 9))) for _ in range(rng.randint(1, 5))]
    tokens = [[rng.randrange(len(WORDS)) for _ in range(rng.randint(1, 9))] for _ in texts]
    given = rng.choice((texts, texts[0], tokens, tokens[0]))
    more = {
        "encoding_format": rng.choice(("float", "base64", None)), "dimensions": rng.randint(1, WIDTH), "user": "x",
        "timeout": 10**9, "priority": 1,
    }  # fmt: skip
    return {"model": "small", "input": given, **{k: v for k, v in more.items() if rng.random() < 0.3}}


@cache
def generator() -> Generator:
    """What the server has for texts."""
    with tempfile.TemporaryDirectory() as place:
        return Generator(whole(Path(place) / "texts.bolt", SHORT, 512), threads=1)


def want_chat(asked: Any, body: bytes, what: Any) -> None:
    """An answer has as many texts as were asked for, each the generator's own."""
    if body.startswith(b"data:"):
        *rows, end = [row.removeprefix(b"data: ") for row in body.split(b"\n\n")[:-1]]
        if end != b"[DONE]":
            assert b'"timeout: ' in end, (what, body)
            return
        parts = [json.loads(row)["choices"] for row in rows]
        told = {c["index"]: "" for row in parts for c in row}
        for choice in (c for row in parts for c in row):
            told[choice["index"]] += choice["delta"].get("content") or ""
    else:
        told = {c["index"]: c["message"]["content"] for c in json.loads(body)["choices"]}
    assert [*sorted(told)] == list(range(asked.get("n") or 1)), (what, body)
    if asked.get("temperature") == 0 and not asked.get("tools") and not asked.get("logit_bias"):
        said = [{"role": m["role"], "content": m["content"]} for m in asked["messages"]]
        is_plain = all(isinstance(m["content"], str) and not m.get("tool_calls") for m in asked["messages"])
        if is_plain and not asked.get("response_format"):
            how = {key: asked[key] for key in ("max_tokens", "stop", "frequency_penalty") if asked.get(key) is not None}
            assert {*told.values()} == {generator().chat(said, **how).text}, (what, body)


@cache
def encoder() -> Encoder:
    """What the server has as ``small``."""
    with tempfile.TemporaryDirectory() as place:
        return Encoder(folder(Path(place)))


def want_embedded(asked: Any, told: Any, what: Any) -> None:
    """An answer has the vectors of the inputs, each as it is alone, in their order."""
    given, ours, count = asked["input"], encoder(), 0
    inputs = [given] if isinstance(given, str) or type(given[0]) is int else given
    assert [row["index"] for row in told["data"]] == list(range(len(inputs))), (what, told)
    for one, found in zip(inputs, told["data"], strict=True):
        ids = ours.tokens([one])[0].ids if isinstance(one, str) else np.array(one)
        feeds = ours.feeds(TokenRow(ids, np.zeros_like(ids), False))
        made = ours.session.run([ours.embedding], {name: array[None] for name, array in feeds.items()})[0][0]
        vector = found["embedding"]
        vector = np.frombuffer(base64.b64decode(vector), "<f4") if isinstance(vector, str) else np.float32(vector)
        wanted = ours.vector(made, len(ids), asked.get("dimensions"))
        assert vector.shape == wanted.shape, (what, told)
        assert np.allclose(vector, wanted, atol=1e-6), (what, told, wanted)
        count += len(ids)
    assert (told["model"], told["usage"]["total_tokens"]) == (asked["model"], count), (what, told)


# --- REST ------------------------------------------------------------------------------------------------------------


def rest_request(rng: Rng) -> tuple[bytes, Any, bool]:
    """Bytes, what a right answer is of (None: no answer is right), and whether an answer must come."""
    way = rng.random()
    name, head, blob = (
        good(rng) if way < 0.6 else (("", good_texts(rng), b"") if way < 0.8 else (TEXTS, good_chat(rng), b""))
    )
    is_spoiled = rng.random() < 0.85
    for _ in range(rng.randint(1, 3) if is_spoiled and rng.random() < 0.6 else 0):
        head = mutated(head, rng) if isinstance(head, dict) else head
    text = json.dumps(head).encode("utf-8", "surrogatepass")
    body, given = text + blob, (head, blob)
    headers: dict[str, Any] = {}
    if blob or rng.random() < 0.3:
        headers["inference-header-content-length"] = len(text)
    if is_spoiled and rng.random() < 0.1:
        headers["inference-header-content-length"] = rng.choice((-1, 0, len(body), len(body) + 1, 10**30, "x", ""))
        given = None
    if rng.random() < 0.1:
        headers["accept-encoding"] = "gzip"
    if rng.random() < 0.1:
        headers["content-encoding"], body = "gzip", gzip.compress(body, 1)
        if is_spoiled:
            body, given = spoiled_bytes(body, rng), None
    elif is_spoiled and rng.random() < 0.2:
        body, given = spoiled_bytes(body, rng), None
    elif is_spoiled and rng.random() < 0.05:
        body, given = body + b" " * MOST_BODY * rng.randint(1, 30), None
    version = rng.choice(("", "/versions/1"))
    if is_spoiled and rng.random() < 0.05:
        version = rng.choice(("/versions/2", "/versions/%00", "/versions/", "/../.."))
    path = f"/v2/models/{name}{version}/infer" if name else "/v1/embeddings"
    path = "/v1/chat/completions" if name == TEXTS else path
    data = request(path, body, headers, rng if rng.random() < 0.2 else None)
    if is_spoiled and rng.random() < 0.15:  # the framing
        end = data.index(b"\r\n\r\n") + 4
        if rng.random() < 0.7:
            return spoiled_bytes(data[:end], rng) + data[end:], given, False
        return spoiled_bytes(data, rng), None, False
    return data, given if is_spoiled else (head, blob, "must"), True


def check_rest(answer: tuple[int, dict[str, str], bytes], given: Any, sent: bytes) -> str:
    status, headers, body = answer
    may_be_late = status == LATE and (given is None or "timeout" in json.dumps(given[0]))
    assert 200 <= status < FIRST_REFUSED or may_be_late, (status, body, sent)
    if status == 200 and given is not None and b" /v1/chat/" in sent[:40]:
        want_chat(given[0], body, sent)
    elif status == 200 and given is not None:
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        end = int(headers.get("inference-header-content-length", len(body)))
        told = json.loads(body[:end] or b"null")
        if isinstance(told, dict) and "outputs" in told:
            (made,) = tensors(told, body[end:], "outputs").values()
            want_right(tensors(given[0], given[1], "inputs"), made, sent)
        elif isinstance(told, dict) and "usage" in told:
            want_embedded(given[0], told, sent)
    if given is not None and len(given) > 2:
        assert status == 200, (status, body, sent)
    kinds = {b" /v1/embeddings ": "embeddings", b" /v1/chat/": "chat"}
    return f"{next((kind for path, kind in kinds.items() if path in sent[:40]), 'rest')} {status}"


async def change_case(client: Client, rng: Rng) -> list[str]:
    """A change of the repository, or what is none; then the model that changes serves, or is told not to."""
    name = rng.choice((CHANGED, CHANGED, "..", "%2e%2e", "a/b", "%00", "none", "x" * 5000, "%ff"))
    path = rng.choice((f"models/{name}/load", f"models/{name}/unload", "index"))
    asked = {"parameters": rng.choice(({}, {"config": "{}"})), "ready": rng.random() < 0.5}
    body = json.dumps(mutated(asked, rng) if rng.random() < 0.5 else asked).encode("utf-8", "surrogatepass")
    one = {"datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    infer = json.dumps({"inputs": [{"name": key, **one} for key in "ab"]}).encode()
    await client.send(request(f"/v2/repository/{path}", body, {}) + request(f"/v2/models/{CHANGED}/infer", infer, {}))
    (changed, _, said), (status, _, made) = [await client.answer() or (0, {}, b"") for _ in range(2)]
    assert changed in (200, 400, 404), (changed, said, path, body)
    assert status in (200, 404, 503), (status, made)
    if changed == 200 and path == "index":
        assert {row["name"] for row in json.loads(said)} <= {"add", "texts", "small", TEXTS, CHANGED}, said
    if status == 200:
        assert json.loads(made)["outputs"][0]["data"] == [2, 4, 6], made
    return [f"change {changed}", f"brief {status}"]


async def rest_case(client: Client, rng: Rng) -> list[str]:
    """One request, or several at once; some clients go away before the answer."""
    if rng.random() < 0.01:
        return await change_case(client, rng)
    many = [rest_request(rng) for _ in range(rng.randint(2, 6) if rng.random() < 0.1 else 1)]
    firm = [row for row in many if row[2]]
    if len(firm) < len(many):
        many = [*firm, next(row for row in many if not row[2])]  # what breaks the framing comes last
    data = b"".join(row[0] for row in many)
    way = rng.random()
    if way < 0.03:
        await client.send(data[: rng.randint(1, len(data))])
        client.close(rudely=rng.random() < 0.5)
        return ["rest gone"]
    at = rng.randint(0, len(data)) if way < 0.1 else len(data)
    await client.send(data[:at])
    if at < len(data):
        await asyncio.sleep(rng.random() / 100)
        await client.send_more(data[at:])
    told: list[str] = []
    for sent, given, must in many:
        if not must and client.writer is not None:
            with suppress(OSError):
                client.writer.write_eof()  # what lacks bytes is not waited for
        found = await client.answer() if client.writer is not None else None
        if found is None:  # what comes behind, or came before, was no HTTP
            assert not (must and many[-1][2]), (data, told)
            told.append("rest closed")
            break
        told.append(check_rest(found, given, sent))
        if not must:
            client.close()
    return told


# --- gRPC ------------------------------------------------------------------------------------------------------------


def rpc_message(rng: Rng) -> tuple[bytes, bool]:
    """A request as bytes, and whether it is a right one."""
    name, head, blob = good(rng)
    made = TYPES["ModelInfer"][0](model_name=name, id="1")
    is_raw = rng.random() < 0.6
    for key, values in tensors(head, blob, "inputs").items():
        shape = next(row["shape"] for row in head["inputs"] if row["name"] == key)
        row = made.inputs.add(name=key, datatype="FP32" if name == "add" else "BYTES", shape=shape)
        if is_raw:
            texts = [str(v).encode() for v in values]
            made.raw_input_contents.append(np.float32(values).tobytes() if name == "add" else packed(texts))
        elif name == "add":
            row.contents.fp32_contents.extend(values)
        else:
            row.contents.bytes_contents.extend(v.encode() for v in values)
    data = made.SerializeToString()
    if rng.random() < 0.15:
        return data, True
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randint(1, len(changed))] if rng.random() < 0.2 else changed), False


def check_rpc(sent: bytes, reply: Any) -> None:
    """A reply is right, for what the message says as this side reads it."""
    asked = TYPES["ModelInfer"][0].FromString(sent)
    given = dict[str, list[Any]]()
    for i, row in enumerate(asked.inputs):
        if asked.raw_input_contents:
            given[row.name] = elements(None, asked.raw_input_contents[i], row.datatype)
        else:
            held = row.contents.bytes_contents if row.datatype == "BYTES" else row.contents.fp32_contents
            given[row.name] = [v.decode() if isinstance(v, bytes) else v for v in held]
    datatype = reply.outputs[0].datatype
    want_right(given, elements(None, reply.raw_output_contents[0], datatype), asked)
    assert math.prod(reply.outputs[0].shape) == len(elements(None, reply.raw_output_contents[0], datatype))


def _code(error: grpc.aio.AioRpcError, sent: bytes, is_good: bool) -> str:
    assert not is_good, (error, sent)
    assert error.code().name not in ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS"), (error, sent)
    return f"rpc {error.code().name}"


async def rpc_case(channel: Any, rng: Rng) -> list[str]:
    sent, is_good = rpc_message(rng)
    name = "ModelInfer" if is_good or rng.random() < 0.8 else rng.choice([m for m in TYPES if m not in QUIET])
    if name == "ModelStreamInfer":
        return await stream_case(channel, rng)
    call = channel.unary_unary(f"/{SERVICE}/{name}")(sent, timeout=WAIT_S)
    if not is_good and rng.random() < 0.03:
        await asyncio.sleep(rng.random() / 1000)
        call.cancel()
    try:
        data = await call
    except grpc.aio.AioRpcError as error:
        return [_code(error, sent, is_good)]
    except asyncio.CancelledError:
        return ["rpc gone"]
    reply = TYPES[name][1].FromString(data)
    if name == "ModelInfer":
        check_rpc(sent, reply)
    return ["rpc OK"]


async def stream_case(channel: Any, rng: Rng) -> list[str]:
    """Several messages in a stream: an answer for each, in their order."""
    many = [rpc_message(rng) for _ in range(rng.randint(1, 5))]

    async def given() -> AsyncIterator[bytes]:
        for sent, _ in many:
            yield sent

    told = []
    async with asyncio.timeout(WAIT_S):
        answers = [a async for a in channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(given())]
    assert len(answers) == len(many)
    for (sent, is_good), data in zip(many, answers, strict=True):
        reply = TYPES["ModelStreamInfer"][1].FromString(data)
        assert not (is_good and reply.error_message), (reply, sent)
        if not reply.error_message:
            check_rpc(sent, reply.infer_response)
        told.append(f"rpc stream {'refused' if reply.error_message else 'OK'}")
    return told


async def no_http2(address: str, rng: Rng) -> list[str]:
    """Bytes at the port of gRPC that are no HTTP/2, or the beginning of some."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    start = rng.choice((b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"))
    with suppress(ConnectionError):
        writer.write(start + rng.randbytes(rng.randint(0, 300)))
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            await reader.read()
    writer.close()
    return ["rpc no HTTP/2"]


# --- all of it -------------------------------------------------------------------------------------------------------


def held(process: int) -> tuple[int, int, int]:
    """Memory, files and threads of a process."""
    root = Path(f"/proc/{process}")
    return resident(process), len(list((root / "fd").iterdir())), len(list((root / "task").iterdir()))


async def attack(http: str, rpc: str, process: int, count: int) -> Counter[str]:
    """Send so many requests, and look after the server."""
    found, left, before = Counter[str](), count, (0, 0, 0)
    async with grpc.aio.insecure_channel(rpc) as channel:

        async def work(number: int) -> None:
            nonlocal left, before
            client, rng = Client(http), Rng(count + number)
            while left > 0:
                way = rng.random()
                if way < 0.5:
                    told = await rest_case(client, rng)
                else:
                    told = await (no_http2(rpc, rng) if way > 0.995 else rpc_case(channel, rng))
                left -= len(told)
                found.update(told)
                if left < 0.9 * count and before == (0, 0, 0):
                    before = held(process)
            client.close()

        await asyncio.gather(*map(work, range(CLIENTS)))
    await asyncio.sleep(1)  # connections are closed
    after = held(process)
    found[
        f"{before[0] >> 20} MiB, {before[1]} files, {before[2]} threads; at the end {after[0] >> 20}, {after[1:]}"
    ] = 1
    assert after[0] - before[0] < GROWTH, (before, after)
    assert after[1] <= before[1], (before, after)
    assert after[2] <= before[2] + 2, (before, after)
    return found


def run(place: Path, count: int) -> Counter[str]:
    """Start a server, attack it, and end it."""
    files = add(place / "add.onnx"), same(place / "texts.onnx", TensorProto.STRING), add(place / f"{CHANGED}.onnx")
    limits = "--max-batch", "4", "--max-wait-us", "200", "--max-body", "1"
    with started(*files, folder(place / "small"), whole(place / f"{TEXTS}.bolt", SHORT, 512), *limits) as (
        process,
        http,
        lines,
    ):
        where = re.search(r"grpc://([\d.:]+)", lines[-1]["message"])
        assert where is not None
        logged: list[str] = []
        reading = threading.Thread(target=lambda: logged.extend(process.stderr or ()), daemon=True)
        reading.start()
        # A row of one token has a kernel of its own.  To compile it takes 140 MiB, which are no leak.
        assert status(http, "/v1/embeddings", b'{"model": "small", "input": [[5], [5]]}') == 200
        found = asyncio.run(attack(http, where[1], process.pid, count))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        reading.join(WAIT_S)
        faults = [line for line in logged if '"level":"error"' in line or not line.startswith("{")]
        assert not faults, "".join(faults)[-6000:]
    return found


def main(count: int) -> None:
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        found = run(Path(place), count)
    for key, times in sorted(found.items()):
        sys.stdout.write(f"{times:9d} {key}\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
