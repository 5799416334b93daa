"""Tapes go on where data decide sizes: they give what the interpreter gives, whatever the data say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest

import bolt_numba as bn
from bolt_numba.base.follow import Trail, pure
from bolt_numba.base.turns import hurry, is_wanted
from bolt_numba.devices.tape_code import TapeCode
from bolt_numba.errors import BudgetError
from bolt_numba.ir.interpret import interpret
from bolt_numba.runtime import tape
from bolt_numba.runtime.runner import FEW_PASSES, Runner
from bolt_numba.runtime.tape import Tape
from bolt_numba.types import Array

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
CONSTANTS = """
    zero = Constant <value = float {0.0}> ()
    i0 = Constant <value = int64[1] {0}> ()
    i1 = Constant <value = int64[1] {1}> ()
    m1 = Constant <value = int64[1] {-1}> ()
    s0 = Constant <value = int64 {0}> ()
    s1 = Constant <value = int64 {1}> ()
"""
COUNTED = """
    p = Greater (x, zero)
    ones = Cast <to = 7> (p)
    count = ReduceSum <keepdims = 0> (ones)
    c1 = Reshape (count, i1)
    flat = Reshape (x, m1)
"""
MODELS = {
    "NonZero": ("float[r, c] y, int64[2] size, int64[2, k] ids", """
        p = Greater (x, zero)
        ids = NonZero (p)
        rows = Transpose (ids)
        found = GatherND (x, rows)
        pos = Relu (found)
        y = Unsqueeze (pos, i1)
        size = Shape (y)
    """),
    "Compress": ("float[k, 6] y, float[k, 6] z, float[m, 6] all", """
        sums = ReduceSum <keepdims = 0> (x, i1)
        p = Greater (sums, zero)
        kept = Compress <axis = 0> (x, p)
        ks = Compress <axis = 0> (sums, p)
        k2 = Unsqueeze (ks, i1)
        y = Mul (kept, k2)
        z = Transpose <perm = [0, 1]> (kept)
        all = Concat <axis = 0> (y, x)
    """),
    "Unique": ("float[k] y, float[k] z, int64[k] first", """
        u, first, inverse, counts = Unique <sorted = 1> (x)
        y = Add (u, u)
        real = Cast <to = 1> (counts)
        z = Mul (real, u)
    """),
    "TopK": ("float[k] y, int64[k] places, float[m] all", COUNTED + """
        y, places = TopK (flat, c1)
        all = Concat <axis = 0> (y, flat)
    """),
    "Slice and Range": ("float[k] y, float[k] z, int64[k] numbers", COUNTED + """
        y = Slice (flat, i0, c1)
        numbers = Range (s0, count, s1)
        z = Gather (flat, numbers)
    """),
}  # fmt: skip
LOOP = """
    t = Constant <value = bool {1}> ()
    e = Constant <value = int64[0] {}> ()
    i2 = Constant <value = int64[1] {2}> ()
    start = Slice (x, i0, i0, i0)
    shape = Shape (x)
    first = Gather (shape, i0)
    trips = Reshape (first, e)
    grown, parts, same = Loop (trips, t, start) <body = b (int64 i, bool go, float[g, c] so_far) =>
      (bool on, float[h, c] more, float[k] part, float[2] sizes) {
        row = Gather (x, i)
        q = Greater (row, zero)
        chosen = Compress <axis = 0> (row, q)
        squares = Mul (chosen, chosen)
        part = Slice (squares, i0, i2)
        any = ReduceMax <keepdims = 1> (row)
        two = Unsqueeze (row, i0)
        rows = Concat <axis = 0> (two, two, two, two, two, two)
        added = Compress <axis = 0> (rows, q)
        more = Concat <axis = 0> (so_far, added)
        len = Shape (squares)
        real = Cast <to = 1> (len)
        sizes = Concat <axis = 0> (real, any)
        on = Identity (go)
      }>
