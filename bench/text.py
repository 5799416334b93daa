"""Text from models of language: ours, llama.cpp, onnxruntime-genai and OpenVINO GenAI on the same weights, in turns.

    python -m bench.text                     # SmolLM2-135M in Q4_1; `make bench-text` installs the others
    python -m bench.text --seeded            # 1 billion weights drawn at random

Each engine has a process for each task: a step of one sequence (decode), a prompt of 512 tokens (prefill), a step of
eight.  All choose the likeliest token.  Reads are the bytes of the weights that a step needs, as a share of what the
cores read; products of a prompt are a share of what they multiply in bytes.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import genai
from bench.contest import Options, Worker, play
from bench.generators import ENGINES, TASKS
from bench.peak import byte_peak_gops
from bolt_numba.converters.gguf.container import Gguf, read_container
from bolt_numba.devices.bandwidth import read_gbs
from tests.gguf_files import file_of
from tests.models import fetch

OURS = "bolt"
HEAD = (
    "engine", "decode, tokens/s", "of reads", "times ours", "prefill, tokens/s", "of products", "times ours",
    "eight, tokens/s", "times one", "first token, s", "MB", "MB of two",
)  # fmt: skip
KEEPS_S = 5.0
"""For which the first process goes on: what an engine keeps for the next one, it writes behind the back of runs."""
BLOCK, BLOCK_BYTES, CODES_DEVIATE = 32, 18, 4.6
"""Of Q4_0: weights and bytes of a block, and the standard deviation of codes drawn at random."""


class Sizes(NamedTuple):
    """Of a seeded decoder; groups are heads of keys."""

    layers: int = 16
    hidden: int = 2048
    inner: int = 8192
    heads: int = 32
    groups: int = 8
    words: int = 32000


class Cost(NamedTuple):
    """Bytes that a step reads, and operations (a multiply-add is two) of a token of a prompt."""

    read: int
    ops: int


def opened(model: Path) -> Gguf:
    return read_container(model.read_bytes(), model.name)


def cost(model: Path) -> Cost:
    tensors = opened(model).tensors
    lone = {"token_embd.weight"} if "output.weight" in tensors else set()  # single rows of it are read
    inner = [t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) > 1]
    read = sum(t.data.nbytes for name, t in tensors.items() if name not in lone and t.data is not None)
    return Cost(read, 2 * sum(math.prod(t.shape) for t in inner))


def seeded(like: Path, sizes: Sizes) -> bytes:
    """A file of a llama with weights drawn at random in Q4_0, and the first tokens of another model."""
    known = opened(like).values
    words = known["tokenizer.ggml.tokens"][: sizes.words]
    both = [(merge, *merge.split(b" ")) for merge in known["tokenizer.ggml.merges"]]
    among = set(words)
    merges = [merge for merge, a, b in both if a in among and b in among and a + b in among]
    own = {name: value for name, value in known.items() if name.startswith("tokenizer.ggml.")}
    own |= {"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": merges}
    own["tokenizer.ggml.token_type"] = known["tokenizer.ggml.token_type"][: sizes.words]
    llama = {
        "context_length": 2048, "block_count": sizes.layers, "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.inner, "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.groups, "rope.dimension_count": sizes.hidden // sizes.heads,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "vocab_size": sizes.words,
    }  # fmt: skip
    draw, narrow = np.random.default_rng(0), sizes.hidden // sizes.heads * sizes.groups
    tensors: dict[str, tuple[str, Sequence[int], bytes]] = {}

    def matrix(name: str, n: int, k: int) -> None:
        blocks = draw.integers(0, 256, (n, k // BLOCK, BLOCK_BYTES), np.uint8)
        scales = draw.uniform(0.8, 1.2, (n, k // BLOCK, 1)) / math.sqrt(k) / CODES_DEVIATE
        blocks[..., :2] = scales.astype(np.float16).view(np.uint8)
        tensors[f"{name}.weight"] = "Q4_0", (n, k), blocks.tobytes()

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = "F32", (sizes.hidden,), np.ones(sizes.hidden, np.float32).tobytes()

    matrix("token_embd", sizes.words, sizes.hidden)
    norm("output_norm")
    for at in (f"blk.{i}." for i in range(sizes.layers)):
        norm(f"{at}attn_norm")
        norm(f"{at}ffn_norm")
        for part, n in {"q": sizes.hidden, "k": narrow, "v": narrow, "output": sizes.hidden}.items():
            matrix(f"{at}attn_{part}", n, sizes.hidden)
        for part in ("gate", "up"):
            matrix(f"{at}ffn_{part}", sizes.inner, sizes.hidden)
        matrix(f"{at}ffn_down", sizes.hidden, sizes.inner)
    values = {"general.architecture": "llama", **{f"llama.{name}": value for name, value in llama.items()}, **own}
    return file_of(values, tensors)


def begin(peer: str, model: Path, threads: int, options: Options) -> tuple[Worker, float]:
    """A loaded worker, and the seconds from its command to the first token.  Raises RuntimeError with what it says."""
    start = time.perf_counter()
    worker = Worker(peer, model, None, threads, options, module="bench.generators")
    said = worker.ask(do="load")
    if not said["ok"]:
        worker.close()
        raise RuntimeError(said["error"])
    return worker, time.perf_counter() - start


def started(engine: str, model: Path, threads: int, options: Options, turns: int) -> dict[str, float]:
    """Seconds to the first token, and MB of one process and of two; the first start is not counted."""
    before, _ = begin(f"{engine} decode", model, threads, options)
    time.sleep(KEEPS_S)
    before.close()
    seconds = []
    for _ in range(turns):
        first, took = begin(f"{engine} decode", model, threads, options)
        seconds.append(took)
        first.close()
    first, second = (begin(f"{engine} decode", model, threads, options)[0] for _ in range(2))
    one, other = first.ask(do="memory"), second.ask(do="memory")
    first.close(), second.close()
    return {"first_s": float(np.median(seconds)), "mb": one["Rss"], "two_mb": one["Pss"] + other["Pss"]}


def contest(model: Path, engines: Sequence[str], threads: int, options: Options) -> dict[str, dict[str, Any]]:
    """Figures of each engine: tokens a second of each task and those of `started`, or its error."""
    rows: dict[str, dict[str, Any]] = {}
    workers: dict[str, Worker] = {}
    try:
        for engine in engines:
            try:
                rows[engine] = dict(started(engine, model, threads, options, 3))
                for task in TASKS:
                    workers[f"{engine} {task}"], _ = begin(f"{engine} {task}", model, threads, options)
            except RuntimeError as error:
                rows[engine] = {"error": str(error)}
        for task in TASKS:
            ours = {peer: w for peer, w in workers.items() if peer.endswith(f" {task}")}
            for peer, made in play(ours, threads, options).items():
                rows[peer.removesuffix(f" {task}")][task] = 1e3 / made["median_ms"] if "error" not in made else 0.0
    finally:
        for worker in workers.values():
            worker.close()
    return rows


def table(rows: dict[str, dict[str, Any]], spent: Cost, read: float, ops: float) -> str:
    """As Markdown.  read, ops: GB/s and GOP/s of the cores."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" + "|---:" * (len(HEAD) - 1) + "|"]
    ours = rows.get(OURS, {})
    for engine, row in rows.items():
        if "error" in row:
            lines.append(f"| {engine} | {row['error']} |")
            continue
        ratio = {task: f"{row[task] / ours[task]:.2f}" if task in ours else "-" for task in TASKS}
        reads, products = row["decode"] * spent.read / 1e9 / read, row["prefill"] * spent.ops / 1e9 / ops
        cells = (
            engine, f"{row['decode']:.0f}", f"{100 * reads:.0f} %", ratio["decode"], f"{row['prefill']:.0f}",
            f"{100 * products:.0f} %", ratio["prefill"], f"{row['eight']:.0f}", f"{row['eight'] / row['decode']:.1f}",
            f"{row['first_s']:.2f}", f"{row['mb']:.0f}", f"{row['two_mb']:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a file of GGUF; SmolLM2-135M-Instruct if none is named")
    parser.add_argument("--seeded", action="store_true", help="a llama of 1 billion weights in Q4_0 instead, made once")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--turn-s", type=float, default=0.5)
    asked = parser.parse_args()
    like, folder = asked.model or fetch("smollm2.gguf"), Path(tempfile.gettempdir()) / "bolt-numba-bench-text"
    folder.mkdir(exist_ok=True)
    model = folder / ("seeded.gguf" if asked.seeded else like.name)  # what engines make of it lies beside it
    if not model.exists():
        model.write_bytes(seeded(like, Sizes()) if asked.seeded else like.read_bytes())
    engines = asked.engines.split(",")
    if "onnxruntime-genai" in engines:
        genai.write(model, model.with_suffix(".genai"))
    spent, options = cost(model), Options(turns=asked.turns, turn_s=asked.turn_s)
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    processor = re.search(r"model name\s*: (.*)", told)
    sys.stdout.write(f"{processor[1] if processor else ''}, {model.name}: a step reads {spent.read / 1e6:.0f} MB\n")
    for threads in asked.threads:
        before = read_gbs(threads)
        rows = contest(model, engines, threads, options)
        read, ops = max(before, read_gbs(threads)), byte_peak_gops() * threads
        sys.stdout.write(f"\n{threads} thread(s), {read:.1f} GB/s, {ops:.0f} GOP/s\n\n")
        sys.stdout.write(table(rows, spent, read, ops) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
