"""OpenAI's embeddings over HTTP: its own client, unmodified, and what a server must refuse."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bolt_numba.cli import serving
from bolt_numba.cli.serving import repository_of
from bolt_numba.errors import BoltError
from bolt_numba.serve import ModelSettings, RequestError, SettingsError
from bolt_numba.serve.embeddings import QUICK_LETTERS, EmbeddingRequest
from bolt_numba.serve.models import RequestTerms, ServedModel, StoredVersion
from bolt_numba.serve.openai import found_in
from bolt_numba.text import Encoder
from bolt_numba.text.tokens import TokenRow
from bolt_numba.types import Array
from tests.serve.serving import Running, running
from tests.serve.test_rest import ask
from tests.small import add
from tests.text.encoders import SCORES, WIDTH, folder, tokenizer

openai = pytest.importorskip("openai")
pytest.importorskip("tokenizers")
TEXTS = ["a b c", "", "flight", "a b c a b c", "a"]
TOKEN = "secret"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A repository: an encoder whose tokenizer lies beside it, one with settings, and models that are none."""
    models = tmp_path_factory.mktemp("models")
    folder(models / "small" / "1", model="onnx/model.onnx")
    folder(models / "cut" / "3")
    (models / "cut" / "3" / "tokenizer.json").rename(models / "cut" / "own.json")
    (models / "cut" / "model.toml").write_text(
        "[embeddings]\ntokenizer = '../own.json'\npooling = 'max'\nnormalize = false\nmax_tokens = 6\ntruncate = true\n"
    )
    folder(models / "scores" / "1", output=SCORES)
    (models / "add" / "1").mkdir(parents=True)
    add(models / "add" / "1" / "model.onnx")
    with running(models, token=TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key=TOKEN, max_retries=0) as made:
        yield made


def vectors(answer: Any) -> Array:
    assert [row.index for row in answer.data] == list(range(len(answer.data)))
    return np.array([row.embedding for row in answer.data], "f4")


def test_the_client_lists_models(client: Any) -> None:
    assert sorted(row.id for row in client.models.list()) == ["cut", "small"]
    found = client.models.retrieve("small")
    assert (found.id, found.object, found.owned_by) == ("small", "model", "bolt-numba")
    with pytest.raises(openai.NotFoundError, match="got 'add', wanted one that makes embeddings or texts: "):
        client.models.retrieve("add")


