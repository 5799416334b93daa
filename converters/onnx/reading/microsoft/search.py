"""Readers of onnxruntime's searches for sequences: a loop over the graph of a decoder (domain com.microsoft).

`search_decoders` has what a decoder takes and gives, `search_choice` how words are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.base.records import record
from bolt_numba.base.types import BOOL, F16, F32, I32, I64, TensorType
from bolt_numba.converters.as_is import AsIs
from bolt_numba.converters.builder import known_scalar
from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.layers import MOST_WORDS
from bolt_numba.converters.onnx.reading.microsoft.search_choice import (
    Beams,
    Greedy,
    NucleusChoice,
    Rule,
    Rules,
    State,
    count,
)
from bolt_numba.converters.onnx.reading.microsoft.search_decoders import Gpt, T5Like, declared
from bolt_numba.converters.onnx.reading.microsoft.search_stamps import Stamps
from bolt_numba.converters.onnx.reading.registry import microsoft
from bolt_numba.converters.onnx.types import type_of_proto
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.random import RandomUniform
from bolt_numba.ops.arrays.reduce import CumSum
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.control import Loop
from bolt_numba.ops.data.search import Between, BifurcationDetector
from bolt_numba.ops.pointwise import Add, Cast, Equal, Greater, Not, Sub
from bolt_numba.ops.registry import fresh_dim

Graph: TypeAlias = onnx.GraphProto
Results: TypeAlias = "tuple[Any, list[Any]] | None"
"""Logits of a step, and what the next one takes."""
GPT, T5, WHISPER = range(3)
"""Kinds of models, as files number them."""
MOST_LENGTH, MOST_BEAMS = 2**31 - 1, 128
LEAST_PENALTY = np.finfo(F32).smallest_subnormal
GROWING = ("seq", "total", "past")
"""Sizes of states that change from step to step."""


def scalar(b: NodeBuilder, x: Value | None, default: float, dtype: Any) -> Value:
    """An operand of one element as a scalar of a dtype."""
    return b.const(np.array(default, dtype)) if x is None else b(Cast(dtype), b.as_scalar(x))


def within(b: NodeBuilder, what: str, x: Value, low: Any, high: Any) -> Value:
    """A scalar that is in low…high; refused where it is not, now or in the run."""
    got, least, most = (known_scalar(v) if isinstance(v, Value) else v for v in (x, low, high))
    if got is None or least is None or most is None:
        return b(Between(what), x, low, high)
    b.invalid_if(not least <= got <= most, what, got, f"{least} to {most}")
    return x


@record(frozen=True)
class Searched:
    """What a search says of the model that it runs, and of the numbers of words."""

    decoder: onnx.GraphProto
    eos_token_id: int
    pad_token_id: int
    init_decoder: onnx.GraphProto | None = None
    encoder: onnx.GraphProto | None = None
    model_type: int = GPT
    decoder_start_token_id: int = -1
    no_repeat_ngram_size: int = 0
    vocab_size: int = -1


@record(frozen=True)
class SearchedWhisper(Searched):
    model_type: int = WHISPER


class Search:
    """Runs a decoder step after step.

    graph: of the decoder.  first: what the first step gives, where another graph makes it.  words: how many there are.
    """

    def __init__(
        self, b: NodeBuilder, decoder: Any, choice: Any, rules: Rules, graph: Graph, first: Results, words: int
    ) -> None:
        self.b, self.decoder, self.choice, self.rules, self.words = b, decoder, choice, rules, words
        self.graph, self.first = graph, first

    def run(self, state: State, steps: Any) -> tuple[State, list[Any]]:
        """The last state, and results of all steps [steps, ...]."""
        b = self.b
        goes_on: Any = np.array(True)
        before: list[Any] = []
        if self.first is not None:
            state, before = self.step(b, state, *self.first, None)
            steps, goes_on = b(Sub(), steps, 1), self.choice.goes_on(b, state)
        inner = b.inside("search")
        number = inner.graph.add_input("step", TensorType(I64, ()))
        inner.graph.add_input("goes_on", TensorType(BOOL, ()))
        held = {name: inner.graph.add_input(name, t) for name, t in self.types(state).items()}
        logits, kept = self.decoder.run(inner, self.graph, held)
        after, results = self.step(inner, held, logits, kept, number)
        for name, value in held.items():
            Forms(inner).want(
                f"{name} after a step", after[name], " ".join("x" * inner.rank_of(value)), value.type.dtype
            )
        for value in (self.choice.goes_on(inner, after), *(after[name] for name in held), *results):
            inner.graph.add_output(value)
        operands = (*(state[name] for name in held), *inner.captures())
        outs = b.node(Loop(inner.graph, len(held)), steps, goes_on, *operands).outputs
        all_ = outs[len(held) :]
        if before:
            all_ = [b(Concat(0), b.unsqueezed(x, 0), xs) for x, xs in zip(before, all_, strict=True)]
        return dict(zip(held, outs, strict=False)), list(all_)

    def types(self, state: State) -> dict[str, TensorType]:
        """Types of the state that hold in every step."""
        forms = {**self.decoder.forms, **self.choice.forms, "sequences": "rows total"}
        sizes: dict[str, Any] = {}
        for name, form in forms.items():
            for size, dim in zip(form.split(), state[name].type.shape or (), strict=True):
                if size not in GROWING and isinstance(dim, int):
                    sizes[size] = dim
                else:
                    sizes.setdefault(size, fresh_dim(size))
        return {n: TensorType(state[n].type.dtype, tuple(sizes[size] for size in f.split())) for n, f in forms.items()}

    def step(self, b: NodeBuilder, state: State, logits: Value, kept: Any, number: Any) -> tuple[State, list[Any]]:
        """The state after a step, and its results.  number: of the step in the loop; None for one before it."""
        Forms(b).want("logits", logits, "rows seq words", F32, F16)
        last = b.reshaped(b.sliced(b(Cast(F32), b.sliced(logits, 1, -1)), 2, 0, self.words), [-1, self.words])
        first: Any = number is None
        if number is None:
            number = np.array(0)
        elif self.first is None:
            first = b(Equal(), number, 0)
        else:
            number = b(Add(), number, 1)
        scores = self.rules.apply(b, self.choice.scores(b, last), state["sequences"], first)
        words, rows, made, results = self.choice.choose(b, scores, state, number)
        so_far = state["sequences"] if rows is None else b(Gather(0), state["sequences"], rows)
        made["sequences"] = b(Concat(1), so_far, b.unsqueezed(words, 1))
        return made | self.decoder.after(b, state, kept, words, rows), results


def filled(b: NodeBuilder, x: Any, axis: int, length: Any, value: Any) -> Value:
    """``x`` with a value behind its end along an axis, to a length that a scalar says."""
    missing = b(Sub(), length, count(b, x, axis))
    sizes = [*b.sizes_of(x, range(axis)), b.unsqueezed(missing, 0), *b.sizes_of(x, range(axis + 1, b.rank_of(x)))]
    return b(Concat(axis), x, b.expanded(np.array(value, x.type.dtype), sizes))


def words_of(b: NodeBuilder, graph: Graph, vocab_size: int) -> int:
    """How many words there are: those of the decoder, or the first of them where others only pad its logits."""
    b.invalid_if(not graph.output, "outputs of the decoder", "none", "logits, and what it keeps")
    declared = type_of_proto(graph.output[0].type, f"{b.what}: output of '{graph.name}'").shape or (None,)
    if not isinstance(declared[-1], int):
        raise b.unsupported(f"a decoder whose logits are declared as {declared}")
    if vocab_size > declared[-1]:
        raise b.invalid("vocab_size", vocab_size, f"at most {declared[-1]}, as many as the decoder has logits")
    return vocab_size if vocab_size > 0 else declared[-1]


class Task:
    """What the searches have in common: operands held against what they must be.

    starts: [n, m] i32, the words with which a translation begins.
    length: scalar i64, of the sequences at most.  steps: scalar i64, how many words are to be found.
    """

    def __init__(
        self, b: NodeBuilder, input_ids: Value, max_length: Value, model: Searched, starts: Value | None = None
    ) -> None:
        self.b, self.graph, self.ids, self.model, kind = b, model.decoder, input_ids, model, model.model_type
        self.words = words_of(b, model.decoder, model.vocab_size)
        self.sizes = Forms(b, words=self.words)
        if kind == WHISPER:
            self.sizes.want("input_ids", input_ids, "n features frames", F32, F16)
            self.sizes.want("decoder_input_ids", starts, "n start", I32)
        else:
            self.sizes.want("input_ids", input_ids, "n length", I32)
        if kind == GPT:
            starts = input_ids
        before = b.const(np.array(1)) if starts is None else count(b, starts, 1)
        self.length = within(b, "max_length", scalar(b, max_length, 0, I64), b(Add(), before, 1), MOST_LENGTH)
        self.steps = b(Sub(), self.length, before)

    def rules(
        self, repetition: Value | None, words: Value | None, firsts: Value | None, shortest: Value | None, **more: Any
    ) -> Rules:
        """What changes scores.  words, firsts: masks of words, and of first words."""
        size = self.model.no_repeat_ngram_size
        self.sizes.want("vocab_mask", words, "words", I32)
        self.sizes.want("prefix_vocab_mask", firsts, "n words", I32)
        if size > MOST_WORDS:
            raise self.b.invalid("no_repeat_ngram_size", size, f"at most {MOST_WORDS}")
        penalty = None if repetition is None else scalar(self.b, repetition, 1, F32)
        if penalty is not None:
            penalty = within(self.b, "repetition_penalty", penalty, LEAST_PENALTY, np.finfo(F32).max)
        least = None if shortest is None else scalar(self.b, shortest, 0, I32)
        return Rules(self.model.eos_token_id, penalty, size, words, firsts, least, **more)

    def run(self, decoder: Any, choice: Any, rules: Rules, state: State, first: Results) -> tuple[State, list[Any]]:
        state |= choice.begin(self.b, state["sequences"])
        return Search(self.b, decoder, choice, rules, self.graph, first, self.words).run(state, self.steps)


def going_on(task: Task, choice: Any, rules: Rules, mask: Value | None) -> tuple[State, list[Any]]:
    """A search by a decoder that goes on with its input."""
    b, init_decoder = task.b, task.model.init_decoder
    task.sizes.want("attention_mask", mask, "n length", I32)
    decoder = Gpt(b, task.graph)
    state = decoder.begin(b, task.ids, mask, choice.pad, choice.beams)
    state["sequences"] = state["ids"]
    return task.run(
        decoder, choice, rules, state, None if init_decoder is None else decoder.run(b, init_decoder, state)
    )


def translating(task: Task, choice: Any, rules: Rules, mask: Value | None) -> tuple[State, list[Any]]:
    """A search by a decoder that translates what an encoder makes of words."""
    b = task.b
    task.sizes.want("attention_mask", mask, "n length", I32)
    if mask is None:  # padding before the first word, none behind it
        words = b(Cast(I32), b(Not(), b(Equal(), task.ids, choice.pad)))
        mask = b(Cast(I32), b(Greater(), b(CumSum(), words, np.array(1)), 0))
    return encoded(task, choice, rules, {"encoder_input_ids": task.ids, "encoder_attention_mask": mask}, None)


def encoded(
    task: Task, choice: Any, rules: Rules, inputs: dict[str, Value], start: Value | None
) -> tuple[State, list[Any]]:
    """A search by a decoder that translates.  inputs: of the encoder.  start: the first words [n, words] i32."""
    b, encoder, word = task.b, task.model.encoder, task.model.decoder_start_token_id
    if encoder is None:
        raise b.invalid("attribute 'encoder'", "none", "a graph")
    declared(b, encoder, *inputs)
    if start is None:
        b.invalid_if(not 0 <= word < task.words, "decoder_start_token_id", word, f"0 to {task.words - 1}")
        start = b.expanded(np.array(word, I32), b.sizes_of(task.ids, [0]), [1])
    mask = inputs.get("encoder_attention_mask")
    decoder = T5Like(b, task.graph, masked=mask is not None)
    state, first = decoder.encode(b, encoder, [*inputs.values()], mask, start, choice.beams)
    return task.run(decoder, choice, rules, state, first)


def stamped(task: Task, stamps: Stamps, wanted: Value | None) -> Rule | None:
    """The rule of Whisper for a search that may want it (1); words that are none of the model's only where it does."""
    if wanted is None:
        return None
    most = MOST_LENGTH if 0 < stamps.first < task.words else 0
    return stamps.rule(task.b, within(task.b, "logits_processor", scalar(task.b, wanted, 0, I64), 0, most))


