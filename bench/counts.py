"""Instructions of twelve fixed cases, counted by valgrind: what a shared machine's noise does not touch.

    python -m bench.counts              # count, and compare with bench/results/counts.json
    python -m bench.counts --write      # count, and store

A case that takes 2 % more than stored ends with exit code 1.  Valgrind 3.19 knows no AVX-512, so all run by the
instructions of AVX2.  What counts depend on besides is the key in the file: the processor's family and caches, by which
kernels choose their blocks, and versions of Python, NumPy and Numba.  A row of another key is not compared.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import onnx

import bolt_numba as bn
from bench.zoo import Network, Wire, bert
from bolt_numba.converters.formats import load
from bolt_numba.kernels.instructions.processor import processor
from bolt_numba.sessions.guesses import model_feeds

ISA = "avx2"
STORED = Path(__file__).parent / "results" / "counts.json"
ALARM = 0.02
"""What a case may take more than stored, of that."""
DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "digits.onnx"
MISSING = "valgrind is not installed: make valgrind, or apt-get install valgrind"
WARM = 10
"""Calls before the one that counts: Python adapts its byte code in the first ones."""


# --- the cases -------------------------------------------------------------------------------------------------------


def _of(build: Callable[[Network], Wire], calls: int = 1) -> Callable[[], Callable[[], object]]:
    """Calls of a model with seeded weights."""

    def make() -> Callable[[], object]:
        network = Network(0)
        model = network.model(build(network))
        model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
        return _calls(model.SerializeToString(), calls)

    return make


def _calls(model: bytes | Path, count: int) -> Callable[[], object]:
    graph = load(model if isinstance(model, bytes) else str(model))
    session, feeds = bn.compile(graph, threads=1), model_feeds(graph)
    return lambda: [session(feeds) for _ in range(count)]


def _small(n: Network) -> Wire:
    return n.add("Relu", n.add("Tanh", n.input("x", 1, 8)))


def _product(n: Network) -> Wire:
    return n.add("Relu", n.add("Add", n.add("MatMul", n.input("x", 256, 512), n.normal(512, 512)), n.normal(512)))


def _row(n: Network) -> Wire:
    return n.add("MatMul", n.input("x", 1, 1024), n.normal(1024, 1024))


def _convolution(n: Network) -> Wire:
    return n.add("Relu", n.conv(n.input("x", 1, 64, 56, 56), 64, 3))


def _separable(n: Network) -> Wire:
    """An inverted residual of MobileNet v2."""
    x = n.input("x", 1, 32, 28, 28)
    y = n.cba(n.cba(x, 192, 1), 192, 3, group=192)
    return n.add("Add", n.conv(y, 32, 1), x)


def _bytes(n: Network) -> Wire:
    x, w = n.input("x", 1, 32, 28, 28), n.constant(n.rng.integers(-127, 128, (64, 32, 3, 3)), "i1")
    scale, zero = n.constant(0.05, "f4"), n.constant(128, "u1")
    q = n.add("QuantizeLinear", x, scale, zero)
    y = n.add("QLinearConv", q, scale, zero, w, n.constant(0.01, "f4"), n.constant(0, "i1"), scale, zero, pads=[1] * 4)
    return n.add("DequantizeLinear", y, scale, zero)


def _lines(n: Network) -> Wire:
    """A normalisation, a GELU and a softmax of rows."""
    return n.add("Softmax", n.gelu(n.layer_norm(n.input("x", 64, 768), 768)), axis=1)


def _lstm(n: Network) -> Wire:
    gates, inner = 4 * 128, 128
    weights = n.normal(1, gates, 64, scale=0.1), n.normal(1, gates, inner, scale=0.1), n.normal(1, 2 * gates)
    return n.add_many("LSTM", (n.input("x", 32, 1, 64), *weights), 3, hidden_size=inner)[0]


def _forest(n: Network) -> Wire:
    """A hundred full trees of depth 6."""
    depth, trees = 6, 100
    inner, nodes = (1 << depth) - 1, (2 << depth) - 1
    ids = np.tile(np.arange(nodes), trees)
    is_inner, of_tree = ids < inner, np.repeat(np.arange(trees), nodes)
    modes = np.where(is_inner, "BRANCH_LEQ", "LEAF").tolist()
    return n.add(
        "TreeEnsembleRegressor", n.input("x", 64, 30), domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=of_tree.tolist(), nodes_nodeids=ids.tolist(), nodes_modes=modes,
        nodes_featureids=n.rng.integers(0, 30, len(ids)).tolist(),
        nodes_values=n.rng.standard_normal(len(ids)).tolist(),
        nodes_truenodeids=np.where(is_inner, 2 * ids + 1, 0).tolist(),
        nodes_falsenodeids=np.where(is_inner, 2 * ids + 2, 0).tolist(),
        target_treeids=of_tree[~is_inner].tolist(), target_nodeids=ids[~is_inner].tolist(),
        target_ids=[0] * int((~is_inner).sum()), target_weights=n.rng.standard_normal(int((~is_inner).sum())).tolist(),
    )  # fmt: skip


def _start() -> Callable[[], object]:
    data = DIGITS.read_bytes()
    return lambda: bn.compile(data, threads=1)


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "start": _start,
    "call": _of(_small, 100),
    "digits": lambda: _calls(DIGITS, 10),
    "product": _of(_product),
    "row": _of(_row),
    "convolution": _of(_convolution),
    "separable": _of(_separable),
    "bytes": _of(_bytes),
    "lines": _of(_lines),
    "lstm": _of(_lstm),
    "forest": _of(_forest),
    "bert": lambda: _calls(bert(0, 1, 256, 4, 64)(1).SerializeToString(), 1),
}


# --- counting --------------------------------------------------------------------------------------------------------

_ASK = bytes.fromhex("4889f8 4889f2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
"""rax, rdx = arguments; rdi turned by 64 bits in all; xchg rbx, rbx; rax = rdx; ret: what valgrind looks for."""
_DUMP_AT, _START, _STOP = (0x4354_0000 + number for number in (3, 4, 5))
"""Callgrind's requests, which begin with "CT"."""


