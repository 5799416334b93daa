"""Altered models: the public node tests with their structure changed, run beside onnxruntime.

A change keeps the file readable and makes the model another one: attributes, operators, wiring, declared shapes and
dtypes, opsets, constants, following nodes, contents of inputs.  What both engines run must agree, where onnxruntime
agrees with the test that the model comes from; it may refuse, or die of, what it likes.  Where they differ,
`tests.attack.judges` says whether we may be right.
"""

from __future__ import annotations

import functools
import pickle
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import bolt_numba as bn
from tests.attack.child import LIFE, SECONDS, Result, at, drive, refusal
from tests.attack.judges import is_excused
from tests.attack.operands import agrees, extreme, reshaped

LARGEST = 1 << 18
"""Bytes of a model or an input that is worth altering again and again."""
LARGEST_SQUARED = 1e18
"""Numbers whose squares, or those of their inverses, overflow f32 may end as infinities, zeros or NaN."""
SMALLEST = 1e-9
"""Results under it count as 0."""
LARGEST_POWER = 80.0
"""Powers of e beyond overflow f32, where a softplus that is recognised does not."""
LARGEST_SUMMED = 1 << 24
"""Integers whose sums and products may overflow: onnxruntime saturates some, we wrap around."""
_INTS = (0, 1, -1, 2, 3, -2, 7, 64, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 1e30, -1e30, 0.5, float("nan"), float("inf"), 1e-30)
_WORDS = (b"", b"none", b"constant", b"linear", b"SAME_UPPER", b"VALID", b"floor", b"reflect", b"tanh", b"\xff\xfe")
_AFTER = (
    "Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Sqrt", "Floor", "Transpose", "Flatten", "Softmax", "ReduceSum",
    "ReduceMax", "Identity", "Shape", "Size", "NonZero", "Not", "ArgMax", "Erf", "Gelu", "HardSwish", "LogSoftmax",
)  # fmt: skip
_PASSING_NAN = ("ReduceMax", "ReduceMin", "MaxPool", "ArgMax", "ArgMin", "TopK", "Hardmax")
"""onnxruntime passes over a NaN, and over means of nothing; docs/numerics.md says what we do."""
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")

Feeds = dict[str, Any]
Rng = np.random.Generator


def collect(file: Path) -> int:
    """Write the models and inputs that cases begin from; how many there are."""
    from onnx.backend.test.loader import load_model_tests

    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in sorted(load_model_tests(kind="node"), key=lambda t: t.name):
            if test.model is None or not test.data_sets or any(word in test.name for word in ("random", "bernoulli")):
                continue
            inputs, outputs = ([_plain(v) for v in values] for values in test.data_sets[0])
            if not all(isinstance(a, np.ndarray) and a.nbytes <= LARGEST for a in inputs):
                continue
            data = test.model.SerializeToString()
            if len(data) <= LARGEST:
                rows.append((test.name, data, inputs, _is_peers(test.model, data, inputs, outputs)))
    file.write_bytes(pickle.dumps(rows))
    return len(rows)


def _is_peers(model: onnx.ModelProto, data: bytes, inputs: list[Any], outputs: list[Any]) -> bool:
    """Whether onnxruntime passes the test."""
    found = theirs(data, dict(zip((v.name for v in model.graph.input), inputs, strict=False)))
    return found is not None and compared(found, outputs, model)


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


# ------------------------------------------------------------------------------------------------------------- changes


