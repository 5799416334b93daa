"""Searches for sequences (domain com.microsoft) against plain loops over their decoders, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import bolt_numba as bn
from bolt_numba.converters.onnx.reading.read import read_model
from bolt_numba.converters.onnx.writing.write import to_onnx
from bolt_numba.sessions.session import Session
from bolt_numba.types import Array
from tests.converters.search_models import F32, HEADS, LAYERS, WIDTH, WORDS, gpt, i32, model_of, search, translator
from tests.near import assert_near

IDS = np.array([[3, 4, 5], [0, 7, 8]], np.int32)
ENDS = {"eos_token_id": 2, "pad_token_id": 0}
BEAMS = {"num_beams": i32(3), "num_return_sequences": i32(2), "length_penalty": np.ones(1, np.float32)}


def run(op: str, feeds: dict[str, Array], held: tuple[str, ...] = (), **attributes: Any) -> list[Array]:
    model = search(op, feeds, held, **{"decoder": gpt(), **ENDS, **attributes})
    return bn.compile(model.SerializeToString(), threads=1).run(None, {n: a for n, a in feeds.items() if n not in held})


class Decoder:
    """A decoder that sees all words anew for each next one, as nothing else here does."""

    def __init__(self, graph: GraphProto, pad: int) -> None:
        self.session, self.pad = bn.compile(model_of(graph).SerializeToString(), threads=1), pad

    def logits(self, words: list[int], prompt: int) -> Array:
        """Of the word behind; padding among the first ``prompt`` words is not seen."""
        seen = [int(w != self.pad or i >= prompt) for i, w in enumerate(words)]
        places = [sum(seen[:i]) if s else 0 for i, s in enumerate(seen)]
        feeds = {"input_ids": [words], "position_ids": [places], "attention_mask": [seen]}
        empty = np.zeros((2, 1, HEADS, 0, WIDTH // HEADS), np.float32)
        arrays = {n: np.array(a, np.int32) for n, a in feeds.items()} | {f"past_{i}": empty for i in range(LAYERS)}
        return np.asarray(self.session.run(["logits"], arrays)[0][0, -1], np.float64)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def repeated(words: list[int], size: int) -> Iterator[int]:
    """Words that would make a run of so many words come again."""
    behind = words[len(words) - size + 1 :]
    for i in range(len(words) - size + 1):
        if words[i : i + size - 1] == behind:
            yield words[i + size - 1]


@pytest.mark.parametrize("end", range(0, WORDS, 2))
def test_the_best_word_of_each_step(end: int) -> None:
    decoder, pad, most = Decoder(gpt(1), 0), 0, 10
    got = run("GreedySearch", {"input_ids": IDS, "max_length": i32(most)}, decoder=gpt(1), eos_token_id=end)[0]
    for row, start in zip(got, IDS, strict=True):
        words = start.tolist()
        while len(words) < most and (word := int(decoder.logits(words, 3).argmax())) != end:
            words.append(word)
        assert row.tolist() == words + [pad] * (most - len(words))


def best(start: list[int], beams: int, most: int, power: float, early: bool) -> list[tuple[float, list[int]]]:
    """The sequences that a search over beams finds for one item, the best first; 5 ends them."""
    decoder, alive, found = Decoder(gpt(2), 11), [(0.0, start)], list[tuple[float, list[int]]]()
    for length in range(len(start), most):
        following = [
            (score + new, [*words, word])
            for score, words in alive
            for word, new in enumerate(log_softmax(decoder.logits(words, len(start))))
        ]
        following.sort(key=lambda pair: -pair[0])
        ended = [(s / length**power, w[:-1]) for s, w in following[:beams] if w[-1] == 5]
        found = sorted(found + ended, key=lambda pair: -pair[0])[:beams]
        alive = [(s, w) for s, w in following[: 2 * beams] if w[-1] != 5][:beams]
        if len(found) == beams and (early or found[-1][0] >= following[0][0] / length**power):
            return found
    return sorted(found + [(s / most**power, w) for s, w in alive], key=lambda pair: -pair[0])[:beams]


@pytest.mark.parametrize("start", [[3, 4, 5], [9], [1, 1]], ids=str)
@pytest.mark.parametrize(("beams", "power", "early"), [(1, 1, False), (3, 1, False), (4, 0, True), (2, -1, False)])
def test_the_best_beams(start: list[int], beams: int, power: float, early: bool) -> None:
    wanted = best(start, beams, 9, power, early)
    feeds = {"input_ids": i32(*start)[None], "max_length": i32(9), "num_beams": i32(beams),
             "num_return_sequences": i32(beams), "length_penalty": np.array([power], np.float32)}  # fmt: skip
    ends = {"eos_token_id": 5, "pad_token_id": 11, "early_stopping": int(early)}
    sequences, scores, _ = run("BeamSearch", feeds, decoder=gpt(2), **ends)
    assert sequences[0].tolist() == [words + [11] * (9 - len(words)) for _, words in wanted]
    assert_near(scores[0], np.array([score for score, _ in wanted], np.float32), 1e-5)


def test_words_that_were_there_or_are_hidden_do_not_come() -> None:
    """Each rule alone, in the scores of the first step or two, which are those of all words."""
    decoder, start = Decoder(gpt(3), 0), [4, 7, 4]
    plain = log_softmax(decoder.logits(start, 3))
    base = {"input_ids": i32(*start)[None], "max_length": i32(5), **BEAMS}
    least = float(np.finfo(np.float32).min)
    mask = np.arange(WORDS, dtype=np.int32) % 3

    def firsts(feeds: dict[str, Array], **attributes: Any) -> tuple[Array, Array]:
        scores = run("BeamSearch", {**base, **feeds}, decoder=gpt(3), eos_token_id=1, **attributes)[2]
        return scores[0, 0, 0], scores[1, 0, 0]

    assert_near(firsts({})[0], plain.astype(np.float32), 1e-5)
    worse = np.where(np.isin(np.arange(WORDS), start), plain * 1.5, plain)
    assert_near(firsts({"repetition_penalty": np.array([1.5], np.float32)})[0], worse.astype(np.float32), 1e-5)
    for name, hidden in (("vocab_mask", mask), ("prefix_vocab_mask", mask[None])):
        first, second = firsts({name: hidden})
        assert (first[mask == 0] == least).all()
        assert (first[mask != 0] > -100).all()
        assert (second[mask == 0] > -100).all() == (name == "prefix_vocab_mask")
    first, second = firsts({"min_length": i32(4)})
    assert first[1] == least
    assert second[1] > -100
    for size in (1, 2, 3):
        first = firsts({}, no_repeat_ngram_size=size)[0]
        assert np.flatnonzero(first == least).tolist() == sorted(set(repeated(start, size)))


def test_sizes_and_numbers_may_change_from_run_to_run() -> None:
    """Beams, lengths and batches are told by the run, and a session makes what it needs for each."""
    feeds = {"input_ids": IDS, "max_length": i32(6), "min_length": i32(0), **BEAMS}
    model = search("BeamSearch", feeds, decoder=gpt(), **ENDS).SerializeToString()
    session = bn.compile(model, threads=1)
    assert isinstance(session, Session)
    for beams, most, rows, length in [(1, 8, 2, 2), (2, 9, 1, 3), (3, 6, 2, 1), (4, 7, 1, 2), (3, 9, 2, 3)] * 2:
        each = {**feeds, "input_ids": IDS[:rows, :length], "num_beams": i32(beams), "max_length": i32(most)}
        each["num_return_sequences"] = i32(1)
        for got, wanted in zip(session.run(None, each), bn.compile(model, threads=1).run(None, each), strict=True):
            assert np.array_equal(got, wanted)
    assert session.run(None, {**feeds, "input_ids": IDS[:0]})[0].shape == (0, 2, 6)


def test_a_decoder_may_read_what_is_outside() -> None:
    """Weights of the outermost graph, as a converter leaves those that graphs share; what a node there makes, too."""
    decoder, feeds = gpt(), {"input_ids": IDS, "max_length": i32(8)}
    wanted = run("GreedySearch", feeds)[0]
    outside = [t for t in decoder.initializer if t.name in ("words", "head")]
    for tensor in outside:
        decoder.initializer.remove(tensor)
    model = search("GreedySearch", feeds, decoder=decoder, **ENDS)
    halves = numpy_helper.to_array(outside[1]) / 2
    model.graph.initializer.extend([outside[0], numpy_helper.from_array(halves, "half")])
    model.graph.node.insert(0, helper.make_node("Add", ["half", "half"], ["head"]))
    assert np.array_equal(bn.compile(model.SerializeToString()).run(None, feeds)[0], wanted)
    model.graph.initializer.pop()
    model.graph.input.append(helper.make_tensor_value_info("half", F32, halves.shape))
    assert np.array_equal(bn.compile(model.SerializeToString()).run(None, {**feeds, "half": halves})[0], wanted)


@pytest.mark.parametrize("name", ["past", "seq", "total", "rows", "source"])
def test_names_of_sizes_outside_mean_nothing_in_the_loop(name: str) -> None:
    feeds = {"input_ids": IDS, "max_length": i32(6), **BEAMS}
    given = {**translator(), **ENDS, "model_type": 1, "decoder_start_token_id": 1}
    model = search("BeamSearch", feeds, **given)
    wanted = bn.compile(model.SerializeToString(), threads=1).run(None, feeds)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = name
    for got, want in zip(bn.compile(model.SerializeToString(), threads=1).run(None, feeds), wanted, strict=True):
        assert np.array_equal(got, want)


def test_decoders_of_half_precision() -> None:
    """onnxruntime's CPU has none.  Scores are computed in full precision, and have the dtype of the penalties."""
    decoder = gpt(sharp=12)
    for tensor in decoder.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*decoder.input[3:], *decoder.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds = {"input_ids": IDS, "max_length": i32(7)}
    assert np.array_equal(
        run("GreedySearch", feeds, decoder=decoder)[0], run("GreedySearch", feeds, decoder=gpt(sharp=12))[0]
    )
    beams = {**feeds, **BEAMS, "length_penalty": np.ones(1, np.float16)}
    halves, full = run("BeamSearch", beams, decoder=decoder), run("BeamSearch", {**feeds, **BEAMS}, decoder=decoder)
    assert [a.dtype for a in halves] == [np.int32, np.float16, np.float16]
    assert np.array_equal(halves[0], full[0])
    assert np.array_equal(halves[1], full[1].astype(np.float16))


