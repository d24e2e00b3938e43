"""What a user can put right, said so that they can: each problem, its place in the configuration, what is right."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Place = tuple[str | int, ...]
"""Where in the document: keys and list positions from the root, `("models", 0, "workers", 1, "url")`."""

_LONGEST_SHOWN_VALUE = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `text` completes the sentence that begins with the place."""

    place: Place
    text: str


class ConfigError(Exception):
    """A configuration that cannot be used. `lines` has every problem, one a line, ready to print."""

    def __init__(self, source: str, lines: Sequence[str]) -> None:
        super().__init__("\n".join([f"{source}: {counted(len(lines), 'problem')}", *(f"  {line}" for line in lines)]))
        self.source = source
        self.lines = tuple(lines)


class UsageError(Exception):
    """Something beside the configuration that the user can put right. The text says what, and what to do."""


def path_of(place: Place) -> str:
    """A place as people write it: `models[0].workers[1].url`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "(the whole document)"


def rendered(problems: Iterable[Problem], origins: Mapping[Place, str]) -> list[str]:
    """One line a problem, in the order in which the document was written.

    `origins` says, in that order, where a value was written (`line 4, column 9`, `TANDEM_SERVER__PORT`); a place that
    has none takes that of the nearest place around it.
    """
    ranks = {place: rank for rank, place in enumerate(origins)}
    known = {problem: _nearest(problem.place, origins) for problem in problems}
    lines: list[str] = []
    for problem in sorted(
        known, key=lambda problem: (ranks.get(known[problem], -1), path_of(problem.place), problem.text)
    ):
        origin = origins.get(known[problem])
        lines.append(f"{path_of(problem.place)}{f' ({origin})' if origin else ''}: {problem.text}")
    return lines


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean X?` when one of the known words is close to the wrong one, else nothing."""
    close = difflib.get_close_matches(wrong.lower(), {word.lower(): word for word in known}, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def shown(value: object) -> str:
    """A value as it stands in the document, cut when it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN_VALUE else f"{text[:_LONGEST_SHOWN_VALUE]}…"


def counted(number: int, noun: str) -> str:
    """`1 problem`, `3 problems`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _nearest(place: Place, origins: Mapping[Place, str]) -> Place:
    """The longest beginning of the place that has an origin; () when none has."""
    return next((place[:length] for length in range(len(place), 0, -1) if place[:length] in origins), ())
