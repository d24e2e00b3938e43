"""The configuration before anyone knows what it means: a YAML file with overrides laid over it.

Every value remembers where it was written, so that a problem with it can name the line, the variable or the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from app.config_problems import ConfigError, Place, Problem, rendered

ENVIRONMENT_PREFIX = "TANDEM_"

_KUBERNETES_SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)$")


@dataclass(slots=True)
class ConfigDocument:
    """Plain values (mappings, lists, scalars) and, by place, where each was written."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Place, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def override(self, place: Place, value: object, origin: str) -> None:
        """Lays a value over the file's. What stands at and under the place is forgotten."""
        target: dict[str, Any] = self.values
        for length, step in enumerate(place[:-1], start=1):
            inner = target.get(str(step))
            if not isinstance(inner, dict):
                inner = target[str(step)] = {}
                self.origins[place[:length]] = origin
            target = inner
        target[str(place[-1])] = value
        for known in [known for known in self.origins if known[: len(place)] == place]:
            del self.origins[known]
        self.origins[place] = origin


def read_document(path: Path) -> ConfigDocument:
    """The YAML file as a document.

    Raises ConfigError when it cannot be read or is no YAML; a key written twice is one of the document's problems.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [_unreadable(error)]) from error
    document = ConfigDocument(str(path))
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _note_origins(root, (), document)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(str(path), [_not_yaml(error)]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), [f"this is not YAML: {error}"]) from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(str(path), ["the file should be a mapping with the keys server and models"])
    document.values = values
    return document


def overlay_environment(document: ConfigDocument, environ: Mapping[str, str], is_text: Callable[[Place], bool]) -> None:
    """Lays `TANDEM_SERVER__PORT=9000` and its like over the document.

    A double underscore goes one level down. Values are read as JSON where they are JSON (numbers, lists, objects) and
    the place is not known to be text (`is_text`), else taken as they stand.
    Variables that Kubernetes sets for a Service whose name begins with "tandem" (`TANDEM_PORT=tcp://…`) are none of
    ours: they have no double underscore and are passed over.
    """
    for name in sorted(environ):
        rest = name.removeprefix(ENVIRONMENT_PREFIX)
        if rest == name or ("__" not in rest and _KUBERNETES_SERVICE_LINK.match(rest)):
            continue
        place: Place = tuple(rest.lower().split("__"))
        if any(str(step).isdigit() for step in place):
            advice = "a list is given whole, as JSON"
            document.problems.append(Problem((name,), f"cannot set one item of a list; {advice}"))
            continue
        value = environ[name] if is_text(place) else _decoded(environ[name])
        document.override(place, value, name)


def refuse_broken(document: ConfigDocument, problems: list[Problem]) -> None:
    """Raises ConfigError with the document's own problems and these, if there are any."""
    if everything := [*document.problems, *problems]:
        raise ConfigError(document.source, rendered(everything, document.origins))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _note_origins(node: yaml.Node | None, place: Place, document: ConfigDocument) -> None:
    if node is None:
        return
    if place:
        document.origins[place] = _position(node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_origins(item, (*place, index), document)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, str] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                text = f"the key is written twice, first at {seen[name]}; keep one"
                document.problems.append(Problem((*place, name), text))
            seen.setdefault(name, _position(key.start_mark))
            _note_origins(value, (*place, name), document)


def _position(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _unreadable(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, UnicodeDecodeError):
        return f"the file is not UTF-8 (byte {error.start})"
    return f"cannot be read: {error.strerror}"


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{_position(mark)}: " if mark else ""
    return f"{where}this is not YAML: {error.problem or error.context}"