def test_operators_of_a_decoder_that_nobody_has_are_listed() -> None:
    decoder = gpt()
    decoder.node[0].op_type = "Gathers"
    with pytest.raises(
        bn.UnsupportedOpError, match=r"1 unsupported:\n *Gathers \(domain ai.onnx, opset 17\) at node 'word'"
    ):
        run("GreedySearch", GREEDY, decoder=decoder)


def test_logits_may_be_padded() -> None:
    """Kernels of GPUs like multiples of eight."""
    feeds = {"input_ids": IDS, "max_length": i32(9), **BEAMS}
    narrow, wide = gpt(), gpt()
    for tensor in narrow.initializer:
        if tensor.name == "head":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, :10], "head"))
    narrow.output[0].type.tensor_type.shape.dim[2].dim_value = 10
    wanted = run("BeamSearch", feeds, decoder=narrow)
    for got, want in zip(run("BeamSearch", feeds, decoder=wide, vocab_size=10), wanted, strict=True):
        assert_near(got, want, 1e-6)


def test_a_search_is_kept_and_written_as_loops_of_the_standard(tmp_path: Path) -> None:
    feeds = {"input_ids": IDS, "max_length": i32(8), **BEAMS}
    model = search("BeamSearch", feeds, tuple(feeds)[1:], decoder=gpt(), **ENDS)
    wanted = run("BeamSearch", feeds)
    bn.save(bn.load(model.SerializeToString()), tmp_path / "search.bolt")
    written = to_onnx(read_model(model))
    assert "Loop" in [node.op_type for node in written.graph.node]
    for again in (tmp_path / "search.bolt", written.SerializeToString()):
        got = bn.compile(again, threads=1).run(None, {"input_ids": IDS})
        assert np.array_equal(got[0], wanted[0])
        assert_near(got[1], wanted[1], 1e-5)


