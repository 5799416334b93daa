"""Models that are good protobuf and lie: fields changed, repeated, swapped, dropped.  Bytes: `tests.attack.files`."""

from __future__ import annotations

import random
import time
import tracemalloc
import warnings
from collections import Counter
from functools import cache
from typing import Any

import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from onnx import TensorProto

from bolt_numba.converters.formats import load
from bolt_numba.errors import BoltError, InvalidModelError, ShapeError

COUNT, SECONDS = 1500, 10.0
"""Seconds of processor time, as machines are busy."""
NUMBERS = (0, 1, -1, 2, -2, 7, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63), 10**6)
NAMES = ("x", "", "Conv", "If", "Loop", "Reshape", "axis", "perm", "Split", "a" * 5000)
TEXTS = (b"", b"\xff" * 8, b"reflect", b"SAME_UPPER", b"ij,jk->ik", b"...i->...")
LIMITS = {
    Field.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    Field.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    Field.TYPE_UINT64: (0, (1 << 64) - 1),
}


@cache
def originals() -> list[bytes]:
    """Small models of the public suite, one for each operator and more."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [t.model for t in load_model_tests(kind="node") if t.model is not None]
    return [m.SerializeToString() for m in models if m.ByteSize() < 20_000]


def places(message: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (message, field) that is set, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                places(inner, found)
        if field.message_type is None or field.is_repeated:
            found.append((message, field))
    return found


def another(field: Any, old: Any, rng: random.Random) -> Any:
    """A value for a scalar field, as far from sense as its type allows."""
    if field.type == Field.TYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    if field.type in LIMITS:
        low, high = LIMITS[field.type]
        return min(max(rng.choice((*NUMBERS, int(old or 0) + 1, int(old or 0) * 2)), low), high)
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    if field.type == Field.TYPE_STRING:
        return rng.choice(NAMES)
    data = bytearray(old or b"")
    if not data or rng.random() < 0.3:
        return rng.choice(TEXTS)
    data[rng.randrange(len(data))] = rng.choice((0, 127, 255))
    return bytes(data)


def change(message: Any, field: Any, rng: random.Random) -> None:
    """Change one field: a scalar gets another value, a list loses, doubles, swaps or changes an entry."""
    if not field.is_repeated:
        setattr(message, field.name, another(field, getattr(message, field.name), rng))
        return
    entries = getattr(message, field.name)
    at = rng.randrange(len(entries))
    kind = rng.random()
    if kind < 0.3:
        del entries[at]
    elif field.message_type is None:
        entries[at] = another(field, entries[at], rng)
    elif kind < 0.7:
        entries.add().CopyFrom(entries[at])
    else:
        other = rng.randrange(len(entries))
        copy = type(entries[at]).FromString(entries[at].SerializeToString())
        entries[at].CopyFrom(entries[other])
        entries[other].CopyFrom(copy)


def mutant(seed: int) -> bytes:
    rng = random.Random(seed)
    model = onnx.ModelProto.FromString(rng.choice(originals()))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change(*rng.choice(places(model, [])), rng)
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.timeout(1800)
def test_lies_are_refused_or_read_and_never_worse() -> None:
    """Neither another exception than a BoltError, nor a hang, nor memory without measure."""
    originals()
    results: Counter[str] = Counter()
    for seed in range(COUNT):
        data = mutant(seed)
        start = time.process_time()
        try:
            load(data, "onnx")
            results["read"] += 1
        except BoltError as error:
            results["refused" if str(error) else "refused without a word"] += 1
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        assert time.process_time() - start < SECONDS, f"seed {seed} takes too long"
    assert results["refused without a word"] == 0
    assert results["read"] > COUNT / 10
    assert results["refused"] > COUNT / 3


def model_of(body: str, inputs: str = "float[6] x", **constants: TensorProto) -> bytes:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => (float[n] y) {{ {body} }}'
    )
    for name, tensor in constants.items():
        tensor.name = name
        model.graph.initializer.append(tensor)
    data: bytes = model.SerializeToString()
    return data


def shape(*dims: int) -> TensorProto:
    return onnx.helper.make_tensor("s", TensorProto.INT64, [len(dims)], dims)


@pytest.mark.parametrize(
    "data",
    [
        model_of("y = ConstantOfShape(s)", s=shape(1 << 40, 1 << 20)),
        model_of("e = Expand(x, s) y = Relu(e)", s=shape(1 << 40, 6)),
        model_of("e = Tile(x, s) y = Relu(e)", s=shape(1 << 40)),
        model_of("e = Pad(x, s) y = Relu(e)", s=shape(1 << 40, 1 << 40)),
        model_of(
            "y = Range(a, b, d) ",
            "float a",
            b=onnx.helper.make_tensor("b", 1, [], [1e30]),
            d=onnx.helper.make_tensor("d", 1, [], [1.0]),
        ),
        model_of("e = Reshape(x, z) y = Relu(e)", f"float[6] x, int64[{1 << 31}] z"),
        model_of(
            "e = OneHot(i, k, x) y = Relu(e)",
            "float[2] x, int64[3] i",
            k=onnx.helper.make_tensor("k", 7, [1], [1 << 40]),
        ),
        model_of("y, z = Split <num_outputs = 2147483647> (x)"),
    ],
    ids=["ConstantOfShape", "Expand", "Tile", "Pad", "Range", "rank", "OneHot", "Split"],
)
def test_absurd_sizes_allocate_nothing(data: bytes) -> None:
    load(model_of("y = Relu(x)"))
    tracemalloc.start()
    start = time.process_time()
    try:
        load(data)
    except (InvalidModelError, ShapeError):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 << 20
    assert time.process_time() - start < SECONDS


def test_deep_nesting_is_refused_or_read() -> None:
    text = "y = Relu(x)"
    for i in range(30):
        other = "else_branch = e () => (float[6] q) { q = Neg(x) }"
        text = f"y = If (c) <then_branch = t{i} () => (float[6] y) {{ {text} }}, {other}>"
    graph = load(model_of(text, "float[6] x, bool c"))
    assert [n.op.name for n in graph.nodes] == ["If"]


@pytest.mark.parametrize(
    ("op", "operands", "flag"),
    [
        ("ReduceSum", 1, "keepdims"),
        ("BatchNormalization", 5, "training_mode"),
        ("Cast", 1, "saturate"),
        ("NonMaxSuppression", 2, "center_point_box"),
    ],
)
def test_flags_are_0_or_1(op: str, operands: int, flag: str) -> None:
    names = [f"x{i}" for i in range(operands)]
    shape = {"BatchNormalization": [3], "NonMaxSuppression": [1, 4, 4]}.get(op, [2, 3])
    node = onnx.helper.make_node(op, names, ["y"], **{flag: 2}, **({"to": 1} if op == "Cast" else {}))
    xs = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in names]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", xs, [y]))
    with pytest.raises(BoltError, match=rf"{flag}'?: got 2, wanted 0 or 1"):
        load(model.SerializeToString())


@pytest.mark.parametrize(
    ("attributes", "wrong"),
    [
        ({"is_causal": 64}, "is_causal'?: got 64, wanted 0 or 1"),
        ({"is_causal": 1 - 2**40}, "is_causal'?: got -1099511627775, wanted 0 or 1"),
        ({"qk_matmul_output_mode": 4}, "qk_matmul_output_mode: got 4, wanted 0 to 3"),
        ({"qk_matmul_output_mode": -1}, "qk_matmul_output_mode: got -1, wanted 0 to 3"),
        ({"softmax_precision": 7}, "softmax_precision: got 7, wanted 1, 10, 11 or 16"),
        ({"q_num_heads": -2}, "numbers of heads: got"),
        ({"left_window_size": -2}, "window sizes: got"),
    ],
    ids=str,
)
def test_attributes_of_attention_that_mean_nothing_are_refused(attributes: dict[str, int], wrong: str) -> None:
    opset = 25 if "left_window_size" in attributes else 24
    values = [onnx.helper.make_tensor_value_info(name, 1, (1, 2, 3, 4)) for name in "qkvy"]
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "attention", values[:3], values[3:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    with pytest.raises(BoltError, match=wrong):
        load(model.SerializeToString())
