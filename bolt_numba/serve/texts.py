"""OpenAI's interfaces for texts: what requests ask, and the answers, whole or piece by piece as they are made.

As https://platform.openai.com/docs/api-reference/chat has it, with ``timeout``, ``top_k``, ``min_p`` and
``repetition_penalty`` beside it.  What is not done here is an error, unless it says what is done anyway.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import StreamingResponse

from bolt_numba.base.errors import BoltError
from bolt_numba.serve.calls import Tools, calls_within, told_calls
from bolt_numba.serve.errors import RequestError, failure, shown, want_few
from bolt_numba.serve.openai import CHAT, COMPLETION, given_in, told
from bolt_numba.text.answers import FAILED
from bolt_numba.text.tokens import PromptLengthError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from bolt_numba.serve.models import RequestTerms, ServedModel
    from bolt_numba.text.answers import Answer, Generation, TextPiece
    from bolt_numba.text.calls import CallReader, FunctionCall
    from bolt_numba.text.generator import Generator
    from bolt_numba.text.sampling import Likely

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
NUMBERS = ("n", "max_tokens", "max_completion_tokens", "seed", "top_k", "top_logprobs", "timeout")
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(NUMBERS, (int,)), **dict.fromkeys(("stream", "parallel_tool_calls"), (bool,)), "stop": (str, list),
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key"), (str,)), "tools": (list,),
    **dict.fromkeys(("temperature", "top_p", "min_p", *PENALTIES), (float, int)),
    **dict.fromkeys(("stream_options", "response_format", "logit_bias", "metadata"), (dict,)),
    "messages": (list,), "prompt": (str, list), "tool_choice": (str, dict),
}  # fmt: skip
CALLED = {
    bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object"
}  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],), "function_call": ("none",), "store": (False,), "service_tier": ("auto", "default"),
    "modalities": (["text"],), "best_of": (1,), "echo": (False,), "suffix": ("",), "verbosity": ("medium",),
}  # fmt: skip
"""Fields of OpenAI's that nothing is done about, and their values that ask for nothing."""
AS_THEY_ARE = ("temperature", "top_p", "top_k", "min_p", *PENALTIES, "stop")
"""Fields that are settings of the generator's."""
USUAL, USUAL_TOKENS = {"temperature": 1.0}, 16
"""As OpenAI has them, where the model asks for nothing else; the second is of completions."""
MOST_CHOICES, MOST_LIKELY, SEEDS = 128, 20, 1 << 64
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of messages, and what templates call them."""
MORE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}
"""What messages of a role have beside role, content and name."""
PART = 64
"""Letters of a prompt for each token that it may have; a message is one token at least."""
EVENT = b"data: %s\n\n"
DONE = b"data: [DONE]\n\n"
BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextRequest(ABC):
    """What a request for texts asks.  The constructor raises RequestError for what does not fit.

    prompts: a text, messages or tokens each.  count: texts of each.  settings: as the generator takes them.
    """

    fields: Sequence[str] = ()
    object, chunk, prefix = "", "", ""

    def __init__(self, body: Mapping[str, Any]) -> None:
        for key, values in NEUTRAL.items():
            if body.get(key) is not None and not any(body[key] == one for one in values):
                wanted = f"wanted {' or '.join(map(repr, values))}: nothing else is done"
                raise RequestError(f"{key}: got {shown(body[key])}, {wanted}", field=key)
        asked = given_in({key: body[key] for key in body if key not in NEUTRAL}, self.fields)
        for key, value in asked.items():
            if key in KINDS and type(value) not in KINDS[key]:
                wanted = " or ".join(CALLED[kind] for kind in KINDS[key])
                raise RequestError(f"{key}: got {shown(value)}, wanted {wanted}", field=key)
        self.model, self.streams = asked["model"], asked.get("stream", False)
        self.count: int = asked.get("n", 1)
        if not 1 <= self.count <= MOST_CHOICES:
            raise RequestError(f"n: got {self.count}, wanted from 1 to {MOST_CHOICES}")
        options = asked.get("stream_options", {})
        if unknown := options.keys() - {"include_usage", "include_obfuscation"}:
            raise RequestError(f"stream_options: got {shown(sorted(unknown))}, wanted include_usage")
        self.tells_usage = options.get("include_usage") is True
        self.terms = {key: asked[key] for key in ("timeout",) if key in asked}
        self.settings = {key: asked[key] for key in AS_THEY_ARE if key in asked}
        most = asked.get("max_completion_tokens", asked.get("max_tokens", self.usual_tokens))
        self.settings |= {} if most is None else {"max_tokens": most}
        self.settings["logit_bias"], self.tools = _bias(asked.get("logit_bias", {})), Tools(asked)
        self.seed, self.settings["json_schema"] = asked.get("seed"), _schema(asked.get("response_format"))
        self.settings["logprobs"], self.prompts = self.likely(asked), self.prompts_of(asked)

    usual_tokens: int | None = None

    @abstractmethod
    def likely(self, asked: Mapping[str, Any]) -> int | None:
        """How many likely tokens are told beside each; None: not even its own."""

    @abstractmethod
    def prompts_of(self, asked: Mapping[str, Any]) -> list[Any]:
        """The prompts of a request."""

    @abstractmethod
    def piece(self, index: int, made: _Made, is_part: bool) -> dict[str, Any]:
        """A choice of an answer: a whole text, or a part of it."""

    @property
    def all(self) -> int:
        """Texts that are asked for in all."""
        return self.count * len(self.prompts)

    def settings_of(self, index: int, usual: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of one of the texts: with a seed, each has another one.  usual: those that the model asks for."""
        seed = None if self.seed is None else (self.seed + index) % SEEDS
        return {**USUAL, **usual, **self.settings, "seed": seed}


