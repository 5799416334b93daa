"""Engines that make text, each in a process of its own that `bench.text` drives through a pipe, as `bench.workers`.

    python -m bench.generators '{"peer": "bolt decode", "model": PATH, "threads": 1, "cpus": [0]}'

A peer is an engine and what it does.  An engine joins by a class with `load` and `generate`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Prompts = Sequence[list[int]]
CONTEXT, FIRST_WORD = 640, 300
"""Positions of a cache, and the first token that prompts are drawn from: those before may mean something."""


class Task(NamedTuple):
    """Prompts of ``tokens`` each; seconds are those from ``few`` to ``many`` new tokens, over what is ``counted``."""

    sequences: int
    tokens: int
    few: int
    many: int

    @property
    def counted(self) -> int:
        """Tokens that a measurement is divided by: the prompt's, or the new ones of all sequences."""
        return self.sequences * (self.many - self.few) if self.few else self.tokens


TASKS = {"decode": Task(1, 16, 1, 33), "prefill": Task(1, 512, 0, 1), "eight": Task(8, 16, 16, 48)}
"""Where prompts are taken one by one, eight sequences run together from the ninth step on."""


class Bolt:
    def load(self, model: Path, threads: int, task: Task) -> None:
        text = importlib.import_module("bolt_numba.text")
        self.engine = text.Generator(model, sequences=task.sequences, context=CONTEXT, threads=threads)
        self.go_on = importlib.import_module("bolt_numba.text.rates").go_on

    def generate(self, prompts: Prompts, count: int) -> None:
        self.go_on(self.engine, prompts, count)


class LlamaCpp:
    def load(self, model: Path, threads: int, task: Task) -> None:
        llama = importlib.import_module("bench.llama_cpp").Llama
        self.engine = llama(model, threads, task.sequences, CONTEXT)

    def generate(self, prompts: Prompts, count: int) -> None:
        steps = self.engine.greedy(prompts)
        for _ in range(count):
            next(steps).argmax(1)


class Genai:
    """Of a folder that `bench.genai` makes beside the model."""

    def load(self, model: Path, threads: int, task: Task) -> None:
        self.package: Any = importlib.import_module("onnxruntime_genai")
        config = self.package.Config(str(model.with_suffix(".genai")))
        session = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self.model = self.package.Model(config)

    def generate(self, prompts: Prompts, count: int) -> None:
        asked, ends = self.package.GeneratorParams(self.model), len(prompts[0]) + count
        asked.set_search_options(do_sample=False, max_length=ends, min_length=ends, batch_size=len(prompts))
        engine = self.package.Generator(self.model, asked)
        engine.append_tokens(np.array(prompts, np.int32))
        for _ in range(count):
            engine.generate_next_token()


class OpenVino:
    def load(self, model: Path, threads: int, task: Task) -> None:
        self.package: Any = importlib.import_module("openvino_genai")
        self.tensor: Any = importlib.import_module("openvino").Tensor
        self.engine = self.package.LLMPipeline(str(model), "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(self, prompts: Prompts, count: int) -> None:
        ids = np.array(prompts, np.int64)
        given = self.package.TokenizedInputs(self.tensor(ids), self.tensor(np.ones_like(ids)))
        self.engine.generate(given, self.package.GenerationConfig(max_new_tokens=count, ignore_eos=True))


ENGINES: dict[str, type[Any]] = {
    "bolt": Bolt, "llama.cpp": LlamaCpp, "onnxruntime-genai": Genai, "OpenVINO GenAI": OpenVino,
}  # fmt: skip


def memory_mb() -> dict[str, float]:
    """Resident memory, and this process's share of what several have, of proc(5)."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    found = dict(re.findall(r"^(Rss|Pss):\s+(\d+)", text, re.MULTILINE))
    return {name: int(size) * 1024 / 1e6 for name, size in found.items()}


def turn(engine: Any, task: Task, draw: np.random.Generator, seconds: float) -> dict[str, Any]:
    """Seconds for each token, measured anew until the turn is over."""

    def spent(count: int) -> float:
        prompts = draw.integers(FIRST_WORD, FIRST_WORD << 6, (task.sequences, task.tokens)).tolist()
        start = time.perf_counter()
        engine.generate(prompts, count)
        return time.perf_counter() - start

    gc.collect()
    times, end = list[float](), time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        few = spent(task.few) if task.few else 0.0
        times.append((spent(task.many) - few) / task.counted)
    return {"times": times}


def main(job: Mapping[str, Any]) -> None:
    """Answer requests until the pipe ends."""
    os.sched_setaffinity(0, job["cpus"])
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what engines print must not get between the answers
    name, _, doing = job["peer"].rpartition(" ")
    task, engine, draw = TASKS[doing], ENGINES[name](), np.random.default_rng(os.getpid())
    is_warm = False
    for line in sys.stdin:
        asked, made = json.loads(line), {"ok": True}
        try:
            if asked["do"] == "load":
                engine.load(Path(job["model"]), job["threads"], task)
                engine.generate([[*range(FIRST_WORD, FIRST_WORD + task.tokens)]] * task.sequences, 1)
            elif asked["do"] == "memory":
                made |= memory_mb()
            else:
                if not is_warm:  # what is done once for each size is no part of a rate
                    turn(engine, task, draw, 0.0)
                    is_warm = True
                made |= turn(engine, task, draw, asked["seconds"])
        except Exception as error:  # whatever an engine raises is its answer
            made = {"ok": False, "error": f"{type(error).__name__}: {error}"[:160]}
        pipe.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
