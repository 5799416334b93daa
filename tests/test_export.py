"""Models that leave Python: native programs, run from their tables alone; files and libraries with them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.cli.app import run
from bolt_numba.cli.options import read_sets, read_shapes
from bolt_numba.errors import BoltError, DeviceError, InvalidModelError, ShapeError
from bolt_numba.export.elf import Jump, Symbol, object_file
from bolt_numba.export.exporting import with_fixed, with_kept
from bolt_numba.export.layout import HeaderWord, ProgramTable, ValueKind
from bolt_numba.export.program import native_program
from bolt_numba.export.tables import rows_of
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ir.trailer import programs_behind
from bolt_numba.kernels.instructions.isa import target
from bolt_numba.kernels.machine_code import STUBS, X86_64, blob_of, blob_parts
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import Det, ReduceMax, Softmax, TopK
from bolt_numba.ops.arrays.shape import Reshape, Transpose
from bolt_numba.ops.layers.attention.cache import GroupQueryAttention
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Cast, Relu
from bolt_numba.types import F32, I32, I64, Sym, TensorType
from tests.graphs import graphs
from tests.native_programs import Interpreter
from tests.rule_cases import graph_of, whole
from tests.test_states import growing
from tests.test_targets import network

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
pytestmark = pytest.mark.skipif(not target().is_x86, reason="programs that need no linker are of x86-64")


def attention(b: Builder, x: Value) -> Value:
    """A head of a transformer's attention, with weights and a residual."""
    q, k, v = (b(MatMul(), x, whole(16, 16, seed=i) / 16) for i in range(3))
    scores = b(Softmax(-1), b(MatMul(), q, b(Transpose((0, 2, 1)), k)))
    return b(Add(), x, b(MatMul(), scores, v))


def same(graph: Graph, feeds: dict[str, Any], **options: Any) -> bytes:
    """The block of a graph, which gives the bits of a session."""
    made = native_program(graph, shapes=[{k: np.shape(a) for k, a in feeds.items()}], **options)
    block = made.block.tobytes()
    got = Interpreter(block).run(feeds)
    for name, wanted in bn.compile(graph, threads=1, stand_ins=False)(feeds).items():
        assert got[name].shape == wanted.shape
        assert got[name].tobytes() == wanted.tobytes()
    return block


def test_a_network_runs_from_its_tables_alone() -> None:
    graph = bn.load(DIGITS)
    same(graph, {"image": np.random.default_rng(0).random((3, 1, 8, 8), np.float32)}, threads=2)


def test_a_transformer_and_its_shapes() -> None:
    graph = graph_of(attention, {"x": ("n", "t", 16)})
    made = native_program(graph, shapes=[{"x": (n, t, 16)} for n, t in ((1, 7), (2, 5), (1, 7))], threads=2)
    program = Interpreter(made.block.tobytes())
    session = bn.compile(graph, threads=2, stand_ins=False)
    for n, t in ((2, 5), (1, 7)):
        x = np.random.default_rng(t).standard_normal((n, t, 16), np.float32)
        assert program.run({"x": x})["out0"].tobytes() == session(x)[0].tobytes()
    with pytest.raises(LookupError):
        program.run({"x": np.zeros((3, 3, 16), np.float32)})


def test_plans_share_weights_and_kernels() -> None:
    graph = graph_of(attention, {"x": ("n", 7, 16)})
    one, two = (native_program(graph, shapes=[{"x": (n, 7, 16)} for n in sizes]) for sizes in ((32,), (32, 33, 34)))
    assert one.kernels == two.kernels
    alone, shared = (list(rows_of(made.block.tobytes(), ProgramTable.ARRAYS)) for made in (one, two))
    assert alone == shared[: len(alone)]
    assert len(shared) < len(alone) + 4  # tables of one size each


def test_a_network_of_bytes() -> None:
    def build(b: Builder, x: Value) -> Value:
        scale, zero = np.float32(0.05), np.int8(3)
        given = b(DequantizeLinear(), b(QuantizeLinear(), x, scale, zero), scale, zero)
        weight = b(DequantizeLinear(), (whole(24, 40, seed=2) * 5).astype(np.int8), np.float32(0.01), np.int8(0))
        return b(DequantizeLinear(), b(QuantizeLinear(), b(MatMul(), given, weight), scale, zero), scale, zero)

    same(graph_of(build, {"x": (6, 24)}), {"x": whole(6, 24, seed=5)})


def test_results_that_no_step_makes_are_copies() -> None:
    graph = graph_of(lambda b, x: (x, b(Relu(), x), b.const(whole(3, seed=1)), x), {"x": (4, 5)})
    same(graph, {"x": whole(4, 5, seed=2)})


