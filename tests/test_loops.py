"""Iterations that run in one native call give what iterations one by one give, to the bit, or are left to Python."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import bolt_numba as bn
from bolt_numba import ops
from bolt_numba.devices import loops
from bolt_numba.errors import BoltError
from bolt_numba.kernels.cpu.loop import run_loop
from bolt_numba.kernels.cpu.tape import evaluate, fill
from bolt_numba.runtime import runner
from bolt_numba.runtime.runner import Runner

TRIPS = (0, 1, 2, 3, 5, 9, 40, 300)
X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)


def looping(carried: str, made: str, results: str, body: str, fed: str = "n, go") -> bytes:
    """A model of a Loop over ``X``.

    carried: what the body takes besides its number ``i`` and condition ``c``; made: what it returns behind ``d``;
    results: of the loop.  Their types and names are divided by ";".  fed: the loop's first two operands.
    """
    inner, outer = (text.replace(";", ",") for text in (carried, results))
    starts = "".join(f", {part}0" for part in carried.split(";"))
    first = "".join(f", {part.split()[-1]}0" for part in carried.split(";"))
    names = ", ".join(part.split()[-1] for part in results.split(";"))
    lines = "\n".join(line.strip() for line in body.split(";"))
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (int64 n, float[12, 4] x{starts}) => ({outer}) {{
      go = Constant <value = bool {{1}}> ()
      {names} = Loop ({fed}{first}) <body = b (int64 i, bool c, {inner}) => (bool d, {made.replace(";", ",")}) {{
        one = Constant <value = int64[1] {{1}}> ()
        zero = Constant <value = int64[1] {{0}}> ()
        long = Constant <value = int64 {{12}}> ()
        m = Mod (i, long)
        row = Gather <axis = 0> (x, m)
        {lines}
      }}>
    }}"""
    parsed: bytes = onnx.parser.parse_model(text).SerializeToString()
    return parsed


