"""Paddle's files: which belong together, what they may hold, control flow, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters import bounded
from bolt_numba.converters.formats import Content
from bolt_numba.converters.paddle.reading.read import files_of
from bolt_numba.converters.paddle.reading.registry import PADDLE
from bolt_numba.ops.pointwise import Mul
from bolt_numba.types import Array
from tests import formats, models
from tests.paddle_program import Block, feed, fetch, op, program, record, var

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def dense() -> bytes:
    """y = relu(x w + b)."""
    return program([
        feed("x"),
        op("mul", {"X": ["x"], "Y": ["w"]}, {"Out": ["s"]}, x_num_col_dims=1, y_num_col_dims=1),
        op("elementwise_add", {"X": ["s"], "Y": ["b"]}, {"Out": ["t"]}, axis=-1),
        op("relu", {"X": ["t"]}, {"Out": ["y"]}),
        fetch("y"),
        var("x", "f4", [-1, 3]),
        var("w", "f4", [3, 4], is_kept=True),
        var("b", "f4", [4], is_kept=True),
    ])  # fmt: skip


BIAS = np.array([0.5, -1, 0, 2], np.float32)
WANTED = np.maximum(X @ W + BIAS, 0)


def run(model: Any, *arrays: Any, **options: Any) -> list[Any]:
    session = bn.compile(model, **options)
    return list(session.run(None, dict(zip([spec.name for spec in session.inputs], arrays, strict=True))))


def made(path: Path) -> Path:
    path.write_bytes(dense())
    return path


@pytest.mark.parametrize("name", ["net.pdmodel", "inference.pdmodel", "renamed.bin"])
def test_weights_stand_beside_the_program_or_are_named(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    weights = record(BIAS) + record(W)
    (tmp_path / "other").write_bytes(weights)
    np.testing.assert_allclose(run(path, X, weights=tmp_path / "other")[0], WANTED, rtol=1e-6)
    np.testing.assert_allclose(run(bn.load(dense(), weights=weights), X)[0], WANTED, rtol=1e-6)
    with pytest.raises(bn.InvalidModelError, match="weights: got none"):
        bn.load(path)
    if path.suffix == ".pdmodel":
        path.with_suffix(".pdiparams").write_bytes(weights)
        np.testing.assert_allclose(run(path, X)[0], WANTED, rtol=1e-6)
        np.testing.assert_allclose(run(tmp_path, X)[0], WANTED, rtol=1e-6)


@pytest.mark.parametrize("together", ["", "__params__", "params", "weights"])
def test_folders(tmp_path: Path, together: str) -> None:
    made(tmp_path / "__model__")
    if together:
        (tmp_path / together).write_bytes(record(BIAS) + record(W))
    else:
        (tmp_path / "w").write_bytes(record(W))
        (tmp_path / "b").write_bytes(record(BIAS))
    np.testing.assert_allclose(run(tmp_path, X)[0], WANTED, rtol=1e-6)
    np.testing.assert_allclose(run(tmp_path / "__model__", X)[0], WANTED, rtol=1e-6)


@pytest.mark.parametrize("program", ["inference.pdmodel", "net.pdmodel", "__model__"])
def test_links_to_files_of_other_names(tmp_path: Path, program: str) -> None:
    """As caches of model hubs lay them out: files have hashes for names."""
    made(tmp_path / "1f")
    (tmp_path / "2e").write_bytes(record(BIAS) + record(W))
    net = tmp_path / "net"
    net.mkdir()
    (net / program).symlink_to("../1f")
    weights = "__params__" if program == "__model__" else program.replace("pdmodel", "pdiparams")
    (net / weights).symlink_to("../2e")
    for path in (net, net / program):
        np.testing.assert_allclose(run(path, X)[0], WANTED, rtol=1e-6)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / program).symlink_to(net / program)
    (tmp_path / "1f").replace(net / program)
    np.testing.assert_allclose(run(tmp_path / "other" / program, X)[0], WANTED, rtol=1e-6)


@pytest.mark.parametrize(
    "weights",
    [
        b"", record(W), record(BIAS) + record(W)[:-1], record(BIAS) + record(W) + b"x", record(BIAS)[:30],
        b"\1" + record(BIAS)[1:] + record(W), record(BIAS, [[0, 1 << 60]] * 70) + record(W),
    ],
    ids=range(7),
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(weights: bytes) -> None:
    with pytest.raises(bn.BoltError):
        run(bn.load(dense(), weights=weights), X)


def test_a_weight_never_leaves_its_folder(tmp_path: Path) -> None:
    secret = "../secret"
    model = program([op("relu", {"X": [secret]}, {"Out": ["y"]}), fetch("y"), var(secret, "f4", [3], is_kept=True)])
    (tmp_path / "net").mkdir()
    (tmp_path / "secret").write_bytes(record(BIAS[:3]))
    (tmp_path / "net" / "__model__").write_bytes(model)
    with pytest.raises(bn.InvalidModelError, match="wanted a path inside the model's folder"):
        bn.load(tmp_path / "net")


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ml_dtypes.bfloat16, "i1", "u1", "i2", "i4", "i8", "?"])
def test_weights_of_every_dtype(dtype: Any) -> None:
    """The file may also hold a ragged structure, which weights have no use for."""
    array = np.array([[0, 1, 3], [1, 0, 2]]).astype(dtype)
    model = program([
        op("assign", {"X": ["w"]}, {"Out": ["y"]}), fetch("y"), var("w", array.dtype, [2, 3], is_kept=True)
    ])  # fmt: skip
    for lod in ([], [[0, 1, 2]]):
        (got,) = run(bn.load(model, weights=record(array, lod)))
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_columns_say_the_order_of_inputs_and_outputs() -> None:
    model = bn.load(program([
        feed("b", 1), feed("a", 0),
        op("elementwise_sub", {"X": ["a"], "Y": ["b"]}, {"Out": ["d"]}, axis=-1),
        fetch("d", 1), fetch("a", 0), var("a", "f4", [-1]), var("b", "f4", [-1]),
    ]))  # fmt: skip
    assert [v.name for v in model.inputs] == ["a", "b"]
    assert model.output_names == ["a", "d"]
    a, d = run(model, X[0], X[1])
    np.testing.assert_array_equal((a, d), (X[0], X[0] - X[1]))


def test_names_are_written_again() -> None:
    """``x`` is input and, after `increment`, something else."""
    model = bn.load(program([
        feed("x"),
        op("scale", {"X": ["x"]}, {"Out": ["before"]}, scale=2.0, bias=0.0, bias_after_scale=True),
        op("increment", {"X": ["x"]}, {"Out": ["x"]}, step=3.0),
        fetch("x", 0), fetch("before", 1), var("x", "f4", [1]),
    ]))  # fmt: skip
    after, before = run(model, np.ones(1, np.float32))
    assert (after, before) == ([4], [2])


def branch(*cond: bytes) -> bytes:
    """y, set to 2 x where the sum of x is above 0, else what it was before."""
    return program(
        [
            feed("x"),
            op("reduce_sum", {"X": ["x"]}, {"Out": ["s"]}, reduce_all=True),
            op("fill_constant", {}, {"Out": ["zero"]}, shape=[1], value=0.0, dtype=5),
            op("greater_than", {"X": ["s"], "Y": ["zero"]}, {"Out": ["c"]}, axis=-1),
            *cond,
            op(
                "conditional_block", {"Cond": ["c"], "Input": ["x"]}, {"Out": ["y"], "Scope": ["scope"]},
                sub_block=Block(1), is_scalar_condition=True,
            ),
            fetch("y"),
            var("x", "f4", [-1, 3]), var("y", "f4", [-1, 3]),
        ],
        [
            op("scale", {"X": ["x"]}, {"Out": ["t"]}, scale=2.0, bias=0.0, bias_after_scale=True),
            op("assign", {"X": ["t"]}, {"Out": ["y"]}),
            var("t", "f4", [-1, 3]),
        ],
    )  # fmt: skip


def test_a_lone_conditional_block_keeps_what_was_there() -> None:
    model = bn.load(branch(op("assign", {"X": ["x"]}, {"Out": ["y"]})))
    np.testing.assert_array_equal(run(model, np.abs(X))[0], 2 * np.abs(X))
    np.testing.assert_array_equal(run(model, -np.abs(X))[0], -np.abs(X))


def test_what_a_conditional_block_alone_defines_is_empty_without_it() -> None:
    model = bn.load(branch())
    np.testing.assert_array_equal(run(model, np.abs(X))[0], 2 * np.abs(X))
    assert run(model, -np.abs(X))[0].shape == (0, 3)


def test_arrays_grow_in_loops() -> None:
    """An array that the loop alone writes to: 1 x, 2 x, 3 x, of which the last is read after it."""
    step = op("scale", {"X": ["i"]}, {"Out": ["next"]}, scale=1.0, bias=1.0, bias_after_scale=True)
    model = bn.load(program(
        [
            feed("x"),
            op("fill_constant", {}, {"Out": ["i"]}, shape=[1], value=0.0, dtype=3),
            op("fill_constant", {}, {"Out": ["end"]}, shape=[1], value=3.0, dtype=3),
            op("less_than", {"X": ["i"], "Y": ["end"]}, {"Out": ["c"]}, axis=-1),
            op("while", {"X": ["i", "x", "array"], "Condition": ["c"]}, {"Out": ["i", "array"]}, sub_block=Block(1)),
            op("lod_array_length", {"X": ["array"]}, {"Out": ["n"]}),
            op("increment", {"X": ["n"]}, {"Out": ["last"]}, step=-1.0),
            op("read_from_array", {"X": ["array"], "I": ["last"]}, {"Out": ["y"]}),
            fetch("y", 0), fetch("n", 1),
            var("x", "f4", [2, 3]), var("i", "i8", [1]), var("c", "?", [1]), var("n", "i8", [1]),
            var("array", "f4", [2, 3], is_array=True),
        ],
        [
            step,
            op("cast", {"X": ["next"]}, {"Out": ["f"]}, in_dtype=3, out_dtype=5),
            op("elementwise_mul", {"X": ["x"], "Y": ["f"]}, {"Out": ["v"]}, axis=-1),
            op("write_to_array", {"X": ["v"], "I": ["i"]}, {"Out": ["array"]}),
            op("assign", {"X": ["next"]}, {"Out": ["i"]}),
            op("less_than", {"X": ["next"], "Y": ["end"]}, {"Out": ["c"]}, axis=-1),
            var("next", "i8", [1]), var("f", "f4", [1]), var("v", "f4", [2, 3]),
        ],
    ))  # fmt: skip
    y, n = run(model, X)
    np.testing.assert_array_equal(y, 3 * X)
    assert n.tolist() == [3]


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 1 << 40])
def test_blocks_that_hold_themselves_are_refused(number: int) -> None:
    loop = op("while", {"X": ["x"], "Condition": ["x"]}, {"Out": ["x"]}, sub_block=number)
    with pytest.raises(bn.InvalidModelError, match="sub_block"):
        bn.load(program([feed("x"), fetch("x"), var("x", "?", [1])], [loop]))


def test_blocks_that_multiply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs the next one twice, thirty deep: more than a billion operations from a file of a few kB."""
    loop = [op("while", {"Condition": ["x"]}, {"Out": ["x"]}, sub_block=Block(i + 1)) for i in range(30)]
    blocks = [[feed("x"), loop[0], fetch("x"), var("x", "?", [1])], *([row, row] for row in loop[1:]), []]
    monkeypatch.setattr(bounded, "MAX_EXPANDED", 2000)  # which takes less time to reach
    with pytest.raises(bn.InvalidModelError, match="too many nested or repeated graphs"):
        bn.load(program(*blocks))