# --- words by chance --------------------------------------------------------------------------------------------------

MANY = 4000
CHOICES = [
    ({"top_p": 0.8, "temperature": 1.5}, False), ({"top_p": 0.8, "temperature": 1.5, "custom": 1}, False),
    ({"top_p": 0.3}, False), ({"top_p": 0.0}, False), ({"top_p": 0.0, "custom": 1}, False),
    ({"top_p": 0.6, "min_tokens_to_keep": 4}, False),
    ({"top_p": 0.95, "temperature": 4.0, "filter_value": -2.0}, False),
    ({"top_p": 1.0, "temperature": 2.0, "presence_penalty": 1.5}, True),
]  # fmt: skip


def shares(logits: Array, given: dict[str, Any], present: Array | None) -> Array:
    """The probability of each word."""
    scores = logits / given.get("temperature", 1.0)
    if present is not None:
        scores = scores - present * given["presence_penalty"]
    custom = given.get("custom", 0)
    order = np.argsort(-scores if custom else scores, kind="stable")
    sums = np.cumsum(np.exp(log_softmax(scores[order])))
    if custom:
        out = np.r_[False, sums[:-1] > given["top_p"]]
    else:
        out = (sums <= 1 - given["top_p"]) & (np.arange(WORDS) < WORDS - max(1, given.get("min_tokens_to_keep", 0)))
    scores[order[out]] = given.get("filter_value", -np.inf)
    return np.asarray(np.exp(log_softmax(scores)))


