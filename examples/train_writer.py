"""Train a small transformer that writes text, letter by letter, on the pages of this repository, in plain NumPy.

    python examples/train_writer.py        # about five minutes on one core

Writes ``examples/writer/writer.npz``: weights as bytes with a scale for each column, 115 KB.  The seed is fixed, but
the pages change.  Source: Vaswani et al., Attention Is All You Need, 2017, with norms before the layers and without
gains; Press, Wolf, Using the Output Embedding to Improve Language Models, 2016, for the table that is used twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]
Parameters = dict[str, Floats]
ROOT = Path(__file__).parent.parent
FILE = ROOT / "examples" / "writer" / "writer.npz"
LETTERS, LENGTH, WIDTH, HEADS, LAYERS, HIDDEN = 96, 128, 64, 4, 2, 256
TINY = 1e-5
STEPS, BATCH, RATE = 1500, 32, 4e-3


def tokens_of(text: str) -> Tokens:
    """0 for the end of a line, else a letter's place from the blank on; what is not ASCII is left out."""
    found = [0 if c == "\n" else ord(c) - 31 for c in text if c == "\n" or " " <= c <= "~"]
    return np.array(found, np.int64)


def prose() -> str:
    """The sentences of the pages: a paragraph, or a point of a list, is a line; no code, tables or headings."""
    lines = []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for part in re.split(r"\n\s*\n|\n\s*(?:-|\d+\.) ", text):
            line = " ".join(part.split()).removeprefix("- ")
            if line.endswith(".") and line[0] not in "#|<!>":
                lines.append(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("`", "").replace("*", ""))
    return "\n".join(lines) + "\n"


def norm(x: Floats) -> tuple[Floats, Floats]:
    """Rows with a mean square of 1, and what they were divided by."""
    size = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(TINY))
    return x / size, size


def norm_back(d: Floats, y: Floats, size: Floats) -> Floats:
    return (d - y * (d * y).mean(-1, keepdims=True)) / size