def attribute(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """One attribute has another value, another length, or is gone."""
    nodes = [n for n in model.graph.node if n.attribute]
    if not nodes:
        following(model, feeds, rng)
        return
    node = nodes[rng.integers(len(nodes))]
    index = int(rng.integers(len(node.attribute)))
    a = node.attribute[index]
    match a.type:
        case _ if rng.random() < 0.1:
            del node.attribute[index]
        case onnx.AttributeProto.INT:
            a.i = _INTS[rng.integers(len(_INTS))] if rng.random() < 0.6 else max(min(a.i, 1 << 40), -1 << 40) + 1
        case onnx.AttributeProto.FLOAT:
            a.f = _FLOATS[rng.integers(len(_FLOATS))]
        case onnx.AttributeProto.STRING:
            a.s = _WORDS[rng.integers(len(_WORDS))]
        case onnx.AttributeProto.INTS if len(a.ints):
            at_ = int(rng.integers(len(a.ints)))
            if rng.random() < 0.2:
                del a.ints[at_]
            elif rng.random() < 0.2:
                a.ints.append(int(_INTS[rng.integers(len(_INTS))]))
            else:
                a.ints[at_] = int(_INTS[rng.integers(len(_INTS))])
        case onnx.AttributeProto.FLOATS if len(a.floats):
            a.floats[rng.integers(len(a.floats))] = _FLOATS[rng.integers(len(_FLOATS))]
        case onnx.AttributeProto.TENSOR:
            a.t.dims.append(int(rng.integers(0, 4)))


def operator(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """A node is another operator with the same operands."""
    node = model.graph.node[rng.integers(len(model.graph.node))]
    schemas = _schemas()
    fitting = [s for s in schemas if s.min_input <= len(node.input) <= s.max_input]
    node.op_type = fitting[rng.integers(len(fitting))].name if fitting else "Identity"
    node.domain = ""
    if rng.random() < 0.7:
        del node.attribute[:]
        if node.op_type == "Cast":
            node.attribute.append(helper.make_attribute("to", int(rng.integers(1, 14))))


@functools.cache
def _schemas() -> list[Any]:
    made = {s.name: s for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.name.startswith(_RANDOM)}
    return [made[name] for name in sorted(made)]


def wiring(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """Operands change places, are doubled, or are left out."""
    node = model.graph.node[rng.integers(len(model.graph.node))]
    if not node.input:
        return
    i, j = rng.integers(len(node.input), size=2)
    choice = rng.random()
    if choice < 0.4:
        node.input[i], node.input[j] = node.input[j], node.input[i]
    elif choice < 0.7:
        node.input[i] = node.input[j]
    elif choice < 0.85:
        node.input[i] = ""
    else:
        del node.input[-1]


def declared(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """An input has another shape or dtype, in the model and as it is fed."""
    value = _pick_input(model, feeds, rng)
    if value is None:
        return
    kinds = ("rank up", "rank down", "longer", "shorter", "double", "empty", "single", "dtype")
    made = reshaped(kinds[rng.integers(len(kinds))], feeds[value.name], rng)
    assert made is not None
    _redeclare(value, made)
    feeds[value.name] = made


def symbolic(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """The shapes of inputs are not declared; what is fed may be of any."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = f"n{rng.integers(1 << 30)}"
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    name = sorted(feeds)[rng.integers(len(feeds))] if feeds else None
    if name is not None and rng.random() < 0.7:
        kinds = ("longer", "shorter", "double", "empty", "single")
        made = reshaped(kinds[rng.integers(len(kinds))], feeds[name], rng)
        assert made is not None
        if made.ndim == feeds[name].ndim:
            feeds[name] = made


def constant(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """An input is a constant of the model, perhaps with an edge value, perhaps of another shape."""
    value = _pick_input(model, feeds, rng)
    if value is None:
        return
    array = feeds.pop(value.name)
    if rng.random() < 0.4:
        array = extreme(array, rng)
    elif rng.random() < 0.4:
        made = reshaped(("rank up", "longer", "shorter", "empty")[rng.integers(4)], array, rng)
        array = array if made is None else made
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), value.name))
    model.graph.input.remove(value)


def following(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """The result goes through one to three more nodes."""
    if not model.graph.output:
        return
    output = model.graph.output[0]
    name = output.name
    for step in range(rng.integers(1, 4)):
        made = f"{name}_{step}"
        if rng.random() < 0.3:
            op, operands = ("Add", "Mul", "Sub", "MatMul", "Concat", "Max")[rng.integers(6)], [name, name]
        else:
            op, operands = _AFTER[rng.integers(len(_AFTER))], [name]
        extra = {"axis": int(rng.integers(-2, 2))} if op == "Concat" else {}
        model.graph.node.append(helper.make_node(op, operands, [made], **extra))
        name = made
    output.name = name
    output.type.Clear()
    output.type.tensor_type.elem_type = 0
    output.ClearField("type")


def opset(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """The model claims another version of the operators."""
    model.opset_import[0].version = int(rng.integers(1, 27))


def content(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> None:
    """An input holds an edge value."""
    value = _pick_input(model, feeds, rng)
    if value is not None:
        feeds[value.name] = extreme(feeds[value.name], rng)


CHANGES: tuple[Callable[[onnx.ModelProto, Feeds, Rng], None], ...] = (
    attribute, attribute, attribute, operator, wiring, declared, symbolic, constant, following, following, opset,
    content,
)  # fmt: skip


def _pick_input(model: onnx.ModelProto, feeds: Feeds, rng: Rng) -> Any:
    inputs = [v for v in model.graph.input if v.name in feeds]
    return inputs[rng.integers(len(inputs))] if inputs else None


def _redeclare(value: Any, array: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype) if array.dtype != object else onnx.TensorProto.STRING
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))


# ---------------------------------------------------------------------------------------------------------------- runs


def ours(data: bytes, feeds: Feeds, threads: int) -> tuple[str, Any]:
    """State, and results or what was raised."""
    try:
        session = bn.compile(data, threads=threads)
        taken = {spec.name: feeds[spec.name] for spec in session.inputs if spec.name in feeds}
        with np.errstate(all="ignore"):
            return "ran", session(taken).values()
    except TimeUp:
        return "refused", "interrupted"
    except Exception as error:
        return refusal(error)


class TimeUp(BaseException):
    """Control-C where the model says how often it loops: as long as that can be interrupted, it is no hang."""


@contextmanager
def interrupted(model: onnx.ModelProto) -> Iterator[None]:
    """`TimeUp` comes after a while where the model has loops."""
    has_loops = any(n.op_type == "Loop" for n in model.graph.node)
    before = signal.signal(signal.SIGALRM, _time_up)
    signal.setitimer(signal.ITIMER_REAL, SECONDS / 2 if has_loops else 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_up(*_: object) -> None:
    raise TimeUp


def theirs(data: bytes, feeds: Feeds) -> list[Any] | None:
    """What onnxruntime gives; None where it refuses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        taken = {v.name: feeds[v.name] for v in session.get_inputs() if v.name in feeds}
        return list(session.run(None, taken))
    except Exception:
        return None


def is_comparable(model: onnx.ModelProto, feeds: Feeds) -> bool:
    """Whether the standard says what becomes of numbers: not of odd bools, NaN, infinities, overflow."""
    nodes = model.graph.node
    if any(n.op_type.startswith(_RANDOM) for n in nodes):
        return False
    attributes = [a for n in nodes for a in n.attribute]
    if any(a.s == b"tf_crop_and_resize" or (a.name == "softcap" and a.f < 0) for a in attributes):
        return False  # onnxruntime passes over the region of an axis that keeps its size, and over such caps
    if any(n.op_type == "Celu" and a.f == 0 for n in nodes for a in n.attribute):
        return False  # x / 0
    if any(
        n.op_type == "Resize" and a.name == "axes" and min(a.ints, default=0) < 0 for n in nodes for a in n.attribute
    ):
        return False  # onnxruntime passes over those
    reals = [f for a in attributes for f in (a.f, *a.floats)]
    sums = any(n.op_type.startswith(("Reduce", "Pow")) for n in nodes)
    largest = LARGEST_POWER if any(n.op_type == "Exp" for n in nodes) else LARGEST_SQUARED
    arrays = [*feeds.values(), *(numpy_helper.to_array(t) for t in model.graph.initializer)]
    return all(_is_plain(a, sums, largest) for a in (np.array(reals), *arrays))


def _is_plain(a: Any, sums: bool, largest: float) -> bool:
    if a.dtype.kind == "b":
        return bool((a.view(np.uint8) <= 1).all())
    if a.dtype.kind in "iu":
        return not sums or bool((np.abs(a.astype(np.float64)) <= LARGEST_SUMMED).all())
    size = np.abs(a.astype(np.float64)) if a.dtype.kind == "f" else np.zeros(0)
    return bool(((size < largest) & ((size > 1 / LARGEST_SQUARED) | (size == 0))).all())


def compared(got: list[Any], wanted: list[Any], model: onnx.ModelProto) -> bool:
    """Whether two engines agree; integers that come from reals may differ by a level."""
    levels = any("uant" in n.op_type for n in model.graph.node)

    def alike(g: Any, w: Any) -> bool:
        if isinstance(w, list) or w is None:
            return w is None or (len(g) == len(w) and all(map(alike, g, w)))
        g = np.asarray(g)
        if not g.size and not w.size:  # what a loop without iterations would have stacked
            return g.ndim == w.ndim
        return agrees(_masked(g), _masked(w), not levels)

    return alike(got, wanted)


def _masked(a: Any) -> Any:
    """The array; onnxruntime hides what is masked by the lowest number, and cuts tails of a sigmoid off."""
    if a.dtype.kind != "f":
        return a
    a = np.where(a == np.finfo(a.dtype).min, np.full_like(a, -np.inf), a)
    return np.where(np.abs(a) < SMALLEST, np.zeros_like(a), a)


def _has_nan(a: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype.kind == "f" and bool(np.isnan(a).any())


def attack(rows: list[tuple[str, bytes, list[Any], bool]], seed: int) -> tuple[str, str, str]:
    """Kind, state and detail of one altered model."""
    rng = np.random.default_rng(seed)
    name, data, inputs, is_peers = rows[rng.integers(len(rows))]
    model = onnx.ModelProto.FromString(data)
    feeds = dict(zip((v.name for v in model.graph.input), inputs, strict=False))
    kinds = []
    for _ in range(1 + int(rng.integers(3) == 0) + int(rng.integers(6) == 0)):
        change = CHANGES[rng.integers(len(CHANGES))]
        kinds.append(change.__name__)
        with np.errstate(all="ignore"):
            change(model, feeds, rng)
    altered = model.SerializeToString()
    with interrupted(model):
        state, results = ours(altered, feeds, int(rng.integers(1, 3)))
    kind, label = kinds[0], f"{name} {kinds} {[n.op_type for n in model.graph.node]}"
    if state != "ran":
        return kind, state, results if state == "refused" else f"{results} {label}"
    if not is_peers or not is_comparable(model, feeds):
        return kind, "ran", "not comparable"
    at("peer")
    wanted = theirs(altered, feeds)
    at("run")
    if wanted is None:
        return kind, "ran", "alone"
    if compared(results, wanted, model):
        return kind, "ran", ""
    passing = any(n.op_type in _PASSING_NAN for n in model.graph.node) or not all(np.size(a) for a in feeds.values())
    if passing and any(map(_has_nan, results)):
        return kind, "ran", "NaN"
    at("judge")
    excuse = is_excused(model, feeds, list(results), functools.partial(compared, model=model), rng)
    return (kind, "ran", excuse) if excuse else (kind, "wrong", label)


def prepare(file: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers, from the models of `collect`."""
    rows = pickle.loads(Path(file).read_bytes())
    return functools.partial(attack, rows), ("ran", "")


def attack_models(count: int, seed: int) -> Iterator[Result]:
    """``count`` altered models; a child that has run many is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.pickle"
        collect(file)
        for first in range(seed, seed + count, LIFE):
            seeds = range(first, min(first + LIFE, seed + count))
            yield from drive("model", ["-m", "tests.attack", "models", "--work", str(file)], seeds)
