"""What a client is: a package, the environment it stands in, and one thing to do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Use = Callable[[], Any]
"""Does the work once, from a clean state, and returns what the user gets: texts, numbers, arrays, lists of them."""


@dataclass(frozen=True)
class Client:
    """One package with one scenario."""

    name: str
    """As on the package index."""
    does: str
    """What the scenario does, for the table."""
    make: Callable[[Path], Use]
    """Imports the package and makes its object; the folder keeps models that the scenario makes."""
    environment: str = "light"
    """The virtual environment the package stands in."""
    tolerance: float = 1e-3
    """Largest difference of two numbers of the results, in parts of the number or of one."""


CLIENTS: dict[str, Client] = {}


def client(
    name: str, does: str, environment: str = "light", tolerance: float = 1e-3
) -> Callable[[Callable[[Path], Use]], Callable[[Path], Use]]:
    """Register the decorated function as the scenario of ``name``."""

    def register(make: Callable[[Path], Use]) -> Callable[[Path], Use]:
        CLIENTS[name] = Client(name, does, make, environment, tolerance)
        return make

    return register
