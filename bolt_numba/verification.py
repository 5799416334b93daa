"""Compare a model's results with another engine's, tensor by tensor, and name the first that diverges."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bolt_numba.arbitration import AT_ONCE, LAYER_LIMITS, Arbiter, Party, distance, largest
from bolt_numba.base.border import border
from bolt_numba.base.errors import OptionError
from bolt_numba.base.notebook import html_table
from bolt_numba.base.options import options_of, sign
from bolt_numba.base.types import Array, dtype_name
from bolt_numba.ir.graph import Graph
from bolt_numba.ir.sizes import sized
from bolt_numba.judges import Judge, judge_of, said_by
from bolt_numba.ops.arrays.quantize import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from bolt_numba.ops.layers.products.integer_products import QLinearConv, QLinearMatMul
from bolt_numba.peers import Feeds, Model
from bolt_numba.sessions.guesses import model_feeds
from bolt_numba.sessions.loading import load
from bolt_numba.sessions.session import Session

if TYPE_CHECKING:
    from typing import Unpack

    from bolt_numba.base.options import OptionKeywords

RTOL = {"f32": 1e-3, "f16": 5e-3, "bf16": 5e-2}
"""Relative tolerance of each precision.  A layer may round by 0.05 % in float16, by 0.4 % in bfloat16."""
ONE_LEVEL = 1 + 1e-4
"""Levels by which rounding alone may change a quantised tensor, and what floats add."""
INTEGER_MAKERS = (QuantizeLinear, DynamicQuantizeLinear, QLinearConv, QLinearMatMul)
NEARER = 1.05
"""From how many times on one of two is said to be nearer."""
ATOL = 1e-4
"""Absolute tolerance; less of a tensor whose values are all below 1."""


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor compared: max_abs and max_rel are over all elements.

    max_rel is relative to the wanted value or, where that is smaller, to the absolute tolerance.

    kind: ``"output"``, of the session as it is; ``"intermediate"``, of a session that returns it too, which fuses
    less; ``"bisected"``, of a session that returns only it besides the outputs.
    """

    name: str
    kind: str
    ok: bool
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    note: str = ""
    scaled: float = 0.0
    """max_abs over the largest magnitude wanted: the error of a narrow precision."""
    levels: float | None = None
    """max_abs in steps of the tensor's own quantisation; None where it has none."""
    cosine: float = 1.0
    """Of the angle between what is got and what is wanted, as vectors."""
    explained: str = ""
    """Why a tensor is ok although it differs by more than the tolerance."""

    @property
    def verdict(self) -> str:
        """In one word."""
        return "DIFFERS" if not self.ok else "explained" if self.explained else "ok"


