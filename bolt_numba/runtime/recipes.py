"""How a node is planned as a function of its sizes: what one plan decided serves all shapes that decide alike.

A node's types, kernel and steps are worked out once with followed sizes (`bolt_numba.base.follow`).  What is left of
that is a `Recipe`: text that computes them anew from the shapes of the operands, and gives None where inference, a
maker or the gate would have decided otherwise.  Nodes alike but for their sizes share recipes, one for each way to
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from bolt_numba.base.follow import PLAIN, TABLES, Followed, LostError, Trail
from bolt_numba.base.records import record
from bolt_numba.base.swallowed import swallowed
from bolt_numba.ir.graph import Node
from bolt_numba.kernels.compiles import LackingError
from bolt_numba.kernels.registry import KEYED_ELEMENTS, Argument, In, Out, Record, Scratch, Step, checked_step
from bolt_numba.runtime.choices import Selection
from bolt_numba.runtime.slots import Slot
from bolt_numba.types import STRING, Sym, TensorType

MOST = 8
"""Tries to make recipes for nodes alike, each for another way to decide."""

Made = tuple[tuple[TensorType, ...], int, int, "Callable[[], list[Step]] | None"]
"""Types of the results, their bytes, those of workspace, and what gives the steps."""


@record(eq=False)
class Recipe:
    """One way to plan nodes alike.

    make: shapes of the operands that are no constants to `Made`, or None.  how: the rest of what was decided, but no
    steps; None: nothing runs.
    """

    make: Callable[..., Made | None]
    how: Selection | None


@record(eq=False)
class Kind:
    """Nodes alike but for their sizes.

    misses: times that no recipe fitted.  tries: to make one, in vain or not.  is_private: whether something was decided
    by what a node's weights hold.
    """

    recipes: list[Recipe] = field(default_factory=list)
    misses: int = 0
    tries: int = 0
    is_private: bool = False

    def is_due(self) -> bool:
        """Whether to try another recipe, now that none fits: that costs as much as some ten nodes planned."""
        self.misses += 1
        if self.tries >= MOST or self.misses < 1 << self.tries:
            return False
        self.tries += 1
        return True


@record(eq=False)
class Form:
    """What a node's recipes are given.

    open: operands that are no constants.  shapes: theirs, with None for what may differ from plan to plan.
    """

    kind: Kind
    open: tuple[int, ...]
    shapes: tuple[tuple[int | None, ...], ...]
    own: Kind = field(default_factory=Kind)

    @property
    def recipes(self) -> list[Recipe]:
        return (self.own if self.kind.is_private else self.kind).recipes


def forms_of(nodes: Sequence[Node], numbers: dict[int, int], aliased: set[int]) -> dict[int, Form]:
    """By ``id`` of a node: its form, where it has sizes that may differ.

    numbers: of operators, as `number_operators` gives them; aliased: ids of values that stand for others.
    """
    kinds: dict[Hashable, Kind] = {}
    forms: dict[int, Form] = {}
    for node in nodes:
        number = numbers.get(id(node.op))
        if number is None or node.op.bounds or any(id(v) in aliased for v in node.operands):
            continue
        parts: list[Hashable] = [number]
        open_at, shapes = [], []
        for i, value in enumerate(node.operands):
            if value is None:
                parts.append(None)
            elif value.const is not None:
                small = value.const.tobytes() if value.const.size <= KEYED_ELEMENTS else True
                parts.append((value.const.dtype, value.const.shape, small))
            elif value.type.shape is None:
                break
            else:
                shape = tuple([None if isinstance(d, Sym) else d for d in value.type.shape])
                parts.append((value.type.dtype, shape))
                open_at.append(i)
                shapes.append(shape)
        else:
            if any(None in shape for shape in shapes):
                kind = kinds.setdefault(tuple(parts), Kind())
                forms[id(node)] = Form(kind, tuple(open_at), tuple(shapes))
    return forms


def made_before(form: Form, ins: Sequence[Slot | None]) -> tuple[Recipe, Made] | None:
    """What the first recipe gives that fits; None where none does."""
    recipes = form.recipes
    if not recipes:
        return None
    shapes = []
    for i in form.open:
        t = ins[i].type  # type: ignore[union-attr]
        if t.value is not None:
            return None
        shapes.append(t.shape)
    for recipe in recipes:
        try:
            made = recipe.make(*shapes)
        except Exception as error:  # what it computes may end in one before it comes to what decides otherwise
            swallowed("recipe", error, ArithmeticError, ValueError)
            continue
        if made is not None:
            return recipe, made
    return None


Choose = Callable[["list[TensorType | None]"], "tuple[tuple[TensorType, ...], Selection | None]"]
"""Plans a node for operand types: types of its results, and how."""


def learn(form: Form, ins: Sequence[Slot | None], choose: Choose) -> Recipe | None:
    """A recipe from the way in which a node is planned now; None where it cannot be followed."""
    kind = form.own if form.kind.is_private else form.kind
    if not kind.is_due():
        return None
    trail, types = Trail(), [None if s is None else s.type for s in ins]
    head = [f"def made({', '.join(f's{i}' for i in form.open)}):\n"]
    for i, shape in zip(form.open, form.shapes, strict=True):
        t = types[i]
        if t is None or t.value is not None or len(t.dims) != len(shape):
            return None
        names = [f"v{i}_{axis}" for axis in range(len(shape))]
        rows = zip(names, t.dims, shape, strict=True)
        types[i] = t.with_shape([d if fixed is not None else trail.number(name, d) for name, d, fixed in rows])
        head.append(f"    if len(s{i}) != {len(shape)}: return None\n")
        if names:
            head.append(f"    {', '.join(names)}, = s{i}\n")
        for name, fixed in zip(names, shape, strict=True):
            if fixed is not None:
                head.append(f"    if {name} != {fixed}: return None\n")
    try:
        results, how = choose(types)
        recipe = _written(trail, "".join(head), results, how)
    except LackingError:
        kind.tries -= 1
        raise
    except (LostError, Exception) as error:  # the ordinary way says what is wrong with the node, if anything is
        swallowed("recipe", error, LostError)
        return None
    if how is not None and (how.looked or how.exact):
        form.kind.is_private, kind = True, form.own
    kind.recipes.append(recipe)
    return recipe


def _written(trail: Trail, head: str, types: tuple[TensorType, ...], how: Selection | None) -> Recipe:
    """The recipe of a trail that ends in these results and steps."""
    made = ", ".join([f"{trail.constant(TensorType)}({trail.constant(t.dtype)}, {trail.text(t.dims)})" for t in types])
    nbytes, workspace, steps = trail.text(sum([t.nbytes for t in types])), "0", "None"
    if how is not None and how.steps is not None:
        writer = _Steps(trail)
        steps = f"lambda: [{', '.join([writer.step(step) for step in how.steps])}]"
        workspace = trail.text(sum([s.nbytes for s in writer.scratch.values()]))
    if how is not None:
        how = replace(how, types=(), steps=None)
    return Recipe(trail.function(head, f"(({made},), {nbytes}, {workspace}, {steps})"), how)


class _Steps:
    """Writes steps as text."""

    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.scratch: dict[int, Scratch] = {}
        self._names: dict[int, str] = {}

    def step(self, step: Step) -> str:
        text = self.trail.constant
        rest = f"'parallel': {self.trail.text(step.parallel)}, 'in_bands': {self.trail.text(step.in_bands)}"
        return f"{text(checked_step)}({{'kernel': {text(step.kernel)}, 'args': {self._args(step.args)}, {rest}}})"

    def _args(self, args: Mapping[str, Argument]) -> str:
        return f"{{{', '.join([f'{name!r}: {self._arg(arg)}' for name, arg in args.items()])}}}"

    def _arg(self, arg: Any) -> str:
        trail, kind = self.trail, type(arg)
        if kind is Scratch:
            if id(arg) not in self._names:
                self.scratch[id(arg)] = arg
                made = trail.constant(arg) if type(arg.nbytes) is int else self._line(Scratch, arg.nbytes)
                self._names[id(arg)] = made
            return self._names[id(arg)]
        if kind in (In, Out) and type(arg.offset) is Followed:
            return f"{trail.constant(kind)}({arg.index}, {trail.text(arg.offset)})"
        if kind is Record:
            return f"{trail.constant(Record)}({trail.constant(arg.kernel)}, {self._args(arg.args)})"
        if kind is Followed or kind in PLAIN or kind in TABLES:
            return trail.text(arg)
        if isinstance(arg, np.ndarray) and arg.dtype == STRING:
            raise LostError("an array of objects")
        return trail.constant(arg)

    def _line(self, kind: Any, *args: Any) -> str:
        """A line of its own for what has to be one object wherever it is named."""
        name = f"v{len(self.trail.lines)}"
        self.trail.lines.append((name, f"{self.trail.constant(kind)}({', '.join(map(self.trail.text, args))})"))
        return name
