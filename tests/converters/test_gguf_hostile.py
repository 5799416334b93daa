"""GGUF files that are damaged, hostile, or hold what has no meaning here: errors that name file, key or tensor."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bolt_numba as bn
from bolt_numba.converters.formats import unsupported
from bolt_numba.errors import BoltError, InvalidModelError, UnsupportedOpError
from bolt_numba.ir.interpret import interpret
from tests.attack.formats import BINARY
from tests.converters.test_gguf import wide
from tests.fuzz.targets import TARGETS
from tests.gguf_files import BYTEWISE, Tiny, file_of, text
from tests.level import few

BEGIN = b"GGUF\x03\0\0\0"
MANY = struct.pack("<Q", 1 << 60)
ONE = struct.pack("<Q", 1)
KEY = ONE + text("k")
SAME = [text(name) + struct.pack("<IQIQ", 1, 1024, 0, 0) for name in "ab"]
"""Rows of two tensors that are the same 4 KiB."""


def padded(*parts: bytes) -> bytes:
    return b"".join(parts) + bytes(64)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"GGUF", "header: version: got 4 bytes at 4, wanted them within 4"),
        (b"GGUF\0\0\0\3" + bytes(64), "header: version: got a file of big-endian numbers, wanted one of"),
        (b"GGUF\x01\0\0\0" + bytes(64), "header: version: got 1, wanted one of"),
        (padded(BEGIN, MANY), f"header: tensors: got {1 << 60}, wanted at most 2, as 64 bytes are left"),
        (padded(BEGIN, bytes(8), MANY), f"header: keys: got {1 << 60}, wanted at most 4"),
        (padded(BEGIN, bytes(8), ONE, MANY), f"key 0: bytes: got {1 << 60}, wanted at most 64"),
        (padded(BEGIN, bytes(8), ONE, text(b"\xff")), "key 0: got bytes that are no UTF-8"),
        (padded(BEGIN, bytes(8), KEY, b"\x0d\0\0\0"), "key 'k': kind: got 13, wanted one of GGUF's"),
        (padded(BEGIN, bytes(8), KEY, b"\x07\0\0\0\2"), "key 'k': got 2, wanted 0 or 1"),
        (padded(BEGIN, bytes(8), KEY, b"\x09\0\0\0\x09\0\0\0"), "key 'k': kind of elements: got 9, wanted numbers or"),
        (padded(BEGIN, bytes(8), KEY, b"\x09\0\0\0\x0c\0\0\0", MANY), "key 'k': elements: got .* at most 8, as 64"),
        (padded(BEGIN, bytes(8), KEY, b"\x09\0\0\0\x08\0\0\0", ONE, MANY), "key 'k': got texts beyond 121 bytes"),
        (padded(BEGIN, ONE, bytes(8), text("t"), b"\5\0\0\0"), "tensor 't': axes: got 5, wanted 1 to 4"),
        (padded(BEGIN, bytes(8), b"\1\0\1", bytes(1 << 20)), "header: keys: got 65537, wanted at most 65536"),
        (padded(BEGIN, b"\1\0\2", bytes(1 << 23)), "header: tensors: got 131073, wanted at most 131072"),
        (padded(BEGIN, b"\2", bytes(15), *SAME, bytes(4096)), "tensors: got 8192 bytes, wanted them apart from each"),
    ],
)
def test_containers_that_are_damaged(data: bytes, wanted: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(InvalidModelError, match=rf"^m.gguf: {wanted}"):
        bn.load(tmp_path / "m.gguf")


def drop(name: str) -> Callable[[Tiny], Any]:
    return lambda tiny: tiny.tensors.pop(name)


def keys(**values: Any) -> Callable[[Tiny], Any]:
    return lambda tiny: tiny.keys.update({k.replace("__", "."): v for k, v in values.items()})


def extra(**values: Any) -> Callable[[Tiny], Any]:
    return lambda tiny: tiny.extra.update({**BYTEWISE, **{f"tokenizer.ggml.{k}": v for k, v in values.items()}})


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (drop("blk.1.attn_v.weight"), r"tensor 'blk.1.attn_v.weight': got none, wanted one of \(16, 24\)"),
        (keys(embedding_length=32), r"tensor 'token_embd.weight': shape: got \(40, 24\), wanted \(0, 32\)"),
        (keys(block_count=1 << 31), "key 'llama.block_count': got 2147483648, wanted a whole number from 1 to 4096"),
        (keys(attention__head_count_kv=3), "key 'llama.attention.head_count': got 4, wanted 3 times some"),
        (keys(expert_count=3, expert_used_count=4), "key 'llama.expert_used_count': got 4, wanted at most 3"),
        (keys(expert_count=3, expert_used_count=2), "tensor 'blk.0.ffn_gate_inp.weight': got none, wanted one of"),
        (keys(rope__dimension_count=7), "key 'llama.rope.dimension_count': got 7, wanted an even number up to 8"),
        (keys(rope__freq_base=float("nan")), "key 'llama.rope.freq_base': got nan, wanted a finite number"),
        (keys(attention__layer_norm_rms_epsilon="x"), "key '.*rms_epsilon': got x, wanted a finite number"),
        (lambda tiny: tiny.extra.update({"general.alignment": 48}), "'general.alignment': got 48, wanted a power"),
        (lambda tiny: tiny.data()[:-1], "tensor 'blk.1.ffn_down.weight': got bytes up to .* the file is cut off"),
        (lambda tiny: tiny.matrix("rope_freqs", 1, 24), r"tensor 'rope_freqs.weight': shape: got \(1, 24\), wanted"),
        (extra(tokens=5), "key 'tokenizer.ggml.tokens': got int, wanted a list of texts"),
        (extra(token_type=np.zeros(3, np.int32)), "key 'tokenizer.ggml.token_type': got 3, wanted 29 numbers"),
        (extra(eos_token_id=29), "key 'tokenizer.ggml.eos_token_id': got 29, wanted 0 to 28"),
        (extra(model="llama"), "key 'tokenizer.ggml.scores': got none, wanted 29 numbers"),
        (extra(tokens=["a"] * 41, token_type=np.ones(41, np.int32), merges=[]), "got 40 rows, wanted one for each"),
    ],
)  # fmt: skip
def test_decoders_that_do_not_fit(change: Callable[[Tiny], Any], wanted: str) -> None:
    tiny = Tiny("llama")
    data = change(tiny)
    with pytest.raises(InvalidModelError, match=f"^model: .*{wanted}"):
        bn.load(data if isinstance(data, bytes) else tiny.data())


def test_all_that_is_unsupported_is_listed_at_once() -> None:
    tiny = Tiny("llama", attention__causal=False)
    tiny.extra = {**BYTEWISE, "tokenizer.ggml.pre": "another"}
    for name in ("output.weight", "blk.0.ffn_up.weight"):
        tiny.tensors[name] = "IQ2_S", (40, 24), bytes(960)
    assert [line.split(", wanted")[0] for line in unsupported(tiny.data())] == [
        "attention to later positions", "tokenizer.ggml.pre 'another'", "tensor 'blk.0.ffn_up.weight' of kind IQ2_S",
        "tensor 'output.weight' of kind IQ2_S",
    ]  # fmt: skip
    assert unsupported(Tiny("granite", rope__scaling__finetuned=False).data()) == ["granite without rotary embedding"]
    tiny = Tiny("llama", rope__scaling__type="dynamic")
    tiny.vector("blk.0.ffn_gate_inp", 24)
    assert unsupported(tiny.data()) == [
        "rope scaling 'dynamic', wanted none, linear, yarn or longrope", "tensor 'blk.0.ffn_gate_inp.weight' of llama",
    ]  # fmt: skip
    with pytest.raises(
        UnsupportedOpError, match=r"architecture 'mamba', wanted one of llama, qwen2, .*\n.*'bert', wanted"
    ):
        bn.load(file_of({"general.architecture": "mamba", "tokenizer.ggml.model": "bert"}, {}))


def parts_of(tiny: Tiny, folder: Path, count: int = 3, **others: Any) -> Path:
    """The first of some files of a decoder.  others: keys of the second file."""
    values = {"general.architecture": tiny.arch, **{f"{tiny.arch}.{k}": v for k, v in tiny.keys.items()}}
    names = list(tiny.tensors)
    for i in range(count):
        split = {"split.no": i, "split.count": count, "split.tensors.count": len(names)}
        split |= {k.replace("__", "."): v for k, v in others.items()} if i == 1 else {}
        some = {name: tiny.tensors[name] for name in names[i::count]}
        (folder / f"m-{i + 1:05d}-of-{count:05d}.gguf").write_bytes(file_of(split if i else values | split, some))
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_models_in_several_files(tmp_path: Path) -> None:
    tiny, feeds = Tiny("llama"), {"input_ids": np.array([[1, 2, 3]]), "past_lengths": np.zeros(1, np.int32)}
    first = parts_of(tiny, tmp_path)
    graphs = [wide(bn.load(first)), wide(bn.load(tiny.data()))]
    feeds |= {"rows": np.arange(3), **{v.name: np.zeros((1, 2, 12, 8), np.float32) for v in graphs[0].inputs[3:]}}
    made, wanted = (interpret(graph, feeds)["logits"] for graph in graphs)
    assert np.array_equal(made, wanted)
    second = first.with_name("m-00002-of-00003.gguf")
    with pytest.raises(InvalidModelError, match=r"^m-00002.*: got one of 3 files, wanted the first, 'NAME-00001-of-0"):
        bn.load(second)
    with pytest.raises(InvalidModelError, match=r"^model: got one of 3 files, wanted the first"):
        bn.load(first.read_bytes())
    second.unlink()
    with pytest.raises(InvalidModelError, match=r"part 2 of 3: got 'm-00002-of-00003.gguf', wanted an existing file"):
        bn.load(first)


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ({"split__no": 2}, r"part 2 of 3: 'm-00002-.*': got split.no and split.count \(2, 3\), wanted \(1, 3\)"),
        ({"split__count": 4}, r"part 2 of 3: 'm-00002-.*': got split.no and split.count \(1, 4\), wanted \(1, 3\)"),
    ],
)
def test_parts_that_do_not_belong_together(others: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    first = parts_of(Tiny("llama"), tmp_path, **others)
    with pytest.raises(InvalidModelError, match=f"^{first.name}: {wanted}"):
        bn.load(first)


def test_parts_have_each_tensor_once(tmp_path: Path) -> None:
    tiny = Tiny("llama")
    first = parts_of(tiny, tmp_path)
    third = first.with_name("m-00003-of-00003.gguf")
    held, split = dict(list(tiny.tensors.items())[2::3]), {"split.no": 2, "split.count": 3}
    third.write_bytes(file_of(split, dict(list(held.items())[1:])))
    with pytest.raises(InvalidModelError, match=r"key 'split.tensors.count': got 20, wanted 19 of all parts"):
        bn.load(first)
    third.write_bytes(file_of(split, {**held, "token_embd.weight": tiny.tensors["token_embd.weight"]}))
    with pytest.raises(InvalidModelError, match=r"part 3 of 3: .*: got tensors that others have, wanted"):
        bn.load(first)


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    target, rng = TARGETS["gguf"], np.random.default_rng(0)
    ran = 0
    for data in target.seeds():
        for change in BINARY * few(20, 2):
            assert target.read is not None
            with suppress(BoltError):
                target.read([change(data, rng)], tmp_path)
                ran += 1
    assert ran > 3