class ChatRequest(TextRequest):
    """A request for what comes next in a chat."""

    fields = CHAT
    object, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def likely(self, asked: Mapping[str, Any]) -> int | None:
        wants, most = asked.get("logprobs", False), asked.get("top_logprobs", 0)
        if type(wants) is not bool:
            raise RequestError(f"logprobs: got {shown(wants)}, wanted true or false")
        if not 0 <= most <= MOST_LIKELY or (most and not wants):
            raise RequestError(f"top_logprobs: got {most}, wanted up to {MOST_LIKELY}, and logprobs beside it")
        return most if wants else None

    def prompts_of(self, asked: Mapping[str, Any]) -> list[Any]:
        return [[_message(number, one) for number, one in enumerate(asked.get("messages", ()))]]

    def piece(self, index: int, made: _Made, is_part: bool) -> dict[str, Any]:
        likely = None if made.likely is None else {"content": [*map(_as_chat, made.likely)], "refusal": None}
        said: dict[str, Any] = {"content": made.text}
        if made.calls:
            said["tool_calls"] = told_calls(made.calls, is_part)
        if made.is_first or not is_part:
            said = {"role": "assistant", **said, "refusal": None}
        elif made.reason and not made.text and not made.calls:
            said = {}
        ends = {"logprobs": likely, "finish_reason": made.reason}
        return {"index": index, "delta" if is_part else "message": said, **ends}


class CompletionRequest(TextRequest):
    """A request for how texts go on."""

    fields = COMPLETION
    object, chunk, prefix, usual_tokens = "text_completion", "text_completion", "cmpl-", USUAL_TOKENS

    def likely(self, asked: Mapping[str, Any]) -> int | None:
        most: Any = asked.get("logprobs")
        if most is not None and (type(most) is not int or not 0 <= most <= MOST_LIKELY):
            raise RequestError(f"logprobs: got {shown(most)}, wanted a whole number up to {MOST_LIKELY}")
        return most

    def prompts_of(self, asked: Mapping[str, Any]) -> list[Any]:
        given = asked.get("prompt", "")
        found = [given] if isinstance(given, str) or (given and type(given[0]) is int) else given
        if not found or not all(isinstance(one, str) or _are_tokens(one) for one in found):
            raise RequestError(f"prompt: got {shown(given)}, wanted a text, a list of texts, tokens, or lists of them")
        return list(found)

    def piece(self, index: int, made: _Made, is_part: bool) -> dict[str, Any]:
        likely = None
        if made.likely is not None:
            texts = [one.text for one in made.likely]
            likely = {
                "tokens": texts, "token_logprobs": [one.logprob for one in made.likely],
                "top_logprobs": [{text: value for _, text, value in one.others} for one in made.likely],
                "text_offset": [*accumulate(map(len, texts), initial=made.offset)][:-1],
            }  # fmt: skip
        return {"index": index, "text": made.text, "logprobs": likely, "finish_reason": made.reason}


def _are_tokens(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) is int for one in given)


