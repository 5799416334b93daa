"""Write text, letter by letter, with a small transformer that keeps the keys and values of what it has seen.

    python examples/writer.py "A kernel " "The session "        # needs onnx 1.19
    python examples/writer.py --save writer.bolt                # for examples/c/writer.c; or writer.onnx

`train_writer.py` trained it on the pages of this repository.  A run of the model takes one letter and gives the
probabilities of the next.  Keys and values are inputs and outputs of fixed length, which become states of a session.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import bolt_numba as bn
from bolt_numba import surgery
from bolt_numba.ir.graph import Graph

FILE = Path(__file__).parent / "writer" / "writer.npz"
LETTERS, LENGTH, WIDTH, HEADS, LAYERS, TINY = 96, 128, 64, 4, 2, 1e-5
TEMPERATURE = 0.5
STATES = {"position": "next_position"} | {f"past_{n}{i}": f"present_{n}{i}" for i in range(LAYERS) for n in "kv"}
"""What a run gives for the next, by the input that takes it."""


def model() -> onnx.ModelProto:
    """A step of the decoder: token and position, i64[1]; keys and values of each layer, f32[1, LENGTH, WIDTH]."""
    stored, nodes = np.load(FILE), []
    arrays = {name: stored[name] * stored[f"{name}_scale"] for name in stored if not name.endswith("_scale")}
    arrays |= {"letters": arrays["tokens"].T / np.float32(TEMPERATURE), "gain": np.ones(WIDTH, np.float32)}
    arrays |= {"one": np.array([1]), "axis": np.array([0])}

    def node(kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [out], name=out, **attributes))
        return out

    node("Add", "position", "one", out="next_position")  # the number of keys, too
    token, place = node("Gather", "tokens", "token", out="row"), node("Gather", "places", "position", out="place")
    x = node("Unsqueeze", node("Add", token, place, out="rows"), "axis", out="x")
    for i in range(LAYERS):
        y = node("RMSNormalization", x, "gain", out=f"x{i}", epsilon=TINY)
        q, *new = (node("MatMul", y, f"{name}{i}", out=f"new_{name}{i}") for name in "qkv")
        for name, rows in zip("kv", new, strict=True):
            node("TensorScatter", f"past_{name}{i}", rows, "position", out=f"present_{name}{i}", axis=1)
        seen = (q, f"present_k{i}", f"present_v{i}", "", "", "", "next_position")
        y = node("Attention", *seen, out=f"seen{i}", q_num_heads=HEADS, kv_num_heads=HEADS)
        x = node("Add", x, node("MatMul", y, f"o{i}", out=f"mixed{i}"), out=f"sum{i}")
        y = node("RMSNormalization", x, "gain", out=f"y{i}", epsilon=TINY)
        y = node("Relu", node("MatMul", y, f"up{i}", out=f"wide{i}"), out=f"up_{i}")
        x = node("Add", x, node("MatMul", y, f"down{i}", out=f"narrow{i}"), out=f"next{i}")
    y = node("RMSNormalization", x, "gain", out="last", epsilon=TINY)
    node("Softmax", node("MatMul", y, "letters", out="scores"), out="probabilities")

    def tensors(names: list[str]) -> list[Any]:
        floats = {name: [1, LENGTH, WIDTH] for name in names if "_k" in name or "_v" in name}
        floats |= {"probabilities": [1, 1, LETTERS]}
        types = ((TensorProto.FLOAT, floats[n]) if n in floats else (TensorProto.INT64, [1]) for n in names)
        return [helper.make_tensor_value_info(n, *t) for n, t in zip(names, types, strict=True)]

    inputs, outputs = tensors(["token", *STATES]), tensors(["probabilities", *STATES.values()])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "writer", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)


def decoder() -> Graph:
    """The graph, with what it has seen as its states."""
    return surgery.with_states(bn.load(model().SerializeToString()), STATES)


def token_of(letter: str) -> int:
    """0 for the end of a line, else the letter's place from the blank on, which is 1."""
    if letter != "\n" and not " " <= letter <= "~":
        raise SystemExit(f"{letter!r}: wanted letters of ASCII")
    return 0 if letter == "\n" else ord(letter) - 31


def write(session: bn.Session, prompt: str, letters: int, seed: int) -> Iterator[str]:
    """The prompt, and letters drawn one after another."""
    session.reset_state()
    if not 0 < len(prompt) <= LENGTH:
        raise SystemExit(f"{prompt!r}: wanted 1 to {LENGTH} letters")
    for letter in prompt:
        (probabilities,) = session(np.array([token_of(letter)])).values()
        yield letter
    for _ in range(min(letters, LENGTH - len(prompt))):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64  # Knuth's generator of linear congruences
        left, token = (seed >> 11) / 2**53, -1
        while left >= 0 and token < LETTERS - 1:  # to the letter in whose share of 0 to 1 the number falls
            token += 1
            left -= float(probabilities[0, 0, token])
        yield "\n" if token == 0 else chr(token + 31)
        (probabilities,) = session(np.array([token])).values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="*", default=["A kernel "], help="beginnings of texts")
    parser.add_argument("--letters", type=int, default=100, help=f"to write; with the prompt at most {LENGTH}")
    parser.add_argument("--save", type=Path, help="write the model instead: an .onnx file, or a program for C")
    options = parser.parse_args()
    if options.save is not None and options.save.suffix == ".onnx":
        onnx.save(model(), options.save)
    elif options.save is not None:
        bn.export_model(decoder(), options.save, threads=1)
    else:
        session = bn.compile(decoder(), threads=1)
        for seed, prompt in enumerate(options.prompts):
            sys.stdout.writelines([*write(session, prompt, options.letters, seed), "\n"])


if __name__ == "__main__":
    main()