@dataclass(slots=True)
class VerifyReport:
    """Every comparison, in the order of computation; ``ok`` when all agree, or rounding explains why they do not."""

    checks: list[TensorCheck]
    against: str
    rtol: float
    atol: float
    precision: str = "f32"
    cause: tuple[str, str] | None = None
    """The first tensor at which one of the two is wrong, and what is, where `bolt_numba.arbitration` found one."""
    float64: tuple[float, float] | None = None
    """Where a tensor differs: what outputs are off from a run in f64, ours and those of the other engine."""

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.checks)

    @property
    def max_abs(self) -> float:
        """Largest absolute difference of an output."""
        return max((c.max_abs for c in self.checks if c.kind == "output"), default=0.0)

    @property
    def error(self) -> float:
        """Largest difference of an output relative to the largest magnitude in it."""
        return max((c.scaled for c in self.checks if c.kind == "output"), default=0.0)

    @property
    def first_divergent(self) -> str | None:
        """Name of the first cause; where none is found, of the first tensor that does not agree."""
        if self.cause is not None:
            return self.cause[0]
        bad = [c for c in self.checks if not c.ok]
        return min(bad, key=lambda c: c.kind == "output").name if bad else None

    @property
    def first_beyond_step(self) -> str | None:
        """Name of the first tensor whose error exceeds its own quantisation step: rounding does not explain it."""
        return next((c.name for c in self.checks if not c.ok and (c.levels or 0) > ONE_LEVEL), None)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        inner = [c.ok for c in self.checks if c.kind == "intermediate"]
        outer = [c.ok for c in self.checks if c.kind == "output"]
        why = Counter(c.explained for c in self.checks if c.explained)
        head = f"{'agrees with' if self.ok else 'DIFFERS from'} {self.against}: "
        head += f"{sum(outer)} of {len(outer)} outputs, {sum(inner)} of {len(inner)} intermediate tensors"
        limits = f"rtol {self.rtol:g}, atol {self.atol:g}"
        worst = f"largest absolute difference of an output {self.max_abs:.3g} ({limits})"
        if self.precision != "f32":
            worst += f"\nerror of {self.precision}: {100 * self.error:.3g} % of the largest value of an output"
        levels = [c.levels for c in self.checks if c.levels is not None]
        if levels:
            worst += f"\nlargest error of a quantised tensor {max(levels):.3g} levels, least cosine of an output "
            worst += f"{min((c.cosine for c in self.checks if c.kind == 'output'), default=1.0):.6f}"
        if self.first_beyond_step is not None:
            worst += f"\nfirst tensor off by more than its quantisation step: {self.first_beyond_step}"
        for reason, count in why.items():
            worst += f"\n{count} differ by more and are no fault: {reason}"
        if self.float64 is not None:
            ours, theirs = self.float64
            more, less = max(ours, theirs), min(ours, theirs)
            who = "ours is" if ours <= theirs else f"{self.against} is"
            times = f" {more / less:.1f} times" if less and np.isfinite(more) else ""
            told = "both are as near to it" if more <= NEARER * less else f"{who}{times} nearer to it"
            worst += f"\nfloat64: {told} (off by {ours:.3g} here, by {theirs:.3g} in {self.against})"
        first = "" if self.first_divergent is None else f"\nfirst divergent tensor: {self.first_divergent}"
        first += "" if self.cause is None else f" ({self.cause[1]})"
        return f"{head}\n{worst}{first}"

    def _repr_html_(self) -> str:
        columns = ("tensor", "kind", "max abs", "of largest", "verdict", "")
        shown = sorted(self.checks, key=lambda c: c.ok)
        rows = [(c.name, c.kind, f"{c.max_abs:.3g}", f"{c.scaled:.3g}", c.verdict, c.note) for c in shown]
        return html_table(str(self).partition("\n")[0], columns, rows, columns[2:4], str(self).partition("\n")[2])

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "against": self.against,
            "rtol": self.rtol,
            "atol": self.atol,
            "precision": self.precision,
            "max_abs": self.max_abs,
            "error": self.error,
            "first_divergent": self.first_divergent,
            "first_beyond_step": self.first_beyond_step,
            "float64": self.float64,
            "tensors": [{f: getattr(c, f) for f in TensorCheck.__slots__} for c in self.checks],
        }


