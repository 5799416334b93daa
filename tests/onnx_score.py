"""Score of bolt-numba on the public ONNX backend suite, which ships inside the ``onnx`` package.

    python tests/onnx_score.py [--include REGEX] [--require total=1000] [--json FILE] [--list]

Every test runs once, in a worker process that is killed and replaced when it crashes or exceeds its time.  Inside
the workers other engines, and the reference evaluator of ``onnx``, cannot be imported.  A test that raises
NotImplementedError counts as *unsupported*, never as passed.  Pytest collects nothing here.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

CATEGORIES = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
STATES = ("passed", "failed", "error", "unsupported", "timeout", "crash")
ENGINES = ("onnxruntime", "openvino", "torch", "tensorflow", "cv2", "paddle", "ai_edge_litert", "jax")
LIGHT_TOLERANCE = 1e-3
"""Relative, where the suite's data.json says nothing."""


@dataclass
class Result:
    category: str
    name: str
    state: str
    detail: str
    seconds: float


@dataclass
class Case:
    """One test: a model, tolerances, and pairs of inputs and expected outputs, made when asked for."""

    category: str
    name: str
    rtol: float
    atol: float
    load: Callable[[], tuple[Any, list[tuple[list[Any], list[Any]]]]]


# --- the suite -------------------------------------------------------------------------------------------------------


def suite() -> list[Case]:
    """All cases in a fixed order."""
    from onnx.backend.test.loader import load_model_tests

    cases = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for category in CATEGORIES[:-1]:
            found = [Case(category, t.name, t.rtol, t.atol, _loader(t)) for t in load_model_tests(kind=category)]
            cases += sorted(found, key=lambda case: case.name)
    return cases + _light_cases()


def _loader(test: Any) -> Callable[[], tuple[Any, list[tuple[list[Any], list[Any]]]]]:
    def load() -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
        import onnx

        if test.model is not None:
            return test.model, [(_plain(xs), _plain(ys)) for xs, ys in test.data_sets]
        folder = Path(test.model_dir)
        model = onnx.load(folder / "model.onnx")
        sets = sorted(folder.glob("test_data_set_*"))
        return model, [(_stored(s, "input", model.graph.input), _stored(s, "output", model.graph.output)) for s in sets]

    return load


def _plain(values: Iterable[Any]) -> list[Any]:
    import onnx

    return [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def _stored(folder: Path, stem: str, infos: Sequence[Any]) -> list[Any]:
    """Values of one data set; the declared type tells which message a file holds."""
    import onnx
    from onnx import numpy_helper

    readers: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
        "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
    }
    values = []
    for i in range(len(list(folder.glob(f"{stem}_*.pb")))):
        message, convert = readers[infos[i].type.WhichOneof("value")]
        values.append(convert(message.FromString((folder / f"{stem}_{i}.pb").read_bytes())))
    return values


def _light_cases() -> list[Case]:
    import onnx.backend.test

    data = Path(onnx.backend.test.__file__).parent / "data"
    cases = []
    for described in sorted((data / "real").glob("*/data.json")):
        facts = json.loads(described.read_text(encoding="utf-8"))
        path = data / "light" / str(facts["url"]).rpartition("/")[2]
        if path.is_file():
            rtol, atol = facts.get("rtol", LIGHT_TOLERANCE), facts.get("atol", 1e-7)
            cases.append(Case("light", described.parent.name, rtol, atol, _light_loader(path)))
    return cases


def _light_loader(path: Path) -> Callable[[], tuple[Any, list[tuple[list[Any], list[Any]]]]]:
    """Inputs are a ramp from 0 to 1, as the suite defines for these models."""

    def load() -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
        import numpy as np
        import onnx

        model = onnx.load(path)
        held = {t.name for t in model.graph.initializer}
        inputs = []
        for info in model.graph.input:
            if info.name not in held:
                shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
                count = int(np.prod(shape))
                inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
        outputs = [
            onnx.numpy_helper.to_array(
                onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_{i}.pb").read_bytes())
            )
            for i in range(len(model.graph.output))
        ]
        return model, [(inputs, outputs)]

    return load


