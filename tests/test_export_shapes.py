"""Native programs that serve many shapes: tapes in their tables, against sessions in Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba.cli.app import run
from bolt_numba.errors import ShapeError
from bolt_numba.export import plans, stages, tapes
from bolt_numba.export.layout import ProgramTable, TapeOperation
from bolt_numba.export.program import NativeProgram, native_program
from bolt_numba.export.tables import rows_of
from bolt_numba.export.tapes import runs
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.kernels.cpu.tape import OPERATIONS
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.shape import Reshape, Shape, Squeeze, Transpose
from bolt_numba.ops.layers.pool import AveragePool
from bolt_numba.ops.layers.products.conv import Conv
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Relu
from bolt_numba.types import F32, I64, Array, Sym, TensorType
from tests.graphs import graphs
from tests.native.nets import dense, ranged
from tests.native_programs import Interpreter
from tests.rule_cases import graph_of, whole
from tests.test_export import DIGITS, attention

pytestmark = pytest.mark.skipif(not target().is_x86, reason="programs that need no linker are of x86-64")
Sets = Sequence[dict[str, tuple[int, ...]]]


def drawn(graph: Graph, shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Small integers for the inputs."""
    return {v.name: whole(*shapes[v.name], seed=i).astype(v.type.dtype) for i, v in enumerate(graph.inputs)}


def same(graph: Graph, sets: Sets, **options: Any) -> NativeProgram:
    """The program for all these shapes, which gives the shapes and bits of a session for each."""
    made = native_program(graph, shapes=sets, **options)
    assert sum(chain.sets for chain in made.planned.chains) == len(sets)
    program, session = Interpreter(made.block.tobytes()), bn.compile(graph, threads=2, stand_ins=False)
    for shapes in sets:
        feeds = drawn(graph, shapes)
        found = program.run(feeds)
        for name, wanted in session(feeds).items():
            assert found[name].shape == wanted.shape, shapes
            assert found[name].tobytes() == wanted.tobytes(), shapes
    return made


def count(made: NativeProgram, table: ProgramTable) -> int:
    return len(list(rows_of(made.block.tobytes(), table)))


@pytest.mark.parametrize("threads", [1, 2])
def test_few_tapes_serve_all_sizes(threads: int) -> None:
    assert len(same(dense(), [{"x": (n, 256)} for n in range(50)], threads=threads).planned.chains) < 8
    sets = [{"x": (n, t, 16)} for n in range(1, 4) for t in range(1, 24)]
    made = same(graph_of(attention, {"x": ("n", "t", 16)}), sets, threads=threads)
    assert len(made.planned.chains) < len(sets) / 4