"""


def parsed(outputs: str, body: str) -> bytes:
    text = f"{HEAD} g (float[n, 6] x) => ({outputs}) {{ {CONSTANTS} {body} }}"
    made: bytes = onnx.parser.parse_model(text).SerializeToString()
    return made


def runners(runner: Runner) -> Iterator[Runner]:
    """A runner, those of its bodies, and those behind its cuts."""
    yield runner
    inner = [*runner.bodies.values(), *(p.rest for p in runner.prepared.values() if p.rest is not None)]
    for other in inner:
        yield from runners(other)


def settle(session: Any) -> None:
    """Have all tapes that are on their way."""
    for runner in list(runners(session._runner)):
        for tapes in list(runner.tapes.values()):
            if is_wanted(tapes):
                hurry(tapes, 60.0)


def told(session: Any) -> tuple[int, int]:
    """Runs that tapes with stops served to the end, and that they left at one."""
    tapes = [tape for r in runners(session._runner) for t in r.tapes.values() for tape in t.tapes if tape.stops]
    return sum(t.served for t in tapes), sum(t.stopped for t in tapes)


def draw(rng: np.random.Generator, number: int) -> Array:
    """Whole numbers, so that sums are exact: mostly of 12 rows; at times all are chosen, and at times none."""
    rows = 12 if number % 3 else int(rng.choice([1, 2, 5, 7, 20, 50]))
    shift = rng.choice([-40, -1, 0, 0, 0, 0, 0, 1, 40])
    return np.round(3 * rng.normal(size=(rows, 6)) + shift).astype(np.float32)


def hold_to_interpreter(model: bytes, threads: int, runs: int = 60) -> tuple[int, int]:
    session, graph, rng = bn.compile(model, threads=threads), bn.load(model), np.random.default_rng(0)
    for number in range(runs):
        x = draw(rng, number)
        for got, want in zip(session.run(None, {"x": x}), interpret(graph, {"x": x}).values(), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (number, x.shape)
            np.testing.assert_array_equal(got, want)
        settle(session)
    return told(session)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_sizes_by_data(name: str, threads: int) -> None:
    served, stopped = hold_to_interpreter(parsed(*MODELS[name]), threads)
    assert served >= 20, "tapes serve most runs"
    assert stopped or name == "Unique", "what the tapes do not hold for goes on elsewhere"


@pytest.mark.parametrize("threads", [1, 2])
def test_iterations_of_sizes_by_data(threads: int) -> None:
    """A value grows by what data choose, and rows are of a size that two sizes by data have in common."""
    model = parsed("float[k, 6] grown, float[n, p] parts, float[n, 2] same", LOOP)
    session, graph, rng = bn.compile(model, threads=threads), bn.load(model), np.random.default_rng(0)
    for number in range(60):
        x = draw(rng, number)
        x[:, :3] = np.abs(x[:, :3]) + 1  # at least three of a row are chosen, but in some runs
        x[0, 1:] = -1 if number % 8 == 7 and len(x) == 1 else x[0, 1:]
        for got, want in zip(session.run(None, {"x": x}), interpret(graph, {"x": x}).values(), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (number, x.shape)
            np.testing.assert_array_equal(got, want)
        settle(session)
    tapes = [tape for r in runners(session._runner) for t in r.tapes.values() for tape in t.tapes if tape.stops]
    assert any(tape.ahead >= 100 for tape in tapes), "iterations run natively"


def test_a_session_that_is_closed_during_a_run_makes_no_tape_of_the_graph_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would have no results."""
    session, x, run_cut = bn.compile(parsed(*MODELS["NonZero"]), threads=1), np.eye(6, dtype=np.float32), Runner.run_cut
    wanted = session.run(None, {"x": x})

    def closed(self: Runner, cut: Any, results: Any) -> Any:
        session.close()  # as another thread does
        return run_cut(self, cut, results)

    for _ in range(FEW_PASSES - 2):
        session.run(None, {"x": x})
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run_cut", closed)
        session.run(None, {"x": x})
    for rows in (x, x[:3], x):
        settle(session)
        assert len(session.run(None, {"x": rows})) == len(wanted)


@pytest.mark.parametrize("name", ["NonZero", "Compress"])
def test_runs_into_buffers_go_on_where_data_decide_and_behind_a_stop(name: str) -> None:
    """The plan that buffers were chosen for is that of the run's begin alone."""
    model, rng = parsed(*MODELS[name]), np.random.default_rng(0)
    session, graph = bn.compile(model, threads=1), bn.load(model)
    for number in range(50):
        x = draw(rng, number)
        wanted = interpret(graph, {"x": x})
        buffers = {key: np.full_like(value, 7) for key, value in wanted.items()}
        session.run_into({"x": x}, buffers)
        for key, value in wanted.items():
            np.testing.assert_array_equal(buffers[key], value)
        settle(session)
    assert all(told(session))


LIMITED = """
    y = Slice (flat, i0, c1)
    numbers = Range (s0, count, s1)
    z = Gather (flat, numbers)
    size = Shape (flat)
    wide = Concat <axis = 0> (size, i1)
    big = Expand (flat, wide)
"""


