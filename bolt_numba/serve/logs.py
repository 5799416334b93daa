"""Logs of a server: a line of JSON for each, on standard error."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

from bolt_numba.serve.errors import spelled

FIELDS = ("method", "path", "status", "ms", "request_id", "model")
"""What a line may have beside its message, given as ``extra``."""


class JsonLines(logging.Formatter):
    """Time (UTC), level, message, what the caller told beside it, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "message": spelled(record.getMessage()),
        }  # fmt: skip
        row |= {key: getattr(record, key) for key in FIELDS if getattr(record, key, None) is not None}
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(row, default=str).decode()


def begin_log(level: str) -> None:
    """Write what the server logs from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("bolt_numba", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level if name == "bolt_numba" else max(logging.WARNING, logging.getLevelName(level)))
        logger.propagate = False