def _requests() -> Callable[..., None]:
    """What asks valgrind for something; nothing happens without it."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(_ASK)
    code = ctypes.c_char.from_buffer(page)
    ask: Any = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(ctypes.addressof(code))
    ask.keeps = code  # and that the page

    def request(number: int, text: bytes | None = None) -> None:
        given = (ctypes.c_uint64 * 6)(number, ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0)
        ask(ctypes.addressof(given), 0)

    return request


def child(names: Sequence[str]) -> None:
    """Run the cases; valgrind writes a file for each."""
    request = _requests()
    gc.disable()
    for name in names:
        call = CASES[name]()
        for _ in range(WARM):
            call()
        request(_START)
        call()
        request(_STOP)
        request(_DUMP_AT, name.encode())


def count(names: Sequence[str]) -> dict[str, int]:
    """Instructions of one call of each case; raises CalledProcessError where a child fails."""
    env = os.environ | {"BOLT_NUMBA_ISA": ISA, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-W", "ignore", "-m", "bench.counts", "--child", *names]
    subprocess.run(command, env=env, check=True)  # kernels are compiled without valgrind
    with tempfile.TemporaryDirectory() as folder:
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        subprocess.run([*tool, *command], env=env, check=True, capture_output=True)
        texts = [file.read_text() for file in Path(folder).glob("out.*")]
    found = {}
    for text in texts:
        name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
        if name and total:
            found[name[1]] = int(total[1])
    return {name: found[name] for name in names}


# --- comparing -------------------------------------------------------------------------------------------------------


def key() -> str:
    """What counts depend on."""
    python = ".".join(platform.python_version_tuple()[:2])
    name, _, caches = processor()
    sizes = " ".join(map(str, caches))
    return f"{name}, caches {sizes}, {ISA}, Python {python}, NumPy {np.__version__}, Numba {numba.__version__}"


def stored() -> dict[str, dict[str, int]]:
    """The counts in the file, by what they depend on."""
    made: dict[str, dict[str, int]] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return made


def compared(found: Mapping[str, int], wanted: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """A line for each case, and those that take too many instructions."""
    lines, bad = [], []
    for name, number in found.items():
        old = wanted.get(name)
        change = "" if old is None else f"{100 * (number / old - 1):+7.2f} %"
        lines.append(f"{name:12} {number:12,} {change}")
        if old is not None and number > old * (1 + ALARM):
            bad.append(name)
    return lines, bad


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"one of {', '.join(CASES)}; all unless given")
    parser.add_argument("--write", action="store_true", help="store the counts")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.names or list(CASES)
    if options.child:
        child(names)
        return 0
    if shutil.which("valgrind") is None:
        sys.exit(MISSING)
    found, known = count(names), stored()
    lines, bad = compared(found, known.get(key(), {}))
    sys.stdout.write("\n".join([key(), *lines, ""]))
    if options.write:
        known[key()] = known.get(key(), {}) | found
        STORED.write_text(json.dumps(known, indent=1) + "\n")
        return 0
    if key() not in known:
        sys.stdout.write("nothing is stored for these versions: --write\n")
    if bad:
        sys.stdout.write(f"over {100 * ALARM:g} % more: {', '.join(bad)}\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
