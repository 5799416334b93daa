"""The .bolt file: round trips, mapping, atomic writing, and the refusal of everything that is not right."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bolt_numba.errors import BoltError, InvalidModelError
from bolt_numba.ir import store
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ir.store import load_bolt, save, to_bytes
from bolt_numba.ir.text import to_text
from bolt_numba.types import BF16, BOOL, F16, F32, STRING, U8, Sym, TensorType
from tests.graphs import choice, feeds_of, graphs, integers, make

HEADER = struct.Struct("<8sIIQQQQ16s")


def small() -> Graph:
    graph = Graph("small")
    x = graph.add_input("x", TensorType(F32, (Sym("n"), 3)))
    rng = np.random.default_rng(0)
    product = Builder(graph)(make("MatMul", activation=make("Clip", lo=0.0, hi=6.0)), x, integers(rng, 3, 40))
    graph.add_output(product, "y")
    return graph


def with_document(data: bytes, change: Callable[[dict[str, Any]], Any], version: int = store.VERSION) -> bytes:
    """The file with its JSON changed, and every checksum made right again."""
    fields = HEADER.unpack(data[:64])
    document = json.loads(data[64 : 64 + fields[4]])
    changed = change(document)
    text = json.dumps(document if changed is None else changed).encode()
    start = -(-(64 + len(text)) // 64) * 64
    weights = data[fields[5] :]
    rest = (64, len(text), start, len(weights), blake2b(text, digest_size=16).digest())
    crc = zlib.crc32(HEADER.pack(store.MAGIC, version, 0, *rest))
    return HEADER.pack(store.MAGIC, version, crc, *rest) + text + bytes(start - 64 - len(text)) + weights


class TestRoundTrip:
    @settings(deadline=None, max_examples=100)
    @given(graph=graphs())
    def test_random_graphs(self, graph: Graph) -> None:
        again = load_bolt(to_bytes(graph))
        assert to_text(again) == to_text(graph)
        feeds = feeds_of(graph)
        wanted, got = interpret(graph, feeds), interpret(again, feeds)
        assert list(got) == list(wanted)
        assert all(np.array_equal(got[k], wanted[k]) for k in wanted)

    @settings(deadline=None, max_examples=30)
    @given(graph=graphs())
    def test_writing_again_gives_the_same_bytes(self, graph: Graph) -> None:
        data = to_bytes(graph)
        assert to_bytes(load_bolt(data)) == data

    @pytest.mark.parametrize(
        "array",
        [
            np.array(3.5, F32),
            np.zeros((0, 7), F32),
            np.arange(6).reshape(2, 3).T,
            np.array([True, False]),
            np.array([1.5, -2], BF16),
            np.array([np.nan, np.inf, -0.0], F16),
            np.array(["text", "größer", ""], STRING),
            np.broadcast_to(np.float32(0.5), (30, 40)),
        ],
        ids=lambda a: f"{a.dtype}{a.shape}",
    )
    def test_constants_of_every_kind(self, array: np.ndarray) -> None:
        graph = Graph()
        build = Builder(graph)
        graph.add_output(build.const(array, "c"), "c")
        graph.add_output(graph.add_input("x", TensorType(F32, ())), "x")
        got = load_bolt(to_bytes(graph)).outputs[0].const
        assert got is not None
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert repr(got.tolist()) == repr(array.tolist())

    def test_a_repeated_element_is_stored_once(self) -> None:
        graph = Graph()
        graph.add_output(Builder(graph).const(np.broadcast_to(np.float32(1), (1000, 1000))), "c")
        data = to_bytes(graph)
        assert len(data) < 1000
        constant = load_bolt(data).outputs[0].const
        assert constant is not None
        assert constant.strides == (0, 0)

    def test_shared_arrays_are_stored_once(self) -> None:
        weights = integers(np.random.default_rng(0), 50, 50)
        graph = Graph()
        build = Builder(graph)
        x = graph.add_input("x", TensorType(F32, (50, 50)))
        graph.add_output(build(make("MatMul"), build(make("MatMul"), x, weights), weights), "y")
        assert weights.nbytes < len(to_bytes(graph)) < 1.5 * weights.nbytes

    def test_symbols(self) -> None:
        graph = Graph()
        n = Sym("batch")
        shape = (n, n * 2 + 1, (n + 3) // 2, 5)
        graph.add_output(graph.add_input("x", TensorType(U8, shape)), "y")
        assert load_bolt(to_bytes(graph)).inputs[0].type == TensorType(U8, shape)

    def test_stored_symbols_are_never_made_up_again(self) -> None:
        graph = Graph()
        stored = Sym("d_77")
        graph.add_input("mask", TensorType(BOOL, (stored,)))
        x = graph.add_input("x", TensorType(F32, (stored,)))
        build = Builder(graph)
        graph.add_output(build(make("Add"), x, x), "y")
        again = load_bolt(to_bytes(graph))
        from bolt_numba.ops.registry import fresh_dim

        made = fresh_dim()
        assert isinstance(made, Sym)
        assert int(str(made).rpartition("_")[2]) > 77
        assert again.inputs[0].type.shape == (stored,)

    def test_subgraphs_keep_their_constants(self) -> None:
        graph = Graph()
        x = graph.add_input("x", TensorType(F32, (2,)))
        made = choice(Builder(graph), x, True)
        assert made.node is not None
        branch = made.node.op.then_branch  # type: ignore[attr-defined]
        inside = Builder(branch)(make("Add"), branch.outputs[0], integers(np.random.default_rng(1), 2))
        branch.outputs[0] = inside
        graph.add_output(made, "y")
        again = load_bolt(to_bytes(graph))
        assert to_text(again) == to_text(graph)

    def test_sources(self, tmp_path: Path) -> None:
        graph, path = small(), tmp_path / "a.bolt"
        save(graph, path)
        wanted = to_text(graph)
        data = path.read_bytes()
        assert data == to_bytes(graph)
        with path.open("rb") as file:
            sources = [path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data), file]
            assert all(to_text(load_bolt(source)) == wanted for source in sources)  # type: ignore[arg-type]


class TestFile:
    def test_weights_are_mapped_aligned_and_read_only(self, tmp_path: Path) -> None:
        graph = Graph()
        build = Builder(graph)
        for size in (1, 3, 1000):
            graph.add_output(build.const(integers(np.random.default_rng(0), size), f"c{size}"))
        path = tmp_path / "a.bolt"
        save(graph, path)
        for source in (path, path.read_bytes()):
            for value in load_bolt(source).constants():
                assert value.const is not None
                assert value.const.ctypes.data % 64 == 0
                assert not value.const.flags.writeable

    def test_loading_maps_instead_of_reading(self, tmp_path: Path) -> None:
        graph = Graph()
        graph.add_output(Builder(graph).const(np.zeros(64 << 20, U8) + np.uint8(1)))
        save(graph, tmp_path / "big.bolt")
        code = (
            "import sys; from bolt_numba.ir.store import load_bolt; from bolt_numba.benchmark import peak_rss\n"
            "from bolt_numba import ops; ops.load_all(); before = peak_rss()\n"
            "load_bolt(sys.argv[1], check_weights=False); print(peak_rss() - before)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "big.bolt")], check=True, capture_output=True, text=True
        )
        assert int(done.stdout) < 16 << 20

    def test_a_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.bolt"
        save(small(), path)
        before = path.read_bytes()

        def fail(_: int) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            save(small(), path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_replacing_a_file_leaves_loaded_graphs_alone(self, tmp_path: Path) -> None:
        path, graph = tmp_path / "a.bolt", small()
        save(graph, path)
        loaded = load_bolt(path)
        other = Graph()
        other.add_output(other.add_input("x", TensorType(F32, ())), "y")
        save(other, path)
        feeds = feeds_of(graph)
        np.testing.assert_array_equal(interpret(loaded, feeds)["y"], interpret(graph, feeds)["y"])

    def test_an_unwritable_place_is_a_bolt_error(self, tmp_path: Path) -> None:
        with pytest.raises(BoltError, match="cannot be written"):
            save(small(), tmp_path / "missing" / "a.bolt")

    def test_a_missing_file_is_an_invalid_model(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModelError, match="cannot be read"):
            load_bolt(tmp_path / "missing.bolt")

    def test_an_attribute_that_has_no_form_is_refused(self) -> None:
        graph = small()
        graph.nodes[0].op = make("MatMul", alpha=1j)
        with pytest.raises(InvalidModelError, match="attribute cannot be stored"):
            to_bytes(graph)


class TestVersions:
    def test_an_older_version_is_upgraded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A version 3 that calls MatMul's ``alpha`` what version 2 called ``scale``."""
        graph = small()

        def as_version_2(document: dict[str, Any]) -> None:
            attributes = document["graphs"][0]["nodes"][0]["attributes"]
            attributes["scale"] = attributes.pop("alpha")

        def upgrade(document: dict[str, Any]) -> dict[str, Any]:
            attributes = document["graphs"][0]["nodes"][0]["attributes"]
            attributes["alpha"] = attributes.pop("scale")
            return document

        old = with_document(to_bytes(graph), as_version_2)
        with pytest.raises(InvalidModelError, match="scale"):
            load_bolt(old)
        monkeypatch.setattr(store, "VERSION", 3)
        monkeypatch.setitem(store.UPGRADES, 2, upgrade)
        assert to_text(load_bolt(old)) == to_text(graph)
        assert to_bytes(graph)[8:12] == struct.pack("<I", 3)
        assert to_text(load_bolt(to_bytes(graph))) == to_text(graph)

    @pytest.mark.parametrize("version", [0, 3, 2**32 - 1])
    def test_unknown_versions_are_refused(self, version: int) -> None:
        with pytest.raises(InvalidModelError, match=rf"version: got {version}, wanted one of \[1, 2\]"):
            load_bolt(with_document(to_bytes(small()), lambda d: None, version))

    def test_a_file_of_version_1_is_read(self) -> None:
        """One that was written before models had signatures."""
        model = store.load_model(zlib.decompress(base64.b85decode(VERSION_1)))
        assert model.signatures == ("main",)
        graph = model.graph()
        assert [n.op.name for n in graph.nodes] == ["MatMul", "Relu"]
        x = np.array([[1, 2], [3, 4]], np.float32)
        np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], [[5, 5], [11, 9]])

    @pytest.mark.parametrize("document", [[], {}, {"graph": 3, "tensors": []}, {"packed": 1, "tensors": []}])
    def test_a_hostile_file_of_version_1_is_refused(self, document: object) -> None:
        with pytest.raises(InvalidModelError, match="graph"):
            load_bolt(with_document(to_bytes(small()), lambda _: document, 1))