def test_where_clients_look(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bolt_numba.serve"):
        serving._tell(server.server)
    assert f"serving add, cut, scores, small at http://{server.http}/v2 and /v1 and grpc:" in caplog.text
    with pytest.raises(RequestError, match="wanted one that makes texts: none here does, and the log of the server"):
        found_in(server.server.repository, "small", "generator")


def test_the_client_embeds(client: Any, place: Path) -> None:
    wanted = Encoder(place)
    for form in ("base64", "float", openai.NOT_GIVEN):
        answer = client.embeddings.create(model="small", input=TEXTS, encoding_format=form)
        assert np.allclose(vectors(answer) if form != "base64" else decoded(answer), wanted.embed(TEXTS), atol=1e-6)
        count = sum(len(row.ids) for row in wanted.tokens(TEXTS))
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (count, count, "small")
    one = client.embeddings.create(
        model="small", input=TEXTS[0], dimensions=3, user="somebody", extra_body={"encoding_format": None}
    )
    assert np.allclose(vectors(one), wanted.embed(TEXTS[:1], dimensions=3), atol=1e-6)


def decoded(answer: Any) -> Array:
    return np.stack([np.frombuffer(base64.b64decode(row.embedding), "<f4") for row in answer.data])


def test_tokens_may_be_given(client: Any, place: Path) -> None:
    encoder = Encoder(place)
    ids = [row.ids.tolist() for row in encoder.tokens(TEXTS)]
    assert np.allclose(vectors(client.embeddings.create(model="small", input=ids)), encoder.embed(TEXTS), atol=1e-6)
    one = client.embeddings.create(model="small", input=ids[0])
    assert np.allclose(vectors(one), encoder.embed(TEXTS[:1]), atol=1e-6)
    assert one.usage.prompt_tokens == len(ids[0])


def test_settings_of_a_model(client: Any, place: Path) -> None:
    answer = client.embeddings.create(model="cut", input=["a b c a b c", "a"])
    wanted = Encoder(place, pooling="max", normalize=False).embed(["a b c a", "a"])
    assert np.allclose(vectors(answer), wanted, atol=1e-6)
    assert answer.usage.prompt_tokens == 6 + 3


def test_many_at_once(server: Running, place: Path) -> None:
    async def many() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"http://{server.http}/v1", api_key=TOKEN, max_retries=0) as made:
            asked = [made.embeddings.create(model="small", input=["a " * (1 + i % 7)] * 3) for i in range(60)]
            return await asyncio.gather(*asked)

    wanted = Encoder(place).embed(["a " * (1 + i) for i in range(7)])
    for number, answer in enumerate(asyncio.run(many())):
        assert np.allclose(vectors(answer), wanted[number % 7], atol=1e-6)
    status, told, _ = ask(server, "/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    sizes = re.findall(rb'bolt_run_seconds_count{batch="(\d+)",model="small"', told)
    assert status == 200
    assert max(map(int, sizes)) > 3  # texts of several requests ran together


ERRORS: list[tuple[dict[str, Any], type[Exception], str, str | None]] = [
    (
        {"model": "nobody"},
        openai.NotFoundError,
        "model: got 'nobody', wanted one that makes embeddings: ['cut', 'small']",
        "model",
    ),
    ({"model": "add"}, openai.NotFoundError, "wanted one that makes embeddings: ['cut', 'small']", "model"),
    ({"model": "scores"}, openai.NotFoundError, "wanted one that makes embeddings: ['cut', 'small']", "model"),
    (
        {"extra_body": {"dimension": 3}},
        openai.BadRequestError,
        "'dimension' is not one of ['model', 'input', 'encoding_format', 'dimensions', 'user', 'timeout', 'priority']; "
        "did you mean 'dimensions'?",
        "dimension",
    ),
    ({"model": ""}, openai.NotFoundError, "model: got '', wanted one that makes embeddings", "model"),
    ({"model": None}, openai.BadRequestError, "model: got None", "model"),
    ({"input": []}, openai.BadRequestError, "input: got 0 of them, wanted texts or lists of tokens", "input"),
    ({"input": ["a"] * 2049}, openai.BadRequestError, "input: got 2049 of them", "input"),
    ({"input": None}, openai.BadRequestError, "input: got None", "input"),
    ({"input": {"a": 1}}, openai.BadRequestError, "input: got {'a': 1}", "input"),
    ({"input": ["a", 7]}, openai.BadRequestError, "input: got 7 among others", "input"),
    ({"input": ["a", None]}, openai.BadRequestError, "input: got None among others", "input"),
    ({"input": [None]}, openai.BadRequestError, "input: got None among others", "input"),
    ({"input": [1.5]}, openai.BadRequestError, "input: got 1.5 among others", "input"),
    ({"input": [[1], "a"]}, openai.BadRequestError, "input: got 'a' among others", "input"),
    ({"input": [[]]}, openai.BadRequestError, "input: number 0: tokens: got [], wanted whole numbers", "input"),
    ({"input": [1, True]}, openai.BadRequestError, "input: number 0: tokens: got True", "input"),
    ({"input": [-1]}, openai.BadRequestError, "input: number 0: tokens: got -1", "input"),
    ({"input": [1 << 40]}, openai.BadRequestError, "tokens: got 1099511627776", "input"),
    (
        {"input": [[4], [5, 10]]},
        openai.BadRequestError,
        "input: number 1: tokens: got 10, wanted whole numbers from 0 to 9",
        "input",
    ),
    (
        {"input": ["a", "a " * 600]},
        openai.BadRequestError,
        "input: number 1: got more tokens, wanted at most 512",
        "input",
    ),
    ({"dimensions": WIDTH + 1}, openai.BadRequestError, "dimensions: got 7, wanted at most 6", "dimensions"),
    ({"dimensions": 0}, openai.BadRequestError, "dimensions: got 0, wanted a number from 1", "dimensions"),
    ({"encoding_format": "hex"}, openai.BadRequestError, "encoding_format: got 'hex'", "encoding_format"),
    ({"extra_body": {"priority": "high"}}, openai.BadRequestError, "priority: got 'high'", "priority"),
]


@pytest.mark.parametrize(("changed", "kind", "said", "param"), ERRORS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_refused(changed: dict[str, Any], kind: Any, said: str, param: str | None, client: Any) -> None:
    with pytest.raises(kind) as caught:
        client.embeddings.create(**{"model": "small", "input": "a", **changed})
    assert said in caught.value.body["message"]
    assert caught.value.body["param"] == param
    assert caught.value.body["type"] == "invalid_request_error"


def test_errors_are_short(server: Running) -> None:
    body = {"model": "small", "input": "a", "k" * 100_000: 1}
    status, told, _ = ask(server, "/v1/embeddings", body, {"authorization": f"Bearer {TOKEN}"})
    assert status == 400
    assert len(json.dumps(told)) < 5000


def test_errors_before_a_handler(server: Running, client: Any) -> None:
    wrong = openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="other", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError) as denied:
        wrong.embeddings.create(model="small", input="a")
    assert denied.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError, match="POST /v1/images/generations: Not Found"):
        client.images.generate(model="small", prompt="a")
    bare = openai.OpenAI(base_url=f"http://{server.http}", api_key=TOKEN, max_retries=0)
    with bare, pytest.raises(openai.NotFoundError) as lost:
        bare.embeddings.create(model="small", input="a")
    assert lost.value.body["message"].startswith("POST /embeddings: Not Found, wanted a path of ")
    assert "/v1 (OpenAI: base_url ends with it)" in lost.value.body["message"]
    status, told, _ = ask(server, "/v1/embeddings", b"{", {"authorization": f"Bearer {TOKEN}"})
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")
    status, told, _ = ask(server, "/v2/models/small/infer", b"{", {"authorization": f"Bearer {TOKEN}"})
    assert (status, type(told["error"])) == (400, str)