@pytest.mark.parametrize(("given", "present"), CHOICES, ids=str)
def test_words_come_as_often_as_they_are_probable(given: dict[str, Any], present: bool) -> None:
    start, mask = [3, 4, 5], np.arange(WORDS, dtype=np.int32) % 2
    feeds = {"input_ids": np.tile(i32(*start), (MANY, 1)), "max_length": i32(4), "seed": i32(5)}
    if present:
        feeds["presence_mask"] = np.tile(mask, (MANY, 1))
    got = run("Sampling", feeds, decoder=gpt(sharp=2), eos_token_id=-1, **given)[0][:, 3]
    wanted = shares(Decoder(gpt(sharp=2), 0).logits(start, 3), given, mask if present else None) * MANY
    counts = np.bincount(got, minlength=WORDS)
    assert (counts[wanted == 0] == 0).all()
    kept = wanted > 0
    freedom = int(kept.sum()) - 1
    assert ((counts - wanted)[kept] ** 2 / wanted[kept]).sum() < freedom + 4 * (2 * freedom) ** 0.5 + 1e-9


def test_each_step_and_row_draws_anew_and_a_seed_repeats() -> None:
    """All words are equally probable; pairs of words of two steps are, too."""
    even = gpt(sharp=0)
    feeds = {"input_ids": np.tile(i32(3), (MANY, 1)), "max_length": i32(4), "seed": i32(7)}
    got = run("Sampling", feeds, decoder=even, eos_token_id=-1, top_p=1.0)[0]
    for a, b in ((1, 2), (2, 3), (1, 3)):
        pairs = np.bincount(got[:, a] * WORDS + got[:, b], minlength=WORDS**2)
        assert ((pairs - MANY / WORDS**2) ** 2 / (MANY / WORDS**2)).sum() < 143 + 4 * (2 * 143) ** 0.5
    few = {**feeds, "input_ids": feeds["input_ids"][:50]}
    held = run("Sampling", few, ("seed",), decoder=even, eos_token_id=-1, top_p=1.0)[0]
    assert np.array_equal(held, run("Sampling", few, decoder=even, eos_token_id=-1, top_p=1.0)[0])
    other = run("Sampling", {**few, "seed": i32(8)}, decoder=even, eos_token_id=-1, top_p=1.0)[0]
    assert not np.array_equal(held, other)


