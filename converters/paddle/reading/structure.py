"""Control flow of old programs in the form that readers take.

An operation with a block holds it, and its results are the names that the block gives to what is outside.  What
select_input chooses by one condition becomes one operation ``if_else``: `paddle.static.nn.cond` writes conditional
blocks and a select_input for each result.  A choice is what a block gives or, as where one branch alone assigns a name,
what stands outside.  Attributes ``then`` and ``otherwise`` are the names that the two blocks give to the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.paddle.reading.program import Operation, PaddleBlock, PaddleProgram, Slots

CONDITIONAL = ("conditional_block", "conditional_block_infer")
SPAN = 1024
"""Operations from a conditional block to its last select_input beyond which these stay as they are."""
Truth: TypeAlias = "tuple[str, Operation | None]"
"""A condition: its name, and what wrote it last."""


def add_structure(program: PaddleProgram, what: str) -> None:
    """Rewrite all blocks.  Raises InvalidModelError for blocks that are not there, or hold themselves."""
    readers = Counter(name for block in program.blocks for o in block.operations for name in set(o.reads))
    readers.update(name for _, name in program.fetches)
    for place in reversed(range(len(program.blocks))):
        block = program.blocks[place]
        for operation in block.operations:
            _take_block(operation, program, place, what)
            if operation.type == "while" or operation.type in CONDITIONAL:
                _name_results(operation, what)
        block.operations = _joined(block.operations, readers)


def _take_block(operation: Operation, program: PaddleProgram, place: int, what: str) -> None:
    """Give an operation its block, which stands behind the one that holds the operation: none is circular."""
    if "sub_block" not in operation.attributes:
        return
    number = operation.attributes.pop("sub_block")
    last = len(program.blocks) - 1
    if not isinstance(number, int) or not place < number <= last:
        raise InvalidModelError(f"{what}: {operation.type}: sub_block: got {number}, wanted {place + 1} to {last}")
    operation.blocks = (program.blocks[number],)


def _name_results(operation: Operation, what: str) -> None:
    """Have an operation read its condition alone, and give what its block writes to names outside."""
    slot = "Condition" if operation.type == "while" else "Cond"
    if not operation.blocks or not _only(operation, slot):
        raise InvalidModelError(f"{what}: {operation.type}: got no block or no condition, wanted one each")
    (block,) = operation.blocks
    names = dict.fromkeys(name for inner in block.operations for name in inner.writes)
    operation.inputs = [(slot, (_only(operation, slot),))]
    operation.outputs = [("Out", tuple(name for name in names if name not in block.variables))]


def _only(operation: Operation, slot: str) -> str:
    names = dict(operation.inputs).get(slot, ())
    return names[0] if len(names) == 1 else ""


def _joined(operations: list[Operation], readers: Counter[str]) -> list[Operation]:
    """The operations with one for each choice, where its first select_input stood.  readers: how many a name has."""
    places = {id(o): i for i, o in enumerate(operations)}
    made: dict[int, Operation] = {}
    gone: set[int] = set()
    for choice in _choices(operations):
        if choice.may_be_joined(operations, places, readers):
            made[id(choice.selects[0])] = choice.joined()
            gone.update(id(o) for o in (*choice.selects, *choice.conditionals))
    return [made.get(id(o), o) for o in operations if id(o) in made or id(o) not in gone]


class _Condition:
    """What one condition decides.

    selects: operations select_input.  branches: conditional blocks for true and for false, None where there is none.
    outside: names among the choices that neither gives.
    """

    def __init__(self, cond: str) -> None:
        self.cond = cond
        self.selects: list[Operation] = []
        self.branches: list[Operation | None] = [None, None]
        self.outside: set[str] = set()

    @property
    def conditionals(self) -> list[Operation]:
        return [o for o in self.branches if o is not None]

    def takes(self, select: Operation, branches: Sequence[Operation | None]) -> bool:
        """Add a select_input, unless it chooses from other blocks than those before it."""
        both = list(zip(self.branches, branches, strict=True))
        if any(a is not None and b is not None and a is not b for a, b in both):
            return False
        self.branches = [b if a is None else a for a, b in both]
        self.selects.append(select)
        pairs = zip(_choices_of(select), branches, strict=True)
        self.outside.update(name for name, branch in pairs if branch is None)
        return True

    def may_be_joined(self, operations: Sequence[Operation], places: dict[int, int], readers: Counter[str]) -> bool:
        """Whether all may run where the first select_input stands, and nobody else reads what the blocks give."""
        first, last = places[id(self.selects[0])], places[id(self.selects[-1])]
        starts = [places[id(o)] for o in self.conditionals]
        if not starts or max(starts) > first or last - min(starts) > SPAN:
            return False
        chosen = Counter(name for o in self.selects for name in set(_choices_of(o)))
        given = {name for o in self.conditionals for name in o.writes}
        own = given.union(*(block.variables for o in self.conditionals for block in o.blocks))
        late = {name for o in operations[first:last] for name in o.writes}
        return (
            all(readers[name] == chosen[name] for name in given)
            and all(self._may_wait(o, operations[places[id(o)] + 1 : first]) for o in self.conditionals)
            and late.isdisjoint(given | self.outside)
            and own.isdisjoint(self.outside)
        )

    def _may_wait(self, conditional: Operation, others: Sequence[Operation]) -> bool:
        """Whether a conditional block may run behind others."""
        touched = set(conditional.writes).union(*map(_touched, conditional.blocks))
        return touched.isdisjoint(name for o in others if o not in self.conditionals for name in o.writes)

    def joined(self) -> Operation:
        yes, no = (PaddleBlock([]) if o is None else o.blocks[0] for o in self.branches)
        then, otherwise = zip(*map(_choices_of, self.selects), strict=True)
        attributes: dict[str, Any] = {"then": then, "otherwise": otherwise}
        results: Slots = [("Out", tuple(next(o.writes) for o in self.selects))]
        return Operation("if_else", [("Cond", (self.cond,))], results, attributes, blocks=(yes, no))


def _choices(operations: Sequence[Operation]) -> list[_Condition]:
    """What the masks of select_input decide, which are casts of conditions."""
    writers: dict[str, Operation] = {}
    asked: dict[int, Truth] = {}
    last: dict[Truth, _Condition] = {}
    found: list[_Condition] = []
    for operation in operations:
        name = _only(operation, "Cond" if operation.type in CONDITIONAL else "X")
        asked[id(operation)] = name, writers.get(name)
        cast = writers.get(_only(operation, "Mask"))
        if operation.type == "select_input" and cast is not None and cast.type == "cast" and _choices_of(operation):
            truth = asked[id(cast)]
            pairs = zip(map(writers.get, _choices_of(operation)), (True, False), strict=True)
            branches = [o if _runs(o, truth, asked, value) else None for o, value in pairs]
            is_known = bool(truth[0]) and writers.get(truth[0]) is truth[1]
            if is_known and not (truth in last and last[truth].takes(operation, branches)):
                last[truth] = _Condition(truth[0])
                last[truth].takes(operation, branches)
                found.append(last[truth])
        writers.update(dict.fromkeys(operation.writes, operation))
    return found


def _choices_of(select: Operation) -> tuple[str, ...]:
    """Names that a select_input chooses for true and for false; none where it is not one of two."""
    names = dict(select.inputs).get("X", ())
    return names[::-1] if len(names) == 2 and any(select.writes) else ()


def _runs(operation: Operation | None, truth: Truth, asked: dict[int, Truth], value: bool) -> bool:
    """Whether an operation is a conditional block that runs where a condition has a value."""
    if operation is None or operation.type not in CONDITIONAL or not operation.attributes.get("is_scalar_condition"):
        return False
    own = asked[id(operation)]
    if value:
        return own == truth
    flip = own[1]
    return flip is not None and flip.type == "logical_not" and asked[id(flip)] == truth


def _touched(block: PaddleBlock) -> Iterator[str]:
    """Names that the operations of a block read and write."""
    for operation in block.operations:
        yield from operation.reads
        yield from operation.writes
        for names in ("then", "otherwise") if operation.type == "if_else" else ():
            yield from operation.attributes[names]
        for inner in operation.blocks:
            yield from _touched(inner)