@pytest.mark.parametrize("results", ["float[h, w] big, float[k] y", "float[k] y, float[k] z, int64[k] numbers"])
def test_runs_with_stops_keep_to_the_limit_of_memory(results: str) -> None:
    """Results of sizes that inputs say count, and those that data say count together."""
    model, limit = parsed(results, COUNTED + LIMITED), 1 << 16 if "big" in results else 30 << 10
    session, ended = bn.compile(model, threads=1, memory_limit=limit), dict[tuple[bool, bool], bool]()
    for number in range(40):
        is_large, are_all = number > 12 and number % 2 == 0, number <= 12 or number % 3 == 0
        x = np.full((400 if is_large else 4, 6), 1 if are_all else -1, np.float32)
        x[0, 0] = 1
        found, wanted = (is_refused(one, x) for one in (session, bn.compile(model, threads=1, memory_limit=limit)))
        assert found <= wanted, number  # a plan that ends where data decide takes more than a tape that goes on
        ended[is_large, are_all] = found
        settle(session)
    assert ended[True, True]
    assert not ended[False, False]
    assert told(session)[0] >= 10


def is_refused(session: Any, x: Array) -> bool:
    try:
        session.run(None, {"x": x})
    except BudgetError:
        return True
    return False


def test_reports_and_profiles_tell_what_runs_behind_a_stop() -> None:
    session, x = bn.compile(parsed(*MODELS["Compress"]), threads=1), draw(np.random.default_rng(0), 1)
    before = [row["op"] for _ in range(3) if session.run(None, {"x": x}) for row in session.report()]
    for _ in range(20):
        session.run(None, {"x": x})
        settle(session)
    assert told(session)[0]
    rows = session.report()
    assert {row["op"] for row in rows} >= {*before}
    assert any("?" in row["output"] for row in rows)
    assert {row.op for row in session.profile({"x": x}, runs=2).rows} >= {"NonZero", "Mul"}


def test_profiles_and_reports_know_a_tape_that_ends_sooner_than_its_plans() -> None:
    """At an If of a size, which a plan knows: it goes on to NonZero, with other values at its cut."""
    graph = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[n, 4] x) => (float[n, 4] y, int64[2, k] ids, float[m] flat) {
            c = Constant <value = int64 {5}> ()
            zero = Constant <value = float {0.0}> ()
            m1 = Constant <value = int64[1] {-1}> ()
            i0 = Constant <value = int64 {0}> ()
            size = Shape (x)
            n0 = Gather (size, i0)
            small = Less (n0, c)
            y = If (small) <
                then_branch = t () => (float[n, 4] a) { a = Relu (x) },
                else_branch = e () => (float[n, 4] b) { b = Neg (x) }
            >
            z = Add (y, x)
            p = Greater (z, zero)
            ids = NonZero (p)
            flat = Reshape (z, m1)
        }""").SerializeToString()  # fmt: skip
    session, rng = bn.compile(graph, threads=1), np.random.default_rng(0)
    for n in (1, 2, 3, 4, 6, 7, 8, 9, 6, 7, 8, 3, 2, 9):
        x = rng.standard_normal((n, 4)).astype(np.float32)
        session(x)
        rows = session.profile(x, runs=1).rows
        assert [row.op for row in rows].count("NonZero") == 1
        assert [row["op"] for row in session.report()].count("NonZero") == 1
        z = np.where(n < 5, np.maximum(x, 0), -x) + x
        np.testing.assert_array_equal(session(x)["flat"], z.reshape(-1))
    assert any(t.cut is not None for tapes in session._runner.tapes.values() for t in tapes.tapes)


def test_slices_of_no_rows_are_interpreted_as_sessions_run_them() -> None:
    text = f"""{HEAD} g (float[k, 2] x) => (float[m, 2] y, float[l, 2] z) {{ {CONSTANTS}
        big = Constant <value = int64[1] {{9223372036854775807}}> ()
        tail = Slice (x, i1, big)
        y = Neg (tail)
        head = Slice (x, i0, m1)
        z = Concat <axis = 0> (tail, head, x)
    }}"""
    model = onnx.parser.parse_model(text).SerializeToString()
    for rows in (0, 1, 3):
        x = np.ones((rows, 2), np.float32)
        got, want = bn.compile(model).run(None, {"x": x}), interpret(bn.load(model), {"x": x}).values()
        assert [a.shape for a in got] == [a.shape for a in want]
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_python_gives_a_later_stage_goes_with_objects_of_earlier_ones() -> None:
    """An object of other sizes, and the later stage reads the same numbers: what it gave holds no longer."""

    @pure
    def rows(n: int) -> tuple[int, ...]:
        return tuple(range(n))

    @pure
    def total(row: tuple[int, ...], n: int) -> int:
        return sum(row) + n

    trail = Trail()
    made = total(rows(trail.number("n0_0", 3)), trail.number("n1_0", 5, 1))
    code = TapeCode(trail, ["n0_0", "n1_0"], [made])

    def run(first: int, second: int) -> int:
        """As runs do: later stages keep what Python gave as long as they read the same."""
        found = code.at([first])
        assert found is not None
        registers, objects, reads = found
        registers[2] = second
        if registers[code.stages[1].reads].tobytes() != reads[1]:
            assert code.by_parts(1, registers, objects, reads) is not None
        return int(registers[code.register(made)])

    assert [run(3, 5), run(4, 5), run(4, 6), run(4, 6), run(3, 6)] == [8, 11, 12, 12, 9]


def test_one_large_run_is_not_paid_for_by_those_that_follow() -> None:
    session = bn.compile(parsed(*MODELS["Compress"]), threads=1, stand_ins=False)
    for rows in (10, 11, 12, 13, 14, 20_000, 20_000, *[12] * 20):
        (y, *_) = session.run(None, {"x": np.ones((rows, 6), np.float32)})
        assert y.shape == (rows, 6)
        settle(session)
        ((found,),) = [t.tapes or [None] for t in session._runner.tapes.values()]
        if found is not None and rows == 20_000:
            assert sum(found.program.stages.rooms.values()) >= 3 * y.nbytes
    assert found.served > 20
    stages = found.program.stages
    assert max(*stages.rooms.values(), stages.arena_nbytes) < 10_000


SCALED = """
    z = Resize <mode = "nearest"> (x, , s)
    flat = Reshape (z, m1)
    p = Greater (flat, zero)
    kept = Compress (flat, p)
    y = Mul (kept, kept)
