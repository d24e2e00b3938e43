"""The project's files against each other: what documents promise exists, versions agree, nothing foreign is named."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from app.cli import parser
from app.settings import load_settings
from app.version import VERSION

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def tracked_files() -> list[Path]:
    """What git tracks; in an unpacked archive, everything that is neither hidden nor made by tools."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and not _is_made(path)]
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def _is_made(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(
        part.startswith(".") or part in {"__pycache__", "build", "dist", "node_modules"} or part.endswith(".egg-info")
        for part in parts
    )


TEXTS = [(path, path.read_text(encoding="utf-8", errors="ignore")) for path in tracked_files()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---- what no file of the project says


FOREIGN = {
    "a path of somebody's machine": r"(?<![\w.])/(?:work|home|root|Users)/",
    "a temporary path": r"(?<![\w.])/tmp/",
    "a registry's host": r"files\.pythonhosted|registry\.npmjs|deb\.debian|index-url|pypi\.org",
    "an issue's number": r"\b[Ii]ssue #?\d+\b",
    "a note to finish later": r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}


@pytest.mark.parametrize("pattern", FOREIGN.values(), ids=FOREIGN)
def test_nothing_foreign_is_named(pattern: str) -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path, text in TEXTS
        if path != Path(__file__) and name_of(path) not in GOLDEN
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]

    assert found == []


GOLDEN: set[str] = set()
"""Recorded bytes, which say what they say."""

VAGUE = {"utils", "helpers", "common", "misc", "manager", "data"}


def test_modules_are_named_by_their_nouns() -> None:
    assert [name_of(path) for path, _ in TEXTS if path.suffix == ".py" and path.stem in VAGUE] == []


SOURCES = [path for path, _ in TEXTS if path.suffix == ".py" and not name_of(path).startswith("tests/")]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_module_is_longer_than_400_lines(path: Path) -> None:
    length = len(path.read_text().splitlines())

    assert length <= 400


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


# ---- documents


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_files_that_documents_name_exist(path: Path) -> None:
    folders = "|".join(sorted(folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder.name[0] != "."))
    named = re.findall(rf"`((?:{folders})/[a-z_/*]+(?:\.[a-z]+)?)`", path.read_text())

    assert [name for name in named if not any(ROOT.glob(name))] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_make_targets_that_documents_name_exist(path: Path) -> None:
    named = set(re.findall(r"`make ([a-z-]+)|^\s*(?:\$ )?make ([a-z-]+)", path.read_text(), re.MULTILINE))

    assert {a or b for a, b in named} <= MAKE_TARGETS


COMMANDS = [
    (name_of(path), line.strip())
    for path in DOCUMENTS
    for line in re.findall(r"^\s*(?:\$ )?(tandem [a-z].*?)\s*(?:#.*)?$", path.read_text(), re.MULTILINE)
    if re.fullmatch(r"tandem (?:serve|check|simulate|demo|version)\b[^…]*", line.strip())
]


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_commands_that_documents_show_are_understood(document: str, command: str) -> None:
    assert parser().parse_args(command.split()[1:])


def yaml_blocks(path: Path) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)


CONFIGURATIONS = [
    pytest.param(text, id=f"{name_of(path)}-{number}")
    for path in DOCUMENTS
    for number, text in enumerate(yaml_blocks(path))
    if "models" in yaml.safe_load(text)
]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_configurations_that_documents_show_are_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text(text)

    assert load_settings(file, environ={}).models


def test_the_readme_shows_a_configuration_and_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()

    assert yaml_blocks(ROOT / "README.md")
    assert {"make demo", "make test"} <= set(re.findall(r"make [a-z]+", readme))


def test_every_document_is_reachable_from_the_readme() -> None:
    linked = set(re.findall(r"\(docs/([a-z_-]+\.md)\)", (ROOT / "README.md").read_text()))

    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")}


# ---- packaging


def test_the_version_is_written_once_and_the_changelog_knows_it() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "app.version.VERSION"}
    assert "## [Unreleased]" in changelog or f"## [{VERSION}]" in changelog


def requirements() -> list[str]:
    project = PYPROJECT["project"]
    return [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]


def requirement_names(lines: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;~! ]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines}


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]

    assert [line for line in lines if not re.match(r"^[a-z0-9.-]+==[^=*]+$", line)] == []
    assert requirement_names(requirements()) - {PYPROJECT["project"]["name"]} <= requirement_names(lines)


def test_every_dependency_has_a_lower_bound_and_no_upper_one() -> None:
    bounded = re.compile(rf"[A-Za-z0-9-]+>=[\d.]+(?:; .+)?|{PYPROJECT['project']['name']}\[[a-z,]+\]")

    assert [requirement for requirement in requirements() if not bounded.fullmatch(requirement)] == []


def test_the_licence_is_apache_2_in_full() -> None:
    text = (ROOT / "LICENSE").read_text()

    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0"


def test_the_shipped_model_is_package_data() -> None:
    assert PYPROJECT["tool"]["setuptools"]["package-data"]["app"] == ["demo_model/*"]
    assert (ROOT / "app/demo_model/tokenizer.json").is_file()


def test_ci_checks_and_tests() -> None:
    script = (ROOT / ".ci/run").read_text()

    assert script.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in script
    assert set(re.findall(r"^make ([a-z-]+)$", script, re.MULTILINE)) == {"check", "test", "test-clients"}


@pytest.mark.parametrize("tool", ["node", "npm", "curl"])
def test_the_clients_tests_say_which_tool_is_missing(tool: str, tmp_path: Path) -> None:
    for name in {"node", "npm", "curl"} - {tool}:
        (tmp_path / name).touch(mode=0o755)
    made = tmp_path / "node_modules/.installed"
    command = [shutil.which("make") or "make", f"NODE_CLIENTS={made.parent}", str(made)]

    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)

    assert done.returncode
    assert f"{tool} is missing. test-clients needs Node.js 20 or newer, with npm, and curl." in done.stderr


def test_the_clients_versions_are_exact_and_name_no_registry() -> None:
    """`package-lock.json` would, but for npm's setting `omit-lockfile-registry-resolved`."""
    pinned = (ROOT / "tests/clients/requirements.txt").read_text().splitlines()[1:]
    asked = (ROOT / "tests/clients/requirements.in").read_text().splitlines()[1:]
    package = json.loads((ROOT / "tests/clients/node/package.json").read_text())
    lock = json.loads((ROOT / "tests/clients/node/package-lock.json").read_text())

    assert [line for line in (*pinned, *asked) if not re.match(r"[\w.-]+==[\w.]+( ; .+)?$", line)] == []
    assert set(asked) <= {line.partition(" ;")[0] for line in pinned}
    assert all(re.fullmatch(r"[\d.]+", version) for version in package["dependencies"].values())
    assert {place: entry["resolved"] for place, entry in lock["packages"].items() if "resolved" in entry} == {}


@pytest.mark.parametrize("target", sorted(MAKE_TARGETS))
def test_every_make_target_is_phony_and_explained(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    assert target in phony.split()
    assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE)
