"""Calls of functions in chats: forced and free, whole and streamed, by OpenAI's own client as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from bolt_numba.serve import ModelSettings
from bolt_numba.text import Generator
from bolt_numba.text.sampling import Sampler
from bolt_numba.types import Array
from tests.serve.serving import Running, running
from tests.serve.test_openai import HI
from tests.serve.test_rest import ask
from tests.text.decoders import CALLING, whole

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")
openai = pytest.importorskip("openai")
PARAMETERS = {
    "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "description": "x", "parameters": PARAMETERS}},
                    {"type": "function", "function": {"name": "g"}}]  # fmt: skip
HOW: dict[str, Any] = {"model": "caller", "messages": HI, "max_tokens": 200, "tools": TOOLS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("models")
    files = {"caller": whole(place / "caller.bolt", CALLING, 512), "plain": whole(place / "plain.bolt")}
    with running(files=files, usual=ModelSettings(sequences=2, compile={"threads": 1})) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="x", max_retries=0) as made:
        yield made


def generator(server: Running) -> Generator:
    found = server.server.repository.find("caller").generator
    assert found is not None
    return found


@pytest.fixture
def says(server: Running, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the model say a text."""

    def have(text: str) -> None:
        tokens = generator(server).tokenizer.encode(text).ids

        def choose(self: Sampler, logits: Array) -> int:
            self.said = getattr(self, "said", -1) + 1  # type: ignore[attr-defined]
            return [*tokens, 257][self.said]  # type: ignore[attr-defined]

        monkeypatch.setattr(Sampler, "__call__", choose)

    return have


CHOICES: list[tuple[Any, set[str]]] = [
    ("required", {"f", "g"}), ({"type": "function", "function": {"name": "f"}}, {"f"}),
]  # fmt: skip


@pytest.mark.parametrize(("choice", "names"), CHOICES)
@pytest.mark.parametrize("streams", [False, True])
def test_a_call_is_forced(choice: Any, names: set[str], streams: bool, client: Any) -> None:
    how = {**HOW, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 50}
    found = set()
    for seed in range(6):
        if streams:
            with client.chat.completions.stream(**how, seed=seed) as stream:
                stream.until_done()
                made = stream.get_final_completion()
        else:
            made = client.chat.completions.create(**how, seed=seed)
        (choice_made,) = made.choices
        (call,) = choice_made.message.tool_calls
        assert (choice_made.finish_reason, choice_made.message.content, call.type) == ("tool_calls", None, "function")
        assert re.fullmatch("[0-9a-z]{9}", call.id)
        given = json.loads(call.function.arguments)
        assert given in ([{"a": 1}, {"a": 2}] if call.function.name == "f" else [{}])
        found.add(call.function.name)
    assert found == names


TEXT = (
    'Let me see. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>{"name": "g", "arguments": {}}'
)  # the last one is not closed


@pytest.mark.parametrize("many", [True, False])
def test_free_calls_are_found(many: bool, client: Any, says: Any) -> None:
    says(TEXT)
    wanted = [("f", '{"a": 1}'), ("g", "{}")][: 2 if many else 1]
    made = client.chat.completions.create(**HOW, n=2, parallel_tool_calls=many)
    for choice in made.choices:
        assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == wanted
        assert (choice.message.content, choice.finish_reason) == ("Let me see. ", "tool_calls")
    stream = [*client.chat.completions.create(**HOW, stream=True, parallel_tool_calls=many)]
    deltas = [row.choices[0].delta for row in stream]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see. "
    assert len([1 for delta in deltas if delta.content]) > 3  # it comes as it is made
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert [(call.index, call.function.name, call.function.arguments) for call in calls] == [
        (i, *row) for i, row in enumerate(wanted)
    ]
    assert stream[-1].choices[0].finish_reason == "tool_calls"
    says("No <tool> is of use")
    said = client.chat.completions.create(**HOW).choices[0]
    assert (said.message.content, said.message.tool_calls, said.finish_reason) == ("No <tool> is of use", None, "stop")
    says(TEXT)
    for how in ({"tool_choice": "none"}, {"tools": openai.omit}):
        assert client.chat.completions.create(**{**HOW, **how}).choices[0].message.content == TEXT