"""


def scaled(count: int) -> Any:
    """What came of runs that go on behind cuts, as often as tapes want, for content that no tape follows."""
    text = f"{HEAD} g (float[1, 1, h, w] x, float[4] s) => (float[k] y) {{ {CONSTANTS} {SCALED} }}"
    session = bn.compile(onnx.parser.parse_model(text).SerializeToString(), threads=1, stand_ins=False)
    for number in range(count):
        scales = np.array([1, 1, 1 + number / 8, 2], np.float32)
        for _ in range(FEW_PASSES):
            session.run(None, {"x": np.ones((1, 1, 8, 8), np.float32), "s": scales})
            settle(session)
    (tapes,) = session._runner.tapes.values()
    return tapes


def test_tapes_for_content_that_comes_again_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "MOST_TAPES", 3)
    assert len(scaled(9).tapes) == 3


def test_no_tape_is_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape, "MOST_TAPES", 1)
    monkeypatch.setattr(tape, "MOST_REFUSED", 8)
    monkeypatch.setattr(Tape, "__init__", lambda *args: 1 // 0)
    assert 8 <= len(scaled(16).refused) <= 8 + 4  # the one try that follows plans may come last


GRID = """
    weight = Constant <value = float[2, 3, 1, 1] {0.5, 1.25, -2.0, 3.0, 0.75, -0.125}> ()
    i2 = Constant <value = int64 {2}> ()
    i3 = Constant <value = int64 {3}> ()
    row = Constant <value = int64[2] {1, -1}> ()
    col = Constant <value = int64[2] {-1, 1}> ()
    pairs = Constant <value = int64[3] {2, -1, 2}> ()
    start = Constant <value = FLOAT {START}> ()
    step = Constant <value = FLOAT {STEP}> ()
    part = Constant <value = FLOAT {PART}> ()
    half = Constant <value = FLOAT {0.5}> ()
    f = Conv <strides = [2, 2]> (x, weight)
    shape = Shape (f)
    height = Gather (shape, i2)
    width = Gather (shape, i3)
    high = Cast <to = TO> (height)
    wide = Cast <to = TO> (width)
    top = Mul (high, part)
    right = Mul (wide, part)
    down = Range (start, top, step)
    along = Range (start, right, step)
    ys = Add (down, half)
    xs = Add (along, half)
    yc = Reshape (ys, col)
    xr = Reshape (xs, row)
    ny = Shape (down)
    nx = Shape (along)
    sides = Concat <axis = 0> (ny, nx)
    yy = Expand (yc, sides)
    xx = Expand (xr, sides)
    y1 = Unsqueeze (yy, m1)
    x1 = Unsqueeze (xx, m1)
    places = Concat <axis = -1> (x1, y1)
    narrow = Cast <to = 1> (places)
    twice = Concat <axis = 0> (narrow, narrow)
    y = Reshape (twice, pairs)
    size = Size (f)
    real = Cast <to = 1> (size)
    across = Cast <to = 1> (wide)
    flat = Reshape (f, m1)
    mean = Div (flat, real)
    z = Div (mean, across)
