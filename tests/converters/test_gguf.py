"""Decoders in GGUF files: families, forms of weights, caches, against plain NumPy and llama.cpp."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.cli import app
from bolt_numba.errors import UnsupportedOpError
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.interpret import interpret
from bolt_numba.ops.layers.products.forms import FORMS
from bolt_numba.types import F16, F32, Array, TensorType
from tests import models
from tests.gguf_files import BYTEWISE, EXPERTS, FAMILIES, GELU, IDS, LLAMA_CPP, VOCABULARY, Tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "text" / "smollm2.json"


def load(data: bytes, tmp_path: Path) -> Graph:
    (tmp_path / "m.gguf").write_bytes(data)
    return wide(bn.load(tmp_path / "m.gguf"))


def wide(graph: Graph) -> Graph:
    """The graph with caches of f32, so that small mistakes show."""
    assert {v.type.dtype for v in graph.inputs[3:]} == {F16}
    caches = {*graph.inputs[3:], *(v for v in graph.outputs if v.type.dtype == F16)}
    return graph.rebuilt(lambda v: TensorType(F32, v.type.shape) if v in caches else v.type)


def played(graph: Graph, ids: Array, pieces: Sequence[int], room: int = 12, starts: Sequence[int] = (0, 0)) -> Array:
    """Logits of all positions, [batch, positions, vocabulary], where the tokens come in pieces.

    starts: positions that the cache of each sequence has before; they are those of tokens that ran alone.
    """
    run = bn.compile(graph, threads=1)
    past = {v.name: np.zeros((2, *v.type.shape[1:2], room, *v.type.shape[3:]), np.float32) for v in graph.inputs[3:]}  # type: ignore[index,misc]
    made, lengths, at = [], np.array(starts, np.int32), 0
    for count in pieces:
        now = ids[:, at : at + count]
        feeds = {"input_ids": now, "past_lengths": lengths, "rows": np.arange(now.size), **past}
        buffers = {name.replace("past_key_values", "present"): array for name, array in past.items()}
        buffers["logits"] = np.empty((now.size, VOCABULARY), np.float32)
        run.run_into(feeds, buffers)
        made.append(buffers["logits"].reshape(2, count, -1))
        lengths, at = lengths + np.int32(count), at + count
    return np.concatenate(made, 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_compute_what_plain_numpy_and_llama_cpp_do(name: str, tmp_path: Path) -> None:
    """The second has a table of 16 bits for gelu."""
    tiny, last = FAMILIES[name], np.array(json.loads(LLAMA_CPP.read_text())[name])
    made = played(load(tiny.data(), tmp_path), IDS, (5, 1, 1, 2))
    np.testing.assert_allclose(made, np.stack([tiny.logits(ids) for ids in IDS]), rtol=0, atol=1e-4)
    np.testing.assert_allclose(made[0, -len(last) :], last, rtol=0, atol=3e-3 if tiny.arch in GELU else 1e-4)


VARIANTS = {
    "windows that llama.cpp leaves out": Tiny("phi3", attention__sliding_window=4, rope__dimension_count=6),
    "norms of their own": Tiny("falcon", width=32, large=1),
    "many layers": Tiny("gemma2", layers=46, attention__sliding_window=3),
    "an own base of angles": Tiny("gemma3", layers=2, attention__sliding_window=3, rope__freq_base_swa=50.0),
    "a number for each layer": Tiny("llama", attention__head_count_kv=np.array([2, 2], np.int32)),
}


@pytest.mark.parametrize("tiny", VARIANTS.values(), ids=VARIANTS)
def test_families_have_variants(tiny: Tiny) -> None:
    feeds = {"input_ids": IDS, "past_lengths": np.zeros(2, np.int32), "rows": np.arange(IDS.size)}
    graph = wide(bn.load(tiny.data()))
    made = interpret(graph, feeds | {v.name: np.zeros((2, 2, 12, 8), np.float32) for v in graph.inputs[3:]})["logits"]
    np.testing.assert_allclose(made, np.concatenate([tiny.logits(ids) for ids in IDS]), rtol=0, atol=1e-4)


FACTORS = np.random.default_rng(2).uniform(1, 8, 4)


SCALED: dict[str, tuple[dict[str, Any], Array | float, float]] = {
    "none": ({"type": "none", "factor": 4.0}, 1.0, 1.0),
    "linear": ({"type": "linear", "factor": 4.0}, 4.0, 1.0),
    "yarn": (
        # the first pair turns often in 64 positions, and stays; the last ones are slowed wholly
        {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 3.0},
        1 / (1 - np.array([0, 0, 0.5, 1]) * 0.75), 1 + 0.1 * math.log(4),
    ),
    "short": ({"original_context_length": 12, "attn_factor": 1.25}, FACTORS, 1.25),
    "long": ({"original_context_length": 11, "attn_factor": 1.25}, FACTORS[::-1], 1.25),
    "factors": ({}, FACTORS, 1.0),
}  # fmt: skip
"""Keys, what angles are divided by, and what sines are multiplied by."""


@pytest.mark.parametrize("name", SCALED)
def test_angles_are_scaled(name: str, tmp_path: Path) -> None:
    keys, factors, sines = SCALED[name]
    tiny = Tiny("llama", **{f"rope__scaling__{key}": value for key, value in keys.items()})
    stored = {"factors": {"freqs": FACTORS}, "short": {"factors_short": FACTORS, "factors_long": FACTORS[::-1]}}
    for kind, values in stored.get("short" if name == "long" else name, {}).items():
        tiny.tensors[f"rope_{kind}.weight"] = "F32", (4,), values.astype(np.float32).tobytes()
    tiny.slower, tiny.sines = np.broadcast_to(factors, 4), sines
    made = played(load(tiny.data(), tmp_path), IDS, (5, 4))
    np.testing.assert_allclose(made, np.stack([tiny.logits(ids) for ids in IDS]), rtol=0, atol=1e-4)


def test_sequences_have_caches_of_their_own_lengths(tmp_path: Path) -> None:
    tiny = FAMILIES["gemma2"]
    run = bn.compile(load(tiny.data(2), tmp_path), threads=1)
    past = {v.name: np.zeros((2, 2, 12, 8), np.float32) for v in run.inputs[3:]}
    alone = {name: array[:1] for name, array in past.items()}  # the first slot is filled by itself
    for slots, ids, lengths in ((alone, IDS[:1, :4], [0]), (past, np.stack([IDS[0, 4:7], IDS[1, :3]]), [4, 0])):
        feeds = {"input_ids": ids, "past_lengths": np.array(lengths, np.int32), "rows": np.array([ids.size - 1, 2])}
        buffers = {name.replace("past_key_values", "present"): array for name, array in slots.items()}
        logits = buffers["logits"] = np.empty((2, VOCABULARY), np.float32)
        run.run_into({**feeds, **slots}, buffers)
    wanted = [tiny.logits(IDS[1, :3])[-1], tiny.logits(IDS[0, :7])[-1]]
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-4)


def test_an_output_of_its_own_is_taken(tmp_path: Path) -> None:
    tiny = Tiny("llama")
    tiny.matrix("output", VOCABULARY, 24)
    made = played(load(tiny.data(), tmp_path), IDS, (9,))
    np.testing.assert_allclose(made, np.stack([tiny.logits(ids) for ids in IDS]), rtol=0, atol=1e-4)


def test_bolt_files_hold_weights_as_they_were_stored(tmp_path: Path) -> None:
    tiny = Tiny("llama", "Q4_K", width=256)
    tiny.extra = BYTEWISE
    graph = load(tiny.data(), tmp_path)
    bn.save(graph, tmp_path / "m.bolt")
    again = bn.load(tmp_path / "m.bolt")
    assert again.metadata == graph.metadata
    assert (tmp_path / "m.bolt").stat().st_size < len(tiny.data()) + 30_000
    np.testing.assert_array_equal(played(again, IDS, (9,)), played(graph, IDS, (9,)))


def test_commands_take_such_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Tiny("llama").data())
    for command in (["inspect", path], ["run", path], ["convert", path, "-o", tmp_path / "m.bolt"]):
        assert app.run([str(word) for word in command]) == 0
        assert re.search("logits +f32 +.*40]|m.bolt: 6[0-9] nodes", capsys.readouterr().out)


@pytest.mark.parametrize(("arch", "kind"), [("llama", "Q4_K"), ("llama", "F16"), ("gpt-oss", "MXFP4")])
def test_experts_stay_as_they_are_stored(arch: str, kind: str) -> None:
    tiny = Tiny(arch, kind, layers=1, width=256, **EXPERTS)
    graph = wide(bn.load(tiny.data()))
    assert {v.const.dtype.name for v in graph.constants() if v.const is not None and v.const.ndim == 3} == {"uint8"}
    made, wanted = played(graph, IDS, (6, 1, 2)), np.stack([tiny.logits(ids) for ids in IDS])
    assert np.abs(made - wanted).max() / np.abs(wanted).max() < 3e-4


@pytest.mark.parametrize("kind", FORMS)
def test_matrices_stay_as_they_are_stored(kind: str, tmp_path: Path) -> None:
    tiny = Tiny("llama", kind, layers=1, width=256)
    graph = load(tiny.data(), tmp_path)
    held = {v.const.dtype.name for v in graph.constants() if v.const is not None and v.const.ndim == 2}
    assert held == {"float32" if kind == "F32" else "uint8"}
    made = played(graph, IDS, (9,))
    wanted = np.stack([tiny.logits(ids) for ids in IDS])
    error = np.abs(made - wanted).max() / np.abs(wanted).max()
    assert error < 2e-4


def test_smollm2_continues_as_llama_cpp_does() -> None:
    graph = wide(bn.load(models.fetch("smollm2.gguf")))
    row = json.loads(GOLDEN.read_text())["prompts"][1]
    ids = [*row["ids"], *row["floats"]["tokens"]][:40]
    feeds: dict[str, Any] = {"input_ids": np.array([ids]), "past_lengths": np.zeros(1, np.int32)}
    feeds["rows"] = np.arange(len(row["ids"]) - 1, len(ids) - 1)
    feeds |= {v.name: np.zeros((1, 3, len(ids), 64), np.float32) for v in graph.inputs[3:]}
    (logits, *_) = bn.compile(graph, threads=2).run(None, feeds)
    np.testing.assert_allclose(*np.array([(logits[0, i], x) for i, x in row["floats"]["first"]]).T, rtol=0, atol=5e-3)
    assert logits.argmax(1).tolist() == ids[len(row["ids"]) :]


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_what_onnx_files_cannot_say_is_listed(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=r"as ONNX: 1 unsupported:\n.*GroupQueryAttention.*: a cache of f16"):
        bn.save(bn.load(Tiny("llama", kind, layers=1).data()), tmp_path / "m.onnx")