VERSION_1 = (
    "c-"
    "oy(%SyvQ6pbzg!KJvo>rwK63fUM0SGEY^t`wOh6C0V%gv=eWmV)R?f51(DK=2>*8~h6YLT}m_8Yv16gt?D%=bV$7hr^TZ+2+R1n&"
    "UX1+g>+v7VCI@vA@;(R$afF-9(Q^?;kJs#na_;(49b0>eMEpgb-paaaY+<%z?p0$%`R`6Ht64sHtU2)saA+a^%#QGRRe7(LmU5P}"
    "hV>aa>e!7WkBzA+NGNC}93zI$)4!Wss}(;Jiq16v}84<5ozeQ_({8IQFb0m@bwxj#%cg#R@zDEV(l0Br)UC2v+BDlXF=Nsq5{z6e"
    "pNpam=-XP+2J%l)~hx<+6q^yL6dHqO`@It{Wl0Tc5IK;#5fcZKIA`CYEXa)ui><AC#@xe!yT10}@jI=f#1mkMP-"
    "?ILnMcx(^2Nc&^Rs&=r;mVZ&g*69j(8^?YJ-{<m%q=zFDro^BL<0Vej#n*"
)


def node_0(document: dict[str, Any]) -> dict[str, Any]:
    return document["graphs"][0]["nodes"][0]  # type: ignore[no-any-return]


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no object": (lambda d: [], "wanted an object"),
    "no graph": (lambda d: {"tensors": []}, "graph"),
    "unknown operator": (lambda d: node_0(d).update(op="Explode"), "Explode"),
    "unknown attribute": (lambda d: node_0(d)["attributes"].update(depth=1), "depth"),
    "attribute of a wrong type": (lambda d: node_0(d)["attributes"].update(trans_a=3), "trans_a"),
    "attribute that is no operator": (lambda d: node_0(d)["attributes"].update(activation="Relu"), "activation"),
    "attribute of no form": (lambda d: node_0(d)["attributes"].update(alpha={"a": 1}), "an attribute"),
    "operand from the future": (lambda d: node_0(d).update(inputs=[2, 1]), "operand"),
    "operand below zero": (lambda d: node_0(d).update(inputs=[-1, 1]), "operand"),
    "operand that is no number": (lambda d: node_0(d).update(inputs=[True, 1]), "operand"),
    "wrong type of result": (lambda d: node_0(d)["outputs"][0].update(dtype="f64"), "type of output 0"),
    "wrong shape of result": (lambda d: node_0(d)["outputs"][0].update(shape=["n", 41]), "type of output 0"),
    "too many results": (lambda d: node_0(d)["outputs"].append(node_0(d)["outputs"][0]), "number of outputs"),
    "a name used twice": (lambda d: node_0(d)["outputs"][0].update(name="x"), "name"),
    "negative dimension": (lambda d: d["graphs"][0]["inputs"][0].update(shape=[-1, 3]), "dimension"),
    "absurd dimension": (lambda d: d["graphs"][0]["inputs"][0].update(shape=[10**30, 3]), "dimension"),
    "absurd rank": (lambda d: d["graphs"][0]["inputs"][0].update(shape=[1] * 1000), "shape"),
    "operands that do not fit": (lambda d: d["graphs"][0]["inputs"][0].update(shape=["n", 4]), "MatMul"),
    "tensor out of range": (lambda d: d["graphs"][0]["constants"][0].update(tensor=1), "tensor"),
    "tensor beyond the data": (lambda d: d["tensors"][0].update(offset=1 << 40), "offset"),
    "tensor larger than its bytes": (lambda d: d["tensors"][0].update(shape=[3, 1 << 40]), "bytes"),
    "tensor off its alignment": (lambda d: d["tensors"][0].update(offset=4), "offset"),
    "tensor of objects": (lambda d: d["tensors"][0].update(dtype="object"), "dtype"),
    "tensor of an unknown dtype": (lambda d: d["tensors"][0].update(dtype="finfo"), "dtype"),
    "repeated element of absurd size": (
        lambda d: d["tensors"][0].update(fill=True, shape=[1 << 60], bytes=4), "bytes"
    ),
    "strings of a wrong number": (lambda d: d["tensors"][0].update(strings=["a"]), "strings"),
    "output of no value": (lambda d: d["graphs"][0].update(outputs=[[None, "y"]]), "output 0"),
    "outputs of one name": (lambda d: d["graphs"][0]["outputs"].append([0, "y"]), "output names"),
}  # fmt: skip


