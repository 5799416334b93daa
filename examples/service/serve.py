"""Serve a model: POST the .npy file of its first input to port 8000, and its results come back as JSON by name.

    python examples/service/serve.py examples/digits/digits.onnx 8000
    curl --data-binary @image.npy http://localhost:8000
"""

from __future__ import annotations

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import bolt_numba as bn

MOST = 64 << 20
"""Bytes of the largest request that is read."""


def server(model: str, port: int) -> ThreadingHTTPServer:
    """A server that answers by running the model, with one session for all requests."""
    session = bn.compile(model)
    name = session.inputs[0].name

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            if not 0 <= size <= MOST:
                self.send_error(413)
                return
            try:
                array = np.load(io.BytesIO(self.rfile.read(size)), allow_pickle=False)
                results = session({name: array})
            except (bn.BoltError, ValueError, EOFError) as error:
                self.answer(400, {"error": str(error)})
            else:
                self.answer(200, {key: array.tolist() for key, array in results.items()})

        def answer(self, status: int, content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return ThreadingHTTPServer(("", port), Handler)


if __name__ == "__main__":
    server(sys.argv[1], int(sys.argv[2])).serve_forever()
