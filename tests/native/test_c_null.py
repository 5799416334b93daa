"""NULL in place of each pointer of the C library: refused with a reason, or allowed in so many words; nothing ends."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from bolt_numba.export.c_library import SOURCES
from tests.native.c_programs import ARGUMENT, CSession, Info, library, needs_cc, on_this_machine, opened, program_bytes
from tests.native.nets import dense

pytestmark = [needs_cc, on_this_machine]
SIZES = (64, 256)
ALLOWED = {
    ("bn_error_message", "session"), ("bn_model_close", "model"), ("bn_session_destroy", "session"),
    ("bn_session_create", "options"), ("bn_session_find", "info"),
}  # fmt: skip
"""What the header allows; weights_path and bound data are, too, but not with the other arguments of this test."""


def declared() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """(result, function, (type, name) of each parameter) of the functions of the header that take a pointer."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCES / "bolt_numba.h").read_text(), flags=re.DOTALL)
    found = []
    for result, name, given in re.findall(r"BN_API ([\w\s*]+?)(\w+)\(([^)]*)\);", text):
        parameters = [re.fullmatch(r"(.*?)(\w+)", part.strip()) for part in given.split(",")]
        pairs = [(match[1].strip(), match[2]) for match in parameters if match and match[1].strip()]
        if any("*" in kind for kind, _ in pairs):
            found.append((result.strip(), name, pairs))
    return found


CALLS = [(name, what) for _, name, given in declared() for kind, what in given if "*" in kind]


def arguments(data: bytes, path: str, session: CSession) -> dict[str, Any]:
    """What parameters of these names get where they are no NULL."""
    pointer = ctypes.POINTER(ctypes.c_int64)
    shapes = (pointer * 1)(ctypes.cast((ctypes.c_int64 * 2)(*SIZES), pointer))
    made, memory = ctypes.c_void_p(), (ctypes.c_double * (SIZES[0] * SIZES[1]))()
    return {
        "session": session.at, "options": None, "info": ctypes.byref(Info()), "name": b"x", "path": path.encode(),
        "clone": ctypes.byref(made), "data": memory, "nbytes": ctypes.c_size_t(4 * SIZES[0] * SIZES[1]),
        "linked": (ctypes.c_void_p * 7)(), "weights_path": None, "threads": 1, "input": 0, "output": 0,
        "shapes": shapes, "dims": (ctypes.c_int64 * 2)(*SIZES), "rank": 2, "made": made,
        "seconds": ctypes.c_double(1),
    }  # fmt: skip


def called(path: str, function: str, missing: str) -> list[Any]:
    """[result, message] of a call with NULL for one parameter."""
    data = Path(path).read_bytes()
    result, _, given = next(row for row in declared() if row[1] == function)
    with CSession(data) as session:
        values = arguments(data, path, session)
        makes = "bn_model **" in [kind for kind, _ in given]
        values["model"] = ctypes.byref(values["made"]) if makes else opened(data)
        if function == "bn_session_create":
            values["session"] = ctypes.byref(values["made"])
        if missing in ("session", "model") and function in ("bn_session_destroy", "bn_model_close"):
            values["session"] = values["model"] = None
        call = library()[function]  # an object of its own: its type of result is no other's
        if "*" in result:
            call.restype = ctypes.c_void_p
        got = call(*(None if name == missing else values[name] for _, name in given))
        texts = [library()["bn_error_message"] for _ in range(2)]
        for text in texts:
            text.restype = ctypes.c_char_p
        return [got, (texts[0](session.at) or texts[1](None)).decode()]  # the session's is empty but for this call


def test_null_is_refused_or_allowed(tmp_path: Path) -> None:
    """In a process of its own, as one that is not refused ends it."""
    (tmp_path / "dense").write_bytes(program_bytes(dense(), shapes=[{"x": SIZES}]))
    command = [sys.executable, "-m", "tests.native.test_c_null", tmp_path / "dense"]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert not done.returncode, f"ended with {done.returncode} behind {rows[-1:]}: {done.stderr[-300:]}"
    assert [tuple(row[:2]) for row in rows] == CALLS
    results = {name: result for result, name, _ in declared()}
    for function, missing, got, message in rows:
        if (function, missing) not in ALLOWED:
            none = {"bn_status": ARGUMENT, "int": -1 if function.endswith("_index") else 0, "size_t": 0}
            assert got == none.get(results[function]), (function, missing)
            assert message in (f"{function}: got NULL", "session: got NULL") or " at NULL" in message, message


def test_a_row_of_shapes_may_not_be_null() -> None:
    with CSession(program_bytes(dense(), shapes=[{"x": SIZES}])) as session:
        rows = (ctypes.c_void_p * 1)(None)
        assert library().bn_session_resize(session.at, rows) == ARGUMENT
        assert "NULL" in library().bn_error_message(session.at).decode()


def test_memory_at_null_is_the_sessions_own_and_has_no_bytes() -> None:
    with CSession(program_bytes(dense(), shapes=[{"x": SIZES}])) as session:
        session.call("bind_input", 0, None, ctypes.c_size_t(0))
        session.call("bind_output", 0, None, ctypes.c_size_t(0))


if __name__ == "__main__":
    for row in CALLS:
        sys.stdout.write(json.dumps([*row, *called(sys.argv[1], *row)]) + "\n")
        sys.stdout.flush()