def test_rows_are_limited_here_too(place: Path) -> None:
    with running(files={"small": place / "model.onnx"}, usual=ModelSettings(max_rows=2)) as server:
        for count, wanted in ((2, 200), (3, 413)):
            status, told, _ = ask(server, "/v1/embeddings", {"model": "small", "input": ["a"] * count})
            assert status == wanted
        assert told["error"]["message"] == "input: got 3, wanted at most 2"
        assert told["error"]["param"] == "input"


@pytest.mark.parametrize("key", ["model", "input", "encoding_format", "dimensions", "timeout"])
def test_of_large_values_only_the_beginning_is_written(key: str) -> None:
    """To write a list of millions takes seconds, in which the server answers nobody."""
    written: list[Any] = []

    class Odd(list[Any]):
        def __repr__(self) -> str:
            written.append(self)
            return "odd"

    many: Any = [Odd()] * 1000
    asked = {"model": "small", "input": "a", key: ["a", many] if key == "input" else many}
    with pytest.raises(RequestError, match=rf"{key}: got \[.*odd, odd, "):
        RequestTerms(EmbeddingRequest(asked).terms)
    assert len(written) < 10


def test_deadlines_and_the_queue_hold_here_too(place: Path) -> None:
    slow = ModelSettings(max_batch=8, max_wait_us=300_000, queue=1)
    with running(files={"small": place / "model.onnx"}, usual=slow) as server:
        address = f"http://{server.http}/v1"
        with openai.OpenAI(base_url=address, api_key="x", max_retries=0) as made:
            with pytest.raises(openai.InternalServerError) as late:
                made.embeddings.create(model="small", input="a", extra_body={"timeout": 1000})
            assert (late.value.status_code, late.value.type) == (504, "server_error")

        async def many() -> list[Any]:
            async with openai.AsyncOpenAI(base_url=address, api_key="x", max_retries=0) as made:
                asked = [made.embeddings.create(model="small", input="a") for _ in range(4)]
                return await asyncio.gather(*asked, return_exceptions=True)

        found = asyncio.run(many())
        refused = [error for error in found if isinstance(error, openai.RateLimitError)]
        assert len(refused) == 3
        assert {error.code for error in refused} == {"rate_limit_exceeded"}
        assert {error.response.headers["retry-after"] for error in refused} == {"1"}


def test_inference_of_an_encoder(server: Running, place: Path) -> None:
    """The protocol's requests go through the same queue, and give whole outputs."""
    inputs = [
        {"name": n, "datatype": "INT64", "shape": [2, 3], "data": [2, 4, 3, 2, 5, 3] if n == "input_ids" else [1] * 6}
        for n in ("input_ids", "attention_mask", "token_type_ids")
    ]
    head = {"authorization": f"Bearer {TOKEN}"}
    for _ in range(3):
        status, told, _ = ask(server, "/v2/models/small/infer", {"inputs": inputs}, head)
        assert (status, told["outputs"][0]["shape"]) == (200, [2, 3, WIDTH])


# --- models ----------------------------------------------------------------------------------------------------------


def served(path: Path, settings: ModelSettings) -> ServedModel:
    return ServedModel("m", "1", StoredVersion(path, None, settings, ()))


