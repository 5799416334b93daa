"""``.bolt`` files with packed weights: the same results, without passes, packing or reading the originals."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import bolt_numba as bn
from bolt_numba.base.files.mapped import map_of
from bolt_numba.cli.app import run
from bolt_numba.devices import seals
from bolt_numba.devices.seals import machine
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir import packed as stored
from bolt_numba.ir.store import load_bolt, to_bytes
from bolt_numba.kernels.cpu.elementwise import fingerprint as fingerprints
from bolt_numba.kernels.cpu.elementwise.fingerprint import fingerprint, fingerprinted_copy
from bolt_numba.runtime import packs
from bolt_numba.runtime.plan import Plan
from bolt_numba.surgery import packed
from bolt_numba.types import Array


def _onnx(folder: Path) -> Path:
    """Convolution with normalization, then a product: weights that the passes make anew, and weights as they are."""
    rng = np.random.default_rng(0)
    made = {"w": (64, 16, 3, 3), "m": (64, 512), **{f"n{i}": (64,) for i in range(4)}}
    weights = [numpy_helper.from_array((0.5 + rng.random(s)).astype("f4"), n) for n, s in made.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "n0", "n1", "n2", "n3"], ["b"]),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ("n", 16, 20, 20))],
        [helper.make_tensor_value_info("y", 1, None)], weights,
    )  # fmt: skip
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model as ONNX, and packed."""
    folder = tmp_path_factory.mktemp("packed")
    source = _onnx(folder)
    target = folder / "model.bolt"
    bn.save(packed(bn.load(source)), target)
    return source, target


def _x(n: int = 1) -> Array:
    return np.random.default_rng(n).standard_normal((n, 16, 20, 20), np.float32)


