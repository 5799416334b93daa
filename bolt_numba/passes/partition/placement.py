r"""What a user wants where: lines that name nodes, by operator and tensors or by name, and a device for them.

    # one or several on a line, joined by "-": these nodes stay with us
    Softmax
    Conv:image,weight:conv1_out - MaxPool::pool1_out
    node:encoder/layer_1*
    # what a device is to have, whatever its size and cost, if it supports it
    node:*attention* -> simnpu

The first form is ``operator[:inputs[:outputs]]``, which names some of the tensors that a node reads and writes; none
stand for any.  It is Paddle Lite's, whose files are read as they are.  A backslash takes a character for itself, where
a name holds one of ``- : , # > \`` or a blank at an end.  The last line that fits a node holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate

from bolt_numba.base.errors import BoltError
from bolt_numba.base.records import record
from bolt_numba.ir.graph import Node

STAYS = ("off", "cpu", "host")
"""Targets of a line that mean that nodes stay with us."""
BY_NAME = "node:"
"""What a line begins with that is a pattern of names to its end."""
_PIECES = re.compile(r"\\.|->|.", re.DOTALL)
MOST_LETTERS = 1000
"""Characters of a pattern."""
SHOWN_LETTERS = 200
"""Characters of a line that messages show."""
_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""What ends a line."""
_ROWS = re.compile(rf"(?:\\.|#[^{_ENDS}]*|[^\\#{_ENDS}])+|\\|\r\n|[{_ENDS}]", re.DOTALL)
"""What stands between ends of lines, and these; one behind a backslash is a part of a name, but not in a comment."""
_SPECIAL = re.compile(rf"[-\\:,#>{_ENDS}]|^\s|\s$")


@record(frozen=True)
class Selector:
    """Which nodes: by operator and tensors, or by a pattern of names."""

    operator: str = ""
    inputs: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    pattern: str = ""

    def fits(self, node: Node) -> bool:
        """Whether a node is meant, for a selector that is no pattern."""
        if node.op.name != self.operator:
            return False
        reads = {v.name for v in node.operands if v is not None} if self.inputs else ()
        return self.inputs <= set(reads) and (not self.outputs or self.outputs <= {v.name for v in node.outputs})


@record(frozen=True)
class Line:
    """One line: its number, its text as messages show it, which nodes, and the device for them; "": they stay here."""

    number: int
    text: str
    selectors: tuple[Selector, ...]
    device: str = ""


@record(frozen=True)
class Placement:
    """All lines, in order."""

    lines: tuple[Line, ...] = ()

    @staticmethod
    def parse(text: str) -> Placement:
        """Read lines; raises BoltError for one that says nothing that can be understood."""
        rows = enumerate(_rows(text.removeprefix("\ufeff")), start=1)
        found = (_line(number, row) for number, row in rows)
        return Placement(tuple(line for line in found if line is not None))

    def find(self, nodes: Sequence[Node]) -> tuple[list[Line | None], set[int]]:
        """By node, the last line that fits it; and the numbers of all lines that fit any."""
        index: dict[tuple[str, str], list[tuple[Line, Selector]]] = {}
        patterns: list[tuple[Line, Callable[[str], object]]] = []
        for line in self.lines:
            for each in line.selectors:
                if each.pattern:
                    patterns.append((line, re.compile(translate(each.pattern)).match))
                else:
                    index.setdefault((each.operator, min(each.outputs, default="")), []).append((line, each))
        found, used = [], set[int]()
        for node in nodes:
            keys = [(node.op.name, ""), *((node.op.name, v.name) for v in node.outputs)] if index else []
            fitting = [line for key in keys for line, each in index.get(key, ()) if each.fits(node)]
            fitting += [line for line, fits in patterns if fits(node.name)]
            found.append(max(fitting, key=lambda line: line.number, default=None))
            used.update(line.number for line in fitting)
        return found, used

    def check(self, devices: Sequence[str]) -> None:
        """Raise BoltError for a line with a device that is not among these."""
        for line in self.lines:
            if line.device and line.device not in devices:
                wanted = ", ".join([*devices, "off"])
                what = f"placement: line {line.number} ({line.text})"
                raise BoltError(f"{what}: got {line.device!r:.80}, wanted {wanted}")


def line_of(node: Node) -> str:
    """The line that fits this node and no other of its graph."""
    reads = dict.fromkeys(v.name for v in node.operands if v is not None and v.const is None)
    parts = (node.op.name, ",".join(map(_escaped, reads)), ",".join(_escaped(v.name) for v in node.outputs))
    return ":".join(parts)


def _rows(text: str) -> list[str]:
    """Lines without their ends."""
    made = [""]
    for found in _ROWS.finditer(text):
        if found[0] in ("\r\n", *_ENDS):
            made.append("")
        else:
            made[-1] += found[0]
    return made


def _escaped(name: str) -> str:
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", name)


def _line(number: int, row: str) -> Line | None:
    pieces = _PIECES.findall(row)
    if "#" in pieces:
        pieces = pieces[: pieces.index("#")]
    text = "".join(pieces).strip()[:SHOWN_LETTERS]
    if not text:
        return None
    device = ""
    if "->" in pieces:
        at = pieces.index("->")
        pieces, device = pieces[:at], _name(pieces[at + 1 :])
        if not device:
            raise BoltError(f"placement: line {number} ({text}): got nothing behind '->', wanted a device or 'off'")
    if _name(pieces).startswith(BY_NAME):
        selectors = [Selector(pattern=_name(pieces).removeprefix(BY_NAME).strip())]
        if len(selectors[0].pattern) > MOST_LETTERS:
            got = f"got a pattern of {len(selectors[0].pattern)} characters"
            raise BoltError(f"placement: line {number} ({text}): {got}, wanted {MOST_LETTERS}")
    else:
        selectors = [_selector(number, text, part) for part in _split(pieces, "-") if _name(part)]
    if not selectors or selectors == [Selector()]:
        raise BoltError(f"placement: line {number} ({text}): got nothing that names nodes, wanted an operator")
    return Line(number, text, tuple(dict.fromkeys(selectors)), "" if device in STAYS else device)


def _selector(number: int, text: str, pieces: list[str]) -> Selector:
    parts = _split(pieces, ":")
    operator = _name(parts[0])
    if not operator or len(parts) > 3:
        raise BoltError(f"placement: line {number} ({text}): got {len(parts)} parts, wanted operator:inputs:outputs")
    reads, writes, *_ = (frozenset(filter(None, map(_name, _split(part, ",")))) for part in (*parts[1:], [], []))
    return Selector(operator, reads, writes)


def _split(pieces: list[str], mark: str) -> list[list[str]]:
    made: list[list[str]] = [[]]
    for piece in pieces:
        if piece == mark:
            made.append([])
        else:
            made[-1].append(piece)
    return made


def _name(pieces: list[str]) -> str:
    """The text of pieces, without blanks around it that nothing escapes."""
    first, last = 0, len(pieces)
    while first < last and pieces[first].isspace():
        first += 1
    while first < last and pieces[last - 1].isspace():
        last -= 1
    return "".join(piece[1:] if piece[0] == "\\" and len(piece) > 1 else piece for piece in pieces[first:last])
