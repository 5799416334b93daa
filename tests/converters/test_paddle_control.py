"""Branches and loops of Paddle's programs: as it exports them, and forms of old ones that a writer may choose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters.paddle.reading.legacy import parse_program
from bolt_numba.converters.paddle.reading.program import Operation
from bolt_numba.ops.control import Loop
from bolt_numba.types import Array
from tests import formats, models
from tests.paddle_program import Block, feed, fetch, op, program, var

FLOW = formats.packed("flow/paddle.npz.xz")
CASES = sorted({key.split("/")[0] for key in FLOW})


@pytest.mark.parametrize("name", CASES)
def test_loops_and_branches_as_paddle_exports_them(name: str) -> None:
    """All runs in one session: other sizes, other branches, other numbers of turns."""
    stored = {key.removeprefix(f"{name}/"): FLOW[key] for key in FLOW if key.startswith(f"{name}/")}
    weights = stored["params"].tobytes() if "params" in stored else None
    session = bn.compile(stored["model"].tobytes(), weights=weights)
    count = len({key.split("/")[0] for key in stored if key.startswith("in")})
    assert count
    for i in range(count):
        feeds = {key.split("/")[1]: array for key, array in stored.items() if key.startswith(f"in{i}/")}
        for place, got in enumerate(session.run(None, feeds)):
            wanted = stored[f"out{i}/{place}"]
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def drawn_table() -> Array:
    """A table of six rows and four columns with words of noise, as the network takes it: f32 [1, 3, 488, 488]."""
    image = np.full((488, 488, 3), 255, np.uint8)
    for y in range(20, 400, 60):
        image[y : y + 2, 20:460] = 0
    for x in range(20, 470, 110):
        image[20:382, x : x + 2] = 0
    random = np.random.default_rng(0)
    for y in range(30, 360, 60):
        for x in range(40, 440, 110):
            image[y + 10 : y + 30, x : x + 50] = random.integers(0, 2, (20, 50, 1)) * 255
    scaled = (image / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    return np.ascontiguousarray(scaled.astype(np.float32).transpose(2, 0, 1)[None])


def test_a_real_network_that_writes_a_table_token_by_token() -> None:
    try:
        path, _ = (models.fetch(f"table.{suffix}") for suffix in ("pdmodel", "pdiparams"))
    except models.FetchError as error:
        pytest.skip(str(error))
    session = bn.compile(path)
    got = session.run(None, {session.inputs[0].name: drawn_table()})
    with np.load(formats.GOLDEN / "flow" / "table.npz") as wanted:
        for place, array in enumerate(got):
            np.testing.assert_allclose(array, wanted[str(place)], rtol=1e-4, atol=1e-5)


# --- old programs of one writer or another ---------------------------------------------------------------------------

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
IS_POSITIVE = (
    op("reduce_sum", {"X": ["x"]}, {"Out": ["s"]}, reduce_all=True),
    op("fill_constant", {}, {"Out": ["zero"]}, shape=[1], value=0.0, dtype=5),
    op("greater_than", {"X": ["s"], "Y": ["zero"]}, {"Out": ["c"]}, axis=-1),
    op("logical_not", {"X": ["c"]}, {"Out": ["not_c"]}),
    op("cast", {"X": ["c"]}, {"Out": ["mask"]}, in_dtype=0, out_dtype=2),
)


def scaled(x: str, y: str, scale: float, bias: float = 0.0) -> bytes:
    return op("scale", {"X": [x]}, {"Out": [y]}, scale=scale, bias=bias, bias_after_scale=True)


def conditional(block: int, cond: str, *results: str) -> bytes:
    inputs, outputs = {"Cond": [cond], "Input": ["x"]}, {"Out": list(results), "Scope": ["scope"]}
    return op("conditional_block", inputs, outputs, sub_block=Block(block), is_scalar_condition=True)


def select(no: str, yes: str, result: str, mask: str = "mask") -> bytes:
    return op("select_input", {"X": [no, yes], "Mask": [mask]}, {"Out": [result]})


def run(data: bytes, *arrays: Array) -> list[Any]:
    session = bn.compile(data)
    return list(session.run(None, dict(zip([spec.name for spec in session.inputs], arrays, strict=True))))


def kinds(data: bytes) -> list[str]:
    """Types of all operations, those of blocks behind the one that has them."""

    def all_of(operations: list[Operation]) -> list[str]:
        return [t for o in operations for t in (o.type, *(k for block in o.blocks for k in all_of(block.operations)))]

    return all_of(parse_program(data, "test").blocks[0].operations)


def branches(*rest: bytes, yes: list[bytes], no: list[bytes] | None = None, more: list[bytes] | None = None) -> bytes:
    """``y``, and what ``more`` says, of what is done to ``x`` where the sum of x is above 0, and elsewhere."""
    outer = [feed("x"), *IS_POSITIVE, *rest, fetch("y"), var("c", "?", [1])]
    names = [var(name, "f4", [-1, 3]) for name in ("x", "t", "u")]
    return program([*outer, *names, *(more or [])], yes, *([] if no is None else [no]))


UNDEFINED = op("assign_value", {}, {"Out": ["undefined_var_0"]}, shape=[1], dtype=6, values=[1.77113e27])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_choice_of_one_block_and_a_constant_behind_it(sign: int) -> None:
    """The flag of a decoder: the block gives what was, the other choice is made after it."""
    data = branches(
        conditional(1, "not_c", "kept"),
        op("fill_constant", {}, {"Out": ["nine"]}, shape=[2, 3], value=9.0, dtype=5),
        select("kept", "nine", "y"),
        yes=[op("assign", {"X": ["x"]}, {"Out": ["kept"]})],
    )
    assert kinds(data).count("if_else") == 1
    assert "select_input" not in kinds(data)
    x = sign * np.abs(X)
    np.testing.assert_array_equal(run(data, x)[0], np.full((2, 3), 9.0) if sign > 0 else x)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_that_one_branch_knows_has_the_type_of_that_branch(sign: int) -> None:
    """The other choice is the number, in f64, that stands for what has no value yet."""
    data = branches(
        UNDEFINED,
        conditional(1, "c", "twice"),
        select("undefined_var_0", "twice", "z"),
        select("x", "twice", "y"),
        yes=[scaled("x", "own", 2.0), op("assign", {"X": ["own"]}, {"Out": ["twice"]}), var("own", "f4", [-1, 3])],
        more=[fetch("z", 1)],
    )
    x = sign * np.abs(X)
    y, z = run(data, x)
    np.testing.assert_array_equal(y, 2 * x if sign > 0 else x)
    assert z.dtype == np.float32
    if sign > 0:
        np.testing.assert_array_equal(z, 2 * x)
    else:
        assert np.all(z > 1e27)


@pytest.mark.parametrize("sign", [1, -1])
def test_blocks_whose_results_others_read_stay(sign: int) -> None:
    """What the block gives is read behind the choice, too: there it is whatever was before."""
    data = branches(
        op("assign", {"X": ["x"]}, {"Out": ["t"]}),
        conditional(1, "c", "t"),
        conditional(2, "not_c", "u"),
        select("u", "t", "v"),
        op("elementwise_add", {"X": ["v"], "Y": ["t"]}, {"Out": ["y"]}, axis=-1),
        yes=[scaled("x", "t", 2.0)],
        no=[scaled("x", "u", 3.0)],
    )
    assert kinds(data).count("conditional_block") == 2
    x = sign * np.abs(X)
    np.testing.assert_array_equal(run(data, x)[0], 4 * x)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_choice_behind_a_write_to_what_the_block_reads(sign: int) -> None:
    """The block may not run as late as the choice: x is another then."""
    data = branches(
        conditional(1, "c", "t"),
        conditional(2, "not_c", "u"),
        op("increment", {"X": ["x"]}, {"Out": ["x"]}, step=100.0),
        select("u", "t", "y"),
        yes=[scaled("x", "t", 2.0)],
        no=[scaled("x", "u", 3.0)],
    )
    x = sign * np.abs(X)
    np.testing.assert_array_equal(run(data, x)[0], 2 * x if sign > 0 else 3 * x)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_choice_by_a_condition_that_is_written_anew(sign: int) -> None:
    data = branches(
        conditional(1, "c", "t"),
        conditional(2, "not_c", "u"),
        op("logical_not", {"X": ["c"]}, {"Out": ["c"]}),
        op("cast", {"X": ["c"]}, {"Out": ["other"]}, in_dtype=0, out_dtype=2),
        op("assign", {"X": ["x"]}, {"Out": ["w"]}),
        select("u", "w", "a", "other"),
        select("u", "t", "b", "mask"),
        op("elementwise_add", {"X": ["b"], "Y": ["x"]}, {"Out": ["y"]}, axis=-1),
        yes=[scaled("x", "t", 2.0)],
        no=[scaled("x", "u", 3.0)],
        more=[fetch("a", 1)],
    )
    x = sign * np.abs(X)
    y, a = run(data, x)
    np.testing.assert_array_equal(y, 3 * x if sign > 0 else 4 * x)
    if sign < 0:  # else it is what nobody has written
        np.testing.assert_array_equal(a, x)


def loop(*operations: bytes, before: tuple[bytes, ...] = (), variables: tuple[bytes, ...] = ()) -> list[list[bytes]]:
    """Blocks of a loop of n turns over i and what the operations say; the results are y."""
    outer = [
        feed("x"), feed("n", 1),
        op("fill_constant", {}, {"Out": ["i"]}, shape=[1], value=0.0, dtype=3),
        *before,
        op("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["c"]}, axis=-1),
        op("while", {"X": ["i", "x"], "Condition": ["c"]}, {"Out": ["i"]}, sub_block=Block(1)),
        fetch("y"), var("x", "f4", [-1, 3]), var("n", "i8", [1]), var("i", "i8", [1]), var("c", "?", [1]), *variables,
    ]  # fmt: skip
    turn = [*operations, op("increment", {"X": ["i"]}, {"Out": ["i"]}, step=1.0),
            op("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["c"]}, axis=-1)]  # fmt: skip
    return [outer, turn]


@pytest.mark.parametrize("declared", ["f4", "f8"])
def test_a_value_that_the_loop_gives_birth_to(declared: str) -> None:
    """It begins as a number in f64 of shape [1], declared so or as what it becomes."""
    first = op("assign_value", {}, {"Out": ["y"]}, shape=[1], dtype=6, values=[1.77113e27])
    dims = [-1, 3] if declared == "f4" else [1]
    outer, turn = loop(scaled("x", "t", 2.0), op("assign", {"X": ["t"]}, {"Out": ["y"]}), var("t", "f4", [-1, 3]),
                       before=(first,), variables=(var("y", declared, dims),))  # fmt: skip
    data = program(outer, turn)
    assert bn.load(data).outputs[0].type.shape is not None
    for turns in (1, 3):
        np.testing.assert_array_equal(run(data, X, np.array([turns]))[0], 2 * X)
    (unborn,) = run(data, X, np.array([0]))
    assert unborn.dtype == np.float32
    assert np.all(unborn > 1e27)


def test_one_element_that_a_loop_does_not_read_stands_for_what_it_makes() -> None:
    """As programs begin what `set_value` makes in a loop: zero of shape (), declared with the shape it will have."""
    first = op("fill_constant", {}, {"Out": ["y"]}, shape=[1], value=0.0, dtype=5)
    made = scaled("x", "y", 2.0)
    outer, turn = loop(made, before=(first,), variables=(var("y", "f4", [-1, 3]),))
    graph = bn.load(program(outer, turn))
    assert graph.outputs[0].type.shape is not None
    np.testing.assert_array_equal(run(program(outer, turn), X, np.array([2]))[0], 2 * X)


def test_one_element_that_a_loop_reads_is_what_it_is() -> None:
    """A sum that grows to the shape of what is added; without a turn it keeps its own."""
    first = op("fill_constant", {}, {"Out": ["y"]}, shape=[1], value=0.0, dtype=5)
    made = op("elementwise_add", {"X": ["y"], "Y": ["x"]}, {"Out": ["y"]}, axis=-1)
    data = program(*loop(made, before=(first,), variables=(var("y", "f4", [-1, 3]),)))
    np.testing.assert_array_equal(run(data, X, np.array([3]))[0], 3 * X)
    np.testing.assert_array_equal(run(data, X, np.array([0]))[0], np.zeros(1))


@pytest.mark.parametrize("last", [0, -1])
def test_a_turn_that_writes_at_its_own_place_has_one_plan(last: int) -> None:
    """`y[:, i] = ...` and a flag that is chosen: no size follows from either, and neither is a branch."""
    attributes: dict[str, Any] = {"axes": [1], "steps": [1], "decrease_axes": [1]}
    bounds = {"StartsTensorList": ["at"], "EndsTensorList": ["behind"]}
    outer, turn = loop(
        op("reduce_sum", {"X": ["x"]}, {"Out": ["sums"]}, dim=[1], keep_dim=False),
        scaled("i", "at", 1.0, float(last)),
        scaled("at", "behind", 1.0, 1.0),
        op("set_value", bounds | {"Input": ["y"], "ValueTensor": ["sums"]}, {"Out": ["y"]}, **attributes),
        *(var(name, "f4", [-1]) for name in ("sums", "at", "behind", "mask", "yes", "chosen")),
        op("cast", {"X": ["c"]}, {"Out": ["mask"]}, in_dtype=0, out_dtype=2),
        op("fill_constant", {}, {"Out": ["yes"]}, shape=[1], value=1.0, dtype=0),
        select("done", "yes", "chosen"),
        op("assign", {"X": ["chosen"]}, {"Out": ["done"]}),
        before=(op("fill_constant", {}, {"Out": ["y"]}, shape=[2, 5], value=7.0, dtype=5),
                op("fill_constant", {}, {"Out": ["done"]}, shape=[1], value=0.0, dtype=0)),
        variables=(var("y", "f4", [2, 5]), var("done", "?", [1]), fetch("done", 1)),
    )  # fmt: skip
    graph = bn.load(program(outer, turn))
    (body,) = (node.op.body for node in graph.nodes if isinstance(node.op, Loop))
    assert {"If", "Slice"}.isdisjoint(node.op.name for node in body.nodes)
    for turns in (1, 4):
        y, done = run(program(outer, turn), X, np.array([turns]))
        wanted = np.full((2, 5), 7.0)
        wanted[:, [i + last for i in range(turns)]] = X.sum(axis=1, keepdims=True)
        np.testing.assert_array_equal(y, wanted)
        assert done.tolist() == [True]


def test_a_list_that_a_block_declares() -> None:
    """An array of tensors that is new in every turn, which the block of the loop alone knows."""
    outer, turn = loop(
        op("fill_constant", {}, {"Out": ["k"]}, shape=[1], value=0.0, dtype=3),
        op("write_to_array", {"X": ["y"], "I": ["k"]}, {"Out": ["rows"]}),
        op("read_from_array", {"X": ["rows"], "I": ["k"]}, {"Out": ["row"]}),
        scaled("row", "t", 1.0, 1.0),
        op("assign", {"X": ["t"]}, {"Out": ["y"]}),
        *(var(name, "f4", [-1, 3]) for name in ("row", "t")),
        var("k", "i8", [1]),
        var("rows", "f4", [-1, 3], is_array=True),
        before=(op("assign", {"X": ["x"]}, {"Out": ["y"]}),),
        variables=(var("y", "f4", [-1, 3]),),
    )
    np.testing.assert_array_equal(run(program(outer, turn), X, np.array([3]))[0], X + 3)


def test_many_choices_take_little_time() -> None:
    """Each reaches over all that stand behind it; those that reach far stay as they are."""
    count = 3000
    conditions = [conditional(1, "c", f"t{i}") for i in range(count)]
    selects = [select("x", f"t{i}", f"y{i}") for i in range(count)]
    data = branches(*conditions, *selects, yes=[scaled("x", "t0", 2.0)])
    found = kinds(data)
    assert len(found) > 2 * count
