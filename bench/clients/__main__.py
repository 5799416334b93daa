"""Run the clients with both engines and compare: ``python -m bench.clients`` (`make clients` prepares all it needs)."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.clients.agree import DisagreementError, distance
from bench.clients.scenario import CLIENTS, Client
from bench.clients.table import parts
from bench.clients.talk import ROOT, ClientError, Talk
from bench.page import fill

MODULES = ("images", "sounds", "texts", "tools")


def turns(wanted: Talk, got: Talk, rounds: int, seconds: float, one_thread: bool) -> dict[str, float]:
    """Milliseconds of the best call with onnxruntime and here, of turns taken one after the other, and their ratio.

    With one thread it is the processor's time, which other work on the machine disturbs least; else the clock's.
    """
    pairs = [(wanted.best(seconds)[one_thread], got.best(seconds)[one_thread]) for _ in range(rounds)]
    theirs, ours = (min(side) for side in zip(*pairs, strict=True))
    return {"onnxruntime_ms": 1e3 * theirs, "here_ms": 1e3 * ours, "ratio": theirs / ours}


def measure(client: Client, home: Path, rounds: int, seconds: float, modes: Sequence[bool]) -> dict[str, Any]:
    """Agreement, the engine's share, the warm start; speed with one thread and, other mode, the client's own choice."""
    found: dict[str, Any] = {"name": client.name, "does": client.does}
    for one_thread in modes:
        with contextlib.ExitStack() as stack:
            wanted = stack.enter_context(Talk(client, "onnxruntime", home, one_thread))
            got = stack.enter_context(Talk(client, "here", home, one_thread))
            found["apart"] = max(found.get("apart", 0.0), distance(wanted.result, got.result))
            found["one" if one_thread else "own"] = turns(wanted, got, rounds, seconds, one_thread)
            if one_thread:
                found["share"] = {"onnxruntime": wanted.ask("share"), "here": got.ask("share")}
            found["start_s"] = {"onnxruntime": starts(wanted), "here": starts(got)}
    if found["apart"] > client.tolerance:
        raise DisagreementError(f"results are apart by {found['apart']:.2g}, allowed {client.tolerance:.2g}")
    return found


def starts(talk: Talk) -> float:
    return float(talk.ready["make_s"] + talk.ready["first_s"])


def cold(client: Client, home: Path) -> float:
    """Seconds until the first result with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as folder, Talk(client, "here", home, False, Path(folder)) as talk:
        return starts(talk)


def attempt(client: Client, wanted: argparse.Namespace, earlier: dict[str, Any]) -> dict[str, Any]:
    """What `measure` finds, and the start with an empty cache, now or earlier; or why the client fails."""
    try:
        modes = (True,) if wanted.one_thread else (True, False)
        found = measure(client, wanted.home, wanted.rounds, wanted.seconds, modes)
        if wanted.cold:
            found["cold_s"] = cold(client, wanted.home)
        elif "cold_s" in earlier:
            found["cold_s"] = earlier["cold_s"]
    except (ClientError, DisagreementError) as error:
        return {"name": client.name, "does": client.does, "error": str(error)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="clients to run; all when none is named")
    parser.add_argument("--home", type=Path, default=ROOT / ".clients", help="folder with environments and engines")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="of one turn")
    parser.add_argument("--one-thread", action="store_true", help="leave out the client's own choice of threads")
    parser.add_argument("--cold", action="store_true", help="also measure the start with an empty cache")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON; earlier ones of other clients are kept")
    parser.add_argument("--markdown", type=Path, help="the page with the table, of all results in the output")
    wanted = parser.parse_args()
    for module in MODULES:
        importlib.import_module(f"bench.clients.{module}")
    kept: dict[str, Any] = {}
    if wanted.output and wanted.output.exists():
        kept = {entry["name"]: entry for entry in json.loads(wanted.output.read_text())}
    for name in wanted.names or CLIENTS:
        kept[name] = attempt(CLIENTS[name], wanted, kept.get(name, {}))
        found = kept[name]
        own = found.get("own", {}).get("ratio", float("nan"))
        one = found.get("one", {}).get("ratio", float("nan"))
        sys.stdout.write(f"{name:26} {one:5.2f} {own:5.2f}  {found.get('error', '')}\n")
        sys.stdout.flush()
        if wanted.output:
            entries = [kept[n] for n in CLIENTS if n in kept]
            wanted.output.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
    if wanted.markdown:
        fill(wanted.markdown, parts([kept[n] for n in CLIENTS if n in kept]))


if __name__ == "__main__":
    main()