class TestRefusal:
    @pytest.mark.parametrize("case", HOSTILE)
    def test_hostile_documents(self, case: str) -> None:
        change, text = HOSTILE[case]
        with pytest.raises(InvalidModelError, match=text):
            load_bolt(with_document(to_bytes(small()), change))

    def test_deep_nesting(self) -> None:
        data = to_bytes(small())
        fields = HEADER.unpack(data[:64])
        text = b"[" * 100_000
        rest = (64, len(text), 64 + len(text) + (-len(text)) % 64, 0, blake2b(text, digest_size=16).digest())
        crc = zlib.crc32(HEADER.pack(*fields[:2], 0, *rest))
        with pytest.raises(InvalidModelError, match=r"hostile|JSON"):
            load_bolt(HEADER.pack(*fields[:2], crc, *rest) + text + bytes(-len(text) % 64))

    @settings(deadline=None, max_examples=200)
    @given(data=st.data())
    def test_truncated_and_flipped(self, data: st.DataObject) -> None:
        """Every byte of the file is covered by a checksum but the padding, which nobody reads."""
        whole = bytearray(to_bytes(small()))
        wanted = to_text(small())
        if data.draw(st.booleans()):
            damaged = bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        else:
            at = data.draw(st.integers(0, len(whole) - 1))
            whole[at] ^= 1 << data.draw(st.integers(0, 7))
            damaged = bytes(whole)
        try:
            assert to_text(load_bolt(damaged)) == wanted
        except InvalidModelError:
            return

    def test_unchecked_weights_load_and_checked_ones_do_not(self) -> None:
        damaged = bytearray(to_bytes(small()))
        damaged[-1] ^= 1
        assert load_bolt(bytes(damaged), check_weights=False).nodes
        with pytest.raises(InvalidModelError, match="tensor 0: checksum"):
            load_bolt(bytes(damaged))

    @pytest.mark.parametrize("data", [b"", b"\x89BOLT\r\n\x1a", b"x" * 1000, bytes(64)], ids=["0", "8", "x", "zeros"])
    def test_other_files(self, data: bytes, tmp_path: Path) -> None:
        with pytest.raises(InvalidModelError, match="header"):
            load_bolt(data)
        (tmp_path / "a.bolt").write_bytes(data)
        with pytest.raises(InvalidModelError, match=r"a\.bolt: header"):
            load_bolt(tmp_path / "a.bolt")
