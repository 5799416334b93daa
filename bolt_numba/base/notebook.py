"""What objects show in notebooks: small tables of HTML that nothing else is needed for."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

SHOWN_ROWS = 40
"""Rows of a table that are shown."""
LETTERS = 200
"""Characters of a cell that are shown."""
_STEERING = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CELL = 'style="text-align:{};padding:2px 8px"'


def html_text(content: object) -> str:
    """Text in which nothing is markup and control characters are spelled, cut to what a cell shows."""
    text = _STEERING.sub(lambda found: ascii(found[0])[1:-1], str(content))
    return html.escape(text if len(text) <= LETTERS else text[: LETTERS - 1] + "…")


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = (), note: str = ""
) -> str:
    """A title, a table of its first rows, and a note.  right: columns of numbers."""
    all_rows = list(rows)
    sides = [_CELL.format("right" if column in right else "left") for column in columns]
    head = "".join(f"<th {side}>{html_text(c)}</th>" for c, side in zip(columns, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td {side}>{html_text(c)}</td>' for c, side in zip(row, sides, strict=True))}</tr>"
        for row in all_rows[:SHOWN_ROWS]
    )
    notes = [*([f"and {len(all_rows) - SHOWN_ROWS} more"] if len(all_rows) > SHOWN_ROWS else []), *note.splitlines()]
    below = "".join(f"<div>{html_text(line)}</div>" for line in notes)
    return (
        f"<div><b>{html_text(title)}</b><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>"
    )
