"""`bolt-numba serve` beside other servers, which have onnxruntime, under one load generator.

    make bench-serving                              # once: FastAPI, LitServe and MLServer, each in its environment
    python -m bench.serving overhead [kws_dscnn ...]
    python -m bench.serving load [keyword_cnn mobilenet_v2 ppocr_rec minilm]

Overhead: the median of requests of one client that keeps its connection, less the median of a run in this process.
Load: an open loop.  Requests come at random (Poisson), and their time counts from when they should have been sent.
First the highest rate at which a server keeps up with a 99th percentile below five medians.  Then all at the best rate
of a rival.  Servers take turns.  The client takes processors, too, the same for all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from subprocess import check_output
from typing import Any

import grpc
import numpy as np

import bolt_numba as bn
from bench.serving import models, sweep
from bench.serving.client import Latencies, alone, answers, at_random, busy, run
from bench.serving.forms import protocol_request
from bench.serving.servers import CONTESTANTS, OURS, SERVERS, python_of, running
from bench.zoo import ZOO
from bolt_numba.serve.rpc import SERVICE, TYPES
from bolt_numba.serve.tensors import NAMES
from bolt_numba.types import Array

GRPC = "bolt-numba, gRPC"
US, MS = 1e6, 1e3
TURNS, CLOSED_S, NEAR = 5, 1.5, 1e-2


def over_grpc(port: int, request: Any, count: int) -> list[float]:
    """Seconds of requests of gRPC, one after the other, on one channel.  request: a message."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary(f"/{SERVICE}/ModelInfer", _registered_method=True)
        data, spent = request.SerializeToString(), []
        for _ in range(count):
            begin = time.perf_counter()
            ask(data)
            spent.append(time.perf_counter() - begin)
    return spent[count // 10 :]


def grpc_request(name: str, feeds: Mapping[str, Array]) -> Any:
    """A request of the protocol as a message, with raw contents."""
    made = TYPES["ModelInfer"][0](model_name=name)
    for key, array in feeds.items():
        made.inputs.add(name=key, datatype=NAMES[array.dtype], shape=array.shape)
        made.raw_input_contents.append(array.tobytes())
    return made


def overhead(name: str, count: int) -> Iterator[str]:
    """Lines of a table."""
    path = ZOO[name].path()
    feeds = {key: np.ascontiguousarray(a) for key, a in ZOO[name].feeds().items()}
    session = bn.compile(path, stand_ins=False)
    message = grpc_request(path.stem, feeds)
    requests = {key: protocol_request(path.stem, feeds, key == OURS[0]) for key in OURS}
    with running(["bolt-numba"], path) as ports:
        port = ports["bolt-numba"]
        spent: dict[str, list[float]] = {key: [] for key in (*OURS, GRPC, "run")}
        for _ in range(TURNS):
            for key, request in requests.items():
                spent[key] += run(alone(port, [request] * (count // TURNS)))
            spent[GRPC] += over_grpc(port + 1, message, count // TURNS)
            for _ in range(count // TURNS):
                begin = time.perf_counter()
                session.run(None, feeds)
                spent["run"].append(time.perf_counter() - begin)
    median_run = median(spent["run"]) * US
    for key in (*OURS, GRPC):
        found = median(spent[key]) * US
        yield f"| {name} | {key} | {median_run:.0f} | {found:.0f} | {found - median_run:.0f} |"


def versions() -> str:
    """What is compared."""
    told = [f"bolt-numba {version('bolt-numba')}"]
    for name, server in SERVERS.items():
        if name != "bolt-numba":
            ask = f"from importlib.metadata import version as v; print(v({server.package!r}), v('onnxruntime'))"
            own, engine = check_output([python_of(name), "-c", ask], text=True).split()
            told.append(f"{name} {own} with onnxruntime {engine}")
    return ", ".join(told)


def load(name: str) -> Iterator[str]:
    """Lines of tables."""
    feeds, path = models.requests_of(name), models.path_of(name)
    takes = {key: c for key, c in CONTESTANTS.items() if c.takes(models.MODELS[name])}
    with running(list(SERVERS), path) as ports:
        requests = {key: [c.form.request(path.stem, f) for f in feeds] for key, c in takes.items()}
        asked = {key: (ports[c.server], requests[key]) for key, c in takes.items()}
        check(path, feeds, asked)

        def probe(key: str, rate: float, seconds: float, seed: int) -> Latencies:
            return run(at_random(*asked[key], rate, seconds, seed))

        closed = {key: run(busy(*row, CLOSED_S)) for key, row in asked.items()}
        single = {key: median(run(alone(*row))) for key, row in asked.items()}
        highest = sweep.highest(probe, closed, single)
        for key, (rate, found) in highest.items():
            told = "- | -" if found is None else f"{found.p50 * MS:.2f} | {found.p99 * MS:.2f}"
            yield f"| {name} | {key} | {single[key] * MS:.2f} | {closed[key]:.0f} | {rate:.0f} | {told} |"
        ours = [key for key in OURS if key in takes]
        rival = max((key for key in takes if key not in ours), key=lambda key: highest[key][0])
        given = highest[rival][0]
        late = sweep.at_equal(probe, [*ours, rival], given)
        for key, (p50, p99) in late.items():
            ratios = f"rate {highest[key][0] / given:.2f}, p99 {p99 / late[rival][1]:.2f}"
            yield f"| {name} | {key} | {ratios} of {rival} | | at {given:.0f} | {p50 * MS:.2f} | {p99 * MS:.2f} |"


def check(path: Path, feeds: Sequence[Mapping[str, Array]], asked: Mapping[str, tuple[int, list[bytes]]]) -> None:
    """Every request has the answer of a session; raises AssertionError."""
    session = bn.compile(path, stand_ins=False)
    wanted = [session.run(None, given) for given in feeds]
    for key, (port, requests) in asked.items():
        for body, like in zip(run(answers(port, requests)), wanted, strict=True):
            for found, array in zip(CONTESTANTS[key].form.results(body, like), like, strict=True):
                wrong = np.abs(found.astype("f8") - array).max()
                assert wrong < NEAR * max(1.0, np.abs(array).max()), (key, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("overhead", "load"))
    parser.add_argument("models", nargs="*")
    parser.add_argument("--requests", type=int, default=5000)
    given = parser.parse_args()
    if given.what == "overhead":
        lines = ["| model | request | run, us | request, us | over the run, us |", "|---|---|---:|---:|---:|"]
    else:
        lines = [versions(), ""]
        lines += ["| model | server | single, ms | without pause, a second | at random, a second | p50, ms | p99, ms |"]
        lines += ["|---|---|---:|---:|---:|---:|---:|"]
    sys.stdout.write("\n".join(lines) + "\n")
    for name in given.models or (["kws_dscnn"] if given.what == "overhead" else models.MODELS):
        for row in overhead(name, given.requests) if given.what == "overhead" else load(name):
            sys.stdout.write(row + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
