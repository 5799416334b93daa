"""Rows of unequal lengths through encoders as torch exports them: which of them pack, and results as of single runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest

import bolt_numba as bn
from bolt_numba.types import I64, Array
from tests.exported_encoders import ARCHITECTURES, WORDS, model
from tests.models import fetch
from tests.test_ragged import held, packed

LENGTHS = (8, 3, 30, 12, 64, 17, 8, 1)
PADDING = 1
"""The token behind short rows; positions of RoBERTa count others only."""
ALONE = {"t5": len(LENGTHS), "qwen3": 1}
"""Rows that run by themselves: a bias depends on two positions; where masks hide later tokens, one token has none."""
NOT_PACKED = {"mpnet", "deberta", "deberta-v2"}
"""Scores are no product of queries and keys alone."""


def rows_for(session: bn.Session, lengths: Sequence[int] = LENGTHS) -> list[dict[str, Array]]:
    rng, rows = np.random.default_rng(0), []
    for n in lengths:
        row = {"input_ids": rng.integers(5, WORDS, n), "attention_mask": np.ones(n, I64)}
        row |= {"token_type_ids": (np.arange(n) > n // 2).astype(I64)}
        rows.append({spec.name: row[spec.name] for spec in session.inputs})
    return rows


def padded(content: bytes, rows: list[dict[str, Array]]) -> Any:
    """Results of onnxruntime for rows in one batch."""
    batch = {name: np.zeros((len(rows), max(LENGTHS)), I64) for name in rows[0]}
    batch["input_ids"] += PADDING
    for i, row in enumerate(rows):
        for name, x in row.items():
            batch[name][i, : len(x)] = x
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, batch)[0]


def noted(session: bn.Session, rows: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[tuple[int, ...]]]:
    """Results of `run_rows`, and shapes of the tokens of runs that it made beside long rows."""
    shapes: list[tuple[int, ...]] = []
    run = session.run
    with monkeypatch.context() as patch:
        patch.setattr(session, "run", lambda names, feeds: shapes.append(feeds["input_ids"].shape) or run(names, feeds))
        return session.run_rows(rows), shapes


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_exported_encoders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = model(name)
    session = bn.compile(content, stand_ins=False)
    rows = rows_for(session)
    found, shapes = noted(session, rows, monkeypatch)
    alone = [shape[0] for shape in shapes]
    assert (packed(session) is None) == (name in NOT_PACKED)
    assert sum(alone) == (len(rows) if name in NOT_PACKED else ALONE.get(name, 0))
    held(session, rows)
    for row, (y,), wanted in zip(rows, found, padded(content, rows), strict=True):
        wanted = wanted[: len(row["input_ids"])] if wanted.ndim > 1 else wanted
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(wanted).max())))


def test_a_row_longer_than_a_window_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    session = bn.compile(model("modernbert"), stand_ins=False)
    rows = rows_for(session, (66, 20, 65, 3))
    _, shapes = noted(session, rows, monkeypatch)
    assert shapes == [(1, 66)]
    held(session, rows)


@pytest.mark.parametrize(("precision", "allowed"), [("f32", 2e-5), ("bf16", 2e-2)])
def test_minilm_is_packed(precision: str, allowed: float) -> None:
    session = bn.compile(fetch("minilm.onnx"), precision=precision, stand_ins=False)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Array]] = []
    for n in [8, 120, 31, 5, 77, 240, 16]:
        row = {"input_ids": rng.integers(0, 30522, n), "attention_mask": np.ones(n, I64)}
        rows.append(row | {"token_type_ids": (np.arange(n) > n // 2).astype(I64)})
    rows[3]["attention_mask"][3:] = 0
    packing = packed(session)
    assert packing is not None
    assert [node.op.name for node in packing.form.tail] == []
    held(session, rows, allowed)
