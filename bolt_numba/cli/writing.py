"""The commands of language models: to go on with a text, to chat, and to say how well a text is known."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from bolt_numba.base.errors import DataError
from bolt_numba.base.files.regular import read_text
from bolt_numba.cli import console
from bolt_numba.cli.options import flag, takes_options

if TYPE_CHECKING:
    from bolt_numba.text import Generation, Generator

MOST_BYTES = 1 << 24
"""Of a prompt, a schema or a grammar in a file."""
USUAL = {"temperature": 0.7, "top_p": 0.95}
"""Where neither the command nor the model says something."""
ELSE = "Else as the model asks for"
LEAVE, ANEW = ("/exit", "/quit", "/bye"), "/clear"
COMMAND = re.compile(r"\s*/\w*\s*")
"""No message: somebody looks for a command."""
KEYS = f"A line is a message. Ctrl-C ends an answer, {ANEW} begins anew, {LEAVE[0]} or Ctrl-D ends the chat."

Model: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A file of GGUF, or a folder of onnxruntime-genai or Optimum.")
]
MaxTokens: TypeAlias = Annotated[int, typer.Option("--max-tokens", min=1, help="Of the text that is made.")]
SETTINGS = (
    flag("greedy", bool, False, "The likeliest token each time."),
    flag("temperature", float | None, None, f"0: as --greedy. {ELSE}, or {USUAL['temperature']}.", min=0),
    flag("top_k", int | None, None, f"Of so many of the likeliest; 0: of all. {ELSE}.", min=0),
    flag(
        "top_p", float | None, None, f"Of the likeliest that have this together. {ELSE}, or {USUAL['top_p']}.",
        min=0, max=1,
    ),
    flag("min_p", float | None, None, f"Of those with this share of the likeliest's. {ELSE}.", min=0, max=1),
    flag("repetition_penalty", float | None, None, f"Above 1: repeat less. {ELSE}.", min=0.01),
    flag("seed", int | None, None, "The same gives the same text.", min=0),
)  # fmt: skip
"""How tokens are chosen."""
CONTEXT = flag("context", int | None, None, "Tokens of a text, its prompt included.", min=2)
LOOK_UP = flag("look_up", bool, False, "Guess tokens from what was there: the same text, sooner.")


@takes_options(without=("stages",), settings=SETTINGS, more=(CONTEXT, LOOK_UP))
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A text to go on with; -: standard input.")],
    max_tokens: MaxTokens = 256,
    settings: Mapping[str, Any] = {},
    stop: Annotated[list[str], typer.Option("--stop", help="A text that ends it; may be given several times.")] = [],
    schema: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="A schema that it follows.")] = None,
    grammar: Annotated[Path | None, typer.Option("--grammar", metavar="FILE", help="A grammar of Lark.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="PROMPT is a message, which the model answers.")] = False,
    beams: Annotated[int | None, typer.Option("--beams", min=1, help="Search for the likeliest, by so many.")] = None,
    more: Mapping[str, Any] = {},
    options: Mapping[str, Any] = {},
) -> None:
    """Go on with a text, as the model would."""
    how = {"stop": stop, "json_schema": _read(schema), "grammar": _read(grammar), **_how(max_tokens, settings)}
    text = _typed().removesuffix("\n") if prompt == "-" else prompt  # `echo` adds it, and models go on otherwise then
    said: Any = [{"role": "user", "content": text}] if chat else text
    if beams is not None:
        if more["look_up"] or any(given not in (None, []) for name, given in how.items() if name != "max_tokens"):
            raise typer.BadParameter("got it with options of texts that are drawn", param_hint="--beams")
        with _opened(model, sequences=beams, context=more["context"], **options) as made:
            console.write(console.plain(made.search(said, num_beams=beams, max_tokens=max_tokens)[0].text))
        return
    with _opened(model, **more, **options) as made:
        (_answer if chat else _stream)(made, said, how)


@takes_options(without=("stages",), settings=SETTINGS, more=(CONTEXT, LOOK_UP))
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    max_tokens: MaxTokens = 1024,
    settings: Mapping[str, Any] = {},
    more: Mapping[str, Any] = {},
    options: Mapping[str, Any] = {},
) -> None:
    """Chat with a model: a line is a message, Ctrl-C ends an answer, /exit the chat."""
    how, first = _how(max_tokens, settings), [] if system is None else [{"role": "system", "content": system}]
    with _opened(model, **more, **options) as made:
        made.template  # noqa: B018  # a model without one is told before anybody types
        said = [*first]
        if sys.stdin.isatty():
            console.note(KEYS)
        while (line := _line()) is not None:
            if line.strip() == ANEW:
                said = [*first]
            elif COMMAND.fullmatch(line):
                console.note(KEYS)
            elif line.strip():
                said = _turn(made, said, line, len(first), how)


FOUND = (
    flag("beams", int | None, None, f"Texts that the search keeps; 1: greedy. {ELSE}.", min=1),
    flag("max_tokens", int | None, None, f"Of the result. {ELSE}.", min=1),
)
"""How a translation is searched for."""


@takes_options(without=("stages",), settings=FOUND)
def translate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder of Optimum: an encoder and a decoder.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text; -: standard input, each line of it.")],
    settings: Mapping[str, Any] = {},
    options: Mapping[str, Any] = {},
) -> None:
    """Translate texts, or have done with them what else the model does: a line for each."""
    from bolt_numba.text import Translator

    with console.progress(f"compiling {model.name}"):
        made = Translator(model, **options)
    asked = {"num_beams": settings["beams"], "max_tokens": settings["max_tokens"]}
    how: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    for line in _typed().splitlines() if text == "-" else [text]:
        console.write(made.translate(line, **how).text if line.strip() else "")


@takes_options(without=("stages",), more=(CONTEXT,))
def perplexity(
    model: Model,
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A file of text; -: standard input.")],
    more: Mapping[str, Any] = {},
    options: Mapping[str, Any] = {},
) -> None:
    """Say how badly a model guesses a text: less is better, such as before and after weights were quantised."""
    given = _typed() if str(text) == "-" else _read(text) or ""
    with _opened(model, **more, **options) as made:
        console.write(f"{made.perplexity(given):.4f}")


def _turn(
    made: Generator, before: list[dict[str, str]], line: str, first: int, settings: Mapping[str, Any]
) -> list[dict[str, str]]:  # fmt: skip
    """What was said, and one more message: where it outgrows the context, what came behind ``first`` is left out."""
    said = [*before, {"role": "user", "content": line}]
    while len(said) > first + 1 and not _fits(made, said):
        del said[first : first + 2]  # a message and its answer
    try:
        return [*said, {"role": "assistant", "content": _answer(made, said, settings, may_stop=True)}]
    except DataError as error:  # of this message: the chat goes on without it
        console.note(f"error: {error}")
        return before


def _how(max_tokens: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the command asks for."""
    how = {"max_tokens": max_tokens, **settings}
    how |= {"temperature": 0.0} if how.pop("greedy") else {}
    return {name: value for name, value in how.items() if value is not None}