# --- the worker ------------------------------------------------------------------------------------------------------


class Refuse:
    """Finder that lets nobody import another engine."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in ENGINES:
            raise ImportError(f"{name} may not be used while scoring")


def forbid_engines() -> None:
    """Make other engines and the reference evaluator unusable in this process."""
    import onnx.reference
    from onnx.reference.op_run import OpRun

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("onnx.reference may not be used while scoring")

    for owner in (onnx.reference.ReferenceEvaluator, OpRun):
        owner.__init__ = refuse  # type: ignore[assignment,method-assign]
    for name in [m for m in sys.modules if m.partition(".")[0] in ENGINES]:
        del sys.modules[name]
    sys.meta_path.insert(0, Refuse())


def work(link: Connection, verbose: bool) -> None:
    """Answer case numbers with (number, state, detail, seconds) until told to stop."""
    if not verbose:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
    warnings.simplefilter("ignore")
    cases = suite()
    forbid_engines()
    from bolt_numba.onnx_backend import Backend

    link.send([(case.category, case.name) for case in cases])
    while (number := link.recv()) is not None:
        start = time.perf_counter()
        state, detail = judge(cases[number], Backend)
        link.send((number, state, detail, time.perf_counter() - start))


def judge(case: Case, backend: Any) -> tuple[str, str]:
    """State and detail of one case, compared as the suite's own runner compares."""
    from onnx.backend.test.runner import Runner

    stage = "load"
    try:
        model, sets = case.load()
        stage = "prepare"
        prepared = backend.prepare(model, "CPU")
        for inputs, wanted in sets:
            stage = "run"
            got = list(prepared.run(inputs))
            stage = "compare"
            Runner.assert_similar_outputs(wanted, got, rtol=case.rtol, atol=case.atol, model_dir=case.name)
    except NotImplementedError as error:
        return "unsupported", _told(stage, error)
    except Exception as error:  # whatever a test raises is its result
        return "failed" if stage == "compare" else "error", _told(stage, error)
    return "passed", ""


def _told(stage: str, error: Exception) -> str:
    return f"{stage}: {type(error).__name__}: {' '.join(str(error).split())}"[:500]


# --- the parent ------------------------------------------------------------------------------------------------------


class Worker:
    """A process that runs one case at a time, and what it is doing."""

    def __init__(self, verbose: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, verbose), daemon=True)
        self.process.start()
        other.close()
        self.names: list[tuple[str, str]] = self.link.recv()
        self.number: int | None = None
        self.started = 0.0

    def give(self, number: int) -> None:
        self.number, self.started = number, time.perf_counter()
        self.link.send(number)

    def end(self) -> str:
        """Stop the process; how it had ended by itself, if it had."""
        self.process.join(0.5)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.link.close()
        return f"exit code {code}"


def run(args: argparse.Namespace) -> list[Result]:
    """Run the chosen cases on all workers."""
    workers = [Worker(args.verbose)]
    names = workers[0].names
    chosen = [i for i, name in enumerate(names) if _wanted("/".join(name), args)]
    workers += [Worker(args.verbose) for _ in range(min(args.workers, len(chosen)) - 1)]
    queue, results = collections.deque(chosen), []
    while queue or any(w.number is not None for w in workers):
        for worker in workers:
            if worker.number is None and queue:
                worker.give(queue.popleft())
        ready = wait([w.link for w in workers if w.number is not None], timeout=0.5)
        for i, worker in enumerate(workers):
            if worker.number is None:
                continue
            late = time.perf_counter() - worker.started > args.timeout
            if worker.link not in ready and not late:
                continue
            result, alive = _outcome(worker, worker.link in ready, args.timeout)
            results.append(Result(*names[worker.number], *result))
            worker.number = None
            if not alive:
                workers[i] = Worker(args.verbose)
    for worker in workers:
        worker.link.send(None)
        worker.end()
    return results