def _refuse(graph: bn.Graph) -> bn.Graph:
    raise AssertionError("the passes ran")


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_packed_and_results_are_the_same(
    files: tuple[Path, Path], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = files
    plain = bn.compile(source, threads=threads)
    want, want_five = plain(_x())["y"], plain(_x(5))["y"]
    monkeypatch.setattr("bolt_numba.passes.pipeline.run_pipeline", _refuse)
    session = bn.compile(target, threads=threads)
    taken = _taken_from_file(monkeypatch)
    got = session(_x())["y"]
    np.testing.assert_array_equal(got, want)
    assert sum(a.nbytes > 1 << 12 for a in session._packs._made.values()) >= 2
    assert all(map_of(a) is None for a in session._packs._made.values()), "runs read no file"
    np.testing.assert_array_equal(session(_x(5))["y"], want_five)
    assert taken == [True] * len(taken)
    assert len(taken) >= 2


def _taken_from_file(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each packed weight that is asked for anew comes from the file."""
    taken: list[bool] = []
    plain = packs.Packs._from_file

    def watched(self: packs.Packs, *args: Any) -> Array | None:
        found = plain(self, *args)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(packs.Packs, "_from_file", watched)
    return taken


def test_the_key_of_the_seals_is_read_once_for_all_weights(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[bytes] = []
    plain = stored.secret

    def counted() -> bytes:
        reads.append(plain())
        return reads[-1]

    session = bn.compile(files[1], threads=1)
    monkeypatch.setattr(stored, "secret", counted)
    taken = _taken_from_file(monkeypatch)
    session(_x())
    assert len(taken) >= 2
    assert reads == []


def test_the_machine_is_told_by_its_sources_whether_they_are_remembered_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    want = machine()
    kept: list[str] = []
    for found in (None, ["damaged"], want.rpartition("-")[2]):
        machine.cache_clear()
        monkeypatch.setattr(seals, "remembered", lambda kind, folder, found=found: found)
        monkeypatch.setattr(seals, "remember", lambda kind, folder, content: kept.append(content))
        assert machine() == want
    assert kept == [want.rpartition("-")[2]] * 2


def test_packing_links_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "link", lambda self: pytest.fail("a plan is linked"))
    made = packed(bn.load(_onnx(tmp_path)), threads=[1])
    assert made.packed is not None
    assert len(made.packed.rows) >= 2


def test_elsewhere_it_is_packed_anew(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = files
    want = bn.compile(source, threads=1)(_x())["y"]
    for name, value in (("machine", lambda: "other"), ("secret", lambda: b"s" * 32), ("secret", lambda: b"")):
        with monkeypatch.context() as patch:
            if name == "machine":
                patch.setattr("bolt_numba.devices.seals.machine", value)
            else:
                patch.setattr(stored, name, value)
            session, taken = bn.compile(target, threads=1), _taken_from_file(patch)
            np.testing.assert_array_equal(session(_x())["y"], want)
            assert taken
            assert not any(taken)


def test_a_packed_file_does_all_that_others_do(files: tuple[Path, Path]) -> None:
    graph = bn.load(files[1])
    assert graph.packed is not None
    again = load_bolt(to_bytes(graph))
    assert again.packed is not None
    assert again.packed.rows.keys() == graph.packed.rows.keys()
    assert bn.verify(files[1], against="reference", feeds={"x": _x()}).ok
    assert graph.clone().packed is None


def _sections(data: bytes) -> tuple[int, int]:
    text_at, text_size, data_at, _ = struct.unpack_from("<QQQQ", data, 16)
    assert text_at + text_size <= data_at
    return text_size, data_at


def _with_document(data: bytes, change: object) -> bytes:
    """The file with another document, whose own checksums are right."""
    import hashlib

    size, start = _sections(data)
    document = json.loads(data[64 : 64 + size])
    change(document)  # type: ignore[operator]
    text = json.dumps(document).encode()
    text += b" " * (-(64 + len(text)) % 64)
    fields = (64, len(text), 64 + len(text), len(data) - start, hashlib.blake2b(text, digest_size=16).digest())
    pack = struct.Struct("<8sIIQQQQ16s").pack
    version = int.from_bytes(data[8:12], "little")
    bare = pack(data[:8], version, 0, *fields)
    return pack(data[:8], version, zlib.crc32(bare), *fields) + text + data[start:]


def test_a_damaged_packed_weight_is_refused(files: tuple[Path, Path]) -> None:
    data = bytearray(files[1].read_bytes())
    graph = bn.load(files[1])
    assert graph.packed is not None
    row = max(graph.packed.rows.values(), key=lambda a: a.nbytes)
    at = bytes(data).index(row.tobytes())
    data[at + row.nbytes // 2] ^= 1
    with pytest.raises(InvalidModelError, match=r"packed weight of constant .: its seal is wrong"):
        bn.compile(bytes(data), threads=1)(_x())


def test_a_changed_original_is_refused_when_it_is_looked_at(files: tuple[Path, Path]) -> None:
    data = bytearray(files[1].read_bytes())
    graph = bn.load(files[1])
    weight = max((v.const for v in graph.constants() if v.const is not None), key=lambda a: a.nbytes)
    data[bytes(data).index(weight.tobytes())] ^= 1
    bn.compile(bytes(data), threads=1)(_x())
    with pytest.raises(InvalidModelError, match=r"constant .: its seal is wrong"):
        bn.load(bytes(data))
    changed = load_bolt(bytes(data))
    assert changed.packed is not None
    changed.packed.rows.clear()
    with pytest.raises(InvalidModelError, match=r"constant .: its seal is wrong"):
        bn.compile(changed, threads=1)(_x())


def test_what_is_packed_anew_is_what_was_looked_at(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read once: who changes it between a look and a second read would change the model."""
    graph = bn.load(files[1])
    assert graph.packed is not None
    graph.packed.rows.clear()
    seen: list[Array] = []
    plain = packs.NodeContext.packed

    def watched(self: packs.NodeContext, array: Any, key: Any, pack: Any) -> Array:
        def noted(source: Array) -> Array:
            seen.append(source)
            return np.asarray(pack(source))

        return plain(self, array, key, noted)

    monkeypatch.setattr(packs.NodeContext, "packed", watched)
    want = bn.compile(files[0], threads=1)(_x())["y"]
    seen.clear()
    np.testing.assert_array_equal(bn.compile(graph, threads=1)(_x())["y"], want)
    assert max(a.nbytes for a in seen) > packs.LEAST_MAPPED
    assert all(map_of(a) is None for a in seen)


def _with_same_crc(new: bytes, old: bytes) -> bytes:
    """``new`` with its last 32 bits changed such that its crc32 is that of ``old``: what anybody can do."""
    empty = zlib.crc32(bytes(len(new)))
    left = zlib.crc32(new) ^ zlib.crc32(old)
    basis: list[tuple[int, int]] = []
    for bit in range(32):
        vector = zlib.crc32(bytes(len(new) - 4) + (1 << bit).to_bytes(4, "little")) ^ empty
        mask = 1 << bit
        for v, m in basis:
            if vector ^ v < vector:
                vector, mask = vector ^ v, mask ^ m
        basis = sorted([*basis, (vector, mask)], reverse=True)
    change = 0
    for v, m in basis:
        if left ^ v < left:
            left, change = left ^ v, change ^ m
    return new[:-4] + (int.from_bytes(new[-4:], "little") ^ change).to_bytes(4, "little")


@pytest.mark.parametrize("what", ["packed", "read as it is"])
def test_a_file_does_not_show_one_model_and_run_another(tmp_path: Path, what: str) -> None:
    """A constant with the same crc32 and another content: one that others are packed from, and one that is not."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 64)).astype("f4"), "w"),
        numpy_helper.from_array(rng.standard_normal((9, 64)).astype("f4"), "table"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ArgMax", ["x"], ["at"], axis=1, keepdims=0),
        helper.make_node("Gather", ["table", "at"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, (1, 32))], [value("y", 1, None), value("z", 1, None)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.bolt"
    bn.save(packed(bn.load(model.SerializeToString()), threads=[1]), path)
    found = numpy_helper.to_array(weights[0 if what == "packed" else 1])
    old = found.tobytes()
    new = _with_same_crc((found + 1).tobytes(), old)
    assert zlib.crc32(new) == zlib.crc32(old)
    data = path.read_bytes()
    assert data.count(old) == 1
    changed = data.replace(old, new)
    with pytest.raises(InvalidModelError, match="its seal is wrong"):
        bn.load(changed)
    x = {"x": np.ones((1, 32), np.float32)}
    try:
        got = bn.compile(changed, threads=1).run(None, x)
    except InvalidModelError:
        assert what != "packed"
        return
    for a, b in zip(got, bn.compile(data, threads=1).run(None, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_constants_of_bodies_are_sealed(tmp_path: Path) -> None:
    """They are neither packed nor constants of the graph itself, so nobody compared them."""
    rng = np.random.default_rng(0)
    outer, inner = (rng.standard_normal((64, 64)).astype("f4") for _ in range(2))
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["c", "v"], ["d"]), helper.make_node("Identity", ["k"], ["l"])]
    body = helper.make_graph(
        nodes, "body", [value("i", 7, ()), value("k", 9, ()), value("c", 1, (3, 64))],
        [value("l", 9, ()), value("d", 1, (3, 64))], [numpy_helper.from_array(inner, "v")],
    )  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Loop", ["n", "", "z"], ["y"], body=body),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, (3, 64)), value("n", 7, ())], [value("y", 1, None)],
        [numpy_helper.from_array(outer, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.bolt"
    bn.save(packed(bn.load(model.SerializeToString()), threads=[1]), path)
    data, old = path.read_bytes(), inner.tobytes()
    found = load_bolt(data).packed
    assert found is not None
    assert found.rows
    assert data.count(old) == 1
    changed = data.replace(old, _with_same_crc((inner + 1).tobytes(), old))
    for read in (load_bolt, bn.load, bn.compile):
        with pytest.raises(InvalidModelError, match=r"tensor .: its seal is wrong"):
            read(changed)


@pytest.mark.parametrize("reader", ["Gather", "Identity"])
def test_a_constant_that_is_packed_and_read_as_it_is_is_looked_at(tmp_path: Path, reader: str) -> None:
    """As a table of words that is the classifier, too: only the classifier's packed form was compared with the seal."""
    table = np.random.default_rng(0).standard_normal((512, 64)).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node(reader, ["w", "i"] if reader == "Gather" else ["w"], ["z"]),
    ]
    value = helper.make_tensor_value_info
    ins = [value("x", 1, (3, 512)), value("i", 7, (2,))]
    outs = [value("y", 1, None), value("z", 1, None)]
    graph = helper.make_graph(nodes, "g", ins, outs, [numpy_helper.from_array(table, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.bolt"
    bn.save(packed(bn.load(model.SerializeToString()), threads=[1]), path)
    old = table.tobytes()
    data = path.read_bytes()
    assert data.count(old) == 1
    feeds = {"x": np.ones((3, 512), np.float32), "i": np.array([1, 2])}
    bn.compile(data, threads=1).run(None, feeds)
    changed = data.replace(old, _with_same_crc((table + 1).tobytes(), old))
    for threads in (1, 2):
        with pytest.raises(InvalidModelError, match="constant 0: its seal is wrong"):
            bn.compile(changed, threads=threads).run(None, feeds)


@pytest.mark.parametrize("kind", ["weight", "graph", "name", "other tensors", "as before seals of contents"])
def test_packed_weights_of_another_graph_are_not_used(files: tuple[Path, Path], kind: str) -> None:
    def change(document: Any) -> None:
        if kind == "weight":
            document["tensors"][0]["crc32"] ^= 1
        elif kind == "graph":
            document["graphs"][0]["nodes"][-1]["name"] += "x"
        elif kind == "name":
            document["graphs"][0]["name"] += "x"
        elif kind == "as before seals of contents":
            del document["packed"]["graphs"][0]["sources"]
            document["packed"]["graphs"][0]["rows"] = [[*row[:3], 7] for row in document["packed"]["graphs"][0]["rows"]]
        else:
            first, second = document["packed"]["graphs"][0]["rows"][:2]
            first[2], second[2] = second[2], first[2]

    data = _with_document(files[1].read_bytes(), change)
    if kind == "weight":
        with pytest.raises(InvalidModelError, match="checksum"):
            load_bolt(data)
        return
    graph = load_bolt(data)
    assert graph.packed is not None
    assert not graph.packed.rows
    want = bn.compile(files[0], threads=1)(_x())["y"]
    np.testing.assert_array_equal(bn.compile(graph, threads=1)(_x())["y"], want)


@pytest.mark.parametrize("what", ["smaller", "key", "machine", "constant", "texts"])
def test_a_forged_row_is_not_used(files: tuple[Path, Path], what: str) -> None:
    def change(document: dict[str, object]) -> None:
        rows, tensors = document["packed"]["graphs"][0]["rows"], document["tensors"]  # type: ignore[index]
        largest = max(rows, key=lambda r: tensors[r[2]]["bytes"])
        if what == "smaller":
            tensors[largest[2]].update(shape=[16], bytes=64)
        elif what == "key":
            largest[1] = "'another'"
        elif what == "texts":
            tensors[largest[2]].update(dtype="string", shape=[1], strings=["an object"])
        elif what == "machine":
            document["packed"]["graphs"][0]["machine"] += "x"  # type: ignore[index]
        else:
            largest[0] = (largest[0] + 1) % len(document["graphs"][0]["constants"])  # type: ignore[index]

    data = _with_document(files[1].read_bytes(), change)
    graph = load_bolt(data)
    unchecked = load_bolt(data, check_weights=False).packed
    assert graph.packed is not None
    assert unchecked is not None
    assert graph.packed.rows == unchecked.rows == {}
    assert graph.packed.machine == ""
    assert machine()
    bn.compile(graph, threads=1)(_x())


@pytest.mark.parametrize(
    "found", [[], 3, {"rows": 1}, {"rows": [[0, "k", 10**6, 0]], "machine": ""}, {"rows": [[0, 1]]}]
)
def test_a_malformed_section_is_refused(files: tuple[Path, Path], found: object) -> None:
    for whole in (found, {"graphs": [found]}, {"graphs": [None, None]}, {"graphs": None}):
        with pytest.raises(InvalidModelError, match="packed"):
            load_bolt(_with_document(files[1].read_bytes(), lambda d, whole=whole: d.update(packed=whole)))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 4095, 4096, 4104, (1 << 19) + 24, (1 << 19) + 4099])
def test_fingerprints_see_every_change(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    key = b"k" * 32
    want = fingerprint(data, key)
    made, mark = fingerprinted_copy(data, key)
    assert mark == want == fingerprint(np.frombuffer(b"x" + data.tobytes(), np.uint8)[1:], key)
    np.testing.assert_array_equal(made, data)
    assert fingerprint(data, b"l" * 32) != want
    assert fingerprint(np.append(data, np.uint8(0)), key) != want
    for place in {0, size // 3, size // 2, size - 1} if size else ():
        for bit in (1, 128):
            changed = data.copy()
            changed[place] ^= bit
            assert fingerprint(changed, key) != want
    if size > 8192:
        swapped = data.copy()
        swapped[:4096], swapped[4096:8192] = data[4096:8192].copy(), data[:4096].copy()
        assert fingerprint(swapped, key) != want


def test_fingerprints_of_repeated_elements_do_not_expand_them() -> None:
    key, wide = b"k" * 32, np.broadcast_to(np.float32(3), (1 << 40,))
    assert fingerprint(wide, key) == fingerprint(np.array([3], np.float32), key)
    small = np.broadcast_to(np.array([[3.0]], np.float32), (5, 7))
    made, mark = fingerprinted_copy(small, key)
    assert mark == fingerprint(small, key)
    np.testing.assert_array_equal(made, small)
    assert made.flags.c_contiguous


def test_fingerprints_are_as_defined() -> None:
    """By Python's integers."""
    from hashlib import blake2b

    key, data = b"k" * 32, np.random.default_rng(1).integers(0, 256, 2 * 4096 + 5, dtype=np.uint8)
    words = data[: 2 * 4096].view(np.uint64).tolist()
    keys = fingerprints._key(key).tolist()
    assert len(keys) >= 513
    low, sums = (1 << 32) - 1, []
    for block in (words[:512], words[512:]):
        for shift in (0, 1):
            pairs = zip(block, keys[shift:], strict=False)
            total = sum((((v & low) + k) & low) * (((v >> 32) + (k >> 32)) & low) for v, k in pairs)
            sums.append(total % (1 << 64))
    state = blake2b(len(data).to_bytes(8, "little") + data[-5:].tobytes(), digest_size=16, key=key, person=b"weights")
    state.update(np.array(sums, np.uint64).tobytes())
    assert fingerprint(data, key) == state.hexdigest()


def test_command(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "m.bolt"
    assert run(["convert", str(files[0]), "--pack", "-o", str(target)]) == 0
    graph = bn.load(target)
    assert graph.packed is not None
    assert graph.packed.rows
    assert run(["convert", str(files[0]), "--pack", "-o", str(tmp_path / "m.onnx")]) == 2
    capsys.readouterr()
