"""The table of opcodes: each row decodes an instruction for a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPCODES: dict[str, Callable[[Any, Any], Any]] = {}
"""By opcode: ``decode(machine, instruction)`` gives the calls (full, masked), or raises `RefusedError`."""


def opcode(*names: str) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """Register what decodes these opcodes."""

    def enter(decode: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        OPCODES.update(dict.fromkeys(names, decode))
        return decode

    return enter
