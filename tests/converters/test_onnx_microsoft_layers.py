"""Layers of onnxruntime's domain that its CPU judges otherwise than by a run, or not at all."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import numpy_helper

import bolt_numba as bn
from bolt_numba.base.budget import Budget, within
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.matmul_experts import MatMulExperts
from bolt_numba.types import AnyDType, Array
from tests.converters.microsoft_forms import F16, F32, U8, Form, codes, form_model, rounded
from tests.converters.microsoft_layer_forms import HELD, qmoe_of_groups
from tests.converters.test_onnx_microsoft_decoder import lengths, node_model, real
from tests.near import assert_near

onnxruntime = pytest.importorskip("onnxruntime")
ROWS = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], np.int32)
COLUMNS = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], np.int32)
HELD |= {"SparseAttention": ["rows", "columns"]}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("more", [{}, {"scale": 0.4}], ids=str)
def test_sparse_attention(packed: bool, step: bool, turned: int, more: dict[str, float]) -> None:
    """onnxruntime has it only where the present is the memory of the past, and where lengths are equal."""
    n, heads, groups, size, room = 2, 4, 2, 16, 64
    s, total, ends = (1, 40, lengths(40, 40)) if step else (35, 35, lengths(35, 35))
    widths = [(heads + 2 * groups) * size] if packed else [heads * size, groups * size, groups * size]
    operands = [real(n, s, w) for w in widths]
    table = np.arange(room)[:, None] * 0.3 ** np.arange(size // 2)
    inputs: dict[str, Array | None] = dict.fromkeys("qkv")
    inputs |= dict(zip("qkv", operands, strict=False))
    inputs |= {
        "pk": real(n, groups, room, size), "pv": real(n, groups, room, size), "rows": ROWS, "columns": COLUMNS,
        "total": lengths(total), "len": ends,
        "cos": np.cos(table).astype(F32) if turned else None, "sin": np.sin(table).astype(F32) if turned else None,
    }  # fmt: skip
    attributes = {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": 16, "do_rotary": turned, **more}
    arrays = rounded(inputs, F32, F32)
    data = form_model("SparseAttention", (inputs, 3, attributes), arrays, F32).SerializeToString()
    feeds = {name: a for name, a in arrays.items() if name not in HELD["SparseAttention"]}
    judge = onnxruntime.InferenceSession(data)
    binding = judge.io_binding()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a.copy()) for name, a in feeds.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    for name, place in (("pk", "y1"), ("pv", "y2")):
        binding.bind_ortvalue_output(place, held[name])
    judge.run_with_iobinding(binding)
    y, *caches = bn.compile(data, threads=1).run(None, feeds)
    assert_near(y, binding.copy_outputs_to_cpu()[0], 1e-5)
    for mine, name in zip(caches, ("pk", "pv"), strict=True):
        for row, end in enumerate(ends):
            assert_near(mine[row, :, :end], held[name].numpy()[row, :, :end], 1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("MatMulBnb4", {"x": real(2, 6), "w": codes(U8, 60), "a": real(8)},
         {"K": 20, "N": 6, "block_size": 16, "quant_type": 0, "transB": 0}, "transB 0"),
        ("MoE", {"x": real(2, 4), "r": real(2, 3), "w1": real(3, 4, 4), "b1": None, "w2": real(3, 4, 4)},
         {"activation_type": "geglu"}, "activation geglu"),
        ("MoE", {"x": real(2, 4), "r": real(2, 3), "w1": real(3, 4, 4), "b1": None, "w2": real(3, 4, 4)},
         {"use_sparse_mixer": 1}, "use_sparse_mixer"),
        ("CausalConvWithState", {"x": real(2, 4, 5), "w": real(4, 1, 3)}, {"state_window": 2}, "cut or kept"),
        ("LinearAttention", {n: real(1, 2, 4) for n in "qkv"},
         {"q_num_heads": 2, "kv_num_heads": 1, "update_rule": "linear"}, "a divisor of 1 heads, of 2 each"),
        ("LinearAttention", {n: real(1, 2, 4) for n in "qkv"}, {"q_num_heads": 2, "kv_num_heads": 2}, "decay: got"),
        ("LinearAttention", {n: real(1, 2, 4) for n in "qkv"},
         {"q_num_heads": 2, "kv_num_heads": 2, "state_window": 1}, "state_window 1"),
        ("GatedDeltaNet", {"q": real(2, 1, 4), "k": real(2, 1, 4), "v": real(2, 1, 4)}, {}, "no initial_state"),
        ("UnfoldTensor", {"x": real(2, 3)}, {"size": 0}, "numbers from 1"),
        ("NGramRepeatBlock", {"i": np.ones((1, 3), np.int64), "s": real(1, 4)}, {"ngram_size": 0}, "1 to 256"),
        ("NGramRepeatBlock", {"i": np.ones((1, 3), np.int64), "s": real(1, 4)}, {"ngram_size": 1 << 40}, "1 to 256"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said(op: str, inputs: dict[str, Array | None], attributes: dict[str, object],
                                  message: str) -> None:  # fmt: skip
    with pytest.raises(bn.BoltError, match=message):
        read_model(node_model(op, inputs, 1, attributes) if op != "MatMulBnb4" else form_model(
            op, (inputs, 1, attributes), rounded(inputs, F32, F32), F32))  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("MatMulBnb4", {"x": real(1, 16), "w": np.zeros(8, U8), "a": real(1)},
         {"K": 16, "N": 1, "block_size": 1 << 40, "quant_type": 0}),
        ("UnfoldTensor", {"x": np.broadcast_to(np.float32(0), (1 << 20,))}, {"size": 1 << 19}),
    ],
)  # fmt: skip
def test_attributes_alone_make_nothing_large(op: str, inputs: dict[str, Array], attributes: dict[str, int]) -> None:
    """Reading takes memory by what a file holds."""
    made = form_model(op, (inputs, 1, attributes), rounded(inputs, F32, F32), F32)
    tracemalloc.start()
    read_model(made)
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()


def test_the_gate_of_an_expert_may_lie_apart_or_behind_the_other_factor() -> None:
    """Layouts of GPUs, which mean what the interleaved one means."""
    experts, width, inner = 3, 8, 6
    gate, linear = real(experts, inner, width), real(experts, inner, width)
    shared = {"x": real(4, width), "r": real(4, experts)}
    out, results = real(experts, width, inner), []
    forms: list[tuple[int, Array, Array | None]] = [
        (1, np.stack([gate, linear], 2).reshape(experts, -1, width), None),
        (2, np.concatenate([gate, linear], 1), None),
        (0, gate, linear),
    ]
    for fusion, first, third in forms:
        inputs = {**shared, "w1": first, "b1": None, "w2": out, "b2": None, "w3": third}
        model = node_model("MoE", inputs, 1, {"activation_type": "swiglu", "swiglu_fusion": fusion, "k": 2})
        session = bn.compile(model.SerializeToString(), threads=1)
        results.append(session.run(None, {n: a for n, a in inputs.items() if a is not None})[0])
    for result in results[1:]:
        assert_near(result, results[0], 1e-5)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_constant_weights_of_experts_meet_the_rows_that_choose_them(dtype: AnyDType) -> None:
    """As weights that only the run tells do, which meet all rows; written files are read as the same."""
    experts, width, inner = 8, 8, 6
    shapes = {"w1": (experts, inner, width), "b1": (experts, inner), "w2": (experts, width, inner)}
    inputs = {"x": real(5, width), "r": real(5, experts)} | {name: real(*dims) for name, dims in shapes.items()}
    arrays = rounded(inputs, dtype, dtype)
    form: Form = (inputs, 1, {"k": 1, "activation_type": "silu"})
    apart = form_model("MoE", form, arrays, dtype)
    whole = form_model("MoE", form, arrays, dtype)
    for name in shapes:
        whole.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    kept = [info for info in whole.graph.input if info.name not in shapes]
    del whole.graph.input[:]
    whole.graph.input.extend(kept)
    rows = {name: arrays[name] for name in "xr"}
    wanted = interpret(read_model(apart), arrays)["y0"]
    read = read_model(whole)
    assert sum(isinstance(node.op, MatMulExperts) for node in read.nodes) == 2
    for graph in (read, read_model(to_onnx(read))):
        assert_near(interpret(graph, rows)["y0"], wanted, 1e-5 if dtype == F32 else 4e-3)
    assert_near(bn.compile(read, threads=1).run(None, rows)[0], wanted, 1e-4 if dtype == F32 else 4e-3)


@pytest.mark.parametrize(("bits", "block"), [(4, 32), (8, 0)])
def test_written_experts_keep_weights_of_a_few_bits(bits: int, block: int) -> None:
    form = next(f for f in qmoe_of_groups() if (f[2]["expert_weight_bits"], f[2].get("block_size", 0)) == (bits, block))
    arrays = rounded(form[0], F32, F32)
    rows = {name: array for name, array in arrays.items() if name not in HELD["QMoE"]}
    read = read_model(form_model("QMoE", form, arrays, F32))
    written = to_onnx(read)
    assert "DequantizeLinear" in {node.op_type for node in written.graph.node}
    wanted = interpret(read, rows)["y0"]
    assert_near(interpret(read_model(written), rows)["y0"], wanted, 1e-5)
    assert_near(bn.compile(read, threads=1, numerics="strict").run(None, rows)[0], wanted, 1e-5)


IMAGE = {"x": real(1, 1, 4, 4), "r": real(1, 4), "b": np.zeros(1, np.int32)}
FEW = {"x": real(2, 20), "w": codes(U8, 60), "a": real(8)}
"""Of K 20, N 6 and blocks of 16."""
EXPERTS = 10**6


def sparse(rows: Array, columns: Array) -> dict[str, Array | None]:
    inputs: dict[str, Array | None] = {n: real(1, 4, 16 if n == "q" else 8) for n in "qkv"}
    ends = {"total": lengths(4), "len": lengths(4)}
    return inputs | {"pk": real(1, 1, 32, 8), "pv": real(1, 1, 32, 8), "rows": rows, "columns": columns, **ends}


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("MatMulBnb4", FEW, {"K": 20, "N": 6, "block_size": 2**40, "quant_type": 0}, "1.* elements for N 6"),
        ("MatMulBnb4", FEW, {"K": 20, "N": -1, "block_size": 16, "quant_type": 0}, "for N -1"),
        ("MatMulBnb4", FEW, {"K": 20, "N": 5, "block_size": 16, "quant_type": 0}, "for N 5"),
        ("MoE", {"x": real(2, 4), "r": real(2, 8), "w1": real(3, 4, 4), "b1": None, "w2": real(3, 4, 4)}, {},
         r"router_probs: got f32\[2, 8\], wanted f32\[2, 3\]"),
        ("MoE", {"x": real(1, 1), "r": real(1, EXPERTS), "w1": real(EXPERTS, 1, 1), "b1": None,
                 "w2": real(EXPERTS, 1, 1)}, {}, "repetitions"),
        ("NGramRepeatBlock", {"i": np.ones((1, 3), np.int64), "s": real(1, 4)}, {"ngram_size": 2**62}, "1 to 256"),
        ("UnfoldTensor", {"x": real(5)}, {"size": 2**40}, "size: got 1099511627776, wanted at most 5"),
        ("CropAndResize", {**IMAGE, "c": np.array([0, 2], np.int32)}, {}, "crop_size: got .0, 2."),
        ("CropAndResize", {**IMAGE, "c": np.array([2], np.int32)}, {}, "crop_size"),
        ("CropAndResize", {**IMAGE, "c": np.full(2, 2**31 - 1, np.int32)}, {}, "memory: got 16"),
        ("SparseAttention", sparse(ROWS[:1], COLUMNS[:1]), {"sparse_block_size": 0}, "sparse_block_size and"),
        ("SparseAttention", sparse(ROWS[:1], COLUMNS[:1] - 1), {}, "numbers below 4"),
        ("SparseAttention", sparse(ROWS[:1] - 1, COLUMNS[:1]), {}, "places of columns"),
        ("SparseAttention", sparse(ROWS[:1], COLUMNS), {}, "block_col_indices: got i32.2, 9., wanted i32.1,"),
        ("SparseAttention", sparse(np.zeros((1, 100001), np.int32), COLUMNS[:1]), {}, "memory: got 38147 MiB"),
    ],
)  # fmt: skip
def test_what_would_take_all_memory_or_time_is_refused(
    op: str, inputs: dict[str, Array | None], attributes: dict[str, object], message: str
) -> None:
    if op == "SparseAttention":
        attributes = {"num_heads": 2, "kv_num_heads": 1, "sparse_block_size": 16, **attributes}
    model = form_model(op, (inputs, 1, attributes), rounded(inputs, F32, F32), F32)
    with within(Budget(memory=1 << 30)), pytest.raises(bn.BoltError, match=message):
        read_model(model)