def found_by_beams(
    task: Task, search: Callable[[Beams], tuple[State, list[Any]]], num_beams: Value | None,
    num_return_sequences: Value | None, length_penalty: Value | None, early_stopping: int,
) -> list[Any]:  # fmt: skip
    """The best sequences, their scores, and scores of all words in all steps, None where nobody wants them."""
    b, end, pad = task.b, task.model.eos_token_id, task.model.pad_token_id
    beams = within(b, "num_beams", scalar(b, num_beams, 1, I64), 1, MOST_BEAMS)
    many = within(b, "num_return_sequences", scalar(b, num_return_sequences, 1, I64), 1, beams)
    choice = Beams(
        end, pad, beams=beams, penalty=scalar(b, length_penalty, 1, F32), early=early_stopping == 1, scores=b.wants(2)
    )
    last, scores = search(choice)
    best, best_scores = choice.finish(b, last, many)
    kind = F32 if length_penalty is None else length_penalty.type.dtype
    best_scores, *of_words = (
        b(Cast(kind), x) for x in (best_scores, *(filled(b, x, 0, task.steps, 0) for x in scores))
    )
    return [filled(b, best, 2, task.length, pad), best_scores, *of_words, *[None] * (not of_words)]


@microsoft("GreedySearch")
def greedy_search(
    b: NodeBuilder,
    input_ids: Value,
    max_length: Value,
    min_length: Value | None = None,
    repetition_penalty: Value | None = None,
    vocab_mask: Value | None = None,
    prefix_vocab_mask: Value | None = None,
    attention_mask: Value | None = None,
    *,
    model: Searched,
) -> Value:
    """Sequences [n, max_length] i32, each with the best word in each step."""
    b.unsupported_if(model.model_type != GPT, f"model_type {model.model_type}")
    task = Task(b, input_ids, max_length, model)
    rules = task.rules(repetition_penalty, vocab_mask, prefix_vocab_mask, min_length)
    last, _ = going_on(task, Greedy(model.eos_token_id, model.pad_token_id), rules, attention_mask)
    return filled(b, last["sequences"], 1, task.length, model.pad_token_id)


