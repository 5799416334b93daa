"""Each operand of onnxruntime's layers spoiled: another rank, one size off by one, another dtype, a bad attribute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.types import Array
from tests.converters.microsoft_forms import F32, FORMS, Form, form_model
from tests.converters.microsoft_layer_forms import HELD
from tests.converters.test_onnx_microsoft_decoder import lengths, real
from tests.converters.test_onnx_microsoft_layers import COLUMNS, ROWS
from tests.near import assert_near

onnxruntime = pytest.importorskip("onnxruntime")
BAD: dict[str, list[dict[str, Any]]] = {
    "MatMulNBits": [{"K": 0}, {"K": -1}, {"N": 0}, {"N": 6}, {"bits": 3}, {"block_size": 0}, {"block_size": 32}],
    "MoE": [{"k": 0}, {"k": 5}, {"activation_type": "tanh"}],
    "QMoE": [{"k": 0}, {"k": 4}, {"expert_weight_bits": 3}, {"expert_weight_bits": 0}, {"block_size": -1}],
    "NGramRepeatBlock": [{"ngram_size": 0}, {"ngram_size": -1}],
    "CropAndResize": [{"mode": "cubic"}],
    "LinearAttention": [
        {"q_num_heads": 0, "kv_num_heads": 0}, {"q_num_heads": 3, "kv_num_heads": 3}, {"update_rule": "none"},
    ],
    "GatedDeltaNet": [{"update_rule": "none"}, {"gate_activation": "relu"}, {"beta_activation": "relu"}],
    "MRotaryEmbedding": [
        {"mrope_section": [4, 2, 1]}, {"mrope_section": [4, 4]}, {"mrope_section": [9, -1, 0]}, {"mrope_layout": 2},
    ],
    "BranchwiseRMSNorm": [{"num_branches": 5}, {"num_branches": -1}],
    "SparseAttention": [
        {"num_heads": 0}, {"kv_num_heads": 0}, {"kv_num_heads": 3}, {"sparse_block_size": 0}, {"num_heads": 3},
    ],
}  # fmt: skip
MORE = {"SparseAttention": ("rows", "columns", "total")}
"""Layouts may hold more or fewer blocks and places than are needed, and a length may be a scalar."""


def sparse_forms() -> Iterator[Form]:
    n, heads, groups, size, room = 2, 4, 2, 16, 64
    table = np.arange(room)[:, None] * 0.3 ** np.arange(size // 2)
    for s, total in ((35, 35), (1, 40)):
        yield {
            "q": real(n, s, heads * size), "k": real(n, s, groups * size), "v": real(n, s, groups * size),
            "pk": real(n, groups, room, size), "pv": real(n, groups, room, size), "rows": ROWS, "columns": COLUMNS,
            "total": lengths(total), "len": lengths(total, total),
            "cos": np.cos(table).astype(F32), "sin": np.sin(table).astype(F32),
        }, 3, {"num_heads": heads, "kv_num_heads": groups, "sparse_block_size": 16, "do_rotary": 1}  # fmt: skip


def some(op: str) -> list[Form]:
    """A few forms, which differ in which operands there are."""
    found: dict[tuple[Any, ...], Form] = {}
    for form in sparse_forms() if op == "SparseAttention" else FORMS[op]():
        found.setdefault(tuple(None if a is None else (a.ndim, a.dtype) for a in form[0].values()), form)
    return list(found.values())[:8]


def spoiled(a: Array) -> Iterator[tuple[str, Array]]:
    yield "a rank more", a[None]
    if a.ndim:
        yield "a rank less", a[0]
    for axis in range(a.ndim):
        yield f"axis {axis} one longer", np.concatenate([a, a.take([-1], axis)], axis)
        if a.shape[axis] > 1:
            yield f"axis {axis} one shorter", a.take(range(a.shape[axis] - 1), axis)
    yield "another dtype", a.astype(np.int32 if a.dtype.kind == "f" else F32)


def run(op: str, form: Form, engine: Any) -> Any:
    arrays = {n: a for n, a in form[0].items() if a is not None}
    data = form_model(op, form, arrays, F32).SerializeToString()
    feeds = {n: a for n, a in arrays.items() if n not in HELD.get(op, ())}
    if engine is onnxruntime:
        return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    return bn.compile(data, threads=1).run(None, feeds)


def outcome(op: str, form: Form) -> str | None:
    """What is wrong with what becomes of a spoiled node; None where it is refused in clear words, or right."""
    try:
        got = run(op, form, bn)
    except bn.BoltError as error:
        if isinstance(error, bn.DataError):  # of an index that a run brings
            return None if re.search(r"node 'y0.*: got -?\d+, wanted", str(error)) else f"unclear: {error}"
        clear = re.search(rf"\({op}\): (.*: got .*, wanted|1 unsupported)|1 unsupported:\n *{op} ", str(error))
        return None if clear else f"unclear: {error}"
    if op == "SparseAttention":
        return "taken"
    try:
        wanted = run(op, form, onnxruntime)
    except Exception as error:  # of any kind of theirs
        return f"taken, where onnxruntime says {error!s:.200}"
    for mine, theirs in zip(got, wanted, strict=True):
        assert_near(mine, theirs, 1e-3)
    return None


@pytest.mark.parametrize("op", BAD)
def test_spoiled_operands_are_refused_in_clear_words(op: str) -> None:
    faults = []
    for inputs, results, attributes in some(op):
        for name, a in inputs.items():
            for what, other in () if a is None else spoiled(a):
                if name in MORE.get(op, ()) and what in ("axis 1 one longer", "axis 1 one shorter", "a rank less"):
                    continue
                said = outcome(op, ({**inputs, name: other}, results, attributes))
                if said is not None:
                    faults.append(f"{name}: {what}: {said}")
    assert not faults, "\n".join(dict.fromkeys(faults))


@pytest.mark.parametrize("op", BAD)
def test_bad_attributes_are_refused_in_clear_words(op: str) -> None:
    for bad in BAD[op]:
        for inputs, results, attributes in some(op):
            assert outcome(op, (inputs, results, {**attributes, **bad})) is None, bad
            with pytest.raises(bn.BoltError):
                run(op, (inputs, results, {**attributes, **bad}), bn)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "said"),
    [
        ("NGramRepeatBlock", {"i": np.array([[1, -2, 3]]), "s": real(1, 6)}, {"ngram_size": 1},
         r"indices\[0, 1\]: got -8, wanted -6 to 5"),
        ("NGramRepeatBlock", {"i": np.array([[1, 2, 3]]), "s": real(2, 6)}, {"ngram_size": 1},
         r"Reshape: shape: got \[2, 3\], wanted 3 elements"),
        ("NGramRepeatBlock", {"i": np.ones((2, 3), np.int64), "s": real(1, 6)}, {"ngram_size": 1},
         r"Reshape: shape: got \[1, 3\], wanted 6 elements"),
        ("CropAndResize", {"x": real(2, 1, 3, 3), "r": real(1, 4), "b": np.array([-1], np.int32)}, {},
         r"GatherND: indices\[.*\]: got -3, wanted -2 to 1"),
        ("CropAndResize", {"x": real(2, 1, 3, 3), "r": real(3, 4), "b": np.array([0], np.int32)}, {},
         r"Reshape: shape: got \[3\], wanted 1 elements"),
        ("MoE", {"x": real(5, 4), "r": real(1, 3)}, {}, r"Reshape: shape: got \[1, 4\], wanted 20 elements"),
        ("LinearAttention", {"q": real(1, 2, 4), "k": real(3, 2, 4), "v": real(1, 2, 4)},
         {"q_num_heads": 1, "kv_num_heads": 1, "update_rule": "linear"}, r"shape of k: got .*, wanted \[1, 2, any\]"),
    ],
)  # fmt: skip
def test_what_only_the_run_tells_is_refused_there(
    op: str, inputs: dict[str, Array], attributes: dict[str, Any], said: str
) -> None:
    """Rows that do not belong together, where their numbers are symbols; indices that would count from the end."""
    more = {"c": np.array([2, 2], np.int32)} if op == "CropAndResize" else {}
    if op == "MoE":
        more = {"w1": real(3, 6, 4), "b1": None, "w2": real(3, 4, 6)}
    arrays = {n: a for n, a in (inputs | more).items() if a is not None}
    data = form_model(op, (inputs | more, 2 if op == "LinearAttention" else 1, attributes), arrays, F32)
    for info in data.graph.input:
        if info.name in inputs:
            info.type.tensor_type.shape.dim[0].dim_param = f"rows of {info.name}"
    session = bn.compile(data.SerializeToString(), threads=1)
    with pytest.raises(bn.BoltError, match=said):
        session.run(None, {n: a for n, a in arrays.items() if n not in HELD.get(op, ())})
