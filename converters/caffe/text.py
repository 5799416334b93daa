"""Protobuf's text format without a schema: names and values become a message; hostile text is bounded.

Source: protobuf's specification of the text format.
"""

from __future__ import annotations

import re
from typing import Any

from bolt_numba.base.errors import InvalidModelError
from bolt_numba.converters.caffe.message import Message

MAX_DEPTH = 32
"""Messages inside each other."""
MAX_TEXT = 1 << 24
"""Bytes of a text."""

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<word>[A-Za-z0-9_.+\-/]+)
    | (?P<sign>[{}<>:;,\[\]])
    | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_CLOSING = {"{": "}", "<": ">"}


def parse(data: bytes | memoryview, file: str) -> Message:
    """The message that a text is.  Raises InvalidModelError with the line where it is none."""
    if len(data) > MAX_TEXT:
        raise InvalidModelError(f"{file}: got a text of {len(data)} bytes, wanted at most {MAX_TEXT}")
    try:
        text = bytes(data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{file}: got bytes that are no UTF-8, wanted the text of a net") from error
    return _TextParser(text, file).message("", 0)


class _TextParser:
    """Tokens of a text, one ahead."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.at = text, file, 0
        self.kind: str | None = None
        self.token = ""
        self.advance()

    def fail(self, wanted: str) -> InvalidModelError:
        line = self.text.count("\n", 0, self.at) + 1
        got = repr(self.token[:40]) if self.kind else "the end"
        return InvalidModelError(f"{self.file}: line {line}: got {got}, wanted {wanted}")

    def advance(self) -> str:
        """Step over a token, which is returned."""
        before = self.token
        text, at = self.text, self.at
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                self.at, self.kind, self.token = at, "other", text[at]
                raise self.fail("a name, a number, a text or a bracket")
            at = found.end()
            if found.lastgroup is not None:
                self.at, self.kind, self.token = at, found.lastgroup, found.group()
                return before
        self.at, self.kind, self.token = at, None, ""
        return before

    def message(self, closing: str, depth: int) -> Message:
        """Fields up to the closing bracket, or up to the end."""
        if depth > MAX_DEPTH:
            raise self.fail(f"at most {MAX_DEPTH} messages inside each other")
        made: Message = {}
        while self.token != closing or self.kind == "string":
            if self.kind != "word" or not _NAME.fullmatch(self.token):
                raise self.fail("the name of a field" + (f" or '{closing}'" if closing else ""))
            values = made.setdefault(self.advance(), [])
            self.field(values, depth)
            if self.token in (",", ";") and self.kind == "sign":
                self.advance()
        if closing:
            self.advance()
        elif self.kind is not None:
            raise self.fail("the name of a field")
        return made

    def field(self, values: list[Any], depth: int) -> None:
        """What stands behind a name."""
        has_colon = self.token == ":"
        if has_colon:
            self.advance()
        if self.kind == "sign" and self.token == "[":
            self.advance()
            while self.token != "]":
                values.append(self.value(depth))
                if self.token == "," and self.kind == "sign":
                    self.advance()
                elif self.token != "]":
                    raise self.fail("',' or ']'")
            self.advance()
            return
        if not has_colon and self.token not in _CLOSING:
            raise self.fail("':' or '{'")
        values.append(self.value(depth))

    def value(self, depth: int) -> Any:
        """A message or a scalar."""
        if self.kind == "sign" and self.token in _CLOSING:
            return self.message(_CLOSING[self.advance()], depth + 1)
        if self.kind == "string":
            parts = []
            while self.kind == "string":
                parts.append(_unescaped(self.advance()[1:-1]))
            try:
                return b"".join(parts).decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.fail("a text that is UTF-8") from error
        if self.kind != "word":
            raise self.fail("a value")
        word = self.advance()
        if word == "-" and self.kind == "word":
            word += self.advance()
        return word


def _unescaped(quoted: str) -> bytes:
    if "\\" not in quoted:
        return quoted.encode()
    return _ESCAPE.sub(_letter, quoted.encode())


def _letter(found: re.Match[bytes]) -> bytes:
    hexadecimal, octal, short, long, letter = found.groups()
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if octal is not None:
        return bytes([int(octal, 8) & 255])
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = int(short or long, 16)
    return chr(code).encode() if code < 0x110000 and not 0xD800 <= code < 0xE000 else b"?"