@microsoft("Sampling")
def sampling(
    b: NodeBuilder,
    input_ids: Value,
    max_length: Value,
    min_length: Value | None = None,
    repetition_penalty: Value | None = None,
    vocab_mask: Value | None = None,
    prefix_vocab_mask: Value | None = None,
    attention_mask: Value | None = None,
    presence_mask: Value | None = None,
    seed: Value | None = None,
    *,
    model: Searched,
    temperature: float = 1.0,
    top_p: float = 0.0,
    filter_value: float = -np.inf,
    min_tokens_to_keep: int = 0,
    presence_penalty: float = 0.0,
    custom: int = 0,
) -> tuple[Value, None]:
    """Sequences [n, max_length] i32, whose words are drawn from the most probable ones."""
    b.unsupported_if(model.model_type != GPT, f"model_type {model.model_type}")
    task = Task(b, input_ids, max_length, model)
    task.sizes.want("presence_mask", presence_mask, "n words", I32)
    presence = None if presence_mask is None or not presence_penalty else (presence_mask, presence_penalty)
    rules = task.rules(
        repetition_penalty, vocab_mask, prefix_vocab_mask, min_length,
        temperature=temperature if temperature > 0 else None, presence=presence,
    )  # fmt: skip
    shape = b(Concat(0), b.unsqueezed(task.steps, 0), b(Shape(0, 1), input_ids))
    choice = NucleusChoice(
        model.eos_token_id, model.pad_token_id, share=top_p, keep=min_tokens_to_keep, filtered=filter_value,
        from_best=bool(custom), draws=b(RandomUniform(), shape, scalar(b, seed, 0, I64)),
    )  # fmt: skip
    last, _ = going_on(task, choice, rules, attention_mask)
    return filled(b, last["sequences"], 1, task.length, model.pad_token_id), None


