"""Mutated requests to a server in a process of its own, and a storm of them while models change: `hostile`, `heavy`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.serve import heavy, hostile


def test_mutated_requests_are_refused_or_answered_right(tmp_path: Path) -> None:
    found = hostile.run(tmp_path, 6000)
    kinds = "rest 200", "rest 400", "rest 404", "rest 413", "rest gone", "rpc OK", "rpc INVALID_ARGUMENT"
    texts = "embeddings 200", "embeddings 400", "embeddings 404", "chat 200", "chat 400"
    for kind in (*kinds, *texts, "change 200", "brief 200"):
        assert found[kind] > 0, found


def test_a_storm_of_requests_while_models_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bolt_numba")
    found = asyncio.run(heavy.storm(tmp_path, 20_000))
    assert found["ok"] > 10_000
    assert found["cancelled"] > 100
    assert found["reloads"] > 1
