"""How far kernels may reach: every kernel says it, and operands that end before are refused before native code runs.

That no kernel reaches further than it says is tested with the kernels, by `tests.harness`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.devices import device, in_order
from bolt_numba.errors import ShapeError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.kernels import registry
from bolt_numba.kernels.common.gather import reverse_rows
from bolt_numba.kernels.common.scatter import scatter_rows
from bolt_numba.kernels.cpu.convolution.conv import pixel_table
from bolt_numba.kernels.cpu.elements import PARTS
from bolt_numba.kernels.cpu.products.sweep_extents import last_row
from bolt_numba.kernels.extents import KEPT, both, box, check_steps, made_steps, offsets, span
from bolt_numba.kernels.jit import I64, PTR, PTR_OR_0, native
from bolt_numba.kernels.registry import In, Out, Pitch, Scratch, Step, select
from bolt_numba.kernels.unseen import Packed
from bolt_numba.ops.arrays.gather import GatherElements, ScatterElements
from bolt_numba.ops.arrays.slicing import ReverseSequence
from bolt_numba.ops.layers.attention.cache import TensorScatter
from bolt_numba.ops.pointwise import Add, Relu
from bolt_numba.ops.windows import Windows
from bolt_numba.runtime.packs import MakerContext, NodeContext, Packs
from bolt_numba.runtime.reports.tune import Tuner
from bolt_numba.runtime.slots import CONST, Job, Slot
from bolt_numba.types import F32, Array, TensorType
from bolt_numba.types import I64 as INT64
from tests.harness import PlainContext

ROOT, CPU = Path(__file__).parents[1], Path(registry.__file__).parent / "cpu"
LOOP = {"executor.py": 3, "epilogue.py": 1, "loop.py": 1, "tape.py": 3, "stages.py": 2, "fillers.py": 6}
"""Kernels that no step calls: the native loop and its team, tapes, their stages and tables, activations of tiles."""


def undeclared(file: Path) -> int:
    """Calls of `native` and `native_source` that declare fields but no extents."""
    count = 0
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        names = {k.arg for k in node.keywords}
        has_fields = node.func.id == "native_source" or (node.func.id == "native" and names - {"fastmath"})
        count += bool(has_fields and "extents" not in names)
    return count


def test_every_kernel_declares_its_extents() -> None:
    found = {file.name: n for file in sorted(CPU.rglob("*.py")) if (n := undeclared(file))}
    assert found == LOOP


@pytest.mark.parametrize(
    ("reach", "wanted"),
    [
        (box(4), (0, 4)),
        (box(4, (3, 10), (2, 100)), (0, 124)),
        (box(4, (3, -10), (2, 100)), (-20, 104)),
        (box(4, (3, 10), (0, 100)), 0),
        (box(0, (3, 10)), 0),
        (offsets(np.array([8, 0, 16]), 4), (0, 20)),
        (offsets(np.array([8, -4]), 4), (-4, 12)),
        (offsets(np.zeros(0, np.int64), 4), 0),
        (both(0, (-4, 8)), (-4, 8)),
        (both(12, (-4, 8)), (-4, 12)),
    ],
)
def test_words_for_extents(reach: Any, wanted: Any) -> None:
    assert reach == wanted


@native(x=PTR, y=PTR, more=PTR_OR_0, n=I64, extents=lambda a: {"x": (-4, 4 * a.n), "y": 4 * a.n, "more": 8})
def example(p: Any, tid: int, nthreads: int) -> None:
    """Never runs."""


@native(x=PTR, y=PTR, extents=lambda a: {"x": 4})
def forgetful(p: Any, tid: int, nthreads: int) -> None:
    """Never runs."""


TABLE = np.zeros((3, 4), np.float32)
TEN = TensorType(F32, (2, 5))
STEP = Step(example, {"x": In(0, 4), "y": Out(), "more": None, "n": 9})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"n": 10}, r"Add: operand 0 \('x' of kernel example\): got 40 bytes, wanted 44 bytes"),
        ({"x": In(0)}, "operand 0 .*: got 40 bytes, wanted bytes -4 to 36"),
        ({"x": In(1, 4)}, "operand 1 .*: got none, wanted 40 bytes"),
        ({"x": In(2, 4)}, "operand 2 .*: got none, wanted 40 bytes"),
        ({"x": None}, "operand .*: got none"),
        ({"y": Out(0, 8)}, "result 0 .*: got 40 bytes, wanted bytes 8 to 44"),
        ({"y": Scratch(35)}, "workspace .*: got 35 bytes, wanted 36 bytes"),
        ({"more": np.zeros(1, np.int32)}, "table .*: got 4 bytes, wanted 8 bytes"),
        ({"n": -1}, "wanted"),
        ({"n": Pitch(Out(0))}, ""),
        ({"more": In(1)}, ""),
        ({"more": np.zeros(1)}, ""),
        ({}, ""),
    ],
)
def test_the_gate_compares_every_address(args: dict[str, Any], message: str) -> None:
    step = replace(STEP, args=STEP.args | args)
    if not message:
        check_steps(Add(), [step], [TEN, None], [TEN])
        return
    with pytest.raises(ShapeError, match=message):
        check_steps(Add(), [step], [TEN, None], [TEN])


def test_a_declaration_names_every_address() -> None:
    with pytest.raises(ShapeError, match=r"forgetful: extents: got \['y'\]"):
        check_steps(Add(), [Step(forgetful, {"x": In(0), "y": Out()})], [TEN], [TEN])


def test_calls_by_hand_are_compared_too() -> None:
    x = np.zeros(24, np.uint8)
    reverse, rows = PARTS.kernel(reverse_rows, 8, True, run=4), {"first": 3, "second": 2, "run": 4, "fault": None}
    reverse.record(x=x, y=x, lengths=np.zeros(2, np.int64), **rows)
    with pytest.raises(ShapeError, match=r"array \('lengths' of kernel reverse_\w+\): got 8 bytes, wanted 16 bytes"):
        reverse.record(x=x, y=x, lengths=np.zeros(1, np.int64), **rows)
    scatter = PARTS.kernel(scatter_rows, 8, False, run=4)
    lines = {"batches": 1, "middle": 1, "count": 1, "size": 6, "run": 4, "fault": None}
    scatter.record(new=x, y=x, starts=None, **lines)
    with pytest.raises(ShapeError, match=r"array \('new' of kernel scatter_\w+\): got none, wanted 4 bytes"):
        scatter.record(new=None, y=x, starts=None, **lines)


@native(x=PTR)
def silent(p: Any, tid: int, nthreads: int) -> None:
    """Never runs."""


def test_a_kernel_that_declares_nothing_is_no_step() -> None:
    with pytest.raises(ShapeError, match="silent: extents: got none"):
        check_steps(Add(), [Step(silent, {"x": In(0)})], [TEN], [TEN])


@native(room=PTR, each=I64, extents=lambda a: {"room": a.each * a.threads})
def shared(p: Any, tid: int, nthreads: int) -> None:
    """Never runs."""


@pytest.mark.parametrize("parallel", [False, True])
def test_workspace_has_a_part_for_each_thread(parallel: bool) -> None:
    step = Step(shared, {"room": Scratch(100), "each": 40}, parallel)
    check_steps(Add(), [step], [], [], 2)
    if parallel:
        with pytest.raises(ShapeError, match=r"workspace .*: got 100 bytes, wanted 120 bytes"):
            check_steps(Add(), [step], [], [], 3)


def test_tables_made_from_data_keep_to_what_is_there() -> None:
    kept = native(x=PTR, extents=lambda a: {"x": KEPT})(silent.body)
    check_steps(Add(), [Step(kept, {"x": In(0)})], [TEN], [TEN])
    with pytest.raises(ShapeError, match=r"operand 1 .*: got none"):
        check_steps(Add(), [Step(kept, {"x": In(1)})], [TEN], [TEN])


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (TABLE, (0, 48)),
        (TABLE[:, ::2], (0, 44)),
        (TABLE[::-1], (32, 48)),
        (TABLE[:0, ::2], (0, 0)),
        (np.broadcast_to(np.zeros(1, np.float32), (5, 5)), (0, 4)),
    ],
)
def test_what_an_array_lies_on(array: Array, wanted: tuple[int, int]) -> None:
    assert span(array) == wanted


def kinds(*shapes: tuple[int, ...]) -> list[TensorType]:
    return [TensorType(F32, shape) for shape in shapes]


def indices(*shape: int) -> TensorType:
    return TensorType(INT64, shape)


LIES = {
    "result shorter than operands": (Add(), kinds((4, 5), (4, 5)), kinds((3, 5)), "result 0"),
    "updates": (ScatterElements(), [*kinds((4, 5)), indices(3, 5), *kinds((2, 5))], kinds((4, 5)), "operand 2"),
    "indices beyond an axis": (GatherElements(axis=1), [*kinds((4, 5)), indices(5, 5)], kinds((5, 5)), "operand 0"),
    "lengths": (ReverseSequence(), [*kinds((4, 5)), indices(4)], kinds((4, 5)), "operand 1"),
    "new rows": (TensorScatter(axis=1), kinds((2, 6, 4), (1, 3, 4)), kinds((2, 6, 4)), "operand 1"),
    "starts": (TensorScatter(axis=1), [*kinds((2, 6, 4), (2, 3, 4)), indices(1)], kinds((2, 6, 4)), "operand 2"),
}


@pytest.mark.parametrize("name", LIES)
def test_operands_that_do_not_fit_are_refused(name: str) -> None:
    op, ins, outs, wrong = LIES[name]
    honest = select(op, ins)
    assert honest is not None
    with pytest.raises(ShapeError, match=f"{op.name}: {wrong} "):
        made_steps(honest, op, ins, outs, PlainContext())


def test_a_session_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `infer` lets an operand pass that is too short, planning refuses it."""
    monkeypatch.setattr(ReverseSequence, "infer", lambda self, x, lengths: TensorType(x.dtype, x.shape))
    graph = Graph("lies")
    x, lengths = graph.add_input("x", TensorType(F32, (4, 5))), graph.add_input("lengths", indices(3))
    graph.add_output(Builder(graph)(ReverseSequence(), x, lengths, name="turn"), "y")
    session = bn.compile(graph, threads=1)
    with pytest.raises(ShapeError, match=r"node 'turn': ReverseSequence: operand 1 .*: got 24 bytes, wanted 40 bytes"):
        session(np.zeros((4, 5), np.float32), np.ones(3, np.int64))