def _outcome(worker: Worker, ready: bool, limit: float) -> tuple[tuple[str, str, float], bool]:
    """State, detail and seconds of the case a worker had, and whether the worker goes on."""
    if not ready:
        worker.end()
        return ("timeout", f"over {limit:g} s", limit), False
    try:
        _, state, detail, seconds = worker.link.recv()
    except (EOFError, OSError):
        return ("crash", worker.end(), time.perf_counter() - worker.started), False
    return (state, detail, seconds), True


def _wanted(name: str, args: argparse.Namespace) -> bool:
    return not (args.include and not re.search(args.include, name)) and not (
        args.exclude and re.search(args.exclude, name)
    )


def report(results: Sequence[Result], wall: float, listed: bool) -> str:
    """The table of states by category, and the score as its last line."""
    lines = []
    if listed:
        bad = [r for r in results if r.state != "passed"]
        lines += [f"{r.state:<12}{r.category}/{r.name}: {r.detail}" for r in sorted(bad, key=lambda r: r.name)]
    counts = {c: collections.Counter(r.state for r in results if r.category == c) for c in CATEGORIES}
    lines.append(f"{'category':<20}{'tests':>7}" + "".join(f"{state:>13}" for state in STATES))
    for category, count in counts.items():
        row = "".join(f"{count[state]:>13}" for state in STATES)
        lines.append(f"{category:<20}{count.total():>7}{row}")
    lines.append(f"{wall:.0f} s")
    score = [f"{c} {count['passed']}/{count.total()}" for c, count in counts.items()]
    passed = sum(count["passed"] for count in counts.values())
    return "\n".join([*lines, " ".join([*score, f"total {passed}/{len(results)}"])]) + "\n"


def short_of(results: Sequence[Result], required: Sequence[str]) -> list[str]:
    """Requirements CATEGORY=N, or total=N, that the results do not meet."""
    passed = collections.Counter(r.category for r in results if r.state == "passed")
    passed["total"] = passed.total()
    return [r for r in required if passed[r.partition("=")[0]] < int(r.partition("=")[2])]


def listed(page: str) -> set[str]:
    """Tests that a page lists in the first column of a table, as ``category/name``."""
    return set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))


def unexpected(results: Sequence[Result], expected: set[str]) -> list[str]:
    """A line for each test that failed and should not, or the other way round."""
    failed = {f"{r.category}/{r.name}": r.state for r in results if r.state != "passed"}
    ran = {f"{r.category}/{r.name}" for r in results}
    lines = [f"unexpected: {name} {failed[name]}" for name in sorted(failed.keys() - expected)]
    return lines + [f"unexpected: {name} passed" for name in sorted(ran & expected - failed.keys())]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--include", help="only tests whose category/name matches this regular expression")
    parser.add_argument("--exclude", help="no test whose category/name matches this regular expression")
    parser.add_argument("--require", action="append", default=[], metavar="CATEGORY=N", help="exit 1 below N passes")
    parser.add_argument("--expect", type=Path, metavar="PAGE", help="exit 1 unless exactly the tests listed there fail")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--list", action="store_true", help="name every test that did not pass")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a test may take (60)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--verbose", action="store_true", help="let the workers' own output through")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    start = time.perf_counter()
    results = run(args)
    sys.stdout.write(report(results, time.perf_counter() - start, args.list))
    if args.json:
        rows = [asdict(r) for r in sorted(results, key=lambda r: (r.category, r.name))]
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = short_of(results, args.require)
    for requirement in missed:
        sys.stdout.write(f"not met: {requirement}\n")
    wrong = unexpected(results, listed(args.expect.read_text(encoding="utf-8"))) if args.expect else []
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return int(bool(missed or wrong))


if __name__ == "__main__":
    sys.exit(main())
