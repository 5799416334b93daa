"""Files of TFLite: containers, signatures, subgraphs, variables, tables and what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.cli.app import app
from bolt_numba.converters.flat import FlatField
from bolt_numba.converters.tflite.flex import flex_value
from bolt_numba.ir.spec import violations
from bolt_numba.ir.store import to_bytes
from bolt_numba.types import F32, I32, Array
from tests import formats
from tests.tflite_files import FlatWriter, TfliteFile

TEXTS = tuple(FlatField(name, "str") for name in ("name", "description", "version", "parts", "author"))

TWO = np.array([1, 2], F32)


def runs(data: bytes, *feeds: Array, signature: str | None = None) -> list[Array]:
    session = bn.compile(data, signature=signature)
    return session.run(None, dict(zip([s.name for s in session.inputs], feeds, strict=True)))


def adding(file: TfliteFile, constant: float, name: str = "") -> tuple[int, int]:
    """A subgraph that adds a number to its input; its input and output."""
    file.subgraph(name)
    x, c, y = file.tensor("x", (2,)), file.constant("c", np.array(constant, F32)), file.tensor("y", (2,))
    file.operator("ADD", [x, c], [y], ("AddOptions", {}))
    file.ends([x], [y])
    return x, y


# --- names and signatures --------------------------------------------------------------------------------------------


def test_without_signatures_tensors_give_the_names() -> None:
    file = TfliteFile()
    adding(file, 1)
    graph = bn.load(file.to_bytes())
    assert [v.name for v in graph.inputs] == ["x"]
    assert graph.output_names == ["y"]
    assert bn.load_model(file.to_bytes()).signatures == ("main",)


def test_signatures_are_graphs_with_names_of_their_own() -> None:
    file = TfliteFile()
    for i, key in enumerate(("plus", "minus")):
        x, y = adding(file, 1 - 2 * i)
        file.signature(key, i, {"image": x}, {"result": y})
    data = file.to_bytes()
    assert bn.load_model(data).signatures == ("plus", "minus")
    session = bn.compile(data, signature="minus")
    assert session.signatures == ("plus", "minus")
    assert session(image=TWO)["result"].tolist() == [0, 1]
    assert bn.compile(data)(image=TWO)["result"].tolist() == [2, 3]
    with pytest.raises(bn.BoltError, match="signature: got 'times'"):
        bn.compile(data, signature="times")


def test_tensors_of_one_name_or_none_are_told_apart() -> None:
    file = TfliteFile()
    file.subgraph()
    a, b, y = file.tensor("", (2,)), file.tensor("x", (2,)), file.tensor("x", (2,))
    file.operator("ADD", [a, b], [y], ("AddOptions", {}))
    file.ends([a, b], [y, y])
    graph = bn.load(file.to_bytes())
    assert [v.name for v in graph.inputs] == ["tensor#0", "x"]
    assert graph.output_names == ["x#2", "x#2#1"]
    assert [r.tolist() for r in runs(file.to_bytes(), TWO, TWO)] == [[2, 4]] * 2


def test_sizes_that_a_file_leaves_open_are_symbols() -> None:
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (1, 2), shape_signature=[-1, 2]), file.tensor("y", (1, 2))
    file.operator("RELU", [x], [y])
    file.ends([x], [y])
    session = bn.compile(file.to_bytes())
    assert session.inputs[0].shape == ("x[0]", 2)
    assert session(np.ones((5, 2), F32))[0].shape == (5, 2)


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_buffers_behind_the_flatbuffer() -> None:
    file = TfliteFile()
    adding(file, 0)
    value = np.array(7, F32).tobytes()
    size = len(file.to_bytes())
    file.buffers[1] = {"offset": 1 << 20, "size": 4}
    size = len(file.to_bytes())
    file.buffers[1] = {"offset": size, "size": 4}
    assert runs(file.to_bytes() + value, TWO)[0].tolist() == [8, 9]
    with pytest.raises(bn.InvalidModelError, match=r"buffer 1: got 4 bytes from"):
        bn.load(file.to_bytes() + value[:2])


def test_constants_in_a_file_beside_the_model(tmp_path: Path) -> None:
    file = TfliteFile()
    adding(file, 0)
    file.subgraphs[0]["tensors"][1].update(buffer=0, external_buffer=7)
    file.more["external_buffer_groups"] = [{"name": "weights.bin"}]
    file.more["external_buffers"] = [{"id": 7, "group": 0, "offset": 4, "length": 4}]
    (tmp_path / "m.tflite").write_bytes(file.to_bytes())
    (tmp_path / "weights.bin").write_bytes(np.array([5, 9], F32).tobytes())
    assert bn.compile(tmp_path / "m.tflite")(TWO)[0].tolist() == [10, 11]
    (tmp_path / "weights.bin").rename(tmp_path / "2e")
    (tmp_path / "weights.bin").symlink_to("2e")
    assert bn.compile(tmp_path / "m.tflite")(TWO)[0].tolist() == [10, 11]
    with pytest.raises(bn.InvalidModelError, match="wanted a model that is read from a file"):
        bn.load(file.to_bytes())
    file.more["external_buffer_groups"] = [{"name": "../weights.bin"}]
    (tmp_path / "m.tflite").write_bytes(file.to_bytes())
    with pytest.raises(bn.InvalidModelError, match="a path inside the model's folder"):
        bn.load(tmp_path / "m.tflite")
    file.more["external_buffers"][0]["offset"] = 6
    file.more["external_buffer_groups"] = [{"name": "weights.bin"}]
    (tmp_path / "m.tflite").write_bytes(file.to_bytes())
    with pytest.raises(bn.InvalidModelError, match=r"got 4 bytes from 6 of 8"):
        bn.load(tmp_path / "m.tflite")


def test_sparse_constants_are_made_dense() -> None:
    """Rows of blocks of 2, of which one is left out: places by compressed rows."""
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (2, 4)), file.tensor("y", (2, 4))
    levels = [
        {"dense_size": 2},
        {"format": "SPARSE_CSR", "array_segments": ("Int32Vector", {"values": [0, 1, 3]}),
         "array_indices": ("Uint8Vector", {"values": [1, 0, 1]})},
        {"dense_size": 2},
    ]  # fmt: skip
    sparsity = {"traversal_order": [0, 1, 2], "block_map": [1], "dim_metadata": levels}
    c = file.constant("c", np.arange(1, 7, dtype=F32), shape=(2, 4), sparsity=sparsity)
    file.operator("ADD", [x, c], [y], ("AddOptions", {}))
    file.ends([x], [y])
    assert runs(file.to_bytes(), np.zeros((2, 4), F32))[0].tolist() == [[0, 0, 1, 2], [3, 4, 5, 6]]
    levels[1]["array_indices"] = ("Uint8Vector", {"values": [1, 0, 2]})
    with pytest.raises(bn.InvalidModelError, match="sparsity of tensor 'c'"):
        bn.load(file.to_bytes())


def block_wise(scales: list[list[float]]) -> bytes:
    """A product with int4 weights [1, 4] of which each two numbers have a scale."""
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (1, 4)), file.tensor("y", (1, 1))
    details = ("BlockwiseQuantization", {"scales": file.constant("scales", np.float16(scales)), "block_size": 2})
    packed = np.array([0x21, 0xF3], np.uint8)  # 1, 2, 3, -1
    w = file.constant("w", packed, kind="INT4", shape=(1, 4), quantization={"details": details})
    file.operator("FULLY_CONNECTED", [x, w, -1], [y], ("FullyConnectedOptions", {}))
    file.ends([x], [y])
    return file.to_bytes()


def test_scales_of_blocks() -> None:
    data = block_wise([[0.5, 2]])
    assert runs(data, np.array([[1, 10, 100, 1000]], F32))[0].tolist() == [[0.5 + 10 + 600 - 2000]]
    for scales in ([[0.5, 2, 1]], [[0.5]], [[0.5, float("nan")]]):
        with pytest.raises(bn.InvalidModelError, match=r"quantization of 'w': scales: got .* wanted finite ones"):
            bn.load(block_wise(scales))


# --- subgraphs -------------------------------------------------------------------------------------------------------


def test_a_condition_of_the_run_chooses_a_subgraph() -> None:
    file = TfliteFile()
    file.subgraph()
    p, x, y = file.tensor("p", (), "BOOL"), file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("IF", [p, x], [y], ("IfOptions", {"then_subgraph_index": 1, "else_subgraph_index": 2}))
    file.ends([p, x], [y])
    adding(file, 1), adding(file, -1)
    for p_, wanted in ((True, [2, 3]), (False, [0, 1])):
        assert runs(file.to_bytes(), np.array(p_), TWO)[0].tolist() == wanted


def test_a_subgraph_that_calls_itself_is_refused() -> None:
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("CALL", [x], [y], ("CallOptions", {"subgraph": 0}))
    file.ends([x], [y])
    with pytest.raises(bn.InvalidModelError, match="too many nested or repeated graphs"):
        bn.load(file.to_bytes())


def variable(file: TfliteFile, name: str = "v") -> int:
    handle = file.tensor(f"handle {name}", (), "RESOURCE")
    file.operator("VAR_HANDLE", [], [handle], ("VarHandleOptions", {"shared_name": name}))
    return handle


def counter() -> TfliteFile:
    """A loop that adds 1 to a variable, as often as the input says; the variable begins as 10."""
    file = TfliteFile()
    file.subgraph()
    n, zero = file.tensor("n", (), "INT32"), file.constant("zero", np.array(0, I32))
    last, y = file.tensor("last", (), "INT32"), file.tensor("y", ())
    file.operator("CALL_ONCE", [], [], ("CallOnceOptions", {"init_subgraph_index": 3}))
    file.operator(
        "WHILE", [zero, n], [last, file.tensor("n2", (), "INT32")],
        ("WhileOptions", {"cond_subgraph_index": 1, "body_subgraph_index": 2}),
    )  # fmt: skip
    file.operator("READ_VARIABLE", [variable(file)], [y])
    file.ends([n], [y, last])
    file.subgraph("cond")
    i, n = file.tensor("i", (), "INT32"), file.tensor("n", (), "INT32")
    file.operator("LESS", [i, n], [less := file.tensor("less", (), "BOOL")])
    file.ends([i, n], [less])
    file.subgraph("body")
    i, n = file.tensor("i", (), "INT32"), file.tensor("n", (), "INT32")
    one, more = file.constant("one", np.array(1, I32)), file.tensor("more", (), "INT32")
    file.operator("ADD", [i, one], [more], ("AddOptions", {}))
    handle, old, new = variable(file), file.tensor("old", ()), file.tensor("new", ())
    file.operator("READ_VARIABLE", [handle], [old])
    file.operator("ADD", [old, file.constant("step", np.array(1, F32))], [new], ("AddOptions", {}))
    file.operator("ASSIGN_VARIABLE", [handle, new], [])
    file.ends([i, n], [more, n])
    file.subgraph("init")
    file.operator("ASSIGN_VARIABLE", [variable(file), file.constant("ten", np.array(10, F32))], [])
    file.ends([], [])
    return file


def test_variables_that_a_loop_changes_are_state() -> None:
    session = bn.compile(counter().to_bytes())
    found = [float(session(np.array(n, I32))["y"]) for n in (3, 0, 2)]
    assert found == [13, 13, 15]
    assert {k: float(v) for k, v in session.states.items()} == {"v": 15}
    session.reset_state()
    assert float(session(np.array(1, I32))["y"]) == 11


def test_a_variable_that_one_branch_changes() -> None:
    file = TfliteFile()
    file.subgraph()
    p, x, y = file.tensor("p", (), "BOOL"), file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("IF", [p, x], [y], ("IfOptions", {"then_subgraph_index": 1, "else_subgraph_index": 2}))
    file.ends([p, x], [y])
    file.subgraph("adds")
    x, old, new = file.tensor("x", (2,)), file.tensor("old", (2,)), file.tensor("new", (2,))
    handle = variable(file)
    file.operator("READ_VARIABLE", [handle], [old])
    file.operator("ADD", [old, x], [new], ("AddOptions", {}))
    file.operator("ASSIGN_VARIABLE", [handle, new], [])
    file.ends([x], [new])
    file.subgraph("leaves")
    x, y = file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("RELU", [x], [y])
    file.ends([x], [y])
    session = bn.compile(file.to_bytes())
    found = [session(np.array(p_), TWO)["y"].tolist() for p_ in (True, False, True)]
    assert found == [[1, 2], [1, 2], [2, 4]]
    assert session.states["v"].tolist() == [2, 4]


def test_signatures_hand_their_state_on() -> None:
    file = TfliteFile()
    file.subgraph("write")
    x, y = file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("READ_VARIABLE", [handle := variable(file)], [y])
    file.operator("ASSIGN_VARIABLE", [handle, x], [])
    file.ends([x], [y])
    file.signature("write", 0, {"x": x}, {"before": y})
    file.subgraph("read")
    y = file.tensor("y", (2,))
    file.operator("READ_VARIABLE", [variable(file)], [y])
    file.ends([], [y])
    file.signature("read", 1, {}, {"now": y})
    writer, reader = (bn.compile(file.to_bytes(), signature=name) for name in ("write", "read"))
    assert writer(x=TWO)["before"].tolist() == [0, 0]
    reader.reset_state(writer.states)
    assert reader()["now"].tolist() == [1, 2]


def test_a_variable_that_nothing_sets_begins_as_zeros() -> None:
    file = counter()
    file.subgraphs[0]["operators"].pop(0)
    assert [float(a) for a in runs(file.to_bytes(), np.array(4, I32))] == [4, 4]


def test_tables_of_texts() -> None:
    file = TfliteFile()
    file.subgraph()
    x, y, size = file.tensor("x", (3,), "STRING"), file.tensor("y", (3,), "INT64"), file.tensor("size", (1,), "INT64")
    options = ("HashtableOptions", {"table_id": 4, "key_dtype": "STRING", "value_dtype": "INT64"})
    file.operator("CALL_ONCE", [], [], ("CallOnceOptions", {"init_subgraph_index": 1}))
    file.operator("HASHTABLE", [], [table := file.tensor("table", (), "RESOURCE")], options)
    file.operator("HASHTABLE_FIND", [table, x, file.constant("none", np.array(-1))], [y])
    file.operator("HASHTABLE_SIZE", [table], [size])
    file.ends([x], [y, size])
    file.subgraph("init")
    file.operator("HASHTABLE", [], [table := file.tensor("table", (), "RESOURCE")], options)
    file.operator("HASHTABLE_IMPORT", [table, file.texts("k", ["a", "bé", ""]), file.constant("v", np.arange(3))], [])
    file.ends([], [])
    session = bn.compile(file.to_bytes())
    assert [r.tolist() for r in session.run(None, {"x": np.array(["bé", "?", "a"], object)})] == [[1, -1, 0], [3]]
    assert session.states == {}


@pytest.mark.parametrize("start", ["[a-i]", "[j-r]", "[s-z]"])
def test_every_graph_obeys_the_spec(start: str) -> None:
    """A .bolt file is held to it."""
    for case in formats.cases("tflite", f"^{start}"):
        assert not violations(bn.load(case.files["model"])), case


# --- metadata --------------------------------------------------------------------------------------------------------


def with_labels() -> bytes:
    """A model with a name of its own, and a zip archive behind it."""
    file = TfliteFile()
    adding(file, 1)
    own = FlatWriter({"ModelMetadata": TEXTS}).to_bytes("ModelMetadata", {"name": "adder", "author": "nobody"})
    file.buffers.append({"data": np.frombuffer(own, np.uint8)})
    file.more["metadata"] = [{"name": "TFLITE_METADATA", "buffer": len(file.buffers) - 1}]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("labels.txt", "cat\ndog\n")
        made.writestr("picture.bin", b"\xff\xfe")
    return file.to_bytes() + archive.getvalue()


def test_files_and_names_within_a_model_are_its_metadata() -> None:
    graph = bn.load(with_labels())
    assert (graph.metadata["name"], graph.metadata["author"]) == ("adder", "nobody")
    assert graph.metadata["file labels.txt"].split() == ["cat", "dog"]
    assert graph.metadata["file picture.bin"] == ""
    assert bn.load(to_bytes(graph)).metadata == graph.metadata
    assert bn.compile(graph)(TWO)[0].tolist() == [2, 3]


def test_archives_that_would_hold_too_much_are_refused() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("zeros", bytes(1 << 25))
    file = TfliteFile()
    adding(file, 1)
    with pytest.raises(bn.InvalidModelError, match="associated files"):
        bn.load(file.to_bytes() + archive.getvalue())


def test_what_looks_like_an_archive_and_is_none_is_left_alone() -> None:
    data = bytearray(with_labels())
    data[-10] ^= 0xFF
    assert not [key for key in bn.load(bytes(data)).metadata if key.startswith("file ")]


def test_inspect_shows_labels_and_states(tmp_path: Path) -> None:
    (tmp_path / "labels.tflite").write_bytes(with_labels())
    (tmp_path / "counter.tflite").write_bytes(counter().to_bytes())
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "labels.tflite")]).output
    assert "file labels.txt: 2 lines: cat, dog" in shown
    assert "state" in CliRunner().invoke(app, ["inspect", str(tmp_path / "counter.tflite")]).output


def test_state_survives_where_unused_inputs_go() -> None:
    graph = surgery.without_unused(bn.load(counter().to_bytes()))
    assert float(bn.compile(graph)(np.array(2, I32))["y"]) == 12


# --- what is refused -------------------------------------------------------------------------------------------------


def test_everything_unsupported_is_listed_with_place_name_and_version() -> None:
    file = TfliteFile()
    file.subgraph()
    x, a, b = (file.tensor(name, (2,)) for name in "xab")
    file.operator("SKIP_GRAM", [x], [a])
    file.operator("Acme", [a], [b])
    file.ends([x], [b])
    with pytest.raises(bn.UnsupportedOpError) as error:
        bn.load(file.to_bytes())
    assert list(error.value.items) == [
        "SKIP_GRAM (version 1) at operator 0",
        "custom operator Acme (version 1) at operator 1",
    ]


def test_options_without_a_meaning_here_are_refused() -> None:
    file = TfliteFile()
    file.subgraph()
    x, y = file.tensor("x", (2,)), file.tensor("y", (2,))
    file.operator("ADD", [x, x], [y], ("AddOptions", {"fused_activation_function": 77}))
    file.ends([x], [y])
    with pytest.raises(bn.UnsupportedOpError, match="fused_activation_function 77"):
        bn.load(file.to_bytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.subgraphs[0].update(inputs=[9]), "tensor: got 9, wanted one of 3"),
        (lambda f: f.subgraphs[0]["tensors"][0].update(shape=[-5]), "shape of 'x'"),
        (lambda f: f.subgraphs[0]["tensors"][1].update(buffer=9), "buffer: got 9"),
        (lambda f: f.subgraphs[0]["tensors"][1].update(shape=[3]), "got 4 bytes, wanted 12"),
        (lambda f: f.subgraphs[0]["operators"][0].update(opcode_index=9), "operator code: got 9"),
        (lambda f: f.subgraphs.clear(), "subgraphs: got none"),
        (lambda f: f.signature("a", 7, {}, {}), "subgraph: got 7"),
        (lambda f: f.subgraphs[0].update(outputs=[-1]), "output"),
    ],
)  # fmt: skip
def test_files_that_contradict_themselves(change: Any, message: str) -> None:
    file = TfliteFile()
    adding(file, 1)
    change(file)
    with pytest.raises(bn.InvalidModelError, match=message):
        bn.load(file.to_bytes())


# --- custom options --------------------------------------------------------------------------------------------------


def test_flexbuffers_as_their_own_library_writes_them() -> None:
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
    value = {"a": 1, "b": -2.5, "text": "é", "list": [1, "x", None, True], "ints": [1, 2, 300], "deep": {"k": [[]]}}
    assert flex_value(bytes(flexbuffers.Dumps(value)), "x") == value


def test_flexbuffers_that_repeat_themselves_or_are_cut() -> None:
    flexbuffers = pytest.importorskip("flatbuffers.flexbuffers")
    data = bytes(flexbuffers.Dumps({"numbers": list(range(9)), "name": "n"}))
    rng = np.random.default_rng(0)
    for _ in range(300):
        made = bytearray(data)
        made[rng.integers(len(made))] = rng.integers(256)
        try:
            flex_value(bytes(made[: rng.integers(1, len(made) + 1)]), "x")
        except bn.InvalidModelError:
            continue


@pytest.mark.parametrize("kind", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_archives_of_rare_compression_are_not_unpacked(kind: int) -> None:
    """They name the memory that they take, and broken ones are no reason to refuse a model."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", kind) as made:
        made.writestr("labels.txt", "cat\n" * 99)
    broken = bytearray(archive.getvalue())
    broken[44] ^= 255  # in what is compressed
    for data in (archive.getvalue(), bytes(broken)):
        assert bn.load(one_relu() + data).metadata["file labels.txt"] == ""


