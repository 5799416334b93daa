"""Layers whose state has a fixed size: steps that change it where it lies, other dtypes, files that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ops.layers.attention.linear import CausalConvWithState, LinearAttention
from bolt_numba.ops.registry import Op
from bolt_numba.types import F16, F32, Array, Sym, TensorType
from tests.near import assert_near

N, T, HEADS, D, E = 2, 5, 2, 20, 70
"""Columns of two blocks, the second of them not whole."""


def graph_of(op: Op, given: dict[str, tuple[Array, int]], state: Array, constants: tuple[Array, ...] = ()) -> Graph:
    """The operator of inputs, each with its axis of positions, of constants, and of a state at their end."""
    graph = Graph("step")
    shapes = {
        name: [Sym("t") if i == axis else size for i, size in enumerate(x.shape)] for name, (x, axis) in given.items()
    }
    first, *others = (graph.add_input(name, TensorType(F32, tuple(shape))) for name, shape in shapes.items())
    past = graph.add_input("past", TensorType(F32, state.shape))
    placed = [*others[:2], past, *others[2:]] if len(others) > 1 else [*constants, past]
    for value, name in zip(Builder(graph).node(op, first, *placed).outputs, ("y", "present"), strict=True):
        graph.add_output(value, name)
    return graph


def linear() -> tuple[Op, dict[str, tuple[Array, int]], Array, tuple[Array, ...]]:
    rng = np.random.default_rng(0)
    widths = {"q": 2 * HEADS * D, "k": HEADS * D, "v": HEADS * E, "decay": HEADS, "beta": 1}
    given = {name: (rng.uniform(-0.5, 0.0, (N, T, width)).astype(F32), 1) for name, width in widths.items()}
    return LinearAttention(2 * HEADS, HEADS), given, rng.standard_normal((N, HEADS, D, E)).astype(F32), ()


def convolution() -> tuple[Op, dict[str, tuple[Array, int]], Array, tuple[Array, ...]]:
    rng, channels = np.random.default_rng(1), 37
    x, w, b, past = (
        rng.standard_normal(dims).astype(F32) for dims in ((N, 37, T), (37, 1, 4), (37,), (N, channels, 6))
    )
    return CausalConvWithState(True, 2), {"x": (x, 2)}, past, (w, b)


@pytest.mark.parametrize("made", [linear, convolution])
@pytest.mark.parametrize("threads", [1, 2])
def test_steps_in_place_give_what_a_prompt_gives(made: Any, threads: int) -> None:
    op, given, state, constants = made()
    session = bn.compile(graph_of(op, given, state, constants), threads=threads, stand_ins=False)
    feeds = {name: x for name, (x, _) in given.items()}
    whole, present = session.run(None, feeds | {"past": state})
    held, axis = state.copy(), 1 if made is linear else 2
    for i in range(T):
        now = {name: np.ascontiguousarray(x.take([i], at)) for name, (x, at) in given.items()}
        y = np.empty_like(whole.take([i], axis))
        session.run_into(now | {"past": held}, {"y": y, "present": held})
        np.testing.assert_array_equal(y, whole.take([i], axis))
    np.testing.assert_array_equal(held, present)
    assert not np.array_equal(held, state)


def model_of(domain: str, q_heads: int, dtype: int, state: int, **more: Any) -> tuple[Any, dict[str, Array]]:
    rng = np.random.default_rng(2)
    widths = {"q": q_heads * D, "k": 2 * D, "v": HEADS * E}
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    feeds = {name: rng.uniform(-0.5, 0.5, (1, 3, width)).astype(kind) for name, width in widths.items()}
    feeds["past"] = rng.standard_normal((1, HEADS, D, E)).astype(helper.tensor_dtype_to_np_dtype(state))
    attributes = {"q_num_heads": q_heads, "kv_num_heads": HEADS, "update_rule": "linear"} | more
    node = helper.make_node("LinearAttention", [*feeds], ["y", "present"], domain=domain, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    outputs = [helper.make_tensor_value_info("y", dtype, None), helper.make_tensor_value_info("present", state, None)]
    opsets = [helper.make_opsetid("", 27), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets), feeds


def test_a_state_may_be_wider_than_all_else() -> None:
    """Nothing of it is rounded to the dtype of the rest."""
    model, feeds = model_of("", 4, TensorProto.FLOAT16, TensorProto.FLOAT)
    y, present = bn.compile(model.SerializeToString(), threads=1).run(None, feeds)
    wide = (feeds[name].astype(F32) for name in "qkv")
    wanted, state = LinearAttention(4, HEADS, update_rule="linear").reference(*wide, feeds["past"])
    assert (y.dtype, present.dtype) == (F16, F32)
    assert_near(y, wanted.astype(F16), 1e-3)
    assert_near(present, state, 1e-6)


@pytest.mark.parametrize(("q_heads", "domain"), [(4, ""), (2, ""), (1, "com.microsoft")])
def test_files_have_the_standard_operator_where_it_serves(q_heads: int, domain: str) -> None:
    model, feeds = model_of("com.microsoft", q_heads, TensorProto.FLOAT, TensorProto.FLOAT)
    written = to_onnx(read_model(model))
    assert [node.domain for node in written.graph.node] == [domain]
    assert {x.domain: x.version for x in written.opset_import}[domain] == (1 if domain else 27)
    runs = (bn.compile(m.SerializeToString(), threads=1).run(None, feeds) for m in (model, written))
    for mine, theirs in zip(*runs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