@microsoft("BeamSearch")
def beam_search(
    b: NodeBuilder,
    input_ids: Value,
    max_length: Value,
    min_length: Value | None = None,
    num_beams: Value | None = None,
    num_return_sequences: Value | None = None,
    length_penalty: Value | None = None,
    repetition_penalty: Value | None = None,
    vocab_mask: Value | None = None,
    prefix_vocab_mask: Value | None = None,
    attention_mask: Value | None = None,
    decoder_input_ids: Value | None = None,
    logits_processor: Value | None = None,
    *,
    model: Searched,
    early_stopping: int = 0,
) -> Any:
    """The best sequences [n, num_return_sequences, max_length] i32, their scores, those of all words in all steps."""
    kind = model.model_type
    b.unsupported_if(kind not in (GPT, T5, WHISPER), f"model_type {kind}")
    starts = decoder_input_ids if kind == WHISPER else None
    task = Task(b, input_ids, max_length, model, starts)
    stamps = stamped(task, Stamps.of(model.eos_token_id), logits_processor) if kind == WHISPER else None
    rules = task.rules(repetition_penalty, vocab_mask, prefix_vocab_mask, min_length, more=stamps)

    def search(choice: Beams) -> tuple[State, list[Any]]:
        if kind == GPT:
            return going_on(task, choice, rules, attention_mask)
        if kind == T5:
            return translating(task, choice, rules, attention_mask)
        return encoded(task, choice, rules, {"encoder_input_ids": input_ids}, starts)

    return found_by_beams(task, search, num_beams, num_return_sequences, length_penalty, early_stopping)


