"""The commands of language models: what they write, what they are told, and how they are stopped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bolt_numba.cli.app import run
from bolt_numba.cli.console import plain
from bolt_numba.text import Generator
from bolt_numba.text.answers import Answer, TextPiece

pytest.importorskip("tokenizers")


def test_generate_searches(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--threads", "1", "--max-tokens", "6", "--beams", "2"]
    assert run(["generate", str(file), "Once upon", *how]) == 0
    with Generator(file, threads=1, sequences=2) as made:
        assert capsys.readouterr().out == plain(made.search("Once upon", num_beams=2, max_tokens=6)[0].text) + "\n"
    assert run(["generate", str(file), "Once upon", "--top-k", "3", *how]) == 2
    assert "--beams: got it with options of texts that are drawn" in capsys.readouterr().err


def test_generate_writes_the_text(
    file: Path, one: Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = ["--threads", "1", "--max-tokens", "12"]
    assert run(["generate", str(file), "Once upon", "--greedy", *how]) == 0
    spelled = one.generate("Once upon", max_tokens=12).text
    assert capsys.readouterr().out.rstrip("\n").replace("\\x", "")[:3] == spelled[:3]
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["left", "right"]}')
    assert run(["generate", str(file), "Which?", "--json", str(schema), "--chat", "--seed", "1", *how]) == 0
    assert capsys.readouterr().out in ('"left"\n', '"right"\n')
    assert run(["generate", str(file), ""]) == 1
    assert "prompt: got 0 tokens" in capsys.readouterr().err
    made = []
    for prompt in ("Once upon", "-"):  # of which `echo` ends the second with a line
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Once upon\n")))
        assert run(["generate", str(file), prompt, "--greedy", *how]) == 0
        made.append(capsys.readouterr().out)
    assert made[0] == made[1]
    assert run(["generate", str(file), "Hi", "--chat", "--greedy", "--threads", "1", "--max-tokens", "1"]) == 0
    assert capsys.readouterr().err.endswith("(cut off at 1 tokens: --max-tokens and --context say how many)\n")


def test_perplexity_is_printed(file: Path, one: Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page := tmp_path / "page.txt").write_text("The train is late, and the cat sleeps.")
    assert run(["perplexity", str(file), str(page), "--threads", "1"]) == 0
    assert capsys.readouterr().out == f"{one.perplexity(page.read_text()):.4f}\n"
    assert run(["perplexity", str(file), str(tmp_path / "none.txt")]) == 1
    assert "none.txt" in capsys.readouterr().err


def test_chat_remembers(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["Hi", "", "And?", "/exit"])
    asked: list[Any] = []
    submit = Generator.submit
    monkeypatch.setattr("builtins.input", lambda shown: next(typed))
    noted = lambda self, said, **how: asked.append([*said]) or submit(self, said, **how)  # noqa: E731
    monkeypatch.setattr(Generator, "submit", noted)
    assert run(["chat", str(file), "--system", "K", "--max-tokens", "2", "--threads", "1"]) == 0
    assert [[message["role"] for message in said] for said in asked] == [
        ["system", "user"], ["system", "user", "assistant", "user"]
    ]  # fmt: skip
    assert len(capsys.readouterr().out.splitlines()) >= 2
    typed, asked = iter(["a" * 30, "b" * 10, "c" * 5, "/exit"]), []
    assert run(["chat", str(file), "--max-tokens", "4", "--threads", "1", "--greedy"]) == 0
    assert [said[0]["content"][0] for said in asked] == ["a", "b", "b"]  # it outgrew half of the context


def test_a_chat_goes_on_behind_what_is_no_message(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["Hi", "a" * 300, "/help", "More", "/clear", "Anew", "/bye"])
    asked: list[Any] = []
    submit = Generator.submit
    monkeypatch.setattr("builtins.input", lambda shown: next(typed))
    noted = lambda self, said, **how: asked.append([each["content"][:5] for each in said[::2]]) or submit(  # noqa: E731
        self, said, **how
    )
    monkeypatch.setattr(Generator, "submit", noted)
    assert run(["chat", str(file), "--max-tokens", "1", "--threads", "1", "--greedy"]) == 0
    assert asked == [["Hi"], ["aaaaa"], ["Hi", "More"], ["Anew"]]
    said = capsys.readouterr().err
    assert "error: prompt: got" in said
    assert said.count("/clear begins anew, /exit or Ctrl-D ends the chat") == 1


def test_an_interrupt_ends_a_text_but_not_a_chat(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Answer.__iter__

    def interrupted(self: Answer) -> Iterator[TextPiece]:
        yield next(pieces(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(Answer, "__iter__", interrupted)
    assert run(["generate", str(file), "Once upon", "--threads", "1", "--greedy"]) == 130
    typed = iter(["Hi", "More", "/exit"])
    monkeypatch.setattr("builtins.input", lambda shown: next(typed))
    capsys.readouterr()
    assert run(["chat", str(file), "--threads", "1", "--greedy"]) == 0
    assert next(typed, None) is None