def together(model: ServedModel, texts: list[list[str]]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        assert model.encoder is not None
        rows = [model.encoder.tokens(each) for each in texts]
        made = (model.embed(each, None, RequestTerms({})) for each in rows)
        return await asyncio.gather(*made, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_requests_of_different_lengths_run_together(place: Path) -> None:
    ran: list[int] = []
    model = served(place / "model.onnx", ModelSettings(max_batch=8, max_wait_us=500_000))
    model.flow.engine.watch = lambda waits, seconds: ran.append(len(waits))
    found = together(model, [["a", "a b"], ["a b c"], ["flight", "", "a b c a", "cat", "b"]])
    assert ran == [8]
    wanted = Encoder(place).embed(["a", "a b", "a b c", "flight", "", "a b c a", "cat", "b"])
    assert np.allclose(np.concatenate(found), wanted, atol=1e-6)


def test_a_model_that_becomes_tokens_meanwhile_is_not_let_go(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version takes over while another thread makes tokens of a long text."""
    path, begun, go_on, found = folder(tmp_path / "m" / "1") / "model.onnx", Event(), Event(), list[Any]()
    with running(tmp_path, usual=ModelSettings(queue=1)) as server:
        repository = server.server.repository
        tokens = repository.find("m").encoder.tokenizer  # type: ignore[union-attr]
        rows = tokens.rows

        def slow(texts: Any) -> Any:
            begun.set()
            assert go_on.wait(30)
            return rows(texts)

        monkeypatch.setattr(tokens, "rows", slow)
        body = {"model": "m", "input": "a" + " " * QUICK_LETTERS}
        thread = Thread(target=lambda: found.append(ask(server, "/v1/embeddings", body)))
        thread.start()
        assert begun.wait(30)
        status, told, _ = ask(server, "/v1/embeddings", body)  # there is no room for what waits to become tokens
        assert (status, told["error"]["code"]) == (429, "rate_limit_exceeded")
        os.utime(path, ns=(0, 0))
        server.do(repository.load("m"))
        server.do(asyncio.sleep(0.2))
        go_on.set()
        thread.join()
    assert found[0][0] == 200, found


def test_a_row_at_fault_is_alone(place: Path) -> None:
    model = served(place / "model.onnx", ModelSettings(max_batch=4, max_wait_us=500_000))
    assert model.encoder is not None

    async def three() -> list[Any]:
        rows = [TokenRow(np.array(x), np.zeros(len(x), int), False) for x in ([2, 4, 3], [2, 999, 3, 3], [2, 3])]
        made = (model.embed([row], None, RequestTerms({})) for row in rows)
        return await asyncio.gather(*made, return_exceptions=True)

    found = asyncio.run(three())
    assert isinstance(found[1], BoltError)
    assert np.allclose([found[0][0], found[2][0]], Encoder(place).embed(["a", ""]), atol=1e-6)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"poling": "mean"}, r"embeddings: got \['poling'\], wanted some of"),
        ({"pooling": "sum"}, "embeddings: pooling: got 'sum'"),
        ({"truncate": "no"}, "embeddings: truncate: got 'no', wanted True or False"),
        ({"tokenizer": "nowhere.json"}, "nowhere.json: got no tokenizer"),
        ("mean", "embeddings: got 'mean', wanted a table"),
    ],
)
def test_wrong_settings(table: Any, said: str, place: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        served(place / "model.onnx", ModelSettings(embeddings=table))


def test_a_broken_tokenizer_does_not_keep_a_model_from_serving(tmp_path: Path) -> None:
    place = folder(tmp_path, files={"tokenizer.json": tokenizer(model={})})
    assert served(place / "model.onnx", ModelSettings()).encoder is None
    with pytest.raises(SettingsError, match=r"embeddings: .*tokenizer\.json: model: "):
        served(place / "model.onnx", ModelSettings(embeddings={}))


def test_a_folder_with_a_tokenizer_is_a_model(tmp_path: Path) -> None:
    place = folder(tmp_path / "bge-v1.5", model="onnx/model.onnx")
    found = repository_of([place], ModelSettings())
    assert found.names() == ["bge-v1.5"]
    assert found.files == {"bge-v1.5": place / "onnx" / "model.onnx"}


def test_a_short_text_by_itself_needs_no_plan(place: Path) -> None:
    """Its kernels are others than those of batches, and compiling them keeps a first request waiting."""
    model = served(place / "model.onnx", ModelSettings())
    assert model.encoder is not None
    plans = model.encoder.session._runner.prepared
    before = set(plans)
    assert model.encoder.embed(["a"]).shape == (1, WIDTH)
    assert set(plans) == before


def test_a_model_of_one_length_is_served(tmp_path: Path) -> None:
    model = served(folder(tmp_path, length=4) / "model.onnx", ModelSettings())
    found = together(model, [["a", "a b"]])[0]
    assert np.allclose(found, Encoder(tmp_path).embed(["a", "a b"]), atol=1e-6)


NAMES = st.sampled_from(["model", "input", "encoding_format", "dimensions", "timeout", "priority", "user"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=20) | st.just("small"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2), max_leaves=8,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changed=st.dictionaries(NAMES, VALUES, max_size=3))
def test_mutated_requests_are_answered_or_refused(changed: dict[str, Any], server: Running) -> None:
    body = json.dumps({"model": "small", "input": "a", **changed}).encode()
    status, told, _ = ask(server, "/v1/embeddings", body, {"authorization": f"Bearer {TOKEN}"})
    assert status in (200, 400, 404, 504), told
    assert "data" in told if status == 200 else {*told["error"]} == {"message", "type", "param", "code"}
