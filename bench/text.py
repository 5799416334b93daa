"""Text from models of language: ours, llama.cpp, onnxruntime-genai and OpenVINO GenAI on the same weights, in turns.

    python -m bench.text SmolLM2.gguf        # `make bench-text` installs the others
    python -m bench.text llama-1b.gguf --seeded SmolLM2.gguf

Each engine has a process for each task: a step of one sequence (decode), a prompt of 512 tokens (prefill), a step of
eight.  All choose the likeliest token.  Reads are the bytes of the weights that a step needs, as a share of what the
cores read; products of a prompt are a share of what they multiply in bytes.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import genai
from bench.contest import Options, Worker, play
from bench.generators import ENGINES, TASKS
from bench.peak import byte_peak_gops, read_gbs

OURS = "bolt"
HEAD = (
    "engine", "decode, tokens/s", "of reads", "times ours", "prefill, tokens/s", "of products", "times ours",
    "eight, tokens/s", "times one", "first token, s", "MB", "MB of two",
)  # fmt: skip
LAYERS, HIDDEN, INNER, HEADS, GROUPS, WORDS = 16, 2048, 8192, 32, 8, 32000
"""Of the seeded decoder."""


class Cost(NamedTuple):
    """Bytes that a step reads, and operations (a multiply-add is two) of a token of a prompt."""

    read: int
    ops: int


def cost(model: Path) -> Cost:
    tensors = importlib.import_module("gguf").GGUFReader(model).tensors
    names = {t.name for t in tensors}
    lone = {"token_embd.weight"} if "output.weight" in names else set()  # rows of it alone are read
    inner = [t for t in tensors if t.name.startswith("blk.") and len(t.shape) > 1]
    return Cost(sum(int(t.n_bytes) for t in tensors if t.name not in lone), 2 * sum(int(t.n_elements) for t in inner))


def seeded(path: Path, like: Path) -> Path:
    """A llama of 1 billion weights drawn at random in Q4_0, with the first tokens of another model; made once."""
    gguf = importlib.import_module("gguf")
    if path.is_file():
        return path
    writer, fields = gguf.GGUFWriter(path, "llama"), gguf.GGUFReader(like).fields
    writer.add_context_length(2048), writer.add_block_count(LAYERS), writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER), writer.add_head_count(HEADS), writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_freq_base(1e4), writer.add_vocab_size(WORDS)
    writer.add_rope_dimension_count(HIDDEN // HEADS), writer.add_file_type(2)
    words = fields["tokenizer.ggml.tokens"].contents()[:WORDS]
    known, merges = set(words), fields["tokenizer.ggml.merges"].contents()
    kept = [m for m in merges if known.issuperset(m.split(" ")) and m.replace(" ", "") in known]
    writer.add_tokenizer_model("gpt2"), writer.add_tokenizer_pre("smollm"), writer.add_token_list(words)
    writer.add_token_types(fields["tokenizer.ggml.token_type"].contents()[:WORDS]), writer.add_token_merges(kept)
    writer.add_bos_token_id(1), writer.add_eos_token_id(2), writer.add_pad_token_id(2)
    draw, size = np.random.default_rng(0), HIDDEN // HEADS * GROUPS
    shapes = {
        "attn_q": (HIDDEN, HIDDEN), "attn_k": (size, HIDDEN), "attn_v": (size, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
    }  # fmt: skip
    whole = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in shapes.items()}
    for name, (n, k) in {"token_embd.weight": (WORDS, HIDDEN), **whole}.items():
        blocks = draw.integers(0, 256, (n, k // 32, 18), np.uint8)
        scales = draw.uniform(0.8, 1.2, (n, k // 32, 1)) / math.sqrt(k) / 4.6  # codes deviate by 4.6
        blocks[..., :2] = scales.astype(np.float16).view(np.uint8).reshape(n, k // 32, 2)
        writer.add_tensor(name, blocks.reshape(n, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    norms = ["output_norm.weight", *(f"blk.{i}.{part}_norm.weight" for i in range(LAYERS) for part in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()
    return path


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
    begin(f"{engine} decode", model, threads, options)[0].close()
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
    parser.add_argument("model", type=Path, help="a file of GGUF")
    parser.add_argument("--seeded", type=Path, metavar="LIKE", help="make MODEL of 1 billion weights if it is missing")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--turn-s", type=float, default=0.5)
    asked = parser.parse_args()
    model = seeded(asked.model, asked.seeded) if asked.seeded else asked.model
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