def test_a_constant_result_is_whole() -> None:
    without_memory = np.broadcast_to(np.float32(2), (3, 5))
    graph = graph_of(lambda b, x: (b(Relu(), x), b.const(without_memory)), {"x": (4,)})
    same(graph, {"x": whole(4, seed=2)})


@settings(max_examples=5, deadline=None, derandomize=True)
@given(graph=graphs(), rows=st.integers(1, 5))
def test_random_graphs(graph: Graph, rows: int) -> None:
    same(graph, {v.name: whole(rows, 4, seed=i) for i, v in enumerate(graph.inputs)})


def test_states_are_values_of_their_own_kind() -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)})
    b, before = Builder(graph), Value("before", TensorType(F32, (4,)))
    after = b(Add(), before, graph.inputs[0])
    graph.add_output(after, "sum")
    graph.add_state(before, after, np.arange(4, dtype=np.float32))
    block = native_program(graph).block.tobytes()
    found = Interpreter(block).run({"x": np.ones(4, np.float32)})
    assert found["sum"].tolist() == found["before/next"].tolist() == [1, 2, 3, 4]
    kinds = [row[1] for row in rows_of(block, ProgramTable.VALUES)]
    assert kinds == [ValueKind.INPUT, ValueKind.STATE_IN, ValueKind.OUTPUT, ValueKind.OUTPUT, ValueKind.STATE_OUT]


def test_indices_out_of_range_are_faults() -> None:
    graph = graph_of(lambda b, x, i: b(Gather(0), x, i), {"x": (9, 4), "i": (I64, 3)})
    block = same(graph, {"x": whole(9, 4, seed=1), "i": np.array([8, 0, -1])})
    with pytest.raises(LookupError, match=r"Gather: indices: got 9, wanted -9 to 8"):
        Interpreter(block).run({"x": whole(9, 4, seed=1), "i": np.array([8, 9, 3])})


def test_a_decoder_appends_to_its_cache() -> None:
    """One plan serves all lengths that fit into the buffers; a longer one is refused."""

    def build(b: Builder, *operands: Value) -> Any:
        return b(GroupQueryAttention(2, 2), *operands)

    caches = dict.fromkeys(("past_k", "past_v"), (1, 2, 16, 8))
    sizes = dict.fromkeys("qkv", (1, 1, 16)) | caches | {"lengths": (I32, 1), "total": (I32, 1)}
    graph, rng = graph_of(build, sizes), np.random.default_rng(2)
    given = {name: rng.standard_normal(sizes[name], np.float32) for name in (*"qkv", *caches)}
    session, program = bn.compile(graph, threads=1), Interpreter(native_program(graph).block.tobytes())
    for total in (1, 5, 16):
        feeds = given | {"lengths": np.array([total - 1], np.int32), "total": np.array([total], np.int32)}
        found = program.run(feeds)
        assert all(found[name].tobytes() == wanted.tobytes() for name, wanted in session(feeds).items())
    with pytest.raises(LookupError, match=r"seqlens_k: got 16, wanted 0 to 15"):
        program.run(given | {"lengths": np.array([16], np.int32), "total": np.array([17], np.int32)})


def test_the_block_has_no_address_and_is_the_same_every_time() -> None:
    graph = bn.load(DIGITS)
    one, two = (native_program(graph, threads=2).block.tobytes() for _ in range(2))
    assert one == two


@pytest.mark.skipif(target().name == "generic", reason="this processor has no lower instruction set")
def test_a_lower_instruction_set() -> None:
    graph, x = graph_of(network, {"x": (9, 20)}), whole(9, 20)
    made = native_program(graph, target="x86-64")
    got = Interpreter(made.block.tobytes()).run({"x": x})["out0"]
    np.testing.assert_allclose(got, bn.compile(graph)(x)[0], rtol=1e-5, atol=1e-5)
    assert made.planned.cpu.isa.level == "x86-64"


# --- what cannot leave Python ----------------------------------------------------------------------------------------


def test_all_that_needs_python_is_one_error() -> None:
    def build(b: Builder, x: Value) -> Value:
        found = b(Det(), x), b(Det(), b(Relu(), x))
        return *found, b(TopK(0), x, b(Reshape(), b(Cast(I64), b(ReduceMax(), x)), np.array([1])))[0]

    with pytest.raises(BoltError, match=r"got 3 nodes that have no native steps:\n.*Det.*\n.*Det.*\n.*TopK.*data"):
        native_program(graph_of(build, {"x": (2, 3, 3, 3)}))


def test_states_that_grow_are_refused() -> None:
    begins = {"past": np.empty((0, 4), F32)}
    graph = surgery.with_states(growing(), {"past": "present", "count": "more"}, initial=begins)
    with pytest.raises(bn.ShapeError, match=r"state 'past': got \[0, 4\] at first and \[1, 4\] after a run, wanted"):
        native_program(graph)