def _opened(model: Path, **options: Any) -> Generator:
    from bolt_numba.text import Generator  # it takes a while, and other commands do without

    with console.progress(f"compiling {model.name}"):
        return Generator(model, **options)


def _typed() -> str:
    """Standard input; what is no UTF-8 is read as U+FFFD."""
    found = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise DataError(f"standard input: got more than {MOST_BYTES} bytes, wanted at most as many")
    return found.decode(errors="replace")


def _read(file: Path | None) -> str | None:
    return None if file is None else read_text(file, MOST_BYTES, "a text")


def _fits(made: Generator, said: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a chat leaves an answer half of the context."""
    try:
        return len(made.tokens(said)) <= made.context // 2
    except DataError:
        return False


def _line() -> str | None:
    """What is typed next; None at the end."""
    try:
        line = input("> " if sys.stdin.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        return None
    return None if line.strip() in LEAVE else line


def _answer(
    made: Generator, said: Sequence[Mapping[str, str]], settings: Mapping[str, Any], may_stop: bool = False
) -> str:  # fmt: skip
    """Write the answer to messages, and say where it was cut off; the answer."""
    from bolt_numba.text.answers import LENGTH

    found = _stream(made, said, settings, may_stop)
    if found.finish_reason == LENGTH:
        console.note(f"(cut off at {len(found.tokens)} tokens: --max-tokens and --context say how many)")
    return found.text


def _stream(made: Generator, prompt: Any, settings: Mapping[str, Any], may_stop: bool = False) -> Generation:
    """Write a text as it comes; what came of it.  may_stop: an interrupt ends the text, and not the command."""
    answer = made.submit(prompt, **{**USUAL, **made.usual, **settings})
    try:
        with suppress(KeyboardInterrupt) if may_stop else nullcontext():
            for piece in answer:
                sys.stdout.write(console.plain(piece.text))
                sys.stdout.flush()
    finally:
        answer.cancel()
        sys.stdout.write("\n")
    return answer.result()
