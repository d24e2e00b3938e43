"""Log lines: JSON objects or text, one per event, with the request's id, and never with a secret.

Secrets are taken out of the finished line, so nothing slips through in an argument, a field or a traceback.
"""

from __future__ import annotations

import logging
import re
import time
from typing import IO, Any

import orjson

REDACTED = "[redacted]"

_QUIET = ("httpx", "httpcore", "uvicorn.access")
"""Loggers that write a line per call; our own lines say what matters."""

_HINTS = ("authorization", "bearer ", "basic ", "key", "secret", "passw", "access", "://", "sk-", "hf_", "cookie")
"""A line without any of these holds nothing to take out."""

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    # "basic" is a word of prose too: credentials are base64, and hardly ever lower-case letters alone.
    (re.compile(r"\b(bearer\s+|basic\s+(?=\S*(?-i:[A-Z0-9=+/])))[\w.~+/=-]{4,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (
        re.compile(
            r"\b((?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?api[-_]?key|access[-_]?token|client[-_]?secret|secret|"
            r"password|passwd)(\b\\?[\"']?\s*[:=,]\s*b?\\?[\"']?)(?!(?:bearer|basic) )[^\s\"',;&}\\]+",
            re.IGNORECASE,
        ),
        rf"\1\2{REDACTED}",
    ),
    (re.compile(r"\b(?:sk-|hf_)[\w-]{8,}"), REDACTED),
    (re.compile(r"://[^/\s@\"']+@"), f"://{REDACTED}@"),
)


def redacted(text: str) -> str:
    """The text without credentials: authorization values, API keys, passwords, cookies, user names in URLs."""
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, `request_id` and `fields` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redacted(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode())


class TextLines(logging.Formatter):
    """`time level logger: message key=value …`; only a traceback takes further lines."""

    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={_shown(value)}" for name, value in _extras(record).items())
        message = record.getMessage().replace("\n", "\\n").replace("\r", "\\r")
        line = f"{_time_of(record)} {record.levelname:<7} {record.name}: {message}{extras}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return redacted(line)


def configure_logging(stream: IO[str], *, style: str = "text", level: str = "INFO") -> logging.Handler:
    """Sends all log lines to `stream`, as "text" or "json", from `level` on. Replaces what was configured before.

    Returns the handler. Raises ValueError for another style or level.
    """
    if style not in ("text", "json"):
        raise ValueError(f"log style must be text or json, not {style!r}")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.setLevel(level.upper())
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """`extra={"request_id": …, "fields": {…}}` of the call."""
    extras: dict[str, Any] = {}
    request_id = getattr(record, "request_id", None)
    if request_id is not None:
        extras["request_id"] = request_id
    extras.update(getattr(record, "fields", None) or {})
    return extras


def _shown(value: object) -> str:
    text = str(value)
    return orjson.dumps(text).decode() if not text or any(c.isspace() or c in '"=' for c in text) else text
