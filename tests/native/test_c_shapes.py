"""The C library at all sizes that a program was exported for: tapes, shapes of inputs and outputs, damaged tapes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.export.layout import COLUMNS, HeaderWord, ProgramTable
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.reduce import ReduceSum
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul
from bolt_numba.types import F32, I64, Array, Sym, TensorType
from tests.native import c_programs as c
from tests.native.c_programs import CError, CSession, library, needs_cc, on_this_machine, program_bytes, stress
from tests.native.nets import dense, ranged
from tests.native.test_c_library import mend, run_stress
from tests.rule_cases import graph_of, whole
from tests.test_export import attention
from tests.test_export_shapes import pictures

pytestmark = [needs_cc, on_this_machine]
MOST = 40
ROWS = [{"x": (n, 24)} for n in range(1, MOST + 1)]


@pytest.fixture(scope="module")
def ranged_bytes() -> bytes:
    return program_bytes(ranged(), shapes=ROWS, threads=2)


def set_shape(session: CSession, number: int, shape: Sequence[int]) -> None:
    session.call("set_input_shape", number, (ctypes.c_int64 * max(len(shape), 1))(*shape), len(shape))


def wanted(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    return dict(bn.compile(graph, threads=2, stand_ins=False)(feeds).items())


def held(session: CSession, graph: Graph, feeds: dict[str, Array]) -> None:
    """A session gives the shapes, before the run and behind it, and the bits of one in Python."""
    ours = wanted(graph, feeds)
    for number, name in enumerate(session.names("output")):
        assert session.info("output", number).shape == ours[name].shape
    for name, array in session.run(feeds).items():
        assert array.shape == ours[name].shape
        assert array.tobytes() == ours[name].tobytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_all_sizes_up_to_the_largest_have_the_bits_of_a_session(threads: int, ranged_bytes: bytes) -> None:
    rng = np.random.default_rng(threads)
    with CSession(ranged_bytes, threads) as session:
        assert session.info("input", 0).shape == (1, 24)
        for n in rng.permutation(2 * [*range(1, MOST + 1)]).tolist():
            set_shape(session, 0, (n, 24))
            held(session, ranged(), {"x": rng.standard_normal((n, 24), np.float32)})


def test_pictures_of_any_two_sizes() -> None:
    graph = graph_of(pictures, {"x": (1, 3, "h", "w")})
    sizes = [(h, w) for h in range(6, 30, 4) for w in range(5, 30, 6)]
    with CSession(program_bytes(graph, shapes=[{"x": (1, 3, *size)} for size in sizes], threads=2)) as session:
        for h, w in np.random.default_rng(0).permutation(sizes).tolist():
            session.resize([(1, 3, h, w)])
            held(session, graph, {"x": whole(1, 3, h, w, seed=h)})


def test_attention_of_any_two_sizes() -> None:
    """Tiles of blocks are of the height that the guards of a tape say: a program has no steps that sizes choose."""
    graph = graph_of(attention, {"x": ("n", "t", 16)})
    sizes = [(n, t) for n in range(1, 4) for t in range(1, 24)]
    data = program_bytes(graph, shapes=[{"x": (*size, 16)} for size in sizes], threads=2)
    with CSession(data) as session:
        for n, t in np.random.default_rng(0).permutation(sizes)[:20].tolist():
            session.resize([(n, t, 16)])
            held(session, graph, {"x": whole(n, t, 16, seed=t)})


def test_sizes_that_no_plan_serves_are_refused_and_change_nothing(ranged_bytes: bytes) -> None:
    with CSession(ranged_bytes) as session:
        set_shape(session, 0, (5, 24))
        for shape in ((MOST + 1, 24), (0, 24), (-1, 24), (5, 23), (1 << 62, 24), (5, 1 << 62)):
            got = f"shapes: got x {shape[0]}x{shape[1]}; wanted x 1x24; or x up to 40x24"
            with pytest.raises(CError, match=got) as caught:
                set_shape(session, 0, shape)
            assert caught.value.status == c.NO_PLAN
            assert session.info("output", 0).shape == (5, 24)
        with pytest.raises(CError, match="x: got 1 sizes, wanted 2") as caught:
            set_shape(session, 0, (5,))
        assert caught.value.status == c.ARGUMENT
        held(session, ranged(), {"x": whole(5, 24)})


def two_inputs() -> Graph:
    """Rows of x, of which as many others are chosen."""
    graph = Graph("two")
    b, n = Builder(graph), Sym("n")
    x, at = graph.add_input("x", TensorType(F32, (n, 8))), graph.add_input("at", TensorType(I64, (n,)))
    y = b(MatMul(), x, whole(8, 8))
    graph.add_output(b(Add(), b(Gather(0), y, at, name="chosen"), b(Mul(), y, np.float32(0.5))), "y")
    return graph


def test_inputs_take_their_shapes_one_after_another() -> None:
    """Until all are set, what depends on the others is refused; a shape that fits no other is, at once."""
    data = program_bytes(two_inputs(), shapes=[{"x": (n, 8), "at": (n,)} for n in range(1, 20)])
    with CSession(data) as session:
        clone = ctypes.c_void_p()
        for n in (7, 19, 2, 7):
            set_shape(session, 0, (n, 8))
            assert (session.info("input", 0).shape, session.info("input", 0).nbytes) == ((n, 8), 32 * n)
            calls = [lambda: session.info("output", 0), lambda: session.call("run"), lambda: session.find("y"),
                     lambda: session.call("bind_input", 0, None, ctypes.c_size_t(0))]  # fmt: skip
            for call in calls:
                with pytest.raises(CError, match=rf"shapes: got x {n}x8, at \d+; wanted") as caught:
                    call()
            assert caught.value.status in (c.NO_PLAN, c.ARGUMENT)
            assert library().bn_session_input(session.at, 0) is None
            assert library().bn_session_output_capacity(session.at, 0) == 0
            c.check(library().bn_session_clone(session.at, ctypes.byref(clone)))  # has the shapes of before
            assert library().bn_session_run(clone) in (c.OK, c.DATA)
            library().bn_session_destroy(clone)
            with pytest.raises(CError, match="at 20; wanted"):
                set_shape(session, 1, (20,))
            set_shape(session, 1, (n,))
            held(session, two_inputs(), {"x": whole(n, 8), "at": np.arange(n)[::-1].copy()})
        feeds = {"x": whole(7, 8), "at": np.array([0, 1, 2, 7, 0, 0, 0])}
        with pytest.raises(CError, match=r"node 'chosen': Gather: indices\[3\]: got 7, wanted -7 to 6"):
            session.run(feeds)


def test_bound_memory_has_the_size_of_the_shapes(ranged_bytes: bytes) -> None:
    with CSession(ranged_bytes) as session:
        set_shape(session, 0, (9, 24))
        x, y = whole(9, 24), np.empty((9, 24), np.float32)
        assert library().bn_session_output_capacity(session.at, 0) == y.nbytes
        with pytest.raises(CError, match="x: got 96 bytes, wanted 864"):
            session.call("bind_input", 0, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(96))
        session.call("bind_input", 0, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(x.nbytes))
        session.call("bind_output", 0, ctypes.c_void_p(y.ctypes.data), ctypes.c_size_t(y.nbytes))
        session.call("run")
        assert y.tobytes() == wanted(ranged(), {"x": x})["y"].tobytes()
        set_shape(session, 0, (8, 24))  # nothing is bound any more
        held(session, ranged(), {"x": whole(8, 24)})
        assert y.tobytes() == wanted(ranged(), {"x": x})["y"].tobytes()


def test_states_go_on_when_shapes_change() -> None:
    graph = Graph("sums")
    b, x = Builder(graph), graph.add_input("x", TensorType(F32, (Sym("n"), 3)))
    s = Value(graph.unique_name("s"), TensorType(F32, (3,)))
    total = b(Add(), s, b(ReduceSum(keepdims=False), x, np.array([0])), name="total")
    graph.add_state(s, total, np.array([0, 10, 20], F32))
    graph.add_output(b(Mul(), x, total), "y")
    ours = bn.compile(graph, threads=1, stand_ins=False)
    with CSession(program_bytes(graph, shapes=[{"x": (n, 3)} for n in range(1, 40)])) as session:
        for n in (4, 30, 1, 39, 4):
            set_shape(session, 0, (n, 3))
            x_now = whole(n, 3, seed=n)
            assert session.run({"x": x_now})["y"].tobytes() == ours(x=x_now)["y"].tobytes()
            assert session.find("s").tobytes() == ours.states["s"].tobytes()


def test_memory_does_not_grow_with_shapes(ranged_bytes: bytes) -> None:
    path = c.scratch() / "ranged"
    path.write_bytes(ranged_bytes)
    assert int(run_stress(stress(), "shapes", path, MOST)) < 1024


# --- damage ----------------------------------------------------------------------------------------------------------

TAPE = (ProgramTable.NUMBERS, ProgramTable.OPERATIONS, ProgramTable.FINDS, ProgramTable.WRITES)
ODD = (-1, 0, 1, 7, 1 << 20, 1 << 40, (1 << 62) - 1, -(1 << 63), (1 << 63) - 1)


def damaged(data: bytes, table: ProgramTable) -> Iterator[tuple[int, bytes]]:
    """Copies with an odd number in each column of some rows, whose checksum is right."""
    at, rows = struct.unpack_from("<2q", data, 8 * (HeaderWord.FIRST_TABLE + 2 * table))
    width = len(COLUMNS[table])
    for row in range(0, rows, max(rows // 12, 1)):
        for column in range(width):
            for number in ODD:
                made = bytearray(data)
                struct.pack_into("<q", made, at + 8 * (row * width + column), number)
                yield column, mend(bytes(made))


@pytest.mark.parametrize("table", TAPE, ids=lambda t: t.name)
def test_damaged_tapes_are_refused_or_give_other_numbers(table: ProgramTable, ranged_bytes: bytes) -> None:
    """No run follows: what a tape writes is where kernels read and write, as records are."""
    statuses = set()
    for _, data in damaged(ranged_bytes, table):
        try:
            with CSession(data) as session:
                for n in (1, 2, 17, MOST):
                    set_shape(session, 0, (n, 24))
                    assert session.info("output", 0).nbytes >= 0
        except CError as error:
            statuses.add(error.status)
    assert c.DAMAGED in statuses
    assert statuses <= {c.DAMAGED, c.NO_PLAN, c.NO_MEMORY}


def test_damaged_tapes_under_sanitizers(ranged_bytes: bytes) -> None:
    path = c.scratch() / "ranged.damaged"
    path.write_bytes(ranged_bytes)
    program = stress("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    run_stress(program, "mutants", path, 300, 5, env={"ASAN_OPTIONS": "allocator_may_return_null=1"})
    run_stress(program, "shapes", path, MOST)


def test_dense_of_many_rows_is_one_program_for_all_threads() -> None:
    data = program_bytes(dense(), shapes=[{"x": (n, 256)} for n in range(1, 70)], threads=3)
    for threads in (1, 3):
        with CSession(data, threads) as session:
            for n in (69, 1, 33, 68, 2):
                session.resize([(n, 256)])
                held(session, dense(), {"x": whole(n, 256, seed=n) / 8})
