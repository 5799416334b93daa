"""Damaged files, altered models, wrong operands: a BoltError or a right run.  ``python -m tests.attack``: at length."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.products.binary import BinaryConv, BinaryMatMul, BinaryProduct
from bolt_numba.types import U32, type_of
from tests.attack import documents, files, formats, models, operands, texts
from tests.attack.child import Child
from tests.formats import FORMATS

COUNT = 100
ALL = 0xFFFF_FFFF


@pytest.mark.timeout(600)
def test_mutations_end_well(tmp_path: Path) -> None:
    results = list(files.attack_files(files.default_files(tmp_path)[:6], COUNT, seed=7))
    assert len(results) == COUNT
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: {r.target} seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    kinds = Counter(r.kind for r in results)
    assert all(kinds[m.__name__] for m in files.MUTATIONS)
    states = Counter(r.state for r in results)
    assert states["refused"] > COUNT / 4
    assert states["ran"] > 0


def test_mutations_are_the_same_every_time_and_never_the_file_itself() -> None:
    data = files.DIGITS.read_bytes()
    for seed in range(30):
        kind, damaged = files.mutation(data, seed)
        assert (kind, damaged) == files.mutation(data, seed)
        if kind in ("truncated", "flipped"):
            assert damaged != data


def test_a_dead_child_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(files.command(files.DIGITS))
    child.process.kill()
    child.process.wait()
    kind, state, detail = child.read(5)
    child.stop()
    assert (kind, state) == ("?", "dead")
    assert "-9" in detail


def test_a_mistake_of_the_attack_is_told() -> None:
    code = "from tests.attack.child import serve\ndef run(seed): raise ValueError('odd')\nserve(run, ('ran', ''))"
    child = Child(["-c", code])
    assert child.ask(7) == ("?", "broken", "the attack itself: ValueError: odd")
    child.stop()


@pytest.mark.parametrize("busy", [False, True])
def test_a_hang_is_noticed(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it computes without end or waits; a child that the machine gives no time is no hang."""
    child = Child(files.command(files.DIGITS))
    if busy:
        monkeypatch.setattr(child, "_used", itertools.count().__next__)
        assert child.read(0.05)[1] == "hang"
    else:
        monkeypatch.setattr("tests.attack.child.STUCK", 0.5)
        start = time.monotonic()
        assert child.read(0.05)[1] == "hang"
        assert time.monotonic() - start >= 0.5
    child.stop()


def test_outcomes() -> None:
    data = files.DIGITS.read_bytes()
    assert files.outcome(data) == ("ran", "")
    assert files.outcome(data[:1000])[0] == "refused"
    assert files.outcome(np.random.default_rng(0).bytes(1000)) == ("refused", "InvalidModelError")


@pytest.mark.timeout(900)
def test_operands_that_do_not_fit_end_well() -> None:
    results = list(operands.attack_operands(6 * len(operands.names()), seed=11))
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: {r.target} seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    assert {r.state for r in results} >= {"ran", "refused"}


@pytest.mark.parametrize(("op", "dims", "axis"), [
    (BinaryConv(layout="NCHW"), (1, 4, 3, 3), 1),
    (BinaryConv(layout="NHWC"), (1, 3, 3, 4), -1),
    (BinaryMatMul(), (3, 4), -1),
], ids=str)  # fmt: skip
def test_words_of_bits_are_spoilt_as_packs_may_be(op: BinaryProduct, dims: tuple[int, ...], axis: int) -> None:
    """Bits behind the last channel are none of a pack: kernels count them, and references pass over them."""
    w = np.random.default_rng(0).standard_normal((40, 5) if isinstance(op, BinaryMatMul) else (5, 40, 2, 2), np.float32)
    x, *others = operands.as_packed(op, [np.full(dims, ALL, U32), w, None])
    assert x is not None
    assert (np.moveaxis(x, axis, -1) == [ALL, 0xFF, ALL, 0xFF]).all()
    assert [a is b for a, b in zip(others, (w, None), strict=True)] == [True, True]
    graph = Graph("alone")
    graph.add_output(Builder(graph)(op, graph.add_input("x", type_of(x).with_value(None)), w), "y")
    np.testing.assert_array_equal(bn.compile(graph)(x=x)["y"], op.reference(x, w))


@pytest.mark.timeout(900)
def test_altered_models_end_well() -> None:
    results = list(models.attack_models(600, seed=11))
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    kinds = Counter(r.kind for r in results)
    assert all(kinds[change.__name__] for change in models.CHANGES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", texts.TARGETS)
def test_what_makes_texts_ends_well(target: str) -> None:
    for package in ("tokenizers", "jinja2", "llguidance"):
        pytest.importorskip(package)
    results = list(texts.attack_texts(200, seed=11, only=[target]))
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: {target} seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    assert sum(r.state == "ran" for r in results) > 50


@pytest.mark.timeout(900)
def test_changed_documents_end_well(tmp_path: Path) -> None:
    results = list(documents.attack_documents(tmp_path, 400, seed=11))
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: seed {r.seed}: {r.detail}" for r in bad)
    states = Counter(r.state for r in results)
    assert states["refused"] > 200
    assert states["loaded"] > 10


@pytest.mark.timeout(900)
@pytest.mark.parametrize("format", FORMATS)
def test_damaged_files_of_other_formats_end_well(format: str) -> None:
    results = list(formats.attack_formats(400, seed=11, only=[format]))
    bad = [r for r in results if not r.is_good]
    assert not bad, "\n".join(f"{r.state}: seed {r.seed} ({r.kind}): {r.detail}" for r in bad)
    states = Counter(r.state for r in results)
    assert states["refused"] > 100
    assert states["ran"] > 10