"""
"""Places of pixels, as detectors make them, and what else is divided by the same floats."""


def grid(start: str, step: str, kind: str = "float", part: str = "1.0") -> bytes:
    body = GRID.replace("START", start).replace("STEP", step).replace("PART", part).replace("FLOAT", kind)
    body = body.replace("TO", "1" if kind == "float" else "11")
    if part == "1.0":
        body = body.replace("Mul (high, part)", "Identity (high)").replace("Mul (wide, part)", "Identity (wide)")
    text = f"{HEAD} g (float[1, 3, h, w] x) => (float[2, p, 2] y, float[k] z) {{ {CONSTANTS} {body} }}"
    made: bytes = onnx.parser.parse_model(text).SerializeToString()
    return made


def as_fresh(session: Any, model: bytes, rng: np.random.Generator, runs: int) -> None:
    """Runs of random sizes have the bits of sessions that have seen no other."""
    for _ in range(runs):
        x = rng.standard_normal((1, 3, *rng.integers(20, 90, 2))).astype(np.float32)
        made, wanted = (one.run(None, {"x": x}) for one in (session, bn.compile(model, threads=1)))
        for got, want in zip(made, wanted, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), x.shape
            assert got.tobytes() == want.tobytes(), x.shape
        settle(session)


@pytest.mark.parametrize(
    ("start", "step", "kind", "runs"),
    [
        ("0.0", "1.0", "float", 30), ("0.5", "1.0", "float", 8), ("-3.0", "2.0", "float", 8),
        ("90.0", "-0.3", "double", 8),
    ],
)  # fmt: skip
def test_floats_made_of_sizes_are_ends_of_ranges(start: str, step: str, kind: str, runs: int) -> None:
    model, rng = grid(start, step, kind), np.random.default_rng(7)
    session = bn.compile(model, threads=1)
    as_fresh(session, model, rng, 8)
    (tapes,) = [tapes for runner in runners(session._runner) for tapes in runner.tapes.values()]
    planned, served = tapes.misses, tapes.hits
    as_fresh(session, model, rng, runs)
    assert (tapes.misses, tapes.hits) == (planned, served + runs), "tapes serve all new sizes"
    assert all(tape.cut is None for tape in tapes.tapes)


def test_ends_of_ranges_that_are_not_whole_are_right() -> None:
    model = grid("0.0", "1.0", part="0.5")
    as_fresh(bn.compile(model, threads=1), model, np.random.default_rng(3), 14)


@pytest.mark.parametrize(("kind", "digits"), [("float", 24), ("double", 53)])
def test_ends_of_ranges_are_what_floats_hold(kind: str, digits: int) -> None:
    """f32 rounds 2^24 + 1: from 2^24 on a tape of whole numbers holds no more."""
    body = f"""
        real = Cast <to = {1 if kind == "float" else 11}> (n)
        zero = Constant <value = {kind} {{0.0}}> ()
        step = Constant <value = {kind} {{65536.0}}> ()
        y = Range (zero, real, step)
    """
    model = onnx.parser.parse_model(f"{HEAD} g (int64 n) => ({kind}[k] y) {{ {body} }}").SerializeToString()
    session = bn.compile(model, threads=1)
    for n in (70_000, 10, 200_000, 1_000_000, 5_000_000, 9_000_000):
        wanted = np.arange(0, n, 65536).astype("f4" if kind == "float" else "f8")
        np.testing.assert_array_equal(session.run(None, {"n": np.array(n)})[0], wanted)
        settle(session)
    (made,) = [tape for tapes in session._runner.tapes.values() for tape in tapes.tapes]
    assert made.cut is None
    least, few = 1 << digits, 1 << 20
    arithmetic = made.program.tape
    assert arithmetic.at([few]) is not None
    assert arithmetic.at([least]) is None
    assert arithmetic.at([least + 1]) is None
