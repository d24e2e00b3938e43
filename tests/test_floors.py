"""Imports point down, and every third party stays in its rooms. Read from the source, so that dead code counts too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS: tuple[tuple[str, ...], ...] = (
    ("protocols",),
    ("text", "engines", "routers", "telemetry"),
    ("workers",),
    ("pipeline", "simulator"),
    ("app",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

SIMULATOR_KNOWS = {"protocols", "simulator", "workers"}
"""A simulated engine that shared code with the adapters would agree with their mistakes."""

THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "orjson": ("*",),
    "httptools": ("workers/*", "simulator/*", "app/http_protocol.py"),
    "httpx": ("workers/*",),
    "redis": ("workers/*",),
    "zmq": ("workers/*", "simulator/*"),
    "fastapi": ("app/*", "simulator/*"),
    "starlette": ("app/*", "simulator/*"),
    "uvicorn": ("app/*", "simulator/*"),
    "uvloop": ("app/*",),
    "yaml": ("app/*",),
    "pydantic": ("protocols/openai*.py", "app/settings.py"),
    "pydantic_core": ("protocols/openai*.py",),
    "tokenizers": ("text/*",),
    "fastokens": ("text/*",),
    "jinja2": ("text/*",),
    "prometheus_client": ("telemetry/*",),
    "msgpack": ("engines/*", "workers/*", "simulator/*"),
}
"""Every third party that the project imports, and the files that may. An unlisted one is refused everywhere."""

SOURCE_FILES = sorted(path for room in FLOOR_OF for path in (ROOT / room).rglob("*.py"))


@dataclass(frozen=True)
class Import:
    line: int
    module: str

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written from the root, not relative"
            yield Import(node.lineno, node.module or "")


def wrong_arrows(name: str, found: Iterator[Import]) -> list[str]:
    room = name.partition("/")[0]
    return [
        f"{name}:{arrow.line}: {room} imports {arrow.module}"
        for arrow in found
        if arrow.package in FLOOR_OF and arrow.package != room and FLOOR_OF[arrow.package] >= FLOOR_OF[room]
    ]


def strangers(name: str, found: Iterator[Import]) -> list[str]:
    return [
        f"{name}:{arrow.line}: {arrow.module} is not at home here"
        for arrow in found
        if arrow.package not in FLOOR_OF
        and arrow.package not in sys.stdlib_module_names
        and not any(fnmatch(name, pattern) for pattern in THIRD_PARTIES.get(arrow.package, ()))
    ]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCE_FILES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    assert wrong_arrows(name_of(path), imports_of(path)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "simulator").rglob("*.py")), ids=name_of)
def test_the_simulator_shares_no_code_with_the_gateway(path: Path) -> None:
    assert {arrow.package for arrow in imports_of(path)} & FLOOR_OF.keys() <= SIMULATOR_KNOWS


@pytest.mark.parametrize("path", SOURCE_FILES, ids=name_of)
def test_third_parties_stay_in_their_rooms(path: Path) -> None:
    assert strangers(name_of(path), imports_of(path)) == []


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("protocols/outputs.py", "text.decoder"),
        ("text/decoder.py", "engines.base"),
        ("simulator/fleet.py", "pipeline.service"),
        ("workers/client.py", "app.settings"),
    ],
)
def test_an_arrow_that_points_up_or_sideways_is_found(name: str, module: str) -> None:
    assert wrong_arrows(name, iter([Import(1, module)]))


@pytest.mark.parametrize(
    ("name", "module"), [("pipeline/dispatch.py", "httpx"), ("app/api.py", "pydantic"), ("app/cli.py", "requests")]
)
def test_a_third_party_in_a_strange_room_is_found(name: str, module: str) -> None:
    assert strangers(name, iter([Import(1, module)]))


def below_the_sockets() -> list[Path]:
    """Files of the floors that neither await nor open anything."""
    rooms = [room for floor in FLOORS[:2] for room in floor]
    return [path for path in SOURCE_FILES if name_of(path).partition("/")[0] in rooms]


@pytest.mark.parametrize("path", below_the_sockets(), ids=name_of)
def test_nothing_below_workers_is_async(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [node.lineno for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor)]

    assert found == []
    assert not {"asyncio", "socket", "http", "urllib.request"} & {arrow.module for arrow in imports_of(path)}


@pytest.mark.parametrize(
    "path", [path for path in below_the_sockets() if name_of(path) != "text/loading.py"], ids=name_of
)
def test_nothing_below_workers_opens_files_but_text_loading(path: Path) -> None:
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    opened = [call.lineno for call in calls if called_name(call) in {"open", "read_text", "read_bytes", "write_text"}]

    assert opened == []


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@pytest.mark.parametrize("path", [path for path in SOURCE_FILES if name_of(path) != "app/settings.py"], ids=name_of)
def test_only_settings_read_the_environment(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    attributes = [
        node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]

    assert attributes == []


@pytest.mark.parametrize("path", [path for path in SOURCE_FILES if not name_of(path).startswith("app/")], ids=name_of)
def test_only_app_catches_every_exception(path: Path) -> None:
    handlers = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}))
    ]

    assert len(handlers) <= EXCEPTION_BOUNDARIES.get(name_of(path), 0), f"lines {handlers}"


EXCEPTION_BOUNDARIES = {"workers/exchange.py": 1}
"""Where a sink's exception is caught, to be handed to the call that owns the sink."""