@border("verify", OSError)
def verify(  # budget: each option is one line
    model: Model | Graph,
    against: str | None = None,
    *,
    feeds: Feeds | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    intermediates: bool = True,
    weights: str | os.PathLike[str] | None = None,
    signature: str | None = None,
    **options: Unpack[OptionKeywords],
) -> VerifyReport:
    """Run ``model`` here and elsewhere on the same inputs, and compare every tensor that both can name.

    against: ``"onnxruntime"``, which gets a model of another format as ONNX; ``"reference"``, the naive meaning of the
    operators; ``"cpu"``, our own kernels there, which other devices are held against; ``"litert"``, ``"opencv"``
    (below 5), ``"paddle"`` for their formats; all f32.  None: the engine whose format it is, where that is installed,
    else onnxruntime.  feeds, shapes, seed: as `model_feeds` of
    `bolt_numba.sessions.guesses`.  Floats of outputs agree within ``atol + rtol * |wanted|``; those of a narrower
    precision, and intermediate tensors, whose small elements are often what is left of large terms, within
    ``atol + rtol * max |wanted|``, as do those of quantised models.  Other dtypes agree exactly, but what
    QuantizeLinear gives within a level, with LiteRT two.  What differs by more is computed in float64 of what each
    engine had, and is ok where both are right by that; else ``first_divergent`` is the first that is not.
    rtol: None for what `RTOL` holds for the precision; atol: None for 1e-4, or less where all values of a tensor are
    smaller than 1.  weights, signature, options: as `bolt_numba.compile`.
    Raises BoltError for an unknown engine, and one that does not take the model; ShapeError for shapes,
    OptionError for an option.
    """
    _check_limits(rtol=rtol, atol=atol)
    how = options_of("verify", {"stand_ins": False, **options})  # kernels are what is asked about
    loaded = load(model, weights=weights, signature=signature)
    arrays = model_feeds(loaded, shapes, seed, feeds)
    graph = sized(loaded, {name: np.shape(array) for name, array in arrays.items()})
    session, precision = Session(graph, how), how.precision
    rtol = RTOL[precision] if rtol is None else rtol
    against, judge = judge_of(against, model, graph, arrays, weights)
    comparer = _Comparer(session, against, judge, arrays, graph, rtol, atol, precision)
    checks = comparer.all_of(intermediates)
    if not all(c.ok for c in checks):
        checks = comparer.explained(checks)
    session.close()
    limits = rtol, ATOL if atol is None else atol
    return VerifyReport(checks, against, *limits, precision, comparer.cause, comparer.float64)


sign(verify)


def _check_limits(**limits: Any) -> None:
    for what, given in limits.items():
        if given is not None and not (isinstance(given, (int, float, np.floating)) and given >= 0):
            raise OptionError(f"{what}: got {given!r:.80}, wanted a number from 0")


def _leaves(value: Any) -> Iterator[Array]:
    """Arrays inside a sequence or map, with the keys of maps."""
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _leaves(element)
    elif isinstance(value, dict):
        yield np.array(list(value), object)
        yield np.array(list(value.values()))
    elif value is not None:
        yield np.asarray(value)


def compare_nested(
    name: str, kind: str, got: Any, wanted: Any, rtol: float, atol: float, scaled: bool = False
) -> TensorCheck:
    """A sequence, map or optional against the wanted one: the worst of what is inside."""
    pairs = list(_leaves(got)), list(_leaves(wanted))
    if len(pairs[0]) != len(pairs[1]):
        note = f"got {len(pairs[0])} tensors, wanted {len(pairs[1])}"
        return TensorCheck(name, kind, False, "nested", (len(pairs[0]),), np.inf, np.inf, note)
    both = zip(*pairs, strict=True)
    checks = [compare(name, kind, np.asarray(a, b.dtype), b, rtol, atol, scaled) for a, b in both]
    bad = [c for c in checks if not c.ok]
    worst = max((c.max_abs for c in checks), default=0.0), max((c.max_rel for c in checks), default=0.0)
    error = max((c.scaled for c in checks), default=0.0)
    return TensorCheck(name, kind, not bad, "nested", (len(checks),), *worst, bad[0].note if bad else "", error)