# --- what is refused --------------------------------------------------------------------------------------------------

GREEDY = {"input_ids": IDS, "max_length": i32(8)}
FOUND = {**GREEDY, **BEAMS}
ONE = np.ones(1, np.float32)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("op", "feeds", "said"),
    [
        ("GreedySearch", {**GREEDY, "max_length": i32(3)}, "max_length: got 3, wanted 4 to"),
        ("Sampling", {**GREEDY, "max_length": i32(-1)}, "max_length: got -1, wanted 4 to"),
        ("GreedySearch", {**GREEDY, "repetition_penalty": -ONE}, r"repetition_penalty: got -1.0, wanted 1.4"),
        ("BeamSearch", {**FOUND, "num_beams": i32(0)}, "num_beams: got 0, wanted 1 to 128"),
        ("BeamSearch", {**FOUND, "num_return_sequences": i32(4)}, "num_return_sequences: got 4, wanted 1 to 3"),
        ("BeamSearch", {**FOUND, "num_return_sequences": i32(0)}, "num_return_sequences: got 0, wanted 1 to 3"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(op: str, feeds: dict[str, Array], said: str, held: bool) -> None:
    """In a run, or when the file is read."""
    names = tuple(n for n in feeds if n != "input_ids") if held else ()
    with pytest.raises(bn.BoltError, match=said):
        run(op, feeds, names)


@pytest.mark.parametrize(
    ("op", "feeds", "attributes", "said"),
    [
        ("GreedySearch", GREEDY, {"model_type": 1}, "unsupported:\n  model_type 1"),
        ("BeamSearch", FOUND, {"model_type": 3}, "unsupported:\n  model_type 3"),
        ("GreedySearch", GREEDY, {"vocab_size": 13}, "vocab_size: got 13, wanted at most 12, as many"),
        ("GreedySearch", GREEDY, {"no_repeat_ngram_size": 1 << 40}, "no_repeat_ngram_size: got 1099511627776, wanted"),
        ("BeamSearch", FOUND, {"model_type": 1}, "attribute 'encoder': got none, wanted a graph"),
        ("BeamSearch", FOUND, {"model_type": 1, **translator()}, "decoder_start_token_id: got -1, wanted 0 to 11"),
        ("GreedySearch", {**GREEDY, "input_ids": IDS[0]}, {}, r"input_ids: got i32\[3\], wanted i32\[n, length\]"),
        ("GreedySearch", {**GREEDY, "vocab_mask": i32(1, 1)}, {}, r"vocab_mask: got i32\[2\], wanted i32\[12\]"),
        ("GreedySearch", {**GREEDY, "input_ids": IDS + 20}, {}, r"indices\[0, 0\]: got 23, wanted -12 to 11"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said(op: str, feeds: dict[str, Array], attributes: dict[str, Any], said: str) -> None:
    with pytest.raises(bn.BoltError, match=said):
        run(op, feeds, **attributes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g: g.input.append(helper.make_tensor_value_info("past_sequence_length", TensorProto.INT32, [1])),
         "an input past_sequence_length"),
        (lambda g: g.input.pop(1), r"inputs of 'decoder': got \['input_ids', 'attention_mask', .* wanted input_ids"),
        (lambda g: g.output.pop(), r"outputs of 'decoder': got \['logits', 'present_0'\], wanted 3 tensors"),
        (lambda g: g.output[0].type.tensor_type.shape.dim[2].Clear(), "a decoder whose logits are declared as"),
        (lambda g: g.input[3].type.tensor_type.shape.dim[2].Clear(), "input past_0 of a decoder, declared as"),
        (lambda g: g.ClearField("output"), "outputs of the decoder: got none"),
    ],
    ids=range(6),
)  # fmt: skip
def test_other_decoders_are_refused(change: Any, said: str) -> None:
    decoder = gpt()
    change(decoder)
    with pytest.raises(bn.BoltError, match=said):
        run("GreedySearch", GREEDY, decoder=decoder)
