"""``python -m bolt_numba``: the same as the command ``bolt-numba``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from bolt_numba.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