def pictures(b: Builder, x: Value) -> Any:
    y = b(Relu(), b(Conv((3, 3), pads=(1, 1, 1, 1)), x, whole(8, 3, 3, 3, seed=1)))
    y = b(AveragePool((3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), y)
    return b(Add(), y, y), b(Reshape(), y, np.array([0, 8, -1])), x


def test_pictures_of_two_sizes_have_tables_of_both() -> None:
    graph = graph_of(pictures, {"x": (1, 3, "h", "w")})
    sets = [{"x": (1, 3, h, w)} for h in range(6, 40, 4) for w in range(5, 40, 5)]
    made = same(graph, sets)
    assert len(made.planned.chains) < len(sets) / 2
    assert count(made, ProgramTable.FINDS) > 0


def test_what_python_computes_is_found_by_sizes_and_nothing_else_is() -> None:
    """A table of positions is one array for all lengths; a size between those that were tried has none."""
    sets = [{"x": (n, 24)} for n in range(64, 0, -2)]
    made = same(ranged(), sets)
    program = Interpreter(made.block.tobytes())
    for n in (0, 1, 3, 33, 63, 65, 66):
        with pytest.raises(LookupError, match="no plan"):
            program.run({"x": np.zeros((n, 24), np.float32)})
    one = native_program(ranged(), shapes=sets[:1])
    assert made.block.nbytes < 2 * one.block.nbytes + 100_000
    assert len(made.planned.chains) < 10


def test_what_python_computes_is_found_by_many_sizes_that_are_far_apart() -> None:
    """More sizes could come than an integer counts."""

    def numbered(b: Builder, x: Value) -> Value:
        return b(Add(), x, b(Cast(to=F32), b(Range(), np.int64(0), b(Squeeze(), b(Shape(), x)), np.int64(1))))

    graph = graph_of(lambda b, *given: tuple([numbered(b, x) for x in given]), {n: (n,) for n in "abcdefgh"})
    sizes = np.random.default_rng(0).integers(1000, 4000, (6, 8)).tolist()
    made = same(graph, [{n: (size,) for n, size in zip("abcdefgh", row, strict=True)} for row in sizes])
    assert max(chain.sets for chain in made.planned.chains) > 2
    turned = zip("abcdefgh", sizes[0][::-1], strict=True)
    with pytest.raises(LookupError, match="no plan"):
        Interpreter(made.block.tobytes()).run({n: np.zeros(size, np.float32) for n, size in turned})


def test_inputs_whose_sizes_belong_together_are_held_to_that() -> None:
    graph = Graph("two")
    b = Builder(graph)
    x, y = (graph.add_input(name, TensorType(F32, (Sym(name), 8))) for name in "xy")
    graph.add_output(b(Add(), b(MatMul(), x, whole(8, 8)), np.float32(1)), "a")
    graph.add_output(b(MatMul(), y, whole(8, 5)), "b")
    made = same(graph, [{"x": (n, 8), "y": (n, 8)} for n in range(1, 30)])
    program, session = Interpreter(made.block.tobytes()), bn.compile(graph, threads=1)
    feeds = drawn(graph, {"x": (7, 8), "y": (9, 8)})
    try:
        found = program.run(feeds)
    except LookupError:
        return
    assert all(found[name].tobytes() == wanted.tobytes() for name, wanted in session(feeds).items())


def test_a_fault_is_of_the_sizes_at_hand() -> None:
    graph = graph_of(lambda b, x, i: b(Gather(0), x, b(Transpose((1, 0)), i)), {"x": ("n", 4), "i": (I64, "n", 2)})
    made = native_program(graph, shapes=[{"x": (n, 4), "i": (n, 2)} for n in range(2, 20)])
    assert len(made.planned.chains) < 6
    program = Interpreter(made.block.tobytes())
    for n in (3, 11):
        feeds = {"x": whole(n, 4), "i": np.zeros((n, 2), np.int64)}
        assert program.run(feeds)["out0"].tobytes() == bn.compile(graph)(feeds)[0].tobytes()
        feeds["i"][2, 1] = n
        with pytest.raises(LookupError, match=f"got {n}, wanted -{n} to {n - 1}"):
            program.run(feeds)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(graph=graphs(), last=st.integers(4, 9))
def test_random_graphs(graph: Graph, last: int) -> None:
    names = [v.name for v in graph.inputs]
    same(graph, [dict.fromkeys(names, (rows, 4)) for rows in range(1, last + 1)])


def test_a_guard_that_is_planted_sends_its_sizes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape made with one more guard serves the sizes that pass it, and plans or other tapes the rest."""
    whole_tape = stages.Tape.__init__

    def odd(self: Any, runner: Any, context: Any, types: Any, is_open: bool = True) -> None:
        whole_tape(self, runner, context, types, is_open)
        code = self.program.tape
        old = code.at
        code.at = lambda sizes: old(sizes) if sizes[0] % 2 == types[0].dims[0] % 2 else None

    monkeypatch.setattr(stages.Tape, "__init__", odd)
    made = same(ranged(), [{"x": (n, 24)} for n in range(1, 41)])
    assert all(len({sizes[0] % 2 for sizes in chain.plan.stages[0].served.sizes}) == 1  # type: ignore[union-attr]
               for chain in made.planned.chains if chain.sets > 1)  # fmt: skip


def test_shapes_that_differ_in_what_they_run_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 5)
    monkeypatch.setattr(tapes, "FAILED", 0)
    with pytest.raises(ShapeError, match="sets of shapes: got 6 that differ in what they run, wanted up to 5"):
        native_program(dense(), shapes=[{"x": (n, 256)} for n in range(6)])


def test_a_session_begins_with_the_first_set() -> None:
    for first in (3, 40):
        sets = [{"x": (n, 24)} for n in (first, *(n for n in range(1, 50) if n != first))]
        block = native_program(ranged(), shapes=sets).block.tobytes()
        (plan, *_), dims = rows_of(block, ProgramTable.PLANS), list(rows_of(block, ProgramTable.DIMS))
        assert [row[0] for row in dims[plan[-1] : plan[-1] + 2]] == [first, 24]


def test_ranges_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(DIGITS), "-o", str(tmp_path / "digits.bolt"), "--shapes", "image:1..40x1x8x8"]) == 0
    found = re.search(r"40 sets of shapes by (\d+) plans", capsys.readouterr().out)
    assert found is not None
    assert int(found[1]) < 15
    bn.export_model(dense(), tmp_path / "dense", shapes=[{"x": (n, 256)} for n in range(1, 31)], threads=1)
    assert re.search(r"   x up to \[30, 256\] \(\d+ sets of shapes\)\n", (tmp_path / "dense" / "dense.h").read_text())


def test_runs_are_the_longest_pieces() -> None:
    keys = np.array([0, 1, 2, 3, 5, 6, 9, 10, 11])
    values = np.array([4, 6, 8, 10, 1, 1, 7, 7, 8])
    assert list(runs(keys, values)) == [(0, 3, 4, 2), (5, 6, 1, 0), (9, 10, 7, 0), (11, 11, 8, 0)]
    assert list(runs(keys[:1], values[:1])) == [(0, 0, 4, 0)]


def test_operations_are_those_of_sessions() -> None:
    compared = ["<", "<=", ">", ">=", "==", "!="]
    names = [
        "+",
        "-",
        "*",
        "//",
        "%",
        "max",
        "min",
        *compared,
        "&",
        "|",
        "^",
        "<<",
        ">>",
        "neg",
        "abs",
        "not",
        "is",
        "is not",
        "divisor",
        *(f"f{sign}" for sign in compared),
        "f+",
        "f-",
        "f*",
        "f/",
        "fmax",
        "fmin",
        "float",
    ]
    assert names == list(OPERATIONS)[: len(names)]
    assert [*OPERATIONS][len(names) :] == [f"is {sign}" for sign in compared]  # guards, which become two operations
    signs = {"//": TapeOperation.DIVIDE, "is not": TapeOperation.IS_NOT, "f<": TapeOperation.REAL_LESS}
    assert {sign: names.index(sign) for sign in signs} == signs