def compare(
    name: str,
    kind: str,
    got: Any,
    wanted: Any,
    rtol: float,
    atol: float,
    scaled: bool = False,
    step: float | None = None,
    levels: int = 1,
) -> TensorCheck:
    """One tensor against the wanted one.  scaled: rtol is relative to the largest magnitude in an output, too.

    step: of the tensor's quantisation; an error of ``levels`` of them is no error.
    """
    if not (isinstance(got, np.ndarray) and isinstance(wanted, np.ndarray)):
        return compare_nested(name, kind, got, wanted, rtol, atol, scaled)
    facts = (name, kind)
    what = (dtype_name(got.dtype), got.shape)
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        note = f"got {what[0]}{list(got.shape)}, wanted {dtype_name(wanted.dtype)}{list(wanted.shape)}"
        return TensorCheck(*facts, False, *what, np.inf, np.inf, note)
    if got.dtype == object or not got.size:
        same = bool(np.array_equal(got, wanted))
        return TensorCheck(*facts, same, *what, 0.0, 0.0, "" if same else "contents differ")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    exact = got.dtype.kind in "iub"
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0))
        scale = rtol * largest if scaled or kind != "output" else 0.0
        close = got == wanted if exact else np.isclose(a, b, rtol, atol + scale, equal_nan=True)
        close |= np.abs(a - b) <= (0.0 if step is None else ONE_LEVEL * levels * step)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.abs(a - b))
        gap = np.where(np.isnan(gap), np.inf, gap)
        relative = gap / np.maximum(np.abs(b), max(atol, 1e-38))
    error = float(gap.max()) / largest if largest else float(np.inf if gap.any() else 0.0)
    bad = int(close.size - np.count_nonzero(close))
    note = f"{bad} of {close.size} elements differ" if bad else ""
    off = None if step is None else float(gap.max()) / step
    worst = float(gap.max()), float(np.nanmax(relative))
    return TensorCheck(*facts, not bad, *what, *worst, note, error, off, cosine(a, b))


def cosine(a: Array, b: Array) -> float:
    """Of the angle between two arrays as vectors: 1 for equal ones, also for zeros; NaN and infinities are left out."""
    finite = np.isfinite(a) & np.isfinite(b)
    x, y = a[finite], b[finite]
    lengths = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / lengths if lengths else float(np.array_equal(x, y))


def steps_of(graph: Graph) -> dict[str, float]:
    """By name of a quantised tensor what a level of it is: 1 of the integers, a scale of the floats made of them."""
    made: dict[str, float] = {}
    for node in graph.nodes:
        scale = node.inputs[1].const if len(node.inputs) > 1 and node.inputs[1] is not None else None
        if isinstance(node.op, INTEGER_MAKERS) and node.outputs[0].type.dtype.kind in "iu":
            made[node.outputs[0].name] = 1.0
        elif isinstance(node.op, DequantizeLinear) and scale is not None and scale.size == 1:
            x = node.inputs[0]
            if x is not None and x.const is None:
                made[node.output.name] = float(scale.reshape(()))
        elif node.outputs[0].type.dtype.itemsize == 1 and any(v is not None and v.name in made for v in node.inputs):
            made[node.outputs[0].name] = 1.0  # bytes that are moved or compared
    outputs = zip(graph.output_names, graph.outputs, strict=True)
    return made | {name: made[value.name] for name, value in outputs if value.name in made}