@microsoft("WhisperBeamSearch")
def whisper_beam_search(
    b: NodeBuilder,
    input_ids: Value,
    max_length: Value,
    min_length: Value | None = None,
    num_beams: Value | None = None,
    num_return_sequences: Value | None = None,
    length_penalty: Value | None = None,
    repetition_penalty: Value | None = None,
    vocab_mask: Value | None = None,
    prefix_vocab_mask: Value | None = None,
    attention_mask: Value | None = None,
    decoder_input_ids: Value | None = None,
    logits_processor: Value | None = None,
    cross_qk_layer_head: Value | None = None,
    extra_decoding_ids: Value | None = None,
    temperature: Value | None = None,
    *,
    model: SearchedWhisper,
    early_stopping: int = 0,
    decoder_output_cross_qk: int = 0,
    beginning_timestamp_token_id: int = -1,
    no_speech_token_id: int = -1,
    no_timestamps_token_id: int = -1,
    start_of_lm_token_id: int = -1,
    transcribe_token_id: int = -1,
    translate_token_id: int = -1,
) -> Any:
    """As `beam_search`, of sound."""
    if model.model_type != WHISPER or decoder_output_cross_qk or extra_decoding_ids is not None:
        raise b.unsupported("another model_type than 2, decoder_output_cross_qk or extra_decoding_ids")
    task = Task(b, input_ids, max_length, model, decoder_input_ids)
    later = (model.decoder_start_token_id, translate_token_id, transcribe_token_id)
    barred = (no_timestamps_token_id, start_of_lm_token_id)
    stamps = Stamps(model.eos_token_id, beginning_timestamp_token_id, barred, later)
    rules = task.rules(
        repetition_penalty, vocab_mask, prefix_vocab_mask, min_length,
        temperature=temperature and scalar(b, temperature, 1, F32), more=stamped(task, stamps, logits_processor),
    )  # fmt: skip
    given = {"encoder_input_ids": input_ids}, decoder_input_ids
    return found_by_beams(
        task, lambda c: encoded(task, c, rules, *given), num_beams, num_return_sequences, length_penalty, early_stopping
    )


_DETECTOR = AsIs(
    BifurcationDetector, "src_tokens cur_tokens prev_suffix_match_idx pred_tokens?", min_ngram_size=1, max_ngram_size=3
)
microsoft("BifurcationDetector")(_DETECTOR)