def test_a_tuner_runs_nothing_that_does_not_fit() -> None:
    op, ins, outs, _ = LIES["lengths"]
    entry = select(op, ins)
    assert entry is not None
    with pytest.raises(ShapeError, match="operand 1"):
        Tuner(2).choose(op, ins, outs, device("cpu"), entry, NodeContext(MakerContext(2, Packs(), in_order()), []))


@pytest.mark.parametrize("less", ["x", "y"])
def test_a_kernel_that_reaches_further_than_it_says_is_found(less: str) -> None:
    code = (
        "import numpy as np\n"
        "from bolt_numba.kernels.cpu.reductions.softmax import softmax_rows\n"
        "from bolt_numba.ops.arrays.reduce import Softmax\n"
        "from tests.harness import run_kernel\n"
        "run_kernel(Softmax(), [np.zeros((2, 5), np.float32)])\n"
        "said = softmax_rows.extents\n"
        f"softmax_rows.extents = lambda a: said(a) | {{{less!r}: 36}}\n"
        "print('sound', flush=True)\n"
        "run_kernel(Softmax(), [np.zeros((2, 5), np.float32)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "sound\n"), done.stderr
    assert f"behind the 36 bytes of {less!r}" in done.stderr


def test_packed_operands_of_nodes_alike_are_compared() -> None:
    """A file may hold packed weights: the gate says how far steps reach, and all are measured when they are linked."""
    packed = Packed((0,), "key", np.copy)
    step = Step(example, {"x": In(0, 4), "y": Out(), "more": packed, "n": 9})
    check_steps(Relu(), [step], [TEN], [TEN])
    slots = [Slot("w", TEN, CONST, const=np.zeros(n, np.float32)) for n in (2, 1)]
    slots = [replace(slot, type=TEN.with_value(slot.const)) for slot in slots]
    jobs = [Job("example", Relu(), device("cpu"), [slot], [], [step]) for slot in slots]
    Packs().pack(jobs[:1])
    with pytest.raises(ShapeError, match="got 4 bytes, wanted 8"):
        Packs().pack(jobs)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_tables_of_pixels_hand_over_their_greatest_row(rank: int) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(200):
        taps, strides, dilations = (tuple(rng.integers(1, 4, rank).tolist()) for _ in range(3))
        sizes, pads = tuple(rng.integers(1, 8, rank).tolist()), tuple(rng.integers(0, 5, 2 * rank).tolist())
        windows = Windows(taps, strides, dilations, pads)
        rooms = [sizes[i] + pads[i] + pads[rank + i] - windows.spans[i] for i in range(rank)]
        if min(rooms) >= 0:
            table = pixel_table(windows, sizes, tuple(r // s + 1 for r, s in zip(rooms, strides, strict=True))).table
            assert last_row(table) == table.max()
