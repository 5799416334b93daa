"""Inputs that are no contiguous arrays: read where they lie if a plan can, else copied once that is granted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.errors import BudgetError
from bolt_numba.ir.graph import Graph
from bolt_numba.types import Array
from tests.budget_child import peak
from tests.rule_cases import graph_of, o

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
SMALL, LARGE = 512, 4096
"""Sides of images."""
LIMIT, SLACK = 40 * MIB, 8 * MIB
"""What a session may take: a small image and its results; and what a large one, of 192 MiB, may take besides."""
RNG = np.random.default_rng(0)


def network(*dims: Any) -> Graph:
    """An image as NCHW -> four numbers for each tile of 16 x 16 pixels, of its corner."""
    filters = np.random.default_rng(1).standard_normal((4, 3, 2, 2), np.float32)
    return graph_of(lambda b, x: b(o("Relu"), b(o("Conv", strides=(16, 16)), x, filters)), {"x": dims})


def image(side: int, order: tuple[int, ...] = (0, 1, 2, 3)) -> Array:
    """An NCHW view of an image whose axes lie so in memory."""
    dims = (1, 3, side, side)
    memory = RNG.standard_normal([dims[axis] for axis in order], np.float32)
    return memory.transpose(np.argsort(order))


def in_place(session: bn.Session) -> list[str]:
    """What the report says of plans that read views where they lie."""
    return [*dict.fromkeys(row["inputs"] for row in session.report() if "inputs" in row)]


@pytest.mark.parametrize("options", [{}, {"threads": 2}, {"memory_limit": 1 << 30, "time_limit": 60.0}])
def test_an_image_that_lies_as_nhwc_is_read_there(options: dict[str, Any]) -> None:
    session = bn.Session(network(1, 3, SMALL, SMALL), **options)
    given = image(SMALL, (0, 2, 3, 1))
    assert not given.flags.c_contiguous
    (result,) = session(given)
    assert in_place(session) == ["axes in memory: x [0, 2, 3, 1]"]
    assert [row["op"] for row in session.report()] == ["Conv", "Transpose"]  # that of the result
    (wanted,) = session(np.ascontiguousarray(given))
    assert result.tobytes() == wanted.tobytes()
    assert session.run(None, {"x": given})[0].tobytes() == wanted.tobytes()
    assert session.clone()(given)[0].tobytes() == wanted.tobytes()
    session.close()
    for _ in range(2):  # the first has the graph made anew
        assert session(given)[0].tobytes() == wanted.tobytes()
    assert in_place(session) == ["axes in memory: x [0, 2, 3, 1]"]


def test_an_axis_of_one_element_lies_anywhere() -> None:
    session = bn.Session(network(1, 3, SMALL, SMALL))
    rows = RNG.standard_normal((SMALL, SMALL, 3), np.float32)
    for given in (rows.transpose(2, 0, 1)[None], rows[None].transpose(0, 3, 1, 2)):
        assert session(given)[0].tobytes() == session(np.ascontiguousarray(given))[0].tobytes()
    assert in_place(session) == ["axes in memory: x [0, 2, 3, 1]"]


def test_its_sizes_may_be_any() -> None:
    session = bn.Session(network("n", 3, "h", "w"))
    for side in (32, 48, 64, 80, 96, 112, 128, 144):
        given = image(side, (0, 2, 3, 1))
        assert session(given)[0].tobytes() == session(np.ascontiguousarray(given))[0].tobytes()
    assert in_place(session) == ["axes in memory: x [0, 2, 3, 1]"]


@pytest.mark.parametrize(
    "given",
    [
        image(SMALL, (0, 1, 3, 2)),
        image(SMALL, (3, 2, 0, 1)),
        image(SMALL)[:, ::-1],
        image(SMALL, (0, 2, 3, 1))[:, ::-1],
        image(2 * SMALL)[:, :, 1 : SMALL + 1, 3 : SMALL + 3],
        image(2 * SMALL, (0, 2, 3, 1))[:, :, 1 : SMALL + 1, 3 : SMALL + 3],
        np.broadcast_to(image(SMALL)[:, :1], (1, 3, SMALL, SMALL)),
    ],
    ids=["columns", "columns first", "BGR", "NHWC as BGR", "part", "part of NHWC", "grey"],
)
def test_other_views_are_copied(given: Array) -> None:
    session = bn.Session(network(1, 3, SMALL, SMALL))
    (result,) = session(given)
    assert in_place(session) == []
    assert result.tobytes() == session(np.ascontiguousarray(given))[0].tobytes()


def test_who_reads_the_input_otherwise_gets_a_copy() -> None:
    def build(b: Any, x: Any) -> Any:
        filters = np.ones((4, 3, 2, 2), np.float32)
        return b(o("Conv", strides=(16, 16)), x, filters), b(o("ReduceMax"), x, np.array([2]))

    session = bn.Session(graph_of(build, {"x": (1, 3, SMALL, SMALL)}))
    given = image(SMALL, (0, 2, 3, 1))
    for result, wanted in zip(session(given), session(np.ascontiguousarray(given)), strict=True):
        assert result.tobytes() == wanted.tobytes()
    assert in_place(session) == []


def test_one_of_several_inputs() -> None:
    def build(b: Any, x: Any, y: Any) -> Any:
        filters = np.ones((4, 3, 2, 2), np.float32)
        return b(o("Add"), b(o("Conv", strides=(16, 16)), x, filters), y)

    session = bn.Session(graph_of(build, {"x": (1, 3, SMALL, SMALL), "y": (1, 4, 32, 32)}))
    x, y = image(SMALL, (0, 2, 3, 1)), RNG.standard_normal((1, 4, 32, 32), np.float32)
    for other in (y, y[..., ::-1]):
        (wanted,) = session(np.ascontiguousarray(x), np.ascontiguousarray(other))
        assert session(x, other)[0].tobytes() == wanted.tobytes()
    assert len(in_place(session)) == 1


def test_whatever_else_a_session_does_takes_views() -> None:
    session = bn.Session(network(1, 3, SMALL, SMALL))
    given = image(SMALL, (0, 2, 3, 1))
    (wanted,) = session(np.ascontiguousarray(given))
    result = np.empty_like(wanted)
    session.run_into({"x": given}, {session.outputs[0].name: result})
    assert result.tobytes() == wanted.tobytes()
    assert session.profile(given, runs=1).rows


def test_a_new_plan_counts_as_memory() -> None:
    session = bn.Session(network(1, 3, SMALL, SMALL))
    session(image(SMALL, (0, 2, 3, 1)))
    assert session.memory()["arena"] > 0


def in_a_child() -> None:
    """Print how runs with large images end, and by how much each raises the peak of memory."""
    session = bn.Session(network("n", 3, "h", "w"), threads=1, memory_limit=LIMIT)
    memory = np.zeros((1, LARGE, LARGE, 3), np.float32)  # pages that nobody writes to take no memory
    rows = {}
    for name, order in {"NHWC": (0, 3, 1, 2), "columns": (0, 3, 2, 1)}.items():
        for side in (SMALL, LARGE):
            given = memory[:, :side, :side].transpose(order) if side == LARGE else image(side, np.argsort(order))
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak
            before, ended = peak(), "ok"
            try:
                session(given)
            except BudgetError as error:
                ended = str(error)
            rows[name] = [ended, peak() - before]
    sys.stdout.write(json.dumps(rows))


def test_a_limit_is_asked_before_a_copy() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from tests.test_views import in_a_child; in_a_child()"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows["NHWC"][0] == "ok"
    assert "a contiguous copy of input 'x': memory: got 192 MiB, wanted at most 40 MiB" in rows["columns"][0]
    assert rows["NHWC"][1] < LIMIT
    assert rows["columns"][1] < SLACK