A = np.linspace(-1, 1, 4, dtype=np.float32)
ON = "; d = Identity (c)"
CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "sums": (
        looping("float[4] a", "float[4] b; float[4] s", "float[4] p; float[t, 4] q",
                "b = Add (a, row); s = Tanh (b)" + ON),
        {"a0": A},
    ),
    "change of places": (
        looping("float[4] a; float[4] b", "float[4] b2; float[4] a2; float[4] s",
                "float[4] p; float[4] q; float[t, 4] r", "s = Mul (a, row); b2 = Identity (b); a2 = Identity (a)" + ON),
        {"a0": A, "b0": A[::-1].copy()},
    ),
    "a chain": (
        looping("float[4] a; float[4] b; float[4] e", "float[4] a2; float[4] b2; float[4] e2",
                "float[4] p; float[4] q; float[4] r",
                "ab = Add (a, b); h = Mul (ab, e); a2 = Sub (row, h); b2 = Identity (a); e2 = Identity (b)" + ON),
        {"a0": A, "b0": A, "e0": A},
    ),
    "constants": (
        looping("float[1] a", "float[1] a2; float[1] s; int64 k; float[4] z",
                "float[1] p; float[t, 1] q; int64[t] r; float[t, 4] u",
                "a2 = Constant <value = float[1] {2.5}> (); s = Add (a, a); k = Identity (i);"
                "at = Constant <value = int64 {3}> (); z = Gather <axis = 0> (x, at)" + ON),
        {"a0": A[:1]},
    ),
    "until": (
        looping("int64 k", "int64 k2; int64 s", "int64 p; int64[t] q",
                "by = Constant <value = int64 {3}> (); k2 = Add (k, by); s = Mul (k, k);"
                "most = Constant <value = int64 {100}> (); d = Less (k2, most)", ", go"),
        {"k0": np.array(2)},
    ),
    "until a value that is carried": (
        looping("bool f; int64 k", "bool f2; int64 k2", "bool p; int64 q",
                "by = Constant <value = int64 {3}> (); k2 = Add (k, by);"
                "most = Constant <value = int64 {50}> (); f2 = Less (k2, most); d = Identity (f)"),
        {"f0": np.array(True), "k0": np.array(2)},
    ),
    "slices": (
        looping("float[1, 4] h; float[12, 4] y", "float[1, 4] h2; float[12, 4] y2", "float[1, 4] p; float[12, 4] q",
                "i1 = Reshape (i, one); i2 = Add (i1, one); end = Constant <value = int64[1] {100}> ();"
                "hs = Slice (x, i1, i2, zero); ht = Add (h, hs); h2 = Tanh (ht); l = Slice (y, zero, i1, zero);"
                "r = Slice (y, i2, end, zero); y2 = Concat <axis = 0> (l, h2, r)" + ON),
        {"h0": A[np.newaxis], "y0": np.zeros((12, 4), np.float32)},
    ),
    "growth": (
        looping("float[m, 4] a", "float[m2, 4] a2; float[4] s", "float[u, 4] p; float[t, 4] q",
                "r = Unsqueeze (row, zero); a2 = Concat <axis = 0> (a, r);"
                "s = Identity (row)" + ON),
        {"a0": X[:2]},
    ),
    "growth beside what changes places": (
        looping("float[m, 4] a; float[4] u; float[4] v", "float[m2, 4] a2; float[4] v2; float[4] u2; float[4] s",
                "float[w, 4] p; float[4] q; float[4] r; float[t, 4] z",
                "k = Unsqueeze (row, zero); a2 = Concat <axis = 0> (a, k); v2 = Identity (v); u2 = Identity (u);"
                "s = Identity (u)" + ON),
        {"a0": X[:2], "u0": A, "v0": A[::-1].copy()},
    ),
    "growth that is handed on late": (
        looping("float[m, 4] a; float[k, 4] b", "float[m2, 4] a2; float[k2, 4] b2", "float[u, 4] p; float[v, 4] q",
                "k3 = Unsqueeze (row, zero); a2 = Concat <axis = 0> (a, k3); b2 = Identity (a)" + ON),
        {"a0": X[:2], "b0": X[:1]},
    ),
    "sizes that are handed on": (
        looping("float[m, 4] a; float[k, 4] b", "float[m2, 4] a2; float[k2, 4] b2", "float[u, 4] p; float[v, 4] q",
                "k3 = Unsqueeze (row, zero); a2 = Concat <axis = 0> (a, k3); b2 = Mul (a, a)" + ON),
        {"a0": X[:2], "b0": X[:1]},
    ),
    "no elements": (looping("float[0] a", "float[0] b", "float[0] p", "b = Add (a, a)" + ON), {"a0": A[:0]}),
    "f64 and i32": (
        looping("double[2] a; int32[3] k", "double[2] b; int32[3] k2; int32[3] s",
                "double[2] p; int32[3] q; int32[t, 3] r", "b = Mul (a, a); k2 = Add (k, k); s = Neg (k2)" + ON),
        {"a0": np.array([0.5, 2]), "k0": np.arange(3, dtype=np.int32)},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _kernels() -> None:
    for kernel in (run_loop, evaluate, fill):
        assert kernel.address


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Iterations that ran natively, by call."""
    counts: list[int] = []
    run_ahead = loops.run_ahead

    def counted(*given: Any) -> int:
        counts.append(run_ahead(*given))
        return counts[-1]

    monkeypatch.setattr(loops, "run_ahead", counted)
    return counts


def one_by_one(model: bytes, feeds: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as patched:
        patched.setattr(Runner, "_ahead", lambda *_: False)
        session = bn.compile(model, threads=1)
        return [session.run(None, f) for f in feeds]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_iterations_in_one_call_give_the_same_bits(
    name: str, threads: int, native: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = CASES[name]
    feeds = [{"n": np.array(n), "x": X, **given} for n in TRIPS if name != "slices" or n <= len(X)]
    before = {key: np.array(value) for key, value in given.items()}
    wanted = one_by_one(model, feeds, monkeypatch)
    session = bn.compile(model, threads=threads)
    for _ in range(3):  # of bodies whose shapes vary the later runs have tapes
        native.clear()
        for number, (fed, want) in enumerate(zip(feeds, wanted, strict=True)):
            got = session.run(None, fed)
            for one, other in zip(got, want, strict=True):
                assert one.dtype == other.dtype
                assert one.shape == other.shape
                assert one.tobytes() == other.tobytes(), (name, TRIPS[number])
            assert all(np.array_equal(given[key], before[key]) for key in given)
    assert max(native, default=0) > {"slices": 1, "growth that is handed on late": -1, "no elements": -1}.get(name, 3)


def scanning(**attributes: Any) -> bytes:
    """A Scan with a state, two scanned inputs and two results."""
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["a", "u"], ["h"]), onnx.helper.make_node("Add", ["h", "v"], ["b"]),
         onnx.helper.make_node("Identity", ["u"], ["w"])],
        "body", [value(name, kind, [4]) for name in "auv"], [value(name, kind, [4]) for name in "bhw"],
    )  # fmt: skip
    node = onnx.helper.make_node("Scan", ["s", "x", "y"], ["p", "q", "r"], body=body, num_scan_inputs=2, **attributes)
    graph = onnx.helper.make_graph(
        [node], "g", [value("s", kind, [4]), value("x", kind, ["t", "k"]), value("y", kind, ["l", "m"])],
        [value("p", kind, [4]), value("q", kind, None), value("r", kind, None)],
    )  # fmt: skip
    made: bytes = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()
    return made


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [1, 0], "scan_output_directions": [0, 1]},
        {"scan_input_axes": [0, 1], "scan_output_axes": [1, -1]},
    ],
    ids=str,
)
def test_scans_give_the_same_bits(
    attributes: dict[str, Any], native: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scanning(**attributes)
    rows = np.random.default_rng(1).normal(size=(2, 200, 4)).astype(np.float32)
    feeds = []
    for count in (1, 2, 3, 17, 200):
        x, y = rows[0, :count], rows[1, :count]
        feeds.append({"s": A, "x": x, "y": y.T.copy() if "scan_input_axes" in attributes else y})
    session = bn.compile(model, threads=1)
    for fed, want in zip(feeds, one_by_one(model, feeds, monkeypatch), strict=True):
        got = session.run(None, fed)
        assert [g.tobytes() for g in got] == [w.tobytes() for w in want]
        assert [g.shape for g in got] == [w.shape for w in want]
    assert ("scan_input_axes" in attributes) == (max(native) <= 3)  # rows that are not contiguous are copied by Python


FAULTY = looping(
    "float[4] a", "float[4] b", "float[4] p",
    "past = Gather <axis = 0> (x, i); b = Add (a, past)" + ON,
)  # fmt: skip


def test_a_fault_ends_the_loop_as_iterations_one_by_one_do(native: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"n": np.array(100), "x": X, "a0": A}
    texts = []
    for is_native in (False, True):
        with monkeypatch.context() as patched:
            if not is_native:
                patched.setattr(Runner, "_ahead", lambda *_: False)
            session = bn.compile(FAULTY, threads=1)
            for _ in range(2):
                with pytest.raises(BoltError) as told:
                    session.run(None, feeds)
                texts.append(str(told.value))
        fine = session.run(None, feeds | {"n": np.array(12)})[0]  # the fault is forgotten
    assert len(set(texts)) == 1
    assert "12" in texts[0]
    assert np.allclose(fine, A + X.sum(0), atol=1e-5)
    assert max(native) > 3


def test_a_loop_of_many_iterations_comes_back_for_limits_and_interrupts(native: list[int]) -> None:
    model, given = CASES["sums"]
    session = bn.compile(model, threads=1, time_limit=0.5)
    with pytest.raises(bn.errors.TimeLimitError):
        session.run(None, {"n": np.array(1 << 40), "x": X, **given})
    assert max(native) <= loops.MOST_TRIPS


def test_what_iterations_leave_is_asked_for(native: list[int]) -> None:
    model, given = CASES["sums"]
    session = bn.compile(model, threads=1, memory_limit=1 << 20)
    with pytest.raises(bn.errors.BudgetError, match="results of its iterations"):
        session.run(None, {"n": np.array(1 << 40), "x": X, **given})


def test_what_a_call_did_not_run_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition ends the loop long before the iterations that a call had room for."""
    model, given = CASES["until"]
    kept: list[Any] = []
    take_over = loops.Iterations._take_over

    def watched(self: Any, done: int, trips: Any, *args: Any) -> None:
        take_over(self, done, trips, *args)
        kept.extend(chunks[-1] for chunks in trips.scanned)

    monkeypatch.setattr(loops.Iterations, "_take_over", watched)
    session = bn.compile(model, threads=1)
    for start in (80, -10_000, 80):  # the last begins at the pace of the second
        session.run(None, {"n": np.array(0), "x": X, **given, "k0": np.array(start)})
    assert kept
    assert all(chunk.base is None or chunk.base.nbytes <= 2 * chunk.nbytes for chunk in kept)


def test_a_loop_that_does_not_run_gives_arrays_of_its_own() -> None:
    model, given = CASES["sums"]
    session = bn.compile(model, threads=1)
    for n in (0, 5, 0):
        feeds = {"n": np.array(n), "x": X, **given}
        results = session.run(None, feeds)
        assert not any(np.shares_memory(r, a) for r in results for a in feeds.values())
        assert not any(np.shares_memory(r, other) for i, r in enumerate(results) for other in results[:i])


def test_loops_alike_make_tables_once(native: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    build = loops.Iterations.__init__
    monkeypatch.setattr(loops.Iterations, "__init__", lambda self, *given: (made.append(self), build(self, *given))[1])
    for name in ("sums", "change of places", "constants"):
        model, given = CASES[name]
        session = bn.compile(model, threads=1)
        for _ in range(3):  # until all shapes have their tapes
            session.run(None, {"n": np.array(30), "x": X, **given})
        made.clear()
        native.clear()
        wanted = [session.run(None, {"n": np.array(n), "x": X + n, **given}) for n in (30, 12, 30)]
        assert len(made) <= 1, name
        assert sum(native) >= 60, name
        fresh = bn.compile(model, threads=1)
        for n, results in zip((30, 12, 30), wanted, strict=True):
            got = fresh.run(None, {"n": np.array(n), "x": X + n, **given})
            assert [g.tobytes() for g in got] == [w.tobytes() for w in results]


def test_threads_share_a_session(native: list[int]) -> None:
    model, given = CASES["sums"]
    session = bn.compile(model, threads=1)
    counts = [7, 30, 100, 301, 1000]
    wanted = [session.run(None, {"n": np.array(n), "x": X, **given}) for n in counts]

    def one(k: int) -> bool:
        got = session.run(None, {"n": np.array(counts[k % 5]), "x": X, **given})
        return all(g.tobytes() == w.tobytes() for g, w in zip(got, wanted[k % 5], strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(200)))


def test_inner_loops_run_natively_in_outer_ones(native: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (int64 n, float[4] x) => (float[4] y, float[t, 4] z) {
      y, z = Loop (n, , x) <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] e, float[4] s) {
        e = Loop (n, , a) <body = k (int64 j, bool f, float[4] u) => (bool f2, float[4] v) {
          w = Cast <to = 1> (j)
          v = Add (u, w)
          f2 = Identity (f)
        }>
        s = Neg (e)
        d = Identity (c)
      }>
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    feeds = [{"n": np.array(20), "x": A}]
    (want,) = one_by_one(model, feeds, monkeypatch)
    got = bn.compile(model, threads=1).run(None, feeds[0])
    assert [g.tobytes() for g in got] == [w.tobytes() for w in want]
    assert sum(native) == 400


def test_a_number_of_trips_that_is_given_holds_beside_a_condition(native: list[int]) -> None:
    """The counter ends the loop after 8 trips, the caller's number before or never."""
    body = "b = Add (a, row); s = Identity (i); most = Constant <value = int64 {7}> (); d = Less (i, most)"
    model = looping("float[4] a", "float[4] b; int64 s", "float[4] p; int64[t] q", body)
    session = bn.compile(model, threads=1)
    for n in (0, 3, 8, 20, 3):
        _, numbers = session.run(None, {"n": np.array(n), "x": X, "a0": A})
        assert numbers.tolist() == [*range(min(n, 8))]


def test_bodies_run_by_kernels_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of known sizes is no node that devices choose for, however often it was planned before."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 18]> g (float[n, 1] x) => (float[1] last, float[n, 1] rows) {
            first = Constant <value_floats: floats = [1.0]> ()
            last, rows = Scan <num_scan_inputs: int = 1,
                               body: graph = body (float[1] s, float[1] v) => (float[1] t, float[1] y) {
                t = Sub (s, v)
                y = Tanh (t)
            }> (first, x)
        }""")  # fmt: skip
    session = bn.compile(model.SerializeToString(), threads=1)

    def never(self: Any, x: Any) -> Any:
        raise AssertionError("a body ran by references")

    monkeypatch.setattr(ops.Tanh, "reference", never)
    monkeypatch.setattr(runner, "later", lambda owner, key, work: None)
    for n in range(1, 30):
        last, _ = session.run(None, {"x": np.full((n, 1), 0.25, np.float32)})
        assert last.tolist() == [1 - n / 4]