def test_inputs_that_decide_shapes_are_to_be_fixed() -> None:
    graph = graph_of(lambda b, x, s: b(Relu(), b(Reshape(), x, s)), {"x": (4, 6), "s": (I64, 2)})
    with pytest.raises(BoltError, match="'s', wanted them fixed"):
        native_program(graph)
    fixed = with_fixed(graph, {"s": [3, 8]})
    assert [v.name for v in fixed.inputs] == ["x"]
    same(fixed, {"x": whole(4, 6, seed=1)})
    with pytest.raises(BoltError, match="input: got 'z', wanted one of x, s"):
        with_fixed(graph, {"z": 1})
    with pytest.raises(ShapeError, match=r"input 's': got shape \[3\], wanted"):
        with_fixed(graph, {"s": [1, 2, 3]})
    with pytest.raises(BoltError, match="a number is no integer"):
        with_fixed(graph, {"s": [1.5, 2]})


def test_unknown_targets_and_names_are_refused(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)})
    with pytest.raises(DeviceError, match=r"target: got 'sparc', wanted one of native, x86-64-v4"):
        native_program(graph, target="sparc")
    with pytest.raises(BoltError, match="--keep: got 'nothing'"):
        with_kept(graph, ["nothing"])
    with pytest.raises(BoltError, match="weights_in: got 'cloud'"):
        bn.export_model(graph, tmp_path / "x", weights_in="cloud")
    with pytest.raises(BoltError, match="--keep: got 'x', wanted the name of an intermediate value"):
        with_kept(graph, ["x"])
    for option in ({"one_file": True}, {"weights_in": "file"}, {"cc": "cc"}, {"name": "y"}):
        with pytest.raises(BoltError, match=f"x.bolt: {next(iter(option))}: got a value for a file"):
            bn.export_model(graph, tmp_path / "x.bolt", **option)
    for name in ("net.so", "net.onnx"):
        with pytest.raises(BoltError, match=r"net.*: output: got '\.\w+', wanted a folder, a \.bolt or a "):
            bn.export_model(graph, tmp_path / name)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BoltError, match="cc: got a value for one C source"):
        bn.export_model(graph, tmp_path / "x", cc="cc", one_file=True)


def test_targets_whose_vectors_this_processor_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)})
    monkeypatch.setattr("bolt_numba.kernels.instructions.processor.processor", lambda: ("old", frozenset({"sse2"}), ()))
    with pytest.raises(DeviceError, match="target: got 'avx2', wanted one whose vectors this processor has"):
        native_program(graph, target="avx2")


def test_kept_values_are_given() -> None:
    graph = graph_of(lambda b, x: b(Relu(), b(Add(), x, np.float32(1), name="inner")), {"x": (4,)})
    name = graph.nodes[0].output.name
    kept = with_kept(graph, [name])
    block = native_program(kept, kept=[name]).block.tobytes()
    assert [row[1] for row in rows_of(block, ProgramTable.VALUES)][-1] == ValueKind.KEPT
    x = np.array([-3, -1, 0, 1], np.float32)
    assert Interpreter(block).run({"x": x})[name].tolist() == [-2, 0, 1, 2]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_bolt_file_has_the_graph_and_the_program(tmp_path: Path) -> None:
    path, x = tmp_path / "digits.bolt", np.random.default_rng(1).random((2, 1, 8, 8), np.float32)
    told = bn.export_model(DIGITS, path, shapes=[{"image": (2, 1, 8, 8)}], threads=1)
    raw = path.read_bytes()
    ((at, nbytes),) = programs_behind(np.frombuffer(raw, np.uint8), struct.unpack_from("<Q", raw, 32)[0])
    assert (at % 4096, at + nbytes + 64, told.files, told.built) == (0, len(raw), [path], [])
    wanted = bn.compile(path, threads=1)(x)[0]
    assert Interpreter(raw[at : at + nbytes]).run({"image": x})["probabilities"].tobytes() == wanted.tobytes()


def test_a_file_has_a_program_for_each_target(tmp_path: Path) -> None:
    graph, path = graph_of(lambda b, x: b(Relu(), x), {"x": (4,)}), tmp_path / "relu.bolt"
    told = bn.export_model(graph, path, target="x86-64,x86-64-v3", threads=1)
    raw = path.read_bytes()
    places = programs_behind(np.frombuffer(raw, np.uint8), sum(struct.unpack_from("<QQ", raw, 32)))
    assert (told.level, len(places)) == ("x86-64, x86-64-v3", 2)
    for level, (at, nbytes) in zip(("x86-64", "x86-64-v3"), places, strict=True):
        program = Interpreter(raw[at : at + nbytes])
        assert program.string(int(program.words[HeaderWord.LEVEL])) == level
    assert bn.load(path).name == graph.name
    bare = tmp_path / "relu.bnprog"
    bn.export_model(graph, bare, threads=1)
    assert Interpreter(bare.read_bytes()).run({"x": np.array([-1, 0, 1, 2])})["out0"].tolist() == [0, 0, 1, 2]
    with pytest.raises(BoltError, match=r"relu.bnprog: targets: got 'x86-64,x86-64-v3', wanted one"):
        bn.export_model(graph, bare, target="x86-64,x86-64-v3")