def test_everything_unsupported_is_listed_at_once() -> None:
    model = program([
        feed("x"),
        op("no_such", {"X": ["x"]}, {"Out": ["a"]}),
        op("nor_this", {"X": ["a"]}, {"Out": ["b"]}),
        op("relu", {"X": ["b"]}, {"Out": ["y"]}),
        fetch("y"), var("x", "f4", [2, 3]), var("a", "f4", [2, 3]), var("b", "f4", [2, 3]),
    ])  # fmt: skip
    with pytest.raises(bn.UnsupportedOpError) as caught:
        bn.load(model)
    assert list(caught.value.items) == ["no_such at node 'a'", "nor_this at node 'b'"]


def test_the_version_of_an_operator_chooses_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PADDLE.readers, "table", dict(PADDLE.readers.table))
    for since, factor in ((0, 2.0), (2, 3.0)):
        PADDLE.reader("versioned", since=since)(lambda b, x, *, factor=factor: b(Mul(), x, factor))
    for version, factor in ((None, 2), (1, 2), (2, 3), (7, 3)):
        model = program(
            [feed("x"), op("versioned", {"X": ["x"]}, {"Out": ["y"]}), fetch("y"), var("x", "f4", [2, 3])],
            versions={} if version is None else {"versioned": version},
        )
        np.testing.assert_array_equal(run(bn.load(model), X)[0], factor * X)


