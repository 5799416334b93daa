"""Models that write texts, and those who ask them: a BoltError or a right text, and nothing else.

``gguf`` alters keys and tensors of small decoders, or bytes of their files.  ``spelling`` alters tokenizers, templates
and settings of a folder and of a .bolt file.  ``prompts`` asks one generator for what is odd, from several threads: a
text with a seed is the same as alone, and so is a greedy one without a beginning that was there.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

import bolt_numba as bn
from bolt_numba.errors import BoltError
from bolt_numba.text import Generator
from tests.attack.child import Result, drive, refusal
from tests.attack.documents import altered
from tests.attack.formats import BINARY
from tests.gguf_files import BY_SCORES, BYTEWISE, KINDS, Tiny
from tests.text.decoders import CONTEXT, TEMPLATE, tokenizer, whole
from tests.text.exported_decoders import optimum

Rng = np.random.Generator
MADE = 8
"""One of how many files of GGUF that load makes a text."""
FAMILIES = ("llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3", "smollm3")
NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 7, 8, 24, 64, 1 << 16, (1 << 24) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 0.0, -1.0, 1e-38, 3e38,
    float("nan"), float("inf"), True, False, "", "x", "llama", "yarn", "gpt2", "\ud7ff" * 300, [], [""], ["a"] * 50,
    np.zeros(0, "i4"), np.full(3, -1, "i8"), np.array([1 << 63], "u8"), np.full(40, np.nan, "f4"), np.full(29, 3, "i4"),
    b"\x0a\0\0\0" + b"\xff" * 8, b"\x0b\0\0\0" + b"\xff" * 8, b"\x0c\0\0\0\0\0\0\0\0\0\xf0\x7f", b"\x63\0\0\0",
    b"\x09\0\0\0\x08\0\0\0" + b"\xff" * 7 + b"\0",
)  # fmt: skip
"""What a key of a file may become; bytes are kind and content."""
WORDS = (
    "{{", "}}", "{%", "%}", "{#", "for", "in", "if", "endif", "endfor", "set", "macro", "messages", "[", "]",
    "(", ")", "*", "**", "~", "+", "-", "//", "%", "|", ".", "'a'", "10**9", "range", "namespace", "loop", "self",
    "join", "map", "replace", "round", "indent", "tojson", "sort", "__class__", "attribute=", "split", " ",
)  # fmt: skip
TEMPLATES = (
    TEMPLATE,
    "{% set ns = namespace(x='ab') %}{% for i in range(20) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{{ messages | tojson }}",
    "{{ bos_token }}{% for m in messages | selectattr('role', 'in', ['user']) %}{{ m.content.strip().upper() * 3 }}"
    "{% if loop.last %}{{ raise_exception('no') }}{% endif %}{% endfor %}{{ messages | map(attribute='role') | join }}",
)  # fmt: skip
PIECES = (
    "", " ", "a", "hello world", "\n\n", "<s>", "</s>", "<|im_start|>", "\0", "\ud800", "\udc00", "\U0001f600", "é",
    "\u200d", "\ufeff", "\ufdd0", "ﷺ", "1234567", "\t \r\n", "[INST]", "{{ x }}", "'" * 40, "ab" * 90, "x" * 9000,
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", "y"]}},
     "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 3, "$defs": {"n": {"anyOf": [
        {"type": "string", "pattern": "^[a-z]{2,5}$", "maxLength": 9}, {"type": "number", "multipleOf": 0.5}]}}},
    {"allOf": [{"type": "string", "format": "date"}, {"minLength": 2}], "oneOf": [{"const": "a"}, {"not": {}}]},
)  # fmt: skip
GRAMMARS = (
    'start: "a" | start start', 'start: /[a-z]{1,5}/ (" " w)*\nw: /(x|y)+z?/', 'start: a\na: b\nb: "x" a | "y"'
)  # fmt: skip


# --- files of GGUF ---------------------------------------------------------------------------------------------------


def _tinies() -> list[Tiny]:
    made = []
    for i, family in enumerate(FAMILIES):
        tiny = Tiny(family, ("F32", "F16", "Q4_1", "Q8_0")[i % 4], width=32, layers=1 + i % 2)
        tiny.extra = {**(BYTEWISE, BY_SCORES)[i % 2]}
        made.append(tiny)
    return made


def _other_file(tiny: Tiny, rng: Rng) -> tuple[str, bytes]:
    """What was altered, and the file."""
    if rng.random() < 0.4:
        change = BINARY[rng.integers(len(BINARY))]
        return change.__name__, change(tiny.data(), rng)
    tiny = deepcopy(tiny)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.6:
            holder = tiny.keys if rng.random() < 0.6 else tiny.extra
            key = [*holder][rng.integers(len(holder))]
            holder[key] = _other_value(holder[key], rng)
        else:
            _alter_tensor(tiny, rng)
    if rng.random() < 0.1:
        tiny.arch = FAMILIES[rng.integers(len(FAMILIES))]
    return "keys", tiny.data()


def _other_value(value: Any, rng: Rng) -> Any:
    if rng.random() < 0.4:
        return NUMBERS[rng.integers(len(NUMBERS))]
    if isinstance(value, np.ndarray) and value.size:
        made = value.copy()
        made[rng.integers(len(made))] = rng.integers(-3, 100)
        return made
    if isinstance(value, list) and value:
        made, at = [*value], rng.integers(len(value))
        made[at : at + int(rng.integers(2))] = [PIECES[rng.integers(len(PIECES))].encode("utf-8", "surrogatepass")]
        return made
    if isinstance(value, int):
        return int(np.clip(value + rng.integers(-3, 4), 0, (1 << 32) - 1))
    if isinstance(value, str):
        return "".join(WORDS[i] for i in rng.integers(len(WORDS), size=4))
    return NUMBERS[rng.integers(len(NUMBERS))]


def _alter_tensor(tiny: Tiny, rng: Rng) -> None:
    names = [*tiny.tensors]
    name = names[rng.integers(len(names))]
    kind, shape, raw = tiny.tensors[name]
    match rng.integers(6):
        case 0:
            del tiny.tensors[name]
        case 1:
            tiny.tensors[("rope_freqs.weight", "output.weight", f"{name}x")[rng.integers(3)]] = tiny.tensors[name]
        case 2:
            tiny.tensors[name] = [*KINDS][rng.integers(len(KINDS))], shape, raw
        case 3:
            sizes = [*shape]
            sizes[rng.integers(len(sizes))] = int((0, 1, 2, 33, 1 << 32, 1 << 63)[rng.integers(6)])
            tiny.tensors[name] = kind, sizes, raw
        case _:
            fill = (b"\xff", b"\0", b"\x7f", b"\x80\x7f", b"\0\xfc")[rng.integers(5)]
            tiny.tensors[name] = kind, shape, (fill * len(raw))[: len(raw)]


def gguf(tinies: Sequence[Tiny], number: int) -> tuple[str, str, str]:
    rng = np.random.default_rng(number)
    kind, data = _other_file(tinies[rng.integers(len(tinies))], rng)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(data)
        return kind, *_outcome(lambda: _asked(Generator(path, threads=1)) if number % MADE == 0 else bn.load(path))


def _asked(generator: Generator) -> None:
    with generator:
        generator.generate("hello world", max_tokens=3, temperature=1.0)
        generator.generate("hello", max_tokens=2, grammar='start: /[a-e]+/')
        generator.chat([{"role": "user", "content": "hello"}], max_tokens=1)


def _outcome(call: Callable[[], object]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return refusal(error)
    return "ran", ""


# --- tokenizers, templates and settings ------------------------------------------------------------------------------


def _tokenizers() -> list[Any]:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = [json.loads(tokenizer())]
    for extra in (BYTEWISE, BY_SCORES):
        tiny = Tiny("llama")
        tiny.extra = extra
        made.append(json.loads(bn.load(tiny.data()).metadata["tokenizer"]))
    vocab = {"[UNK]": 0, "[CLS]": 1, "a": 2, "##b": 3, "hello": 4, "world": 5}
    pieces = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -2.5)], 0, False))
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "_")])
    return [*made, json.loads(pieces.to_str()), json.loads(unigram.to_str())]


def _other_template(rng: Rng) -> str:
    parts, others = (re.split(r"(\W)", TEMPLATES[rng.integers(len(TEMPLATES))]) for _ in range(2))
    for _ in range(rng.integers(1, 4)):
        at, begin = rng.integers(len(parts)), rng.integers(len(others))
        new = others[begin : begin + 5] if rng.random() < 0.5 else [WORDS[i] for i in rng.integers(len(WORDS), size=3)]
        parts[at : at + int(rng.integers(3))] = new
    return "".join(parts)


class Spelling:
    """A folder and a .bolt file, each compiled once, of which all but the network is altered."""

    def __init__(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder, self.file = optimum(Path(self.place.name) / "folder"), whole(Path(self.place.name) / "m.bolt")
        self.sessions = {one: bn.compile(file, threads=1) for one, file in
                         ((self.folder, self.folder / "model.onnx"), (self.file, self.file))}  # fmt: skip
        self.tokenizers = _tokenizers()
        names = ("config.json", "generation_config.json", "tokenizer_config.json")
        self.said = {name: json.loads((self.folder / name).read_text()) for name in names}
        self.metadata = {**self.sessions[self.file].graph.metadata}

    def __call__(self, number: int) -> tuple[str, str, str]:
        rng = np.random.default_rng(number)
        own = deepcopy(self.tokenizers[rng.integers(len(self.tokenizers)) if rng.random() < 0.7 else 0])
        kind = ("tokenizer", "tokenizer", "template", "settings")[rng.integers(4)]
        if kind == "tokenizer":
            altered(own, rng)
        template = _other_template(rng) if kind == "template" else TEMPLATE
        is_folder = rng.random() < 0.5
        where = self.folder if is_folder else self.file
        if is_folder:
            said = deepcopy(self.said)
            said["tokenizer_config.json"]["chat_template"] = template
            if kind == "settings":
                altered(said, rng)
            for name in self.said:
                (self.folder / name).write_text(json.dumps(said.get(name)))
            (self.folder / "tokenizer.json").write_text(json.dumps(own))
        else:
            said = {**self.metadata, "chat_template": template, "tokenizer": json.dumps(own)}
            if kind == "settings":
                altered(said, rng)
            told = {key: value if isinstance(value, str) else json.dumps(value) for key, value in said.items()}
            self.sessions[where].graph.metadata = {"format": "gguf", **told}
        return kind, *_outcome(lambda: self._ask(where, rng))

    def _ask(self, where: Path, rng: Rng) -> None:
        generator = Generator(where, session=self.sessions[where])
        text = "".join(PIECES[i] for i in rng.integers(len(PIECES), size=4))
        calls = (
            lambda: generator.generate("hello", max_tokens=2),
            lambda: generator.generate(text, max_tokens=2, logprobs=2),
            lambda: generator.chat([{"role": "user", "content": text}], max_tokens=2),
            lambda: generator.generate("a", max_tokens=2, json_schema={}),
        )
        errors = list[BoltError]()
        for call in calls:
            try:
                call()
            except BoltError as error:
                errors.append(error)
        if len(errors) == len(calls) or any(refusal(one)[0] != "refused" for one in errors):
            raise next((one for one in errors if refusal(one)[0] != "refused"), errors[0])


# --- prompts and settings --------------------------------------------------------------------------------------------


def _request(rng: Rng) -> tuple[Any, dict[str, Any]]:
    """A prompt, and settings."""
    text = "".join(PIECES[i] for i in rng.integers(len(PIECES), size=rng.integers(1, 5)))
    prompt: Any = text
    if rng.random() < 0.3:
        roles = (("user", "system", "<s>")[i] for i in rng.integers(3, size=rng.integers(1, 3)))
        prompt = [{"role": role, "content": text} for role in roles]
    elif rng.random() < 0.2:
        prompt = rng.integers(0, 258 if rng.random() < 0.7 else 400, rng.integers(1, CONTEXT)).tolist()
    how: dict[str, Any] = {"max_tokens": int(rng.integers(1, 12))}
    drawn: dict[str, Callable[[], Any]] = {
        "temperature": lambda: float(rng.choice([0.0, 0.7, 1.5, 1e-300, 100.0])),
        "seed": lambda: int(rng.integers(1 << 62)), "min_tokens": lambda: int(rng.integers(9)),
        "top_k": lambda: int(rng.choice([1, 5, 400])), "top_p": lambda: float(rng.choice([0.0, 0.3, 1e-300, 1.0])),
        "min_p": lambda: float(rng.choice([0.0, 0.1, 1.0])), "logit_bias": lambda: {int(rng.integers(300)): 100.0},
        "repetition_penalty": lambda: float(rng.choice([0.01, 1.1, 100])),
        "frequency_penalty": lambda: 2.0, "presence_penalty": lambda: -2, "logprobs": lambda: int(rng.integers(101)),
        "stop": lambda: [PIECES[i] for i in rng.integers(1, len(PIECES) - 1, size=rng.integers(1, 4))],
        "json_schema": lambda: _other_json(SCHEMAS, rng), "grammar": lambda: _other_grammar(rng),
    }  # fmt: skip
    rare = ("grammar", "json_schema", "logit_bias")
    how |= {name: draw() for name, draw in drawn.items() if rng.random() < (0.06 if name in rare else 0.3)}
    if rng.random() < 0.3:
        altered(how, rng)
    return prompt, how


def _other_json(chosen: Sequence[Any], rng: Rng) -> Any:
    made = deepcopy(chosen[rng.integers(len(chosen))])
    altered(made, rng)
    return made


def _other_grammar(rng: Rng) -> str:
    parts = re.split(r"(\W)", GRAMMARS[rng.integers(len(GRAMMARS))])
    at = rng.integers(len(parts))
    parts[at : at + int(rng.integers(3))] = [parts[i] for i in rng.integers(len(parts), size=rng.integers(3))]
    return "".join(parts)


class Prompts:
    """One generator with three slots, and one that makes each text alone."""

    def __init__(self, file: str) -> None:
        self.many, self.alone = (Generator(file, threads=1, sequences=count) for count in (3, 1))

    def __call__(self, number: int) -> tuple[str, str, str]:
        rng = np.random.default_rng(number)
        asked = [_request(rng) for _ in range(4)]
        found: list[Any] = [None] * len(asked)

        def ask(i: int, is_cancelled: bool) -> None:
            try:
                answer = self.many.submit(asked[i][0], **asked[i][1])
                if is_cancelled:
                    answer.cancel()
                made = answer.result(60)
                found[i] = None if is_cancelled else made
            except Exception as error:
                found[i] = error

        threads = [threading.Thread(target=ask, args=(i, rng.random() < 0.2)) for i in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        faults = [refusal(one) for one in found if isinstance(one, Exception) and refusal(one)[0] != "refused"]
        if faults:
            return "prompts", *faults[0]
        for (prompt, how), made in zip(asked, found, strict=True):
            if made is None or isinstance(made, Exception) or type(how.get("seed")) is not int:
                continue
            wanted = self.alone.submit(prompt, **how).result(60)
            if (made.tokens, made.text, made.logprobs) != (wanted.tokens, wanted.text, wanted.logprobs):
                return "prompts", "differs", f"{prompt!r:.80} {how!r:.200}: {made.tokens} {wanted.tokens}"
        return "prompts", "refused" if all(isinstance(one, Exception) for one in found) else "ran", ""


# --- the child -------------------------------------------------------------------------------------------------------

TARGETS = ("gguf", "spelling", "prompts")


def prepare(target: str) -> tuple[Callable[[int], tuple[str, str, str]], tuple[str, str]]:
    """What serves numbers for a target."""
    if target == "gguf":
        tinies = _tinies()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "m.gguf").write_bytes(tinies[0].data())
            _asked(Generator(Path(folder) / "m.gguf", threads=1))
        return functools.partial(gguf, tinies), ("ran", "")
    if target == "spelling":
        return Spelling(), ("ran", "")
    with tempfile.TemporaryDirectory() as folder:
        return Prompts(str(whole(Path(folder) / "m.bolt"))), ("ran", "")


def attack_texts(count: int, seed: int = 0, only: Sequence[str] = ()) -> Iterator[Result]:
    """Run ``count`` mutations of each target."""
    for target in only or TARGETS:
        yield from drive(target, ["-m", "tests.attack", "texts", "--work", target], range(seed, seed + count))
