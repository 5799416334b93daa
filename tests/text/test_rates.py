"""How fast texts are made: what is timed and counted, and the command that says it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bolt_numba.cli.app import run
from bolt_numba.devices import bandwidth
from bolt_numba.errors import OptionError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels.cpu.bandwidth import STREAMS, read_all
from bolt_numba.kernels.cpu.language.lang import BYTES
from bolt_numba.text import Generator, rates
from bolt_numba.types import F32, I64, TensorType
from tests.graphs import make
from tests.text.decoders import whole


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(tmp_path_factory.mktemp("decoder") / "small.bolt")


def test_rates_are_those_of_the_clock(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a prompt takes 1 ms, a step 2 ms, and one of three texts 3 ms."""
    drawn = set[int]()

    def seconds(generator: Generator, prompts: Sequence[list[int]], count: int) -> float:
        drawn.update(len({*prompt}) > 1 for prompt in prompts)
        return 1e-3 * len(prompts[0]) + {1: 2e-3, 3: 3e-3}[len(prompts)] * (count - 1)

    monkeypatch.setattr(rates, "_seconds", seconds)
    found = rates.rates(file, sequences=3, context=60, seconds=0.0, threads=2)
    assert (found.threads, found.prompt_tokens, found.sequences, drawn) == (2, 48, 3, {True})
    assert (found.prompt, found.one, found.together) == pytest.approx((1000, 500, 1000))
    assert found.read_gbs == pytest.approx(500 * found.step_mb / 1000)


def test_a_context_that_is_too_short_is_refused(file: Path) -> None:
    with pytest.raises(OptionError, match="context: got 51, wanted at least 52"):
        rates.rates(file, sequences=3, context=51)


def test_a_token_that_ends_a_text_does_not_end_what_is_timed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Generator(file, sequences=2, context=32, threads=1) as made:
        every = made._batch.ends = frozenset(range(300))
        runs = list[int]()
        step = made.decoder.run
        monkeypatch.setattr(made.decoder, "run", lambda parts: runs.append(len(parts)) or step(parts))
        rates.go_on(made, [[1, 2, 3]], 5)
        assert runs == [1] * 5
        assert made._batch.ends is every


def test_a_step_reads_weights_of_which_more_than_rows_are_needed() -> None:
    graph = Graph("g")
    build = Builder(graph)
    ids, x = graph.add_input("ids", TensorType(I64, (2,))), graph.add_input("x", TensorType(F32, (2, 4)))
    lone, tied, other = (np.ones(shape, F32) for shape in ((9, 4), (4, 4), (4, 8)))
    rows = build(make("Add"), build(make("Gather", axis=0), lone, ids), build(make("Gather", axis=0), tied, ids))
    graph.add_output(build(make("MatMul"), build(make("MatMul"), build(make("Add"), rows, x), tied), other), "y")
    assert rates.step_bytes(graph) == tied.nbytes + other.nbytes


def test_what_is_read_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread adds up its share, so nothing is left out, and the bytes are those that the rate counts."""
    count = 7
    given = np.arange(count * STREAMS * BYTES // 4, dtype=F32)
    out = np.zeros(3 * BYTES // 4, F32)
    read_all.run(nthreads=3, x=given, y=out, n=count)
    assert out.sum() == given.sum()
    monkeypatch.setattr(bandwidth, "READ_BYTES", 1 << 20)
    assert 0.01 < bandwidth.read_gbs(2, repeat=1) < 10_000


def test_the_command(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "read_gbs", lambda threads: 10.0 * threads)
    asked = ["bench", str(file), "--text", "--sequences", "2", "--context", "64", "--seconds", "0.1", "--threads", "2"]

    def called(*more: str) -> Any:
        return run([*asked, *more]), capsys.readouterr()

    code, said = called()
    assert code == 0
    lines = said.out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:5]] == ["a prompt of 51 tokens", "one text", "2 texts at once"]
    assert lines[5].endswith("of the 20.0 GB/s that memory gives to 2 thread(s).")
    found = json.loads(called("--json")[1].out)
    assert (found["memory_gbs"], found["read_gbs"]) == (20.0, pytest.approx(found["one"] * found["step_mb"] / 1e3))
    code, said = called("--vs", "onnxruntime")
    assert (code, "--vs: got it with --text" in said.err) == (2, True)


def test_sizes_of_texts_are_refused_without_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(file), "--sequences", "2"]) == 2
    assert "--sequences: got it without --text" in capsys.readouterr().err
