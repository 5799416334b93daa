"""Heavy use of the server, by hand: requests that are mutated, and a storm of them while models change.

    python -m tests.serve.heavy mutated 200000
    python -m tests.serve.heavy storm 1000000

Mutated requests go to the application and to the service as their servers hand them on; each must be answered with its
right result, or refused with a status below 500.  In the storm every request has numbers of its own, so an answer that
is lost, doubled or another's is seen; memory is looked at while it runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bolt_numba.errors import BoltError
from bolt_numba.serve import ModelSettings, Repository
from bolt_numba.serve.errors import STATUS, RequestError, kind_of
from bolt_numba.serve.models import RequestTerms
from bolt_numba.serve.rest import Rest
from bolt_numba.serve.rpc import Rpc
from tests.small import add, softmax

MOST = 1 << 16
FIRST_REFUSED = 500
FAR = 1 << 70
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, FAR, 0.5, 1e308, "", "x", "FP32", "INT64", "BYTES", [], {}, [[]], [1] * 7,
    [-1, 3], [2**40, 2**40], {"binary_data_size": 4}, {"binary_data_size": -4}, {"timeout": 1}, {"sequence_id": 5},
    {"priority": 0.5}, "\ud800",
)  # fmt: skip


def good(rng: random.Random) -> tuple[dict[str, Any], bytes, np.ndarray[Any, Any]]:
    """A request as JSON and bytes, and its result."""
    n = rng.randint(0, 3)
    a, b = (np.array([[rng.random() for _ in range(3)] for _ in range(n)], "f4").reshape(n, 3) for _ in range(2))
    head: dict[str, Any] = {"id": "1", "inputs": []}
    blob = b""
    for name, array in (("a", a), ("b", b)):
        row = {"name": name, "datatype": "FP32", "shape": [n, 3]}
        if rng.random() < 0.5:
            row["parameters"] = {"binary_data_size": array.nbytes}
            blob += array.tobytes()
        else:
            row["data"] = array.ravel().tolist()
        head["inputs"].append(row)
    return head, blob, a + b


def mutated(value: Any, rng: random.Random) -> Any:
    """The same with one place changed, somewhere inside."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        made, key = dict(value), rng.choice(list(value))
        if rng.random() < 0.1:
            made.pop(key)
        else:
            made[key] = mutated(value[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.8:
        made = list(value)
        at = rng.randrange(len(made))
        made[at : at + rng.randint(0, 1)] = [mutated(made[at], rng)] * rng.randint(0, 2)
        return made
    return rng.choice(ODD)


async def asked(app: Any, path: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Status and body that the application answers with."""
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "http_version": "1.1", "root_path": "", "scheme": "http", "server": ("x", 1),
        "client": ("y", 2), "asgi": {"version": "3.0"},
    }  # fmt: skip
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = 0, []

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)


async def rest_case(app: Any, rng: random.Random) -> str:
    head, blob, wanted = good(rng)
    spoiled = rng.random() < 0.9
    for _ in range(rng.randint(1, 3) if spoiled else 0):
        head = mutated(head, rng) if rng.random() < 0.9 else head
    try:
        text = json.dumps(head).encode("utf-8", "surrogatepass")
    except UnicodeEncodeError:
        text = b"\xff"
    body, length = text + blob, len(text)
    if spoiled and rng.random() < 0.3:
        body = bytes(rng.choice((b ^ 1 << rng.randrange(8), b)) if rng.random() < 0.02 else b for b in body)
    if spoiled and rng.random() < 0.2:
        body = body[: rng.randint(0, len(body))]
    if spoiled and rng.random() < 0.1:
        length = rng.choice((-1, 0, len(body), len(body) + 1, 10**30))
    headers = [(b"inference-header-content-length", str(length).encode())] if blob or rng.random() < 0.5 else []
    status, answer = await asked(app, rng.choice(("/v2/models/add/infer", "/v2/models/quick/infer")), body, headers)
    assert 200 <= status < FIRST_REFUSED, (status, answer, body)
    if not spoiled:
        assert status == 200, (answer, body)
        assert np.array_equal(np.float32(json.loads(answer)["outputs"][0]["data"]), wanted.ravel())
    return f"rest {status}"


class Context:
    """What a call of gRPC knows of itself."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()


async def rpc_case(rpc: Rpc, rng: random.Random) -> str:
    _, _, wanted = good(rng)
    request = rpc.types["ModelInfer"][0](model_name=rng.choice(("add", "quick")), id="1")
    a, b = wanted, np.zeros_like(wanted)
    is_raw = rng.random() < 0.6
    for name, array in (("a", a), ("b", b)):
        row = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        if is_raw:
            request.raw_input_contents.append(array.tobytes())
        else:
            row.contents.fp32_contents.extend(array.ravel().tolist())
    data = request.SerializeToString()
    spoiled = rng.random() < 0.9
    if spoiled:
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        data = bytes(changed[: rng.randint(1, len(changed))] if rng.random() < 0.2 else changed)
    try:
        request = rpc._message("ModelInfer", data, Context())
    except RequestError:
        return "rpc no message"
    try:
        reply = await rpc.infer(request, Context())
    except BoltError as error:
        kind = kind_of(error)
        if not spoiled or STATUS[kind][0] >= FIRST_REFUSED:
            raise
        return f"rpc {kind}"
    if not spoiled:
        assert np.array_equal(np.frombuffer(reply.raw_output_contents[0], "f4"), wanted.ravel())
    return "rpc ok"


async def mutate(folder: Path, count: int) -> Counter[str]:
    files = {"add": add(folder / "add.onnx"), "quick": add(folder / "quick.onnx")}
    repository = Repository(None, files, ModelSettings(max_batch=4))
    await repository.look()
    quick = repository.find("quick")
    quick.expected = dict.fromkeys(quick.expected, 0.0)
    app, rpc = Rest(repository, MOST, 5, None).app, Rpc(repository, None)
    found, rng = Counter[str](), random.Random(count)
    for i in range(count):
        found[await (rest_case(app, rng) if i % 2 else rpc_case(rpc, rng))] += 1
        if i % (count // 10) == 0:
            found[f"{resident() >> 20} MiB"] += 1
    await repository.end(5)
    return found


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def storm(folder: Path, count: int) -> Counter[str]:
    """Requests of many clients with deadlines, cancels and errors, while the model is reloaded."""
    path = softmax(folder / "models" / "m" / "1" / "model.onnx")
    settings = ModelSettings(max_batch=8, max_wait_us=200, queue=64)
    repository = Repository(folder / "models", {}, settings)
    await repository.look()
    found, rng, left = Counter[str](), random.Random(count), count
    sizes: list[int] = []

    async def client(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            base = rng.random() * 10
            x = np.array([[0.0, base]], "f4")
            terms = RequestTerms({"timeout": 50 if rng.random() < 0.02 else 0, "priority": rng.randint(0, 3)})
            try:
                given = {"x": x if rng.random() < 0.98 else x.astype("f8")}
                run = asyncio.ensure_future(repository.find("m").infer(given, [], terms))
                if rng.random() < 0.02:
                    await asyncio.sleep(0)
                    run.cancel()
                made = (await run)["y"]
                wanted = 1 / (1 + np.exp(-base))
                assert abs(float(made[0, 1]) - wanted) < 1e-5, (made, base)
                found["ok"] += 1
            except asyncio.CancelledError:
                found["cancelled"] += 1
            except BoltError as error:
                found[type(error).__name__] += 1
                await asyncio.sleep(0.0005)

    async def reload() -> None:
        while left > 0:
            await asyncio.sleep(0.5)
            path.touch()
            await repository.load("m")
            found["reloads"] += 1
            sizes.append(resident())

    await asyncio.gather(*[client(i) for i in range(100)], reload())
    await repository.end(5)
    assert sum(found.values()) - found["reloads"] == count, found
    third = len(sizes) // 3
    found[f"MiB after a third {max(sizes[: third + 1]) >> 20}, at the end {sizes[-1] >> 20}"] += 1
    return found


def main(what: str, count: int) -> None:
    logging.getLogger("bolt_numba").setLevel(logging.ERROR)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run((mutate if what == "mutated" else storm)(Path(folder), count))
    for key, times in sorted(found.items()):
        sys.stdout.write(f"{times:9d} {key}\n")
    sys.stdout.write(f"{time.perf_counter() - begin:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
