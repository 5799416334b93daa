"""Loops beside onnxruntime, one thread: rows written by Slice and Concat, and what follows a detector.

``python -m bench.loops``: a row for each, with milliseconds of the best of many calls, taken in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

import bolt_numba as bn

HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
ROWS = """g (float[{n}, 8] x, float[1, 8] h0, float[{n}, 8] y0) => (float[{n}, 8] y) {{
    go = Constant <value = bool {{1}}> ()
    trips = Constant <value = int64 {{{n}}}> ()
    h, y = Loop (trips, go, h0, y0) <body = b (int64 i, bool c, float[1, 8] a, float[{n}, 8] t) =>
      (bool d, float[1, 8] a2, float[{n}, 8] t2) {{
        one = Constant <value = int64[1] {{1}}> ()
        zero = Constant <value = int64[1] {{0}}> ()
        end = Constant <value = int64[1] {{1099511627776}}> ()
        at = Reshape (i, one)
        next = Add (at, one)
        row = Slice (x, at, next)
        sum = Add (a, row)
        a2 = Tanh (sum)
        before = Slice (t, zero, at)
        behind = Slice (t, next, end)
        t2 = Concat <axis = 0> (before, a2, behind)
        d = Identity (c)
      }}>
}}"""
DETECTIONS = """g (float[b, n, 4] boxes, float[b, 3, n] scores) => (float[b, 5, 5] best, int64[b, k] counts) {
    most = Constant <value = int64[1] {20}> ()
    share = Constant <value = float[1] {0.5}> ()
    least = Constant <value = float[1] {0.6}> ()
    found = NonMaxSuppression (boxes, scores, most, share, least)
    first = Constant <value = int64 {0}> ()
    last = Constant <value = int64 {2}> ()
    image = Gather <axis = 1> (found, first)
    box = Gather <axis = 1> (found, last)
    conf = GatherND (scores, found)
    shape = Shape (boxes)
    trips = Gather (shape, first)
    go = Constant <value = bool {1}> ()
    best, counts = Loop (trips, go) <body = b (int64 i, bool c) => (bool d, float[5, 5] out, int64[1] count) {
        five = Constant <value = int64[1] {5}> ()
        zero = Constant <value = int64[1] {0}> ()
        one = Constant <value = int64[1] {1}> ()
        mine = Equal (image, i)
        own = Compress <axis = 0> (conf, mine)
        places = Compress <axis = 0> (box, mine)
        size = Shape (own)
        count = Min (size, five)
        top, order = TopK (own, count)
        chosen = Gather (places, order)
        all = Gather <axis = 0> (boxes, i)
        rows = Gather <axis = 0> (all, chosen)
        column = Unsqueeze (top, one)
        joined = Concat <axis = 1> (rows, column)
        rest = Sub (five, count)
        pads = Concat <axis = 0> (zero, zero, rest, zero)
        out = Pad (joined, pads)
        d = Identity (c)
      }>
}"""


def model(text: str) -> bytes:
    made: bytes = onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString()
    return made


def detections(rng: np.random.Generator, boxes: int) -> dict[str, Any]:
    corners = np.float32(40) * rng.random((4, boxes, 4), np.float32)
    corners[..., 2:] = corners[..., :2] + 1 + np.float32(8) * rng.random((4, boxes, 2), np.float32)
    return {"boxes": corners, "scores": rng.random((4, 3, boxes), np.float32)}


def best_of(calls: list[Callable[[], Any]], turns: int = 60) -> list[float]:
    """Milliseconds of each call, the best of many in turns."""
    best = [float("inf")] * len(calls)
    for _ in range(turns):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], 1e3 * (time.perf_counter() - start))
    return best


def main() -> None:
    rng, options = np.random.default_rng(0), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    cases: list[tuple[str, bytes, dict[str, Any]]] = []
    for n in (20, 31, 100):
        feeds = {"x": rng.normal(size=(n, 8)).astype(np.float32), "y0": np.zeros((n, 8), np.float32)}
        cases.append((f"rows, {n} iterations", model(ROWS.format(n=n)), feeds | {"h0": np.zeros((1, 8), np.float32)}))
    cases += [(f"detections, 4 images, {n} boxes", model(DETECTIONS), detections(rng, n)) for n in (100, 1000)]
    for name, content, feeds in cases:
        ours, other = bn.compile(content, threads=1), onnxruntime.InferenceSession(content, options)
        for _ in range(20):
            got, want = ours.run(None, feeds), other.run(None, feeds)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        one, two = best_of([lambda s=s, f=feeds: s.run(None, f) for s in (ours, other)])  # type: ignore[misc]
        sys.stdout.write(f"{name:36} bolt-numba {one:8.3f} ms  onnxruntime {two:8.3f} ms  {one / two:6.2f}\n")


if __name__ == "__main__":
    main()
