"""Translate with a small model of Marian, the translator of Firefox: its file becomes two graphs.

    python examples/translate.py FOLDER "How are you today?"        # FOLDER: *.bin, lex*.bin and tokenizer.json
    python examples/translate.py FOLDER --save NEW                  # encoder.bolt and decoder.bolt

The encoder is a transformer.  The decoder has a simple recurrent unit (SSRU) where others attend to their own words:
its state is one row for each layer.  Weights are bytes, and products round their rows to bytes by scales of the file,
as Marian does.  The last product is in floats, over the words that a lexicon lists for a sentence.
Sources: Kim et al., From Research to Production and Back: Ludicrously Fast Neural Machine Translation, 2019;
Bogoychev et al., Edinburgh's Submissions to the 2020 Machine Translation Efficiency Task.  docs/tutorials/translate.md
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

import bolt_numba as bn
from bolt_numba.errors import InvalidModelError
from bolt_numba.ir.build import Builder
from bolt_numba.ir.graph import Graph, Value
from bolt_numba.ops.arrays.gather import Gather
from bolt_numba.ops.arrays.generate import Range
from bolt_numba.ops.arrays.quantize import DequantizeLinear, QuantizeLinear
from bolt_numba.ops.arrays.reduce import ArgMax
from bolt_numba.ops.arrays.shape import Reshape, Shape, Squeeze
from bolt_numba.ops.layers.attention.attention import FusedAttention
from bolt_numba.ops.layers.norm import LayerNormalization
from bolt_numba.ops.layers.products.matmul import MatMul
from bolt_numba.ops.pointwise import Add, Mul, Relu, Sigmoid, Sub
from bolt_numba.types import F32, I64, Sym, TensorType

Array = npt.NDArray[Any]
FLOATS, BYTES, CHARACTERS = 0x404, 0x4101, 0x101
"""Types of tensors in the file."""
LEXICON = 0xF11A48D5013417F5
END, HEADS, LONGEST, TINY = 0, 8, 512, 1e-9
WANTED = {
    "type": "transformer", "enc-depth": "6", "dec-depth": "2", "dec-cell": "ssru", "transformer-decoder-autoreg": "rnn",
    "transformer-ffn-activation": "relu", "transformer-ffn-depth": "2", "transformer-preprocess": '""',
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "tied-embeddings-all": "true",
    "transformer-train-position-embeddings": "false", "transformer-heads": "8",
}  # fmt: skip
"""What the graphs below mean, by the key of the file's settings."""
PATIENCE = 2.5
"""Times the length of a sentence after which its translation ends."""


def want(holds: Any, what: str, got: Any, wanted: str) -> None:
    if not holds:
        raise InvalidModelError(f"{what}: got {got}, wanted {wanted}")


class Tensors(dict[str, Array]):
    """Tensors by name.  Raises InvalidModelError for one that a file lacks."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __missing__(self, name: str) -> Array:
        raise InvalidModelError(f"{self.path}: got no tensor {name} of its type, wanted all of the network")


class Marian:
    """A file of weights: a count, headers, names, shapes, and the tensors.

    floats, codes: tensors by name; codes are as the file has them, and a product by them is (x scale) @ codes^T.
    scales: of a code.  settings: lines of the YAML that the file holds.
    Raises InvalidModelError for what is no such file, and for a network of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.raw = path, path.read_bytes()
        self.floats, self.codes = Tensors(path), Tensors(path)
        self.scales: dict[str, float] = {}
        self.settings: dict[str, str] = {}
        version, count = self._take("<2Q", 0)
        want(version == 1 and count <= len(self.raw) // 32, f"{path}: version and count", (version, count), "1 and few")
        headers = [self._take("<4Q", 16 + 32 * i) for i in range(count)]
        at = 16 + 32 * count
        names = []
        for size, *_ in headers:
            names.append(self._bytes(at, size)[:-1].decode("ascii", "replace"))
            at += size
        shapes = []
        for _, _, rank, _ in headers:
            want(rank <= 4, f"{path}: axes of a tensor", rank, "at most 4")
            shapes.append(self._take(f"<{rank}i", at))
            at += 4 * rank
        at += 8 + self._take("<Q", at)[0]
        for name, shape, (_, kind, _, nbytes) in zip(names, shapes, headers, strict=True):
            self._tensor(name, kind, shape, self._bytes(at, nbytes))
            at += nbytes
        for key, value in WANTED.items():
            want(self.settings.get(key) == value, f"{path}: {key}", self.settings.get(key), value)
        self.words, self.width = self.codes["Wemb"].shape

    def _bytes(self, at: int, size: int) -> bytes:
        want(at + size <= len(self.raw), f"{self.path}: bytes {at} to {at + size}", len(self.raw), "a whole file")
        return self.raw[at : at + size]

    def _take(self, form: str, at: int) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(at, struct.calcsize(form)))

    def _tensor(self, name: str, kind: int, shape: tuple[int, ...], data: bytes) -> None:
        size = int(np.prod(shape, dtype=object))
        room = {FLOATS: 4 * size, BYTES: size + 4, CHARACTERS: size}.get(kind)
        what = f"{self.path}: tensor {name}: type, shape and bytes"
        is_fit = room is not None and room <= len(data) and all(axis > 0 for axis in shape)
        want(is_fit, what, (hex(kind), shape, len(data)), "floats, bytes or characters, and all of them")
        if kind == FLOATS:
            self.floats[name] = np.frombuffer(data, "<f4", size).astype(np.float32)
        elif kind == BYTES:
            (times,) = struct.unpack_from("<f", data, size)
            want(0 < times < np.inf, f"{self.path}: tensor {name}: scale", times, "a number above 0")
            self.scales[name], rows = 1 / times, shape if name == "Wemb" else shape[::-1]
            self.codes[name] = np.frombuffer(data, np.int8, size).reshape(rows)
        elif name == "special:model.yml":
            lines = [line.partition(": ") for line in data.decode("utf-8", "replace").splitlines()]
            self.settings = {key: value for key, _, value in lines}