def one_relu() -> bytes:
    file = TfliteFile()
    file.subgraph()
    a, b = file.tensor("a", (2,)), file.tensor("b", (2,))
    file.operator("RELU", [a], [b])
    file.ends([a], [b])
    return file.to_bytes()


def test_a_sparse_constant_takes_no_more_than_its_values() -> None:
    """Levels whose product no value fills are refused before anything of their size is made."""
    file = TfliteFile()
    file.subgraph()
    levels = [{"format": "DENSE", "dense_size": size} for size in (1 << 13, 1 << 13)]
    sparsity = {"traversal_order": [0, 1], "dim_metadata": levels}
    w = file.constant("w", np.ones(4, F32), shape=(1 << 13, 1 << 13), sparsity=sparsity)
    b = file.tensor("b", (2,))
    file.operator("RELU", [w], [b])
    file.ends([], [b])
    with pytest.raises(bn.BoltError, match="dense_size: got 8192, wanted at most 65536"):
        bn.load(file.to_bytes())


def test_a_made_up_name_is_never_one_of_the_file() -> None:
    """A signature takes the name of another tensor, whose spare name is that of a third."""
    file = TfliteFile()
    file.subgraph()
    a, b, third, y = (file.tensor(name, (2,)) for name in ("a", "b", "b#1", "y"))
    file.operator("NEG", [b], [third], ("NegOptions", {}))
    file.operator("SUB", [b, third], [y], ("SubOptions", {}))
    file.ends([a, b], [y])
    file.signature("s", 0, {"b": a, "q": b}, {"y": y})
    x = np.ones(2, F32)
    assert bn.compile(file.to_bytes())(b=5 * x, q=x)["y"].tolist() == [2, 2]
    double = TfliteFile()
    double.subgraph()
    p, q, r = double.tensor("t#2", (2,)), double.tensor("t", (2,)), double.tensor("t", (2,))
    double.operator("NEG", [p], [q], ("NegOptions", {}))
    double.operator("ADD", [p, q], [r], ("AddOptions", {}))
    double.ends([p], [r, q])
    assert [found.tolist() for found in bn.compile(double.to_bytes())(x)] == [[0, 0], [-1, -1]]
