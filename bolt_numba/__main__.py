"""``python -m bolt_numba``: the same as the command ``bolt-numba``."""

from __future__ import annotations

import sys

from bolt_numba.base.errors import BoltError

INTERRUPTED = 130
"""The exit code that shells know, which typer gives later on, too."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from bolt_numba.cli.app import run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BoltError as error:  # the environment asks for instructions that are not there
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"error: the command line: got no {error.name}, wanted typer and rich: pip install typer rich")
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