class Graphs:
    """The encoder and the decoder of a file.

    encoder: words i64[s], listed i64[n] -> keys and values of each layer of the decoder, f32[s, width], and ``head``
    f32[n, width] and ``bias`` f32[n], for the words that are listed.
    decoder: word i64[1], position i64[1], what the encoder gave, and a state f32[1, width] of each layer -> ``best``,
    the place of the next word in the list, i64[1], and new states.
    """

    def __init__(self, model: Marian, rounds: bool = True) -> None:
        self.model, self.width, self.rounds = model, model.width, rounds
        self.encoder, self.decoder = Graph("encoder"), Graph("decoder")
        self.table = np.vstack([model.codes["Wemb"], np.zeros((1, self.width), np.int8)])
        self._encoder()
        self._decoder()

    def linear(self, x: Value, weights: str, bias: str = "") -> Value:
        """A product, whose rows are rounded to bytes by a scale that the file has for them."""
        model, codes = self.model, self.model.codes[weights].T
        if self.rounds:
            step = np.float32(1 / model.floats[f"{weights}_QuantMultA"].flat[0])
            x = self.b(DequantizeLinear(), self.b(QuantizeLinear(), x, step, np.int8(0)), step)
        x = self.b(MatMul(), x, self.b(DequantizeLinear(), codes, np.float32(model.scales[weights])))
        return self.b(Add(), x, model.floats[bias]) if bias else x

    def added(self, x: Value, more: Value, norm: str) -> Value:
        """The sum, normalised."""
        parts = [self.model.floats[f"{norm}_ln_{part}"] for part in ("scale", "bias")]
        return self.b(LayerNormalization(-1, TINY), self.b(Add(), x, more), *parts)

    def forward(self, x: Value, layer: str) -> Value:
        inner = self.b(Relu(), self.linear(x, f"{layer}_ffn_W1", f"{layer}_ffn_b1"))
        return self.added(x, self.linear(inner, f"{layer}_ffn_W2", f"{layer}_ffn_b2"), f"{layer}_ffn_ffn")

    def seen(self, x: Value, keys: Value, values: Value, layer: str) -> Value:
        """Attention of rows to others, [., width]."""
        rows = self.linear(x, f"{layer}_Wq", f"{layer}_bq"), keys, values
        split = [self.b(Reshape(), row, np.array([-1, HEADS, self.width // HEADS])) for row in rows]
        attend = FusedAttention((self.width // HEADS) ** -0.5, False, "SHD", "SHD", "SHD", "SHD")
        y = self.b(Reshape(), self.b(attend, *split), np.array([-1, self.width]))
        return self.added(x, self.linear(y, f"{layer}_Wo", f"{layer}_bo"), f"{layer}_Wo")

    def pair(self, x: Value, layer: str) -> list[Value]:
        """Keys and values."""
        return [self.linear(x, f"{layer}_W{part}", f"{layer}_b{part}") for part in "kv"]

    def rows(self, words: Value) -> Value:
        """Rows of the table of words as floats."""
        return self.b(DequantizeLinear(), self.b(Gather(), self.table, words), np.float32(self.model.scales["Wemb"]))

    def placed(self, words: Value, positions: Value) -> Value:
        """Rows of words, to which sines and cosines of their positions are added."""
        half = self.width // 2
        angles = np.outer(np.arange(LONGEST), np.exp(np.arange(half) * -(np.log(1e4) / (half - 1))))
        places = np.hstack([np.sin(angles), np.cos(angles)]).astype(np.float32)
        return self.b(Add(), self.b(Mul(), self.rows(words), self.width**0.5), self.b(Gather(), places, positions))

    def _encoder(self) -> None:
        graph = self.encoder
        self.b = b = Builder(graph)
        words = graph.add_input("words", TensorType(I64, (Sym("s"),)))
        listed = graph.add_input("listed", TensorType(I64, (Sym("n"),)))
        length = b(Squeeze(), b(Shape(), words), np.array([0]))
        x = self.placed(words, b(Range(), np.array(0), length, np.array(1)))
        for i in range(1, 7):
            layer = f"encoder_l{i}"
            x = self.forward(self.seen(x, *self.pair(x, f"{layer}_self"), f"{layer}_self"), layer)
        for i in (1, 2):
            for part, value in zip(("keys", "values"), self.pair(x, f"decoder_l{i}_context"), strict=True):
                graph.add_output(value, f"{part}{i}")
        graph.add_output(self.rows(listed), "head")
        graph.add_output(b(Gather(), self.model.floats["decoder_ff_logit_out_b"], listed), "bias")

    def _decoder(self) -> None:
        graph, width = self.decoder, self.width
        self.b = b = Builder(graph)
        word, position = (graph.add_input(name, TensorType(I64, (1,))) for name in ("word", "position"))
        sizes = {"head": (Sym("n"), width), "bias": (Sym("n"),)}
        sizes |= {f"{part}{i}": (Sym("s"), width) for i in (1, 2) for part in ("keys", "values")}
        sizes |= {f"state{i}": (1, width) for i in (1, 2)}
        given = {name: graph.add_input(name, TensorType(F32, shape)) for name, shape in sizes.items()}
        x = self.placed(word, position)
        states = []
        for i in (1, 2):
            layer, state = f"decoder_l{i}", given[f"state{i}"]
            keep = b(Sigmoid(), self.linear(x, f"{layer}_rnn_Wf", f"{layer}_rnn_bf"))
            new = self.linear(x, f"{layer}_rnn_W")
            states.append(b(Add(), new, b(Mul(), keep, b(Sub(), state, new))))
            x = self.added(x, b(Relu(), states[-1]), f"{layer}_rnn_ffn")
            x = self.forward(self.seen(x, given[f"keys{i}"], given[f"values{i}"], f"{layer}_context"), layer)
        scores = b(Add(), b(MatMul(trans_b=True), x, given["head"]), given["bias"])
        graph.add_output(b(ArgMax(-1, False), scores), "best")
        for i, state in enumerate(states, 1):
            graph.add_output(state, f"next{i}")


class Lexicon:
    """For each word of the one language, words of the other, as a file lists them.  Raises InvalidModelError."""

    def __init__(self, path: Path, words: int) -> None:
        raw = path.read_bytes()
        head = struct.unpack_from("<6Q", raw.ljust(48, b"\0"))
        magic, _, self.usual, _, ends, count = head
        is_whole = magic == LEXICON and 48 + 8 * ends + 4 * count == len(raw)
        want(is_whole and ends == words + 1 and self.usual <= words, f"{path}: head", head, f"lists of {words} words")
        self.ends, self.words = np.frombuffer(raw, "<u8", ends, 48), np.frombuffer(raw, "<u4", count, 48 + 8 * ends)

    def listed(self, words: list[int]) -> Array:
        """Words that may translate these, in order: the usual ones, too."""
        found = [self.words[self.ends[word] : self.ends[word + 1]] for word in words]
        return np.unique(np.concatenate([np.arange(self.usual), words, *found])).astype(np.int64)


class Translator:
    """A folder with a model, its lexicon and its tokenizer.

    rounds: whether products round their rows to bytes.  stand_ins: as `bn.compile` has it.
    """

    def __init__(self, folder: Path, rounds: bool = True, threads: int = 1, stand_ins: bool = True) -> None:
        model = Marian(next(folder.glob("model*.bin")))
        self.graphs, self.lexicon = Graphs(model, rounds), Lexicon(next(folder.glob("lex*.bin")), model.words)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        graphs = self.graphs.encoder, self.graphs.decoder
        self.encode, self.decode = (bn.compile(g, threads=threads, stand_ins=stand_ins) for g in graphs)
        self.start = model.words  # behind the last is a row of zeros

    def sentence(self, text: str) -> str:
        """The translation of one sentence: the best word in each step."""
        words = [*self.tokenizer.encode(text).ids[: LONGEST - 1], END]
        listed = self.lexicon.listed(words)
        given = dict(self.encode(words=np.array(words), listed=listed).items())
        given |= {f"state{i}": np.zeros((1, self.graphs.width), np.float32) for i in (1, 2)}
        word, made = self.start, list[int]()
        for position in range(min(int(PATIENCE * len(words)), LONGEST)):
            at = {"word": np.array([word]), "position": np.array([position])}
            best, given["state1"], given["state2"] = self.decode(at | given)
            word = int(listed[best[0]])
            if word == END:
                break
            made.append(word)
        return str(self.tokenizer.decode(made))

    def __call__(self, text: str) -> str:
        """The translation of a text, sentence by sentence."""
        return " ".join(self.sentence(part) for part in re.findall(r"\S[^.!?]*[.!?]*", text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Translate with a small model of Marian.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write both graphs as .bolt files")
    given = parser.parse_args()
    translator = Translator(given.folder)
    if given.save:
        given.save.mkdir(exist_ok=True)
        for graph in (translator.graphs.encoder, translator.graphs.decoder):
            bn.save(graph, given.save / f"{graph.name}.bolt")
    for text in given.texts:
        sys.stdout.write(f"{translator(text)}\n")


if __name__ == "__main__":
    main()