def test_calls_and_their_answers_reach_the_template(server: Running, client: Any, says: Any) -> None:
    says(TEXT)
    said = client.chat.completions.create(**HOW).choices[0].message
    answers = [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees"} for call in said.tool_calls]
    again = client.chat.completions.create(**HOW | {"messages": [*HI, said.model_dump(), *answers]})
    wanted = (
        f"f: {json.dumps(PARAMETERS)}\ng: {{}}\nuser: Hi\nassistant: Let me see. "
        '<tool_call>\nf {"a": 1}\n</tool_call><tool_call>\ng {}\n</tool_call>\n'
        "tool: 18 degrees\ntool: 18 degrees\nassistant:"
    )
    assert again.usage.prompt_tokens == len(generator(server).tokens(wanted))
    assert client.chat.completions.create(**HOW | {"messages": call(name="g", arguments="")}).usage.prompt_tokens > 0


def call(**function: Any) -> list[Any]:
    return [*HI, {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": function}]}]


def function(**more: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", **more}}]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": TOOLS * 65}, "tools: got 130, wanted at most 128", "tools"),
    ({"tools": {"f": 1}}, "tools: got {'f': 1}, wanted a list", "tools"),
    ({"tools": [{"type": "function"}]}, "tools: got {'type': 'function'}, wanted functions", "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools: got {'custom'", "tools"),
    ({"tools": function(name="f g")}, "wanted functions, each with a name", "tools"),
    ({"tools": function(name='f"')}, "wanted functions, each with a name", "tools"),
    ({"tools": function(parameters=[1])}, "wanted functions, each with a name and parameters", "tools"),
    ({"tool_choice": "always"}, "tool_choice: got 'always', wanted none, auto, required, or", "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "or one of the functions", "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice: got {'allowed", "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": ["f"]}}}, "tool_choice: got", "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice: got 'required', wanted none, auto, or", "tool_choice"),
    ({"tool_choice": 3}, "tool_choice: got 3, wanted a text or an object", "tool_choice"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls: got 1, wanted true or false", "parallel_tool_calls"),
    ({"model": "plain"}, "tools: got 2 for another model, wanted them for a model whose template has", "tools"),
    ({"tools": function(parameters={"description": "x" * 99_999})}, "letters, wanted at most 32768", "messages"),
    ({"tools": function(description="x" * 600, parameters={"x": "y" * 600})}, "prompt: got ", "messages"),
    ({"messages": call(name="f", arguments="[1]")}, "number 1: tool_calls: got", "messages"),
    ({"messages": call(name="f", arguments="{")}, "wanted functions, each with a name and arguments", "messages"),
    ({"messages": call(name="f", arguments={"a": 1})}, "number 1: tool_calls: got", "messages"),
    ({"messages": call(name=["f"], arguments="{}")}, "number 1: tool_calls: got", "messages"),
    ({"messages": call(name="f", arguments='{"a":' * 99_999)}, "number 1: tool_calls: got", "messages"),
    ({"messages": [*HI, {"role": "assistant", "tool_calls": 7}]}, "number 1: tool_calls: got 7", "messages"),
    ({"messages": [{**HI[0], "tool_calls": [1]}]}, "got ['tool_calls'], wanted content, name, role", "messages"),
    ({"messages": [*HI, {"role": "tool", "tool_call_id": "x"}]}, "number 1: content: got None", "messages"),
    ({"tool_choice": "required", "tools": function(parameters={"properties": {"x": {"type": "banana"}}})},
     "grammar: got what cannot be followed", "tools"),
    ({"tool_choice": "required", "tools": function(parameters={"$ref": "file:///etc/passwd"})}, "grammar: ", "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said", "param"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("streams", [False, True])
def test_what_is_refused(changed: dict[str, Any], said: str, param: str, streams: bool, server: Running) -> None:
    status, told, _ = ask(server, "/v1/chat/completions", {**HOW, "stream": streams, **changed})
    assert (status, told["error"]["type"], told["error"]["param"]) == (400, "invalid_request_error", param), told
    assert said in told["error"]["message"], told
    assert (told["error"]["code"] == "context_length_exceeded") == ("letters" in said or "prompt: " in said)


def test_a_long_prompt_has_a_code(client: Any) -> None:
    for ask_for in (
        lambda: client.chat.completions.create(model="plain", messages=[{"role": "user", "content": "x" * 200}]),
        lambda: client.completions.create(model="plain", prompt=[65] * 200),
    ):
        with pytest.raises(openai.BadRequestError) as told:
            ask_for()
        assert told.value.code == "context_length_exceeded"


def test_logits_are_biased(client: Any, server: Running) -> None:
    made = client.completions.create(model="plain", prompt="Once", max_tokens=4, logit_bias={"65": 100, "257": -100})
    letter = generator(server).tokenizer.decode([65])
    assert made.choices[0].text == letter * 4
    for odd in {"a": 1}, {"1": 101}, {"999": 1}, {"1": "x"}:
        with pytest.raises(openai.BadRequestError, match="logit_bias: got") as error:
            client.completions.create(model="plain", prompt="Once", logit_bias=odd)
        assert error.value.param == "logit_bias"
