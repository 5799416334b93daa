"""Readers of onnxruntime's searches for sequences: a loop over the graph of a decoder (domain com.microsoft).

`decoders` has what a decoder takes and gives, `choice` how words are chosen.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np

from bolt_numba.converters.forms import Forms
from bolt_numba.converters.onnx.proto import onnx
from bolt_numba.converters.onnx.reading.graph import NodeBuilder
from bolt_numba.converters.onnx.reading.microsoft.choice import Beams, Greedy, Rules, Sampling, State, count
from bolt_numba.converters.onnx.reading.microsoft.decoders import Gpt
from bolt_numba.converters.onnx.reading.microsoft.layers import MOST_WORDS
from bolt_numba.converters.onnx.reading.registry import reader
from bolt_numba.converters.onnx.types import type_of_proto
from bolt_numba.converters.operands import (
    as_scalar,
    expanded,
    known_scalar,
    rank_of,
    reshaped,
    sizes_of,
    sliced,
    unsqueezed,
)
from bolt_numba.ir.graph import Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.random import RandomUniform
from bolt_numba.ops.arrays.shape import Concat, Shape
from bolt_numba.ops.control import Loop
from bolt_numba.ops.data.search import Between, BifurcationDetector
from bolt_numba.ops.pointwise import Add, Cast, Equal, Sub
from bolt_numba.types import BOOL, F16, F32, I32, I64, Sym, TensorType

microsoft = functools.partial(reader, domain="com.microsoft")
Graph: TypeAlias = onnx.GraphProto
MOST_LENGTH, MOST_BEAMS = 2**31 - 1, 128
LEAST_PENALTY = np.finfo(F32).smallest_subnormal
GROWING = ("seq", "total", "past")
"""Sizes of states that change from step to step."""


def scalar(b: NodeBuilder, x: Value | None, default: float, dtype: Any) -> Any:
    """An operand of one element as a scalar of a dtype."""
    return b.const(np.array(default, dtype)) if x is None else b(Cast(dtype), as_scalar(b, x))


def within(b: NodeBuilder, what: str, x: Value, low: Any, high: Any) -> Any:
    """A scalar that is in low…high; refused where it is not, now or in the run."""
    numbers = [known_scalar(v) if isinstance(v, Value) else v for v in (x, low, high)]
    if None in numbers:
        return b(Between(what), x, low, high)
    got, least, most = numbers
    if not least <= got <= most:
        raise b.invalid(what, got, f"{least} to {most}")
    return x


class Search:
    """Runs a decoder step after step.

    graph: of the decoder.  first: the graph of the first step, where that is another one.  words: how many there are.
    """

    def __init__(
        self, b: NodeBuilder, decoder: Any, choice: Any, rules: Rules, graph: Graph, first: Graph | None, words: int
    ) -> None:
        self.b, self.decoder, self.choice, self.rules, self.words = b, decoder, choice, rules, words
        self.graph, self.first = graph, first

    def run(self, state: State, steps: Any) -> tuple[State, list[Any]]:
        """The last state, and results of all steps [steps, ...]."""
        b = self.b
        goes_on: Any = np.array(True)
        before: list[Any] = []
        if self.first is not None:
            logits, kept = self.decoder.run(b, self.first, state)
            state, before = self.step(b, state, logits, kept, None)
            steps, goes_on = b(Sub(), steps, 1), self.choice.goes_on(b, state)
        inner = b.inside("search")
        number = inner.graph.add_input("step", TensorType(I64, ()))
        inner.graph.add_input("goes_on", TensorType(BOOL, ()))
        held = {name: inner.graph.add_input(name, t) for name, t in self.types(state).items()}
        logits, kept = self.decoder.run(inner, self.graph, held)
        after, results = self.step(inner, held, logits, kept, number)
        for name, value in held.items():
            Forms(inner).want(f"{name} after a step", after[name], " ".join("x" * rank_of(inner, value)), value.type.dtype)
        for value in (self.choice.goes_on(inner, after), *(after[name] for name in held), *results):
            inner.graph.add_output(value)
        operands = (*(state[name] for name in held), *inner.captures())
        outs = b.node(Loop(inner.graph, len(held)), steps, goes_on, *operands).outputs
        all_ = outs[len(held) :]
        if before:
            all_ = [b(Concat(0), unsqueezed(b, x, 0), xs) for x, xs in zip(before, all_, strict=True)]
        return dict(zip(held, outs, strict=False)), list(all_)

    def types(self, state: State) -> dict[str, TensorType]:
        """Types of the state that hold in every step."""
        forms = {**self.decoder.forms, **self.choice.forms, "sequences": "rows total"}
        sizes: dict[str, Any] = {}
        for name, form in forms.items():
            for size, dim in zip(form.split(), state[name].type.shape or (), strict=True):
                if size in GROWING:
                    sizes[size] = Sym(size)
                elif not isinstance(sizes.get(size), int):
                    sizes[size] = dim if isinstance(dim, int) else Sym(f"search_{size}")
        return {n: TensorType(state[n].type.dtype, tuple(sizes[size] for size in f.split())) for n, f in forms.items()}

    def step(self, b: NodeBuilder, state: State, logits: Value, kept: Any, number: Any) -> tuple[State, list[Any]]:
        """The state after a step, and its results.  number: of the step in the loop; None for one before it."""
        Forms(b, words=self.words).want("logits", logits, "rows seq words", F32, F16)
        last = reshaped(b, b(Cast(F32), sliced(b, logits, 1, -1)), [-1, self.words])
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
        made["sequences"] = b(Concat(1), so_far, unsqueezed(b, words, 1))
        return made | self.decoder.after(b, state, kept, words, rows), results


def filled(b: NodeBuilder, x: Any, axis: int, length: Any, value: Any) -> Any:
    """``x`` with a value behind its end along an axis, to a length that a scalar says."""
    missing = b(Sub(), length, count(b, x, axis))
    sizes = [*sizes_of(b, x, range(axis)), unsqueezed(b, missing, 0), *sizes_of(b, x, range(axis + 1, rank_of(b, x)))]
    return b(Concat(axis), x, expanded(b, np.array(value, x.type.dtype), sizes))


def words_of(b: NodeBuilder, graph: Graph, vocab_size: int) -> int:
    """How many words there are: the last dimension of the first output of a decoder."""
    declared = type_of_proto(graph.output[0].type, f"{b.what}: output of '{graph.name}'").shape or (None,)
    if not isinstance(declared[-1], int):
        raise b.unsupported(f"a decoder whose logits are declared as {declared}")
    if vocab_size > 0 and vocab_size != declared[-1]:
        raise b.invalid("vocab_size", vocab_size, f"{declared[-1]}, as many as the decoder has logits")
    return declared[-1]


class Task:
    """What the searches have in common: operands held against what they must be.

    length: scalar i64, of the sequences at most.  steps: scalar i64, how many words are to be found.
    """

    def __init__(self, b: NodeBuilder, input_ids: Value, max_length: Value, graph: Graph, vocab_size: int) -> None:
        self.b, self.graph, self.ids = b, graph, input_ids
        self.words = words_of(b, graph, vocab_size)
        self.sizes = Forms(b, words=self.words)
        self.sizes.want("input_ids", input_ids, "n length", I32)
        start = count(b, input_ids, 1)
        self.length = within(b, "max_length", scalar(b, max_length, 0, I64), b(Add(), start, 1), MOST_LENGTH)
        self.steps = b(Sub(), self.length, start)

    def rules(self, end: int, size: int, repetition: Value | None, masks: list[Value | None], shortest: Value | None,
              **more: Any) -> Rules:  # fmt: skip
        """masks: of words, and of first words."""
        words, firsts = masks
        self.sizes.want("vocab_mask", words, "words", I32)
        self.sizes.want("prefix_vocab_mask", firsts, "n words", I32)
        if size > MOST_WORDS:
            raise self.b.invalid("no_repeat_ngram_size", size, f"at most {MOST_WORDS}")
        penalty = None if repetition is None else scalar(self.b, repetition, 1, F32)
        if penalty is not None:
            penalty = within(self.b, "repetition_penalty", penalty, LEAST_PENALTY, np.finfo(F32).max)
        least = None if shortest is None else scalar(self.b, shortest, 0, I32)
        return Rules(end, penalty, size, words, firsts, least, **more)

    def run(self, decoder: Any, choice: Any, rules: Rules, state: State, first: Graph | None) -> tuple[State, list[Any]]:
        state |= choice.begin(self.b, state["sequences"])
        return Search(self.b, decoder, choice, rules, self.graph, first, self.words).run(state, self.steps)


def of_decoder(b: NodeBuilder, model_type: int) -> None:
    """Refuse models that onnxruntime does not run by this operator."""
    if model_type != 0:
        raise b.unsupported(f"model_type {model_type}")


def start(task: Task, decoder: Gpt, mask: Value | None, pad: int, beams: Value | None) -> State:
    """The state before the first step of a decoder that goes on with its input."""
    task.sizes.want("attention_mask", mask, "n length", I32)
    state = decoder.begin(task.b, task.ids, mask, pad, beams)
    return state | {"sequences": state["ids"]}


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
    decoder: onnx.GraphProto,
    eos_token_id: int,
    pad_token_id: int,
    init_decoder: onnx.GraphProto | None = None,
    encoder: onnx.GraphProto | None = None,
    model_type: int = 0,
    decoder_start_token_id: int = -1,
    no_repeat_ngram_size: int = 0,
    vocab_size: int = -1,
) -> Any:
    """Sequences [n, max_length] i32, each with the best word in each step."""
    of_decoder(b, model_type)
    task = Task(b, input_ids, max_length, decoder, vocab_size)
    rules = task.rules(
        eos_token_id, no_repeat_ngram_size, repetition_penalty, [vocab_mask, prefix_vocab_mask], min_length
    )
    model = Gpt(b, decoder)
    state = start(task, model, attention_mask, pad_token_id, None)
    last, _ = task.run(model, Greedy(eos_token_id, pad_token_id), rules, state, init_decoder)
    return filled(b, last["sequences"], 1, task.length, pad_token_id)


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
    decoder: onnx.GraphProto,
    eos_token_id: int,
    pad_token_id: int,
    init_decoder: onnx.GraphProto | None = None,
    encoder: onnx.GraphProto | None = None,
    model_type: int = 0,
    decoder_start_token_id: int = -1,
    no_repeat_ngram_size: int = 0,
    vocab_size: int = -1,
    temperature: float = 1.0,
    top_p: float = 0.0,
    filter_value: float = -np.inf,
    min_tokens_to_keep: int = 0,
    presence_penalty: float = 0.0,
    custom: int = 0,
) -> Any:
    """Sequences [n, max_length] i32, whose words are drawn from the most probable ones."""
    of_decoder(b, model_type)
    task = Task(b, input_ids, max_length, decoder, vocab_size)
    task.sizes.want("presence_mask", presence_mask, "n words", I32)
    presence = None if presence_mask is None or not presence_penalty else (presence_mask, presence_penalty)
    rules = task.rules(
        eos_token_id, no_repeat_ngram_size, repetition_penalty, [vocab_mask, prefix_vocab_mask], min_length,
        temperature=temperature if temperature > 0 else None, presence=presence,
    )  # fmt: skip
    shape = b(Concat(0), unsqueezed(b, task.steps, 0), b(Shape(0, 1), input_ids))
    choice = Sampling(
        eos_token_id, pad_token_id, share=top_p, keep=min_tokens_to_keep, filtered=filter_value,
        from_best=bool(custom), draws=b(RandomUniform(), shape, scalar(b, seed, 0, I64)),
    )  # fmt: skip
    model = Gpt(b, decoder)
    state = start(task, model, attention_mask, pad_token_id, None)
    last, _ = task.run(model, choice, rules, state, init_decoder)
    return filled(b, last["sequences"], 1, task.length, pad_token_id), None


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
    decoder: onnx.GraphProto,
    eos_token_id: int,
    pad_token_id: int,
    init_decoder: onnx.GraphProto | None = None,
    encoder: onnx.GraphProto | None = None,
    model_type: int = 0,
    decoder_start_token_id: int = -1,
    no_repeat_ngram_size: int = 0,
    vocab_size: int = -1,
    early_stopping: int = 0,
) -> Any:
    """The best sequences [n, num_return_sequences, max_length] i32, their scores, and scores of all words in all steps."""
    of_decoder(b, model_type)
    task = Task(b, input_ids, max_length, decoder, vocab_size)
    rules = task.rules(
        eos_token_id, no_repeat_ngram_size, repetition_penalty, [vocab_mask, prefix_vocab_mask], min_length
    )
    beams = within(b, "num_beams", scalar(b, num_beams, 1, I64), 1, MOST_BEAMS)
    many = within(b, "num_return_sequences", scalar(b, num_return_sequences, 1, I64), 1, beams)
    choice = Beams(
        eos_token_id, pad_token_id, beams=beams, penalty=scalar(b, length_penalty, 1, F32),
        early=early_stopping == 1, scores=b.wants(2),
    )  # fmt: skip
    model = Gpt(b, decoder)
    state = start(task, model, attention_mask, pad_token_id, choice.beams)
    last, scores = task.run(model, choice, rules, state, init_decoder)
    best, best_scores = choice.finish(b, last, many)
    sequences = filled(b, best, 2, task.length, pad_token_id)
    of_words = [filled(b, x, 0, task.steps, 0) for x in scores]
    return sequences, best_scores, *(of_words or [None])


@microsoft("BifurcationDetector")
def bifurcation_detector(
    b: NodeBuilder,
    src_tokens: Value,
    cur_tokens: Value,
    prev_suffix_match_idx: Value,
    pred_tokens: Value | None = None,
    *,
    min_ngram_size: int = 1,
    max_ngram_size: int = 3,
) -> Any:
    return b(
        BifurcationDetector(min_ngram_size, max_ngram_size), src_tokens, cur_tokens, prev_suffix_match_idx, pred_tokens
    )
