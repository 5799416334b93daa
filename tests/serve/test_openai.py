"""OpenAI's chats and completions over HTTP: plain requests, its own client as it is, and what must be refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.serve import ModelSettings, SettingsError
from bolt_numba.serve.models import ServedModel, StoredVersion
from bolt_numba.text import Generator
from tests.serve.serving import Running, running
from tests.serve.test_rest import ask
from tests.small import add
from tests.text.decoders import whole

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
TOKEN = "secret"
HEAD = {"authorization": f"Bearer {TOKEN}"}
HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


@pytest.fixture(scope="module")
def alone(place: Path) -> Iterator[Generator]:
    with Generator(place, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A repository: a decoder with settings, and a model that is none."""
    models = tmp_path_factory.mktemp("models")
    (models / "small" / "1").mkdir(parents=True)
    (models / "small" / "1" / "model.bolt").write_bytes(place.read_bytes())
    (models / "small" / "model.toml").write_text("sequences = 3\nqueue = 20\nthreads = 1\n")
    add(models / "add.onnx")
    with running(models, token=TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def say(server: Running, path: str = CHAT, **more: Any) -> tuple[int, Any]:
    asked = {"messages": HI} if path == CHAT else {"prompt": "Once"}
    body = {"model": "small", "max_tokens": 8, "temperature": 0, **asked, **more}
    return ask(server, path, {k: v for k, v in body.items() if v != "left out"}, HEAD)[:2]


def events(data: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# --- what is answered ------------------------------------------------------------------------------------------------


def test_a_chat_is_answered(server: Running, alone: Generator) -> None:
    wanted = alone.chat(HI, max_tokens=8)
    status, told = say(server)
    (choice,), usage = told["choices"], told["usage"]
    assert (status, told["object"], told["model"]) == (200, "chat.completion", "small")
    assert choice["message"] == {"role": "assistant", "content": wanted.text, "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, wanted.finish_reason, None)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (wanted.prompt_tokens, len(wanted.tokens))
    assert usage["total_tokens"] == wanted.prompt_tokens + len(wanted.tokens)
    assert say(server)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == wanted.prompt_tokens - 1
    parts = [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]
    assert say(server, messages=parts)[1]["choices"] == told["choices"]


def test_a_text_goes_on(server: Running, alone: Generator) -> None:
    prompts = ["Once", "The cat"]
    wanted = alone.generate(prompts, max_tokens=8)
    assert say(server, COMPLETIONS, prompt=prompts[0])[1]["choices"][0]["text"] == wanted[0].text
    status, told = say(server, COMPLETIONS, prompt=prompts, n=2)
    assert [row["text"] for row in told["choices"]] == [one.text for one in wanted for _ in range(2)]
    assert [row["index"] for row in told["choices"]] == [0, 1, 2, 3]
    assert (status, told["usage"]["prompt_tokens"]) == (200, sum(one.prompt_tokens for one in wanted))
    tokens = [alone.tokens(one) for one in prompts]
    assert say(server, COMPLETIONS, prompt=tokens)[1]["choices"][1]["text"] == wanted[1].text
    assert say(server, COMPLETIONS, prompt=tokens[0])[1]["choices"][0]["text"] == wanted[0].text
    assert say(server, COMPLETIONS, max_tokens=None)[1]["usage"]["completion_tokens"] == 16


def test_seeds_and_temperatures(server: Running, alone: Generator) -> None:
    how = {"temperature": 1.3, "seed": 7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}
    how |= {"frequency_penalty": 0.5, "presence_penalty": -0.25}
    _, told = say(server, n=3, **how)
    found = [row["message"]["content"] for row in told["choices"]]
    assert found == [alone.chat(HI, max_tokens=8, **{**how, "seed": 7 + i}).text for i in range(3)]
    assert say(server, seed=-1, temperature=1)[1]["choices"] == say(server, seed=-1, temperature=1)[1]["choices"]
    free = {say(server, temperature=None, max_tokens=20)[1]["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(free) > 1  # OpenAI's usual temperature is 1


def test_a_stop_ends_a_text(server: Running, alone: Generator) -> None:
    text = alone.generate("Once", max_tokens=8).text
    for stop in (text[3], [text[3], "never"]):
        (choice,) = say(server, COMPLETIONS, stop=stop)[1]["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(text[3])], "stop")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_has_the_same(server: Running, path: str) -> None:
    how: dict[str, Any] = {"n": 2, "seed": 3, "temperature": 1.2, "logprobs": True if path == CHAT else 2}
    status, told = say(server, path, **how)
    sent = say(server, path, stream=True, stream_options={"include_usage": True}, **how)[1]
    *rows, last = events(sent)
    assert (status, last["choices"]) == (200, [])
    assert {key: last["usage"][key] for key in ("prompt_tokens", "completion_tokens")} == {
        key: told["usage"][key] for key in ("prompt_tokens", "completion_tokens")
    }
    assert {(row["id"], row["usage"]) for row in rows} == {(last["id"], None)}
    for index, whole_choice in enumerate(told["choices"]):
        parts = [row["choices"][0] for row in rows if row["choices"][0]["index"] == index]
        assert [p["finish_reason"] for p in parts] == [None] * (len(parts) - 1) + [whole_choice["finish_reason"]]
        if path == CHAT:
            assert parts[0]["delta"]["role"] == "assistant"
            assert "".join(p["delta"].get("content", "") for p in parts) == whole_choice["message"]["content"]
            made = [one for p in parts if p["logprobs"] for one in p["logprobs"]["content"]]
            assert made == whole_choice["logprobs"]["content"]
        else:
            assert "".join(p["text"] for p in parts) == whole_choice["text"]
            for key in ("tokens", "text_offset", "top_logprobs"):
                assert [x for p in parts if p["logprobs"] for x in p["logprobs"][key]] == whole_choice["logprobs"][key]
    plain = events(say(server, path, stream=True, **how)[1])
    assert all("usage" not in row for row in plain)


def test_log_probabilities(server: Running, alone: Generator) -> None:
    wanted = alone.chat(HI, max_tokens=8, logprobs=3).logprobs
    assert wanted is not None
    (choice,) = say(server, logprobs=True, top_logprobs=3)[1]["choices"]
    for row, likely in zip(choice["logprobs"]["content"], wanted, strict=True):
        assert (row["token"], row["logprob"]) == (likely.text, pytest.approx(likely.logprob))
        assert row["bytes"] == (None if "�" in likely.text else [*likely.text.encode()])
        assert [other["token"] for other in row["top_logprobs"]] == [text for _, text, _ in likely.others]


def test_json(server: Running) -> None:
    pytest.importorskip("llguidance")
    parts = {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "yes"]}}
    schema = {"type": "object", "properties": parts, "required": ["a", "b"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    _, told = say(server, response_format=form, n=3, temperature=1, max_tokens=60)
    for row in told["choices"]:
        found = json.loads(row["message"]["content"])
        assert ({*found}, row["finish_reason"]) == ({"a", "b"}, "stop")
    status, told = say(server, response_format={"type": "json_object"})
    assert (status, told["choices"][0]["message"]["content"][0]) == (200, "{")


# --- what is refused -------------------------------------------------------------------------------------------------


def schema_of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def deep(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        made = {"type": "array", "items": made}
    return made


PATTERNS = [{"type": "string", "pattern": f"a.*{letter}"} for letter in "abcdefghijklmnopqrstuvwxyz"]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 10**9}, "n: got 1000000000, wanted from 1 to 128", "n"),
    ({"n": 0}, "n: got 0", "n"),
    ({"n": 2.5}, "n: got 2.5, wanted a whole number", "n"),
    ({"n": True}, "n: got True, wanted a whole number", "n"),
    ({"max_tokens": 0}, "max_tokens: got 0", "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens: got 'many', wanted a whole number", "max_tokens"),
    ({"max_completion_tokens": -1}, "max_tokens: got -1", "max_tokens"),
    ({"temperature": -1}, "temperature: got -1", "temperature"),
    ({"temperature": [0] * 1000}, "temperature: got [0, 0, ", "temperature"),
    ({"top_p": 2}, "top_p: got 2", "top_p"),
    ({"stop": ["a"] * 17}, "stop: got ['a', 'a', ", "stop"),
    ({"stop": ["a" * 2000]}, "stop: got ['aaaa", "stop"),
    ({"stop": ["x" * 1000] * 20_000}, "stop: got ['xxx", "stop"),
    ({"stop": [""]}, "stop: got [''], wanted", "stop"),
    ({"stop": [1]}, "stop: got [1], wanted", "stop"),
    ({"seed": "x"}, "seed: got 'x', wanted a whole number", "seed"),
    ({"stream": "yes"}, "stream: got 'yes', wanted true or false", "stream"),
    ({"stream_options": {"usage": True}}, "stream_options: got ['usage'], wanted include_usage", "stream_options"),
    ({"logprobs": 3}, "logprobs: got 3, wanted true or false", "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs: got 3, wanted up to 20, and logprobs beside it", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: got 21", "top_logprobs"),
    ({"frequency_penalty": 2.5}, "frequency_penalty: got 2.5, wanted a number from -2 to 2", "frequency_penalty"),
    ({"presence_penalty": "x"}, "presence_penalty: got 'x', wanted a number", "presence_penalty"),
    ({"logit_bias": {"50256": -100}}, "logit_bias: got 50256, wanted tokens up to 257", "logit_bias"),
    ({"functions": [{"name": "f"}]}, "functions: got [{'name': 'f'}], wanted []: nothing else is done", "functions"),
    ({"metadata": "x"}, "metadata: got 'x', wanted an object", "metadata"),
    ({"temprature": 1}, "did you mean 'temperature'?", "temprature"),
    ({"model": 3}, "model: got 3, wanted the name of a model", "model"),
    ({"messages": []}, "messages: got [], wanted a list of messages", "messages"),
    ({"messages": "left out"}, "messages: got [], wanted a list of messages", "messages"),
    ({"messages": "Hi"}, "messages: got 'Hi', wanted a list", "messages"),
    ({"messages": [7]}, "messages: number 0: got 7", "messages"),
    ({"messages": [{"role": "function", "content": "x"}]}, "wanted an object with content and a role of", "messages"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "wanted an object with content and a role of", "messages"),
    ({"messages": [*HI, {"role": "user"}]}, "messages: number 1: content: got None", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content: got [{'type'", "messages"),
    ({"messages": [{**HI[0], "audio": {"id": "x"}}]}, "messages: number 0: got ['audio']", "messages"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, "prompt: got 217 tokens", "messages"),
    ({"messages": [{"role": "user", "content": "x" * 900_000}]}, "messages: got 900064 letters", "messages"),
    ({"messages": [{"role": "user", "content": ""}] * 20_000}, "messages: got 1280000 letters", "messages"),
    ({"response_format": {"type": "xml"}}, "response_format: got {'type': 'xml'}", "response_format"),
    ({"response_format": {"type": ["text"]}}, "response_format: got {'type': ", "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format: got", "response_format"),
    (schema_of([1]), "response_format: got", "response_format"),
    (schema_of({"type": "banana"}), "json_schema: got what cannot be followed", "response_format"),
    (schema_of({"$ref": "file:///etc/passwd"}), "json_schema: got what cannot be followed", "response_format"),
    (schema_of(deep(300)), "response_format: got ", "response_format"),
    (schema_of(deep(200)), "json_schema: got ", "response_format"),
    (schema_of({"enum": ["x" * 1000] * 1000}), "wanted a text of at most 131072 letters", "response_format"),
    (schema_of({"allOf": PATTERNS}), "got 26 patterns and ['allOf'], wanted at most 12", "response_format"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said", "param"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_refused(changed: dict[str, Any], said: str, param: str, streams: bool, server: Running) -> None:
    if "json_schema" in str(changed.get("response_format", ""))[:200]:
        pytest.importorskip("llguidance")
    begin = time.perf_counter()
    status, told = say(server, **{"stream": streams, **changed})
    assert (status, told["error"]["type"], told["error"]["param"]) == (400, "invalid_request_error", param), told
    assert said in told["error"]["message"]
    assert len(told["error"]["message"]) < 1000
    assert time.perf_counter() - begin < 10


def test_a_chat_needs_no_unknown_model(server: Running) -> None:
    for name in ("nobody", "add", ""):
        status, told = say(server, model=name)
        assert (status, told["error"]["code"], told["error"]["param"]) == (404, "model_not_found", "model")
        assert told["error"]["message"] == f"model: got {name!r}, wanted one that makes texts: ['small']"


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], [["a"]], {"a": 1}, [-1], [1 << 40], [999], 7, [None], [[1], 2]])
def test_prompts_that_are_none(prompt: Any, server: Running) -> None:
    status, told = say(server, COMPLETIONS, prompt=prompt)
    assert (status, told["error"]["param"]) == (400, "prompt"), told


def test_a_schema_that_leads_nowhere_ends_its_text_alone(server: Running) -> None:
    pytest.importorskip("llguidance")
    status, told = say(server, **schema_of({"$ref": "#"}))
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")
    sent = say(server, stream=True, **schema_of({"$ref": "#"}))[1]
    sent = sent if isinstance(sent, bytes) else json.dumps(sent).encode()  # it may fail before the stream has begun
    assert b'"error"' in sent
    assert b"[DONE]" not in sent
    assert say(server)[0] == 200


# --- queue, time, clients that go away, changes ----------------------------------------------------------------------


def long_one(server: Running, **more: Any) -> HTTPConnection:
    """A stream whose first piece has come, and which goes on for a while."""
    connection = HTTPConnection(server.http, timeout=30)
    asked = {"model": "small", "prompt": "Once", "max_tokens": 100, "stream": True, "temperature": 1, **more}
    connection.request("POST", COMPLETIONS, json.dumps(asked), HEAD)
    return connection


@pytest.fixture
def slow(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take a while."""
    decoder = server.server.repository.find("small").generator.decoder  # type: ignore[union-attr]
    run = decoder.run
    monkeypatch.setattr(decoder, "run", lambda parts: (time.sleep(0.03), run(parts))[1])


def under_way(server: Running) -> tuple[int, int]:
    return server.server.repository.find("small").generator.under_way  # type: ignore[union-attr]


def wait_for(holds: Any) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("slow")
def test_the_queue_holds(server: Running) -> None:
    first = long_one(server, n=18)
    wait_for(lambda: under_way(server)[0] == 3)
    status, told, headers = ask(server, COMPLETIONS, {"model": "small", "prompt": "x", "n": 3}, HEAD)
    assert (status, told["error"]["code"], headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
    assert say(server, COMPLETIONS, n=21)[0] == 413  # never fits
    _, told, _ = ask(server, "/metrics", None, HEAD)
    assert b'bolt_sequences{model="small",state="made",version="1"} 3.0' in told
    first.close()
    wait_for(lambda: under_way(server) == (0, 0))  # those that waited are gone, too
    assert say(server, max_tokens=1)[0] == 200


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_goes_away_ends_its_text(server: Running, streams: bool) -> None:
    connection = long_one(server, stream=streams)
    wait_for(lambda: under_way(server)[0] == 1)
    if streams:
        assert connection.getresponse().readline().startswith(b"data: {")
    connection.sock.close() if not streams else connection.close()
    begin = time.monotonic()
    wait_for(lambda: under_way(server) == (0, 0))
    assert time.monotonic() - begin < 2


@pytest.mark.usefixtures("slow")
def test_deadlines(server: Running) -> None:
    status, told = say(server, max_tokens=100, timeout=100_000)
    assert (status, told["error"]["type"]) == (504, "server_error")
    sent = say(server, COMPLETIONS, max_tokens=100, timeout=400_000, stream=True)[1]
    assert sent.startswith(b"data: {")
    assert b"timeout: got no end of the text in its time" in sent.split(b"\n\n")[-2]
    wait_for(lambda: under_way(server) == (0, 0))


def test_a_newer_version_takes_over(place: Path, tmp_path: Path) -> None:
    (tmp_path / "small" / "1").mkdir(parents=True)
    path = tmp_path / "small" / "1" / "model.bolt"
    path.write_bytes(place.read_bytes())
    with running(tmp_path, usual=ModelSettings(sequences=2, compile={"threads": 1})) as server:
        old = server.server.repository.find("small")
        decoder = old.generator.decoder  # type: ignore[union-attr]
        run = decoder.run
        decoder.run = lambda parts: (time.sleep(0.02), run(parts))[1]  # type: ignore[method-assign]
        connection = long_one(server, temperature=0)
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: {")
        os.utime(path, ns=(0, 0))
        server.do(server.server.repository.load("small"))
        assert server.server.repository.find("small") is not old
        assert say(server)[0] == 200
        assert stream.read().endswith(b"data: [DONE]\n\n")  # of the old one
        wait_for(lambda: not server.server.repository.retiring)
        connection.close()


def test_the_end_lets_answers_end(place: Path) -> None:
    with running(files={"small": place}, usual=ModelSettings(sequences=1, compile={"threads": 1})) as server:
        decoder = server.server.repository.find("small").generator.decoder  # type: ignore[union-attr]
        run = decoder.run
        decoder.run = lambda parts: (time.sleep(0.02), run(parts))[1]  # type: ignore[method-assign]
        connection = long_one(server, temperature=0)
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: {")
        server.loop.call_soon_threadsafe(server.server.stop)
        assert stream.read().endswith(b"data: [DONE]\n\n")
        connection.close()


def test_what_is_counted(server: Running) -> None:
    def counts() -> dict[str, float]:
        told = ask(server, "/metrics", None, HEAD)[1].decode()
        rows = re.findall(r'^(bolt_\w+){model="small",(?:of="(\w+)",)?version="1"} ([\d.e+-]+)$', told, re.MULTILINE)
        return {name + of: float(value) for name, of, value in rows}

    say(server)
    before = counts()
    usage = say(server, n=2)[1]["usage"]
    after = counts()
    more = {key: after[key] - before[key] for key in after}
    assert more["bolt_tokens_totalprompt"] == usage["prompt_tokens"]
    assert more["bolt_tokens_totaltext"] == usage["completion_tokens"]
    assert (more["bolt_first_token_seconds_count"], more["bolt_token_seconds_count"]) == (2, 2)


def test_inference_of_a_decoder_stays(server: Running) -> None:
    names = [row["name"] for row in ask(server, "/v2/models/small", None, HEAD)[1]["inputs"]]
    assert names[:3] == ["input_ids", "past_lengths", "rows"]


# --- models ----------------------------------------------------------------------------------------------------------


def test_settings_of_texts_want_a_decoder(tmp_path: Path) -> None:
    (tmp_path / "add" / "1").mkdir(parents=True)
    add(tmp_path / "add" / "1" / "model.onnx")
    (tmp_path / "add" / "model.toml").write_text("sequences = 2\n")
    with running(tmp_path) as server:
        (row,) = server.server.repository.rows()
        assert "sequences, context: got them for a model that makes no texts, wanted a decoder" in row["reason"]


def test_a_context_that_is_too_long_is_told(place: Path) -> None:
    settings = ModelSettings(context=10_000, is_of_texts=True, compile={"threads": 1})
    with pytest.raises(SettingsError, match="sequences, context: context: got 10000, wanted from 2 to the 128"):
        ServedModel("m", "1", StoredVersion(place, None, settings, ()))


# --- OpenAI's own client ---------------------------------------------------------------------------------------------


def test_the_client_lists_models(client: Any) -> None:
    assert [row.id for row in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "bolt-numba"


def test_the_client_chats(client: Any, alone: Generator) -> None:
    wanted = alone.chat(HI, max_tokens=8)
    made = client.chat.completions.create(model="small", messages=HI, max_tokens=8, temperature=0)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (wanted.text, wanted.finish_reason)
    said = made.choices[0].message.model_dump()  # as programs send it back
    again = client.chat.completions.create(model="small", messages=[*HI, said, *HI], max_completion_tokens=4)
    assert again.usage.completion_tokens <= 4
    stream = client.chat.completions.create(
        model="small", messages=HI, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    rows = [*stream]
    assert "".join(row.choices[0].delta.content or "" for row in rows if row.choices) == wanted.text
    assert rows[-1].usage.prompt_tokens == wanted.prompt_tokens


def test_the_client_completes(client: Any, alone: Generator) -> None:
    wanted = alone.generate("Once", max_tokens=6, logprobs=2)
    made = client.completions.create(model="small", prompt="Once", max_tokens=6, temperature=0, logprobs=2)
    assert made.choices[0].text == wanted.text
    assert made.choices[0].logprobs.tokens == [one.text for one in wanted.logprobs or ()]
    stream = client.completions.create(model="small", prompt="Once", max_tokens=6, temperature=0, stream=True)
    assert "".join(row.choices[0].text for row in stream) == wanted.text


def test_the_client_meets_errors(client: Any) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        client.chat.completions.create(model="small", messages=HI, presence_penalty=3)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=HI)


def test_many_at_once(server: Running, alone: Generator) -> None:
    openai = pytest.importorskip("openai")
    prompts = ["Once", "The cat", "x", "A longer beginning of a text"]

    async def many() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"http://{server.http}/v1", api_key=TOKEN, max_retries=0) as made:
            asked = [
                made.completions.create(model="small", prompt=prompts[i % 4], max_tokens=20, temperature=0)
                for i in range(20)
            ]
            return await asyncio.gather(*asked)

    wanted = [one.text for one in alone.generate(prompts, max_tokens=20)]
    assert [made.choices[0].text for made in asyncio.run(many())] == [wanted[i % 4] for i in range(20)]


# --- mutated ---------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([
    "model", "messages", "n", "max_tokens", "temperature", "top_p", "stop", "seed", "logprobs", "top_logprobs",
    "response_format", "stream_options", "timeout", "tools",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 64) | st.floats() | st.text(max_size=20) | st.just("small"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changed=st.dictionaries(NAMES, VALUES, max_size=3))
def test_mutated_requests_are_answered_or_refused(changed: dict[str, Any], server: Running) -> None:
    body = json.dumps({"model": "small", "messages": HI, "max_tokens": 2, **changed}).encode()
    status, told, _ = ask(server, CHAT, body, HEAD)
    assert status in (200, 400, 404, 413, 504), told
    assert "choices" in told if status == 200 else {*told["error"]} == {"message", "type", "param", "code"}