class _Made:
    """A text, or a part of it, as answers tell it.  reader: finds calls.  offset: letters of the tokens before it."""

    def __init__(
        self, made: Generation | TextPiece, ends: Sequence[int], reader: CallReader | None, offset: int = 0,
        first: bool = False,
    ) -> None:  # fmt: skip
        self.text: str | None = made.text
        self.reason, self.offset, self.is_first = made.finish_reason, offset, first
        self.calls: list[FunctionCall] = []
        if reader is not None:
            said, self.calls = reader.add(made.text, made.finish_reason is not None)
            self.text = said or None  # as OpenAI tells calls
            self.reason = "tool_calls" if self.calls else self.reason
        rows = made.logprobs or None
        self.likely = None if rows is None else [one for one in rows if one.token not in ends]


class TextAnswers:
    """The texts of one request, while they are made.  To be made within the event loop.

    work: gives the whole answer, and raises what goes wrong; whoever cancels it has no more texts made.
    """

    def __init__(self, model: ServedModel, asked: TextRequest, terms: RequestTerms) -> None:
        self.model, self.asked, self.terms = model, asked, terms
        self.generator: Generator = model.generator  # type: ignore[assignment]
        self.head = {
            "id": asked.prefix + uuid.uuid4().hex, "object": asked.object, "created": int(time.time()),
            "model": asked.model,
        }  # fmt: skip
        self.answers: list[Answer] = []
        self.is_over, self.left = False, asked.all
        self.firsts = dict[int, float]()
        self.come: asyncio.Queue[tuple[int, TextPiece] | None] = asyncio.Queue()
        self.begun, self.done = asyncio.Event(), asyncio.Event()
        self.work = asyncio.create_task(self._work())
        self.work.add_done_callback(lambda work: work.cancelled() or work.exception())  # a reader may be gone by then

    async def _work(self) -> dict[str, Any]:
        model, asked = self.model, self.asked
        seconds = model.settings.deadline_ms and model.settings.deadline_ms / 1e3
        try:
            with model.counted():
                want_few("n, prompt: texts", asked.all, model.settings.queue)
                if model.texts + asked.all > model.settings.queue:
                    raise RequestError(f"model {model.name!r}: got more texts than its queue has room for", "busy")
                model.texts += asked.all
                try:
                    async with asyncio.timeout(self.terms.left(seconds)):
                        await asyncio.to_thread(self._submit, asyncio.get_running_loop())
                        self.begun.set()
                        await self.done.wait()
                    return self._whole([answer.result() for answer in self.answers])
                except TimeoutError:
                    raise RequestError("timeout: got no end of the text in its time, wanted one", "late") from None
                finally:
                    model.texts -= asked.all
        finally:
            self.is_over = True
            for answer in self.answers:
                answer.cancel()
            self.begun.set()
            self.come.put_nowait(None)

    def _submit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the generator begin; in a thread, for templates, tokens and schemas take a while."""
        came: Any = self._came
        for number, prompt in enumerate(self.asked.prompts):
            what = ""
            try:
                called, what = self.asked.tools.settings(self.generator), self.asked.fields[0]
                tokens = self._tokens(prompt, what)
                what = ""
                for index in range(number * self.asked.count, (number + 1) * self.asked.count):
                    how = self.asked.settings_of(index, self.generator.usual) | called
                    how["watch"] = partial(loop.call_soon_threadsafe, came, index)
                    self.answers.append(self.generator.submit(tokens, **how))
                    if self.is_over:  # whoever asked went away meanwhile
                        self.answers[-1].cancel()
                        return
            except BoltError as error:
                kind = "long" if isinstance(error, PromptLengthError) else "invalid"
                raise RequestError(str(error), kind, what or None) from error
            self.model.counts.tokens("prompt").inc(len(tokens))

    def _tokens(self, prompt: Any, what: str) -> list[int]:
        letters, most, tools = len(prompt), PART * self.generator.context, self.asked.tools.own
        if isinstance(self.asked, ChatRequest):
            letters = sum(len(one["content"]) + PART + len(str(one.get("tool_calls", ""))) for one in prompt)
            letters += len(str(tools or ""))
        if letters > most:
            raise PromptLengthError(f"{what}: got {letters} letters, wanted at most {most}")
        return self.generator.tokens(prompt, tools)

    def _came(self, index: int, piece: TextPiece) -> None:
        """A piece of a text has come.  For the thread of the event loop."""
        counts, now = self.model.counts, time.monotonic()
        if piece.tokens and index not in self.firsts:
            self.firsts[index] = now
            counts.first().observe(now - self.terms.begin)
        counts.tokens("text").inc(len(piece.tokens))
        if piece.finish_reason != FAILED:  # what went wrong is told when all have ended
            self.come.put_nowait((index, piece))
        if piece.finish_reason is not None:
            self.left -= 1
            if self.left == 0:
                self.done.set()

    def _whole(self, made: Sequence[Generation]) -> dict[str, Any]:
        now = time.monotonic()
        for index, one in enumerate(made):
            if len(one.tokens) > 1:
                self.model.counts.token().observe((now - self.firsts[index]) / (len(one.tokens) - 1))
        ends = self.generator.layout.ends
        read = self.asked.tools.reader
        choices = [self.asked.piece(index, _Made(one, ends, read()), False) for index, one in enumerate(made)]
        begun = made[:: self.asked.count]  # a prompt counts once
        prompt, text = sum(one.prompt_tokens for one in begun), sum(len(one.tokens) for one in made)
        known = {"cached_tokens": sum(one.reused_tokens for one in begun)}
        usage = {"prompt_tokens": prompt, "completion_tokens": text, "total_tokens": prompt + text}
        return {**self.head, "choices": choices, "usage": {**usage, "prompt_tokens_details": known}}

    async def stream(self) -> StreamingResponse:
        """A response that tells pieces as they come.  Raises what the request is refused for."""
        await self.begun.wait()
        if self.work.done():
            self.work.result()
        return _Events(self.work, self._events())

    async def _events(self) -> AsyncIterator[bytes]:
        asked, ends = self.asked, self.generator.layout.ends
        head = {**self.head, "object": asked.chunk} | ({"usage": None} if asked.tells_usage else {})
        offsets, readers = [-1] * asked.all, [asked.tools.reader() for _ in range(asked.all)]
        try:
            while (row := await self.come.get()) is not None:
                index, piece = row
                made = _Made(piece, ends, readers[index], max(offsets[index], 0), offsets[index] < 0)
                offsets[index] = made.offset + sum(len(one.text) for one in made.likely or ())
                if made.text or made.likely or made.reason or made.is_first:
                    yield EVENT % orjson.dumps({**head, "choices": [asked.piece(index, made, True)]})
            whole = await self.work
            if asked.tells_usage:
                yield EVENT % orjson.dumps({**head, "choices": [], "usage": whole["usage"]})
            yield DONE
        except Exception as error:
            yield EVENT % orjson.dumps(told(*failure(error), getattr(error, "field", None)))


class _Events(StreamingResponse):
    """Events that end the work behind them where nobody reads on."""

    def __init__(self, work: asyncio.Task[Any], events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.work.cancel()


def _message(number: int, given: Any) -> dict[str, Any]:
    """A message as templates take it."""
    what, wanted = f"messages: number {number}", f"wanted an object with content and a role of {', '.join(ROLES)}"
    if not isinstance(given, dict) or given.get("role") not in (*ROLES,):
        raise RequestError(f"{what}: got {shown(given)}, {wanted}", field="messages")
    said = {key: value for key, value in given.items() if value not in (None, [])}  # of an answer that is sent back
    known = {"role", "content", "name"} | MORE.get(given["role"], set())
    if unknown := said.keys() - known:
        raise RequestError(f"{what}: got {shown(sorted(unknown))}, wanted {', '.join(sorted(known))}", field="messages")
    if calls := said.get("tool_calls"):
        said["tool_calls"] = calls_within(what, calls)
    content = "" if calls and given.get("content") is None else given.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else None
    if not isinstance(content, str):
        raise RequestError(f"{what}: content: got {shown(given.get('content'))}, wanted a text", field="messages")
    return {**said, "role": ROLES[given["role"]], "content": content}


def _bias(given: Mapping[str, Any]) -> dict[int, Any]:
    """What is added to logits, by token."""
    try:
        return {int(token): by for token, by in given.items()}
    except ValueError:
        raise RequestError(f"logit_bias: got {shown(given)}, wanted numbers by tokens") from None


def _schema(form: Mapping[str, Any] | None) -> str | None:
    """The schema that an answer has to follow, as JSON."""
    kind, holder = (form or {"type": "text"}).get("type"), (form or {}).get("json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type":"object"}'
    if kind == "json_schema" and isinstance(holder, dict) and isinstance(holder.get("schema"), dict):
        with suppress(TypeError):  # it is nested too deep
            return orjson.dumps(holder["schema"]).decode()
    wanted = "wanted a type of text, json_object, or json_schema with a schema"
    raise RequestError(f"response_format: got {shown(form)}, {wanted}")


def _as_chat(one: Likely) -> dict[str, Any]:
    """A token as chats tell it."""

    def row(text: str, value: float) -> dict[str, Any]:
        return {"token": text, "logprob": value, "bytes": None if BROKEN in text else [*text.encode()]}

    return {**row(one.text, one.logprob), "top_logprobs": [row(text, value) for _, text, value in one.others]}
