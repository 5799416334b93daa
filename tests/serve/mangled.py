"""What hostile clients send, and how: values and bytes with something changed, requests of HTTP as they are sent."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress
from typing import Any

Rng = random.Random
WAIT_S, IDLE_S = 60, 2
TEXTS = "writer"
"""The model that makes texts."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, 1 << 70, 0.5, 1e308, "", "x", "FP32", "INT64", "BYTES", [], {}, [[]],
    [1] * 7, [-1, 3], [2**40, 2**40], {"binary_data_size": 4}, {"binary_data_size": -4}, {"timeout": 1},
    {"sequence_id": 5}, {"priority": 0.5}, {"type": "json_object"}, {"role": "user", "content": "\0"}, 10**9,
    {"type": "function", "function": {"name": "f", "arguments": "{}"}}, "required",
    {"binary_data_output": True}, "\ud800",
)  # fmt: skip


def mutated(value: Any, rng: Rng) -> Any:
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


def good_chat(rng: Rng) -> dict[str, Any]:
    """A request for texts."""
    said = [
        {"role": rng.choice(("system", "user")), "content": "x" * rng.randint(0, 9)} for _ in range(rng.randint(1, 3))
    ]
    more = {
        "n": rng.randint(1, 3), "stop": rng.choice(("q", ["q", "j"])), "logprobs": True, "stream": rng.random() < 0.5,
        "response_format": {"type": "text"}, "top_p": 0.5, "timeout": 10**9, "user": "x", "frequency_penalty": 0,
        "logit_bias": {"65": 1.5, "257": -100}, "metadata": {"a": "b"}, "parallel_tool_calls": rng.random() < 0.5,
    }  # fmt: skip
    tools: dict[str, Any] = {}
    if rng.random() < 0.3:
        parts = {"a": {"type": rng.choice(("integer", "string"))}, "b": {"$ref": "#/$defs/c"}}
        schema = {"type": "object", "properties": parts, "required": ["a"], "$defs": {"c": {"enum": [1, 2]}}}
        named = {"type": "function", "function": {"name": "f"}}
        tools = {
            "tools": [{"type": "function", "function": {"name": name, "parameters": schema}} for name in "fg"],
            "tool_choice": rng.choice(("auto", "none", "required", named)),
        }
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        said += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "7", "tool_call_id": "x"},
        ]
    return {
        "model": TEXTS, **tools, "messages": said, "max_tokens": rng.randint(1, 5), "temperature": 0,
        **{k: v for k, v in more.items() if rng.random() < 0.3},
    }  # fmt: skip


class Client:
    """A connection that is kept, and made again where the server has closed it."""

    def __init__(self, address: str) -> None:
        self.host, port = address.split(":")
        self.port = int(port)
        self.reader: Any = None
        self.writer: Any = None
        self.since = 0.0

    async def send(self, data: bytes) -> None:
        if self.writer is None or self.reader.at_eof() or self.writer.is_closing() or self.was_idle():
            self.close()
            self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        await self.send_more(data)

    def was_idle(self) -> bool:
        """Whether the server may be about to close the connection."""
        return time.monotonic() - self.since > IDLE_S

    async def send_more(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    def close(self, rudely: bool = False) -> None:
        if self.writer is not None:
            if rudely:
                linger = struct.pack("ii", 1, 0)
                with suppress(OSError):  # the server was quicker
                    self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort() if rudely else self.writer.close()
        self.reader = self.writer = None

    async def answer(self) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body; None: the server has closed the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                top = await self.reader.readuntil(b"\r\n\r\n")
                first, *rest = top.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (row.partition(":") for row in rest if row)}
                if headers.get("transfer-encoding") == "chunked":
                    body = await self.chunks()
                else:
                    body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                return None
        self.since = time.monotonic()
        if headers.get("connection") == "close":
            self.close()
        return int(first.split()[1]), headers, body

    async def chunks(self) -> bytes:
        """A body whose end is told behind it."""
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body


def request(path: str, body: bytes, headers: dict[str, Any], chunks: Rng | None = None) -> bytes:
    """A request as it is sent.  chunks: which tells sizes of chunks."""
    rows = {"host": "x", **({"transfer-encoding": "chunked"} if chunks else {"content-length": len(body)}), **headers}
    top = f"POST {path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in rows.items()) + "\r\n"
    if chunks is not None:
        parts = b""
        while body:
            size = chunks.randint(1, len(body))
            more = b";x=y" if chunks.random() < 0.1 else b""
            parts, body = parts + b"%x%s\r\n%s\r\n" % (size, more, body[:size]), body[size:]
        body = parts + b"0\r\n" + (b"trailer: x\r\n" if chunks.random() < 0.1 else b"") + b"\r\n"
    return top.encode() + body


def spoiled_bytes(data: bytes, rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) or 1)
        what = rng.choice((b"", b"\r\n", b"\0", b"\xff", b" ", b":", b"9", b"-", changed[at : at + 9] * 2))
        changed[at : at + rng.randint(0, 2)] = what
    return bytes(changed)