class _Comparer:
    """Compares tensors of one session with one judge's, and asks why they differ."""

    def __init__(
        self, session: Session, against: str, judge: Judge, feeds: Feeds, graph: Graph, rtol: float,
        atol: float | None, precision: str,
    ) -> None:  # fmt: skip
        self.session, self.judge, self.feeds, self.graph = session, judge, feeds, graph
        self.against, self.rtol, self.atol, self.precision = against, rtol, atol, precision
        self.steps = steps_of(graph)
        self.outputs = [s.name for s in session.outputs]
        self.inner = _inner_names(graph, judge.names() - set(self.outputs))
        self.finals: dict[str, Any] = {}
        self.cause: tuple[str, str] | None = None
        self.float64: tuple[float, float] | None = None

    def all_of(self, intermediates: bool) -> list[TensorCheck]:
        """Intermediate tensors, if wanted, then the outputs of the session as it is."""
        checks: list[TensorCheck] = []
        self.finals = dict(zip(self.outputs, self.session.run(None, self.feeds), strict=True))  # it checks feeds best
        wanted = self._theirs(self.outputs)
        finals = [self._check(name, "output", got, wanted[name]) for name, got in self.finals.items()]
        for start in range(0, len(self.inner) if intermediates else 0, AT_ONCE):
            checks += self._checks(self.inner[start : start + AT_ONCE], "intermediate")
        return checks + finals

    def explained(self, checks: list[TensorCheck]) -> list[TensorCheck]:
        """The checks, of which some are ok after all, or follow from others; and what bisection finds."""
        ours = Party("ours", self._ours, min(self.rtol, LAYER_LIMITS[self.precision]), ONE_LEVEL)
        other = Party(self.against, self._theirs, min(self.rtol, LAYER_LIMITS["f32"]), ONE_LEVEL * self.judge.levels)
        arbiter = Arbiter(self.graph, self.feeds, (ours, other), self.steps)
        arbiter.look_at(self.inner, self.outputs)
        settled, follows = self._settled(arbiter), arbiter.follows()
        made = []
        for c in checks:
            cause = follows.get(c.name)
            if not c.ok and cause is not None:
                note = "first cause" if cause == c.name else f"follows from {cause}"
                self.cause = self.cause or (cause, arbiter.causes[cause])
                made.append(replace(c, note=f"{c.note}; {note}"))
            elif not c.ok and (c.kind != "output" or c.name in settled):
                made.append(replace(c, ok=True, explained=arbiter.reason(c.name)))
            else:
                made.append(c)
        if self.cause is None and not all(c.ok for c in made):
            at = len(made) - len(self.outputs)
            made[at:at] = self._bisect([c.name for c in checks if c.ok and c.kind == "intermediate"])
        return made

    def _settled(self, arbiter: Arbiter) -> set[str]:
        """Outputs that are as they should be: those of f64, or of the session that gives other tensors, too."""
        theirs, settled = self._theirs(self.outputs), set()
        off = [0.0, 0.0]
        for name, (exact, rough) in arbiter.of_inputs(self.outputs).items():
            both = self.finals[name], theirs[name]
            off = [max(o, distance(got, exact)) for o, got in zip(off, both, strict=True)]
            pairs = zip(arbiter.engines, both, strict=True)
            is_right = all(arbiter.is_right(e, name, got, exact, rough) for e, got in pairs)
            if is_right or arbiter.is_drawn(name) or self._check(name, "output", both[0], arbiter.ours[name]).ok:
                settled.add(name)
        self.float64 = off[0], off[1]
        return settled

    def _bisect(self, names: Sequence[str]) -> list[TensorCheck]:
        """Find the first that differs when it alone is returned beside the outputs.

        Assumes that what follows a wrong tensor is wrong.  An empty list when none differs that way.
        """
        low, high = 0, len(names)
        found: list[TensorCheck] = []
        while low < high:
            middle = (low + high) // 2
            check = self._checks([names[middle]], "bisected")[0]
            if check.ok:
                low = middle + 1
            else:
                high, found = middle, [check]
        return found

    def _ours(self, names: Sequence[str]) -> dict[str, Any]:
        self.session.reset_state()  # the judge begins anew, too
        return dict(zip(names, self.session.run(list(names), self.feeds), strict=True))

    def _theirs(self, names: Sequence[str]) -> dict[str, Any]:
        with said_by(self.against):
            return self.judge.values(names)

    def _checks(self, names: Sequence[str], kind: str) -> list[TensorCheck]:
        wanted = self._theirs(names)
        return [self._check(name, kind, got, wanted[name]) for name, got in self._ours(names).items()]

    def _check(self, name: str, kind: str, got: Any, wanted: Any) -> TensorCheck:
        atol = ATOL * min(1.0, largest(wanted)) if self.atol is None else self.atol
        scaled = self.precision != "f32" or bool(self.steps)
        return compare(name, kind, got, wanted, self.rtol, atol, scaled, self.steps.get(name), self.judge.levels)


def _inner_names(graph: Graph, known: set[str]) -> list[str]:
    results = itertools.chain.from_iterable(node.outputs for node in graph.nodes)
    return [v.name for v in results if v.name in known]
