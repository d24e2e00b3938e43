"""Where a client wants its request to go: routing headers read into RoutingHints.

Every header has Tandem's name and Dynamo's (1.6) names as aliases; where several name the same thing, Tandem's wins,
then the longest-standing alias in the table's order. A request without such headers costs one dictionary look-up per
header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from protocols.errors import InvalidRequest
from protocols.preprocessed import RoutingHints

Headers = Iterable[tuple[bytes, bytes]]
"""ASGI's `scope["headers"]`: lower-case names and raw values, repetitions kept."""

_UNSET_RANK = 2**32 - 1
_MAX_TENANT_BYTES = 256


def _worker_id(value: bytes, header: str) -> int:
    if not value.isdigit() or len(value) > 20 or int(value) >= 2**64:
        raise _malformed(header, "a worker id (a decimal number below 2^64)", value)
    return int(value)


def _dp_rank(value: bytes, header: str) -> int | None:
    """Dynamo sends u32::MAX for "not set"."""
    if not value.isdigit() or len(value) > 10 or int(value) > _UNSET_RANK:
        raise _malformed(header, "a data-parallel rank (a decimal number below 2^32)", value)
    return None if int(value) == _UNSET_RANK else int(value)


def _tenant(value: bytes, header: str) -> str | None:
    """An empty tenant is none."""
    try:
        tenant = value.decode()
    except UnicodeDecodeError:
        raise _malformed(header, "UTF-8 text", value) from None
    if len(value) > _MAX_TENANT_BYTES or not (tenant.isprintable() or not tenant):
        raise _malformed(header, f"at most {_MAX_TENANT_BYTES} bytes of printable text", value)
    return tenant or None


@dataclass(frozen=True, slots=True)
class _Reader:
    """`name` as it is written in errors; a lower `rank` wins; `pins` says that it steers to a worker."""

    name: str
    fields: tuple[str, ...]
    read: Callable[[bytes, str], Any]
    rank: int
    pins: bool


def _table() -> dict[bytes, _Reader]:
    rows: tuple[tuple[tuple[str, ...], Callable[[bytes, str], Any], bool, tuple[str, ...]], ...] = (
        (
            ("backend_instance_id", "decode_worker_id"),
            _worker_id,
            True,
            ("x-tandem-worker", "x-dynamo-worker-instance-id", "x-worker-instance-id"),
        ),
        (
            ("prefill_worker_id",),
            _worker_id,
            True,
            ("x-tandem-prefill-worker", "x-dynamo-prefill-instance-id", "x-prefill-instance-id"),
        ),
        (
            ("dp_rank",),
            _dp_rank,
            True,
            ("x-tandem-dp-rank", "x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank"),
        ),
        (
            ("prefill_dp_rank",),
            _dp_rank,
            True,
            ("x-tandem-prefill-dp-rank", "x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"),
        ),
        (("cache_namespace",), _tenant, False, ("x-tenant-id",)),
    )
    return {
        name.encode(): _Reader(name, fields, read, rank, pins)
        for fields, read, pins, names in rows
        for rank, name in enumerate(names)
    }


_READERS = _table()

HINT_HEADERS = frozenset(_READERS)
"""The names of all headers read here. None of them is passed on to a worker."""


def read_hints(headers: Headers, *, pins: bool = True) -> RoutingHints | None:
    """The hints that the headers give; None when they give none.

    `pins` False ignores the headers that name workers and ranks, for gateways whose clients may not choose.
    Raises InvalidRequest, naming the header, for a malformed value and for two values that differ.
    """
    found: dict[_Reader, bytes] | None = None
    for name, value in headers:
        reader = _READERS.get(name)
        if reader is None or (reader.pins and not pins):
            continue
        if found is None:
            found = {}
        value = value.strip()
        if found.setdefault(reader, value) != value:
            raise InvalidRequest(f"{reader.name}: given twice with different values", param=reader.name)
    if found is None:
        return None
    return _hints(found)


def _hints(found: dict[_Reader, bytes]) -> RoutingHints | None:
    fields: dict[str, Any] = {}
    for reader in sorted(found, key=lambda reader: -reader.rank):
        value = reader.read(found[reader], reader.name)
        if value is not None:
            fields.update(dict.fromkeys(reader.fields, value))
    return RoutingHints(**fields) if fields else None


def _malformed(header: str, expected: str, value: bytes) -> InvalidRequest:
    shown = value[:40].decode("latin-1")
    return InvalidRequest(f"{header}: expected {expected}, got {shown!r}", param=header)
