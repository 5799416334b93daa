"""What a request for embeddings takes beyond the encoder: one client that keeps its connection, in turns with `embed`.

It needs the extras ``serve`` and ``text``: python -m bench.texts [--rounds 300]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from statistics import median

from bolt_numba.text import Encoder
from tests.models import fetch

PORT, WAIT_S, WARM = 18790, 120.0, 20
MS, US = 1e3, 1e6
SENTENCE = "how do I get to the station from here"
ASKED = {"a sentence": [SENTENCE], "a page": [SENTENCE * 12], "32 sentences": [SENTENCE] * 32}


def ready(port: int) -> HTTPConnection:
    """A connection to a server that serves.  Raises TimeoutError where it does not in time."""
    until = time.monotonic() + WAIT_S
    while True:
        connection = HTTPConnection("127.0.0.1", port)
        with suppress(ConnectionError):
            connection.request("GET", "/v2/health/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return connection
        connection.close()
        if time.monotonic() > until:
            raise TimeoutError(f"the server at port {port} was not ready after {WAIT_S} s")
        time.sleep(0.1)


def ask(connection: HTTPConnection, texts: list[str], form: str) -> None:
    body = json.dumps({"model": "minilm", "input": texts, "encoding_format": form}).encode()
    connection.request("POST", "/v1/embeddings", body)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise RuntimeError(said.decode())


def measure(folder: Path, rounds: int) -> None:
    encoder, connection = Encoder(folder, stand_ins=False), ready(PORT)
    sys.stdout.write("| asked | `embed`, ms | base64, ms | lists, ms | beyond, us |\n|---|---:|---:|---:|---:|\n")
    for name, texts in ASKED.items():
        spent: dict[str, list[float]] = {"embed": [], "base64": [], "float": []}
        for _ in range(WARM + rounds):
            for how, seconds in spent.items():
                begin = time.perf_counter()
                encoder.embed(texts) if how == "embed" else ask(connection, texts, how)
                seconds.append(time.perf_counter() - begin)
        own, base64, lists = (median(seconds[WARM:]) for seconds in spent.values())
        row = f"| {name} | {own * MS:.2f} | {base64 * MS:.2f} | {lists * MS:.2f} | {(base64 - own) * US:.0f} |\n"
        sys.stdout.write(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "minilm"
        folder.mkdir()
        for name, own in (("minilm.onnx", "model.onnx"), ("minilm_tokenizer.json", "tokenizer.json")):
            (folder / own).symlink_to(fetch(name))
        command = [sys.executable, "-m", "bolt_numba", "serve", str(folder), "--http-port", str(PORT)]
        server = subprocess.Popen([*command, "--grpc-port", "-1", "--log-level", "error"])
        try:
            measure(folder, rounds)
        finally:
            server.terminate()
            server.wait(WAIT_S)


if __name__ == "__main__":
    main()