def test_what_else_stands_behind_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "digits.bolt"
    bn.export_model(DIGITS, path, threads=1)
    raw = path.read_bytes()
    words = list(struct.unpack("<8q", raw[-64:]))
    wrong = {0: 1, 1: 4, 2: words[2] + 1, 3: words[3] - 1}
    cases = [struct.pack("<8q", *words[:i], number, *words[i + 1 :]) for i, number in wrong.items()]
    for end in (*cases, raw[-64:] + b"\0", raw[-65:-1], b""):
        with pytest.raises(InvalidModelError, match=r"header: sections do not fit|native programs: got"):
            bn.load(raw[:-64] + end)


def test_an_object_file_is_what_linkers_read() -> None:
    symbols = [Symbol("f", 16, 5, True), Symbol("numbers", 0, 3, False)]
    made = b"".join(object_file(X86_64, b"\xcc" * 16 + b"\xe9\0\0\0\0", [Jump(16, "memset")], [b"abc"], symbols))
    blob = blob_of(made, "f")
    assert blob is not None
    found = blob_parts(blob)
    assert found is not None
    ((slot, name),) = found.calls
    assert (found.entry, name) == (16, "memset")
    (distance,) = struct.unpack_from("<i", found.code, 17)
    assert 21 + distance == slot - len(STUBS[X86_64])  # from behind the jump to the stub
    assert b"abc" in found.code


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits.bolt"
    shapes = ["--shape", "image=1..2,1,8,8", "--threads", "1"]
    assert run(["export", str(DIGITS), "-o", str(path), *shapes, "--target", "x86-64"]) == 0
    size = f"{path.stat().st_size / 2**20:.1f} MiB"
    assert f"digits.bolt: {size} for x86-64, 2 sets of shapes" in capsys.readouterr().out
    assert run(["export", str(DIGITS), "-o", str(path), *shapes, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == {str(path): path.stat().st_size}
    assert run(["export", str(DIGITS), "-o", str(path), "--set", "image"]) == 2
    assert run(["export", str(DIGITS), "-o", str(path), "--shapes", "image:x"]) == 2
    assert run(["export", str(DIGITS), "-o", str(path), "--set", "nothing=1"]) == 1


def test_the_command_says_which_sizes_it_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = Graph("wide")
    graph.add_output(Builder(graph)(Relu(), graph.add_input("x", TensorType(F32, (1, Sym("w"))))), "y")
    bn.save(graph, tmp_path / "wide.bolt")
    assert run(["export", str(tmp_path / "wide.bolt"), "-o", str(tmp_path / "program.bolt")]) == 0
    assert "free sizes w: took x [1, " in capsys.readouterr().err


def test_shapes_of_the_command_line() -> None:
    """One spelling for every command, and an older one with several names in a text; a name that is told once holds."""
    assert read_sets(["a:0=1,3", "y=2", "z="]) == [{"a:0": (1, 3), "y": (2,), "z": ()}]
    assert read_sets(["x=1..2,3", "y=1..2"]) == [{"x": (1, 3), "y": (1,)}, {"x": (2, 3), "y": (2,)}]
    assert read_sets(["x=1", "x=2", "y=3"]) == [{"x": (1,), "y": (3,)}, {"x": (2,), "y": (3,)}]
    assert read_shapes(["x=1x3"]) == read_shapes(["x:1x3"]) == {"x": (1, 3)}
    assert (read_sets([]), read_shapes([])) == ([{}], {})
    with pytest.raises(typer.BadParameter, match="got 2 sets of shapes, wanted one"):
        read_shapes(["x=1..2"])
    with pytest.raises(typer.BadParameter, match="got 2 shapes of 'x' and 3 of another"):
        read_sets(["x=1", "x=2", "y=1", "y=2", "y=3"])
    assert read_sets(["x:1x3,y:2"]) == [{"x": (1, 3), "y": (2,)}]
    assert read_sets(["x:1x3,x:2x3", "x:"]) == [{"x": (1, 3)}, {"x": (2, 3)}, {"x": ()}]
    assert read_sets(["x:1..2x3,y:1..2"]) == [{"x": (1, 3), "y": (1,)}, {"x": (2, 3), "y": (2,)}]
    assert len(read_sets(["x:1..2x5..7"])) == 6
    for text in ("x", "x:1,y", ":3", "x:1x", "x:3..1", "x:-1", "x:a", "x:1..70000", "x:1..300x1..301"):
        with pytest.raises(typer.BadParameter):
            read_sets([text])