def test_an_unknown_attribute_may_only_be_off() -> None:
    def relu(**attributes: Any) -> bytes:
        return program([feed("x"), op("relu", {"X": ["x"]}, {"Out": ["y"]}, **attributes), fetch("y"),
                        var("x", "f4", [2, 3])])  # fmt: skip

    assert len(bn.load(relu(new_mode=0, other=False, use_cudnn=True)).nodes) == 1
    with pytest.raises(bn.UnsupportedOpError, match="attribute 'new_mode' = 2"):
        bn.load(relu(new_mode=2))


@pytest.mark.parametrize("pattern", ["control/while_data_dep", "control/cond_nested", "quant/qat_", "nets/mlp"])
@pytest.mark.parametrize("engine", formats.ENGINES)
def test_golden(pattern: str, engine: str) -> None:
    found = list(formats.cases("paddle", pattern))
    assert found
    for case in found:
        formats.check(case, engine)


@pytest.mark.parametrize(
    ("name", "twin", "shape"),
    [
        ("ppocr_det", "ch_PP-OCRv4_det_infer.onnx", (1, 3, 64, 96)),
        ("ppocr_rec", "ch_PP-OCRv4_rec_infer.onnx", (2, 3, 48, 120)),
        ("ppocr_cls", "ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192)),
    ],
)
def test_real_programs_are_as_their_twins(name: str, twin: str, shape: tuple[int, ...]) -> None:
    try:
        models.fetch(f"{name}.pdiparams")
        paths = models.fetch(f"{name}.pdmodel"), models.fetch(twin)
    except models.FetchError as error:
        pytest.skip(str(error))
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    (got,), (wanted,) = (run(path, x) for path in paths)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_program_of_pir_that_is_none() -> None:
    for text in (
        '{"base_code"',
        '{"base_code": 3}',
        '{"base_code": {"magic": "pir", "version": 9}}',
        '{"base_code":' + "[" * 9999,
    ):
        with pytest.raises(bn.InvalidModelError, match=r"JSON|version 9|cannot be read"):
            bn.load(text.encode())


def many_layers(count: int) -> tuple[bytes, bytes]:
    """Convolutions and activations in a chain, with their weights."""
    operations: list[bytes] = []
    weights: dict[str, Array] = {}
    last = "x"
    for i in range(count):
        weights[f"w{i:03}"] = np.full((8, 8, 3, 3), 0.01, np.float32)
        operations.append(op(
            "conv2d", {"Input": [last], "Filter": [f"w{i:03}"]}, {"Output": [f"c{i}"]}, strides=[1, 1],
            paddings=[1, 1], dilations=[1, 1], groups=1, padding_algorithm="EXPLICIT", data_format="NCHW",
        ))  # fmt: skip
        operations.append(op("relu", {"X": [f"c{i}"]}, {"Out": [f"r{i}"]}))
        last = f"r{i}"
    kept = [var(name, "f4", array.shape, is_kept=True) for name, array in weights.items()]
    model = program([feed("x"), *operations, fetch(last), var("x", "f4", [-1, 8, 16, 16]), *kept])
    return model, b"".join(record(weights[name]) for name in sorted(weights))


def test_a_hundred_layers_are_read_quickly() -> None:
    model, weights = many_layers(100)
    bn.load(model, weights=weights)
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        graph = bn.load(model, weights=weights)
        times.append(time.perf_counter() - began)
    assert len(graph.nodes) == 200
    assert min(times) < 0.3


def test_nothing_of_paddle_is_imported(tmp_path: Path) -> None:
    (tmp_path / "net.pdmodel").write_bytes(dense())
    (tmp_path / "net.pdiparams").write_bytes(record(BIAS) + record(W))
    code = (
        "import sys, bolt_numba as bn; bn.load(sys.argv[1]);"
        "bad = {'paddle', 'tensorflow', 'ai_edge_litert', 'cv2', 'onnx', 'google.protobuf'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "net.pdmodel")], check=True, timeout=120)


def nested(found: Any, depth: int) -> Any:
    for _ in range(depth):
        found = {"regions": [{"blocks": [{"args": [], "ops": [{"#": "1.if", "I": [], "O": [], **found}]}]}]}
    return found


def test_regions_nested_deep_are_refused() -> None:
    text = json.dumps({"base_code": {"magic": "pir", "version": 1}, "program": nested({"regions": []}, 90)})
    with pytest.raises(bn.InvalidModelError, match="nested"):
        bn.load(text.encode())


@pytest.mark.parametrize("kind", ["legacy", "folder", "pir"])
def test_paddle_judges_its_own_format(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("paddle")
    case = next(formats.cases("paddle", f"^conv/conv2d_basic__{kind}"))
    formats.load(case, tmp_path)
    path = tmp_path if kind == "folder" else next(tmp_path.glob("m.[jp]*[nl]"))
    report = bn.verify(path)
    assert report.against == "paddle"
    assert report.ok, report


def test_weights_as_one_file(tmp_path: Path) -> None:
    """What a judge is given of a folder."""
    made(tmp_path / "__model__")
    for name, array in (("w", W), ("b", BIAS)):
        (tmp_path / name).write_bytes(record(array))
    assert files_of(Content(tmp_path)) == (dense(), record(BIAS) + record(W))


def test_weights_in_place_of_the_program_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.pdiparams"
    path.write_bytes(record(np.ones((2, 3), np.float32)))
    with pytest.raises(bn.InvalidModelError, match=r"^m\.pdiparams: .* no protobuf, wanted a program"):
        bn.load(path)


def test_lists_of_tensors_that_double_are_refused() -> None:
    """Forty operations that combine a list with itself would make a million million names."""
    pairs = [{"#": "0.combine", "I": [{"%": n}, {"%": n}], "O": [{"%": n + 1, "TT": None}]} for n in range(1, 41)]
    source = {"base_code": {"magic": "pir", "version": 1}, "program": {"regions": [{"blocks": [{"ops": pairs}]}]}}
    with pytest.raises(bn.BoltError, match="lists of lists of tensors"):
        bn.load(json.dumps(source).encode())
