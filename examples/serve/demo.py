"""Serve a model, ask it over REST, and show what it counted: `make serve-demo`.

    python examples/serve/demo.py FOLDER        # of magika's model, as its package has it

The model tells what kind of text a text is.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

TEXTS = {
    "a script": "import sys\n\n\ndef main():\n    print(sys.argv)\n\n\nif __name__ == '__main__':\n    main()\n",
    "a page": "<!DOCTYPE html>\n<html>\n<body>\n<p>Good morning</p>\n</body>\n</html>\n",
    "a program": '#include <stdio.h>\n\nint main(void) {\n    printf("Good morning\\n");\n    return 0;\n}\n',
}
HALF, FILLER = 1024, 256
"""Bytes that the model reads at either end, and what stands where a text has none."""
SHOWN = re.compile(r"bolt_requests_total|bolt_(request|run)_seconds_(sum|count)")


@contextmanager
def server(model: Path) -> Iterator[str]:
    """The address of a server on a free port, which ends with the block."""
    command = [sys.executable, "-m", "bolt_numba", "serve", str(model), "--http-port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if '"kernel ' not in line:
                print(line, end="")
            if found := re.search(r"serving .* at (http://[\w.:]+)", line):
                yield found[1]
                break
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
        print(f"The server ended with {process.returncode}.")


def numbers(content: bytes) -> list[int]:
    """A text as the model takes it: its first bytes and its last."""
    first, last = content[:HALF], content[-HALF:]
    return [*first, *[FILLER] * (2 * HALF - len(first) - len(last)), *last]


def ask(url: str, given: dict[str, Any] | None = None) -> bytes:
    with urlopen(Request(url, json.dumps(given).encode() if given else None), timeout=60) as answer:
        return bytes(answer.read())


def main(folder: Path) -> None:
    kinds = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    with server(folder / "model.onnx") as address:
        for name, text in TEXTS.items():
            given = {"name": "bytes", "datatype": "INT32", "shape": [1, 2 * HALF], "data": numbers(text.encode())}
            answer = json.loads(ask(f"{address}/v2/models/model/infer", {"inputs": [given]}))
            scores = answer["outputs"][0]["data"]
            print(f"{name}: {kinds[scores.index(max(scores))]}, {max(scores):.1%}")
        print(*(line for line in ask(f"{address}/metrics").decode().splitlines() if SHOWN.match(line)), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