def split(x: Floats, batch: int) -> Floats:
    """[n s, width] -> [n, heads, s, width / heads]."""
    return x.reshape(batch, -1, HEADS, WIDTH // HEADS).swapaxes(1, 2)


def joined(x: Floats) -> Floats:
    """[n, heads, s, width / heads] -> [n s, width]."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, WIDTH)


def forward(p: Parameters, tokens: Tokens) -> dict[str, Any]:
    """All activations for [n, s] tokens; ``p`` are probabilities of what comes next, [n s, letters]."""
    n, s = tokens.shape
    hidden, root = np.triu(np.ones((s, s), bool), 1), np.float32(np.sqrt(WIDTH // HEADS))
    a: dict[str, Any] = {}
    x = (p["tokens"][tokens] + p["places"][:s]).reshape(-1, WIDTH)
    for i in range(LAYERS):
        a[f"x{i}"], a[f"size{i}"] = norm(x)
        q, k, v = (split(a[f"x{i}"] @ p[f"{name}{i}"], n) for name in "qkv")
        weights = softmax(np.where(hidden, np.float32(-np.inf), q @ k.swapaxes(-1, -2) / root))
        a[f"qkv{i}"], a[f"weights{i}"], a[f"seen{i}"] = (q, k, v), weights, joined(weights @ v)
        x = x + a[f"seen{i}"] @ p[f"o{i}"]
        a[f"y{i}"], a[f"width{i}"] = norm(x)
        a[f"up{i}"] = np.maximum(a[f"y{i}"] @ p[f"up{i}"], 0)
        x = x + a[f"up{i}"] @ p[f"down{i}"]
    a["last"], a["size"] = norm(x)
    a["p"] = softmax(a["last"] @ p["tokens"].T)
    return a


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def gradients(p: Parameters, a: dict[str, Any], tokens: Tokens, wanted: Tokens) -> Parameters:
    """Of the mean cross entropy."""
    n, s = tokens.shape
    d = a["p"].copy()
    d[np.arange(n * s), wanted.ravel()] -= 1
    d /= n * s
    g: Parameters = {"tokens": d.T @ a["last"]}
    d = norm_back(d @ p["tokens"], a["last"], a["size"])
    for i in reversed(range(LAYERS)):
        g[f"down{i}"] = a[f"up{i}"].T @ d
        up = (d @ p[f"down{i}"].T) * (a[f"up{i}"] > 0)
        g[f"up{i}"] = a[f"y{i}"].T @ up
        d = d + norm_back(up @ p[f"up{i}"].T, a[f"y{i}"], a[f"width{i}"])
        g[f"o{i}"] = a[f"seen{i}"].T @ d
        (q, k, v), weights = a[f"qkv{i}"], a[f"weights{i}"]
        seen = split(d @ p[f"o{i}"].T, n)
        scores = seen @ v.swapaxes(-1, -2)
        scores = weights * (scores - (scores * weights).sum(-1, keepdims=True)) / np.float32(np.sqrt(q.shape[-1]))
        turned = scores.swapaxes(-1, -2)
        back = np.zeros_like(d)
        for name, x in zip("qkv", (scores @ k, turned @ q, weights.swapaxes(-1, -2) @ seen), strict=True):
            g[f"{name}{i}"] = a[f"x{i}"].T @ joined(x)
            back += joined(x) @ p[f"{name}{i}"].T
        d = d + norm_back(back, a[f"x{i}"], a[f"size{i}"])
    g["places"] = np.zeros_like(p["places"])
    g["places"][:s] = d.reshape(n, s, WIDTH).sum(0)
    np.add.at(g["tokens"], tokens.ravel(), d)
    return g


def initial(rng: np.random.Generator) -> Parameters:
    def normal(rows: int, columns: int, scale: float) -> Floats:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    made = {"tokens": normal(LETTERS, WIDTH, 0.1), "places": normal(LENGTH, WIDTH, 0.1)}
    for i in range(LAYERS):
        made |= {f"{name}{i}": normal(WIDTH, WIDTH, WIDTH**-0.5) for name in "qkvo"}
        made |= {f"up{i}": normal(WIDTH, HIDDEN, WIDTH**-0.5), f"down{i}": normal(HIDDEN, WIDTH, HIDDEN**-0.5)}
    return made


def train(text: Tokens, rng: np.random.Generator) -> Parameters:
    """Adam with a rate that rises for 100 steps, then falls to zero.  Source: Kingma, Ba, Adam, 2014, algorithm 1."""
    p, loss = initial(rng), 0.0
    m, v = ({k: np.zeros_like(w) for k, w in p.items()} for _ in range(2))
    for t in range(1, STEPS + 1):
        starts = rng.integers(0, len(text) - LENGTH, BATCH)
        given = text[starts[:, None] + np.arange(LENGTH + 1)]
        a = forward(p, given[:, :-1])
        rate = RATE * min(t / 100, (1 - t / STEPS))
        for k, g in gradients(p, a, given[:, :-1], given[:, 1:]).items():
            m[k] = 0.9 * m[k] + 0.1 * g
            v[k] = 0.99 * v[k] + 0.01 * g * g
            p[k] -= (rate * m[k] / (1 - 0.9**t) / (np.sqrt(v[k] / (1 - 0.99**t)) + 1e-8)).astype(np.float32)
        loss = float(-np.log(a["p"][np.arange(BATCH * LENGTH), given[:, 1:].ravel()]).mean())
        if t % 100 == 0:
            print(f"step {t}: {loss / np.log(2):.2f} bits a letter", flush=True)
    return p


def main() -> None:
    text = tokens_of(prose())
    print(f"{len(text):,} letters")
    made: dict[str, Any] = {}
    for name, weight in train(text, np.random.default_rng(0)).items():
        scale = np.abs(weight).max(0) / 127
        made |= {name: np.round(weight / scale).astype(np.int8), f"{name}_scale": scale}
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **made)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
