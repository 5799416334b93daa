"""Control flow of old programs in the form that readers take.

An operation with a block holds it, and its results are the names that the block gives to what is outside.  What
`paddle.static.nn.cond` writes, two conditional blocks and a select_input for each result, becomes one operation
``if_else``.  Its attributes ``then`` and ``otherwise`` are the names that its blocks give to the results.
"""

from __future__ import annotations

from typing import Any

from bolt_numba.converters.paddle.reading.program import Operation, PaddleProgram, Slots
from bolt_numba.errors import InvalidModelError

CONDITIONAL = ("conditional_block", "conditional_block_infer")


def add_structure(program: PaddleProgram, what: str) -> None:
    """Rewrite all blocks.  Raises InvalidModelError for blocks that are not there, or hold themselves."""
    for place in reversed(range(len(program.blocks))):
        block = program.blocks[place]
        for operation in block.operations:
            _take_block(operation, program, place, what)
        block.operations = _joined(block.operations)
        for operation in block.operations:
            if operation.type == "while" or operation.type in CONDITIONAL:
                _name_results(operation, what)


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


def _joined(operations: list[Operation]) -> list[Operation]:
    """Conditional blocks whose results meet in select_input become one operation, where the second of them stood."""
    producers = {name: o for o in operations for name in o.writes}
    pairs: dict[tuple[int, int], list[tuple[Operation, Operation, Operation]]] = {}
    for operation in operations:
        found = _branches(operation, producers)
        if found is not None:
            pairs.setdefault((id(found[0]), id(found[1])), []).append((operation, *found))
    gone = {id(o) for group in pairs.values() for row in group for o in row}
    made = {id(_later(group[0][1:], operations)): _if_else(group) for group in pairs.values()}
    return [made.get(id(o), o) for o in operations if id(o) in made or id(o) not in gone]


def _later(pair: tuple[Operation, ...], operations: list[Operation]) -> Operation:
    return max(pair, key=lambda o: next(i for i, other in enumerate(operations) if other is o))


def _branches(operation: Operation, producers: dict[str, Operation]) -> tuple[Operation, Operation] | None:
    """The blocks for true and for false whose results a select_input takes, where it is one of their pair."""
    if operation.type != "select_input":
        return None
    slots = dict(operation.inputs)
    choices, mask = slots.get("X", ()), slots.get("Mask", ())
    if len(choices) != 2 or len(mask) != 1:
        return None
    no, yes = (producers.get(name) for name in choices)
    cast = producers.get(mask[0])
    if no is None or yes is None or cast is None or cast.type != "cast":
        return None
    if any(o.type not in CONDITIONAL or not o.attributes.get("is_scalar_condition") for o in (yes, no)):
        return None
    flip = producers.get(_only(no, "Cond"))
    is_pair = flip is not None and flip.type == "logical_not" and _only(flip, "X") == _only(yes, "Cond")
    return (yes, no) if is_pair and _only(cast, "X") == _only(yes, "Cond") else None


def _only(operation: Operation, slot: str) -> str:
    names = dict(operation.inputs).get(slot, ())
    return names[0] if len(names) == 1 else ""


def _if_else(group: list[tuple[Operation, Operation, Operation]]) -> Operation:
    _, yes, no = group[0]
    results = [next(o.writes) for o, _, _ in group]
    choices = [dict(o.inputs)["X"] for o, _, _ in group]
    attributes: dict[str, Any] = {"then": tuple(c[1] for c in choices), "otherwise": tuple(c[0] for c in choices)}
    inputs: Slots = [("Cond", (_only(yes, "Cond"),))]
    return Operation("if_else", inputs, [("Out", tuple(results))], attributes, blocks=(yes.blocks[0], no.blocks[0]))
