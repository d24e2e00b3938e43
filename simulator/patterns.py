"""Regular expressions and grammars, and texts that they match. One tree serves both; only their spelling differs.

Anchors are passed over: a constraint is on the whole text anyway. What no text can simply be made for (lookarounds,
references back) is refused.
"""

from __future__ import annotations

import json
import random
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

_DEEP = 12
"""From this depth on the shortest way out is taken."""
_MORE = 3
"""How often something without a limit is repeated beyond its least."""
_DIGITS, _BLANK = string.digits, " "
_WORD = string.ascii_letters + string.digits + "_"
_ANY = string.ascii_letters + string.digits + " .,-"
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _BLANK}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_WIDTHS = {"x": 2, "u": 4}
_COUNT = re.compile(r"\{(?=,?\d)(\d*)(,?)(\d*)\}")


class Unfollowed(ValueError):
    """A constraint that the simulator cannot follow."""


@dataclass(frozen=True, slots=True)
class Letters:
    """One character of these."""

    letters: str


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """Another rule of the grammar."""

    name: str


Node = Letters | Literal | Row | Either | Repeated | Named
Rules = Mapping[str, Node]


def matching(pattern: str, rng: random.Random) -> str:
    """A text that the regular expression matches. Raises Unfollowed."""
    return _drawn(_Regex(pattern).read(), {}, rng, 0)


def derived(grammar: str, rng: random.Random) -> str:
    """A text of the grammar (`root ::= …`). Raises Unfollowed."""
    rules = _rules(grammar)
    return _drawn(Named("root"), rules, rng, 0)


# ---- drawing


def _drawn(node: Node, rules: Rules, rng: random.Random, depth: int) -> str:
    if isinstance(node, Literal):
        return node.text
    if isinstance(node, Letters):
        return rng.choice(node.letters)
    if isinstance(node, Row):
        return "".join(_drawn(item, rules, rng, depth) for item in node.items)
    if isinstance(node, Repeated):
        most = node.least + _MORE if node.most is None else node.most
        times = rng.randint(node.least, max(most, node.least)) if depth < _DEEP else node.least
        return "".join(_drawn(node.item, rules, rng, depth) for _ in range(times))
    if isinstance(node, Either):
        item = rng.choice(node.items) if depth < _DEEP else min(node.items, key=lambda item: _height(item, rules))
        return _drawn(item, rules, rng, depth)
    return _drawn(_rule(node.name, rules), rules, rng, depth + 1)


def _rule(name: str, rules: Rules) -> Node:
    if name not in rules:
        raise Unfollowed(f"the grammar has no rule {name!r}")
    return rules[name]


def _height(node: Node, rules: Rules, inside: frozenset[str] = frozenset()) -> float:
    """How many rules the shortest way out goes through; infinite where it comes back to itself."""
    if isinstance(node, Row):
        return max((_height(item, rules, inside) for item in node.items), default=0)
    if isinstance(node, Either):
        return min(_height(item, rules, inside) for item in node.items)
    if isinstance(node, Repeated):
        return _height(node.item, rules, inside) if node.least else 0
    if isinstance(node, Named):
        if node.name in inside:
            return float("inf")
        return 1 + _height(_rule(node.name, rules), rules, inside | {node.name})
    return 0


# ---- reading


class _Reader(ABC):
    """Alternatives, rows and repetitions; a subclass says what an atom is."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> Node:
        node = self._either()
        if self.at < len(self.text):
            raise Unfollowed(f"cannot follow {self.text[self.at :][:20]!r}")
        return node

    @abstractmethod
    def _atom(self) -> Node:
        """Reads one thing that can be repeated."""

    def _skip(self) -> None:
        """Passes over what stands between things: nothing, unless a subclass says so."""
        return

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, count: int = 1) -> str:
        taken = self.text[self.at : self.at + count]
        if len(taken) < count:
            raise Unfollowed(f"{self.text!r} ends too early")
        self.at += count
        return taken

    def _either(self) -> Node:
        items = [self._row()]
        while self._next() == "|":
            self.at += 1
            items.append(self._row())
        return items[0] if len(items) == 1 else Either(tuple(items))

    def _row(self) -> Node:
        items: list[Node] = []
        self._skip()
        while self._next() not in ("", "|", ")"):
            items.append(self._repeated(self._atom()))
            self._skip()
        return items[0] if len(items) == 1 else Row(tuple(items))

    def _repeated(self, item: Node) -> Node:
        count = _COUNT.match(self.text, self.at)
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._next())
        if simple is not None:
            least, most = simple
            self.at += 1
        elif count is not None:
            self.at = count.end()
            least = int(count[1] or 0)
            most = int(count[3]) if count[3] else None if count[2] else least
        else:
            return item
        if self._next() in ("?", "+"):
            self.at += 1
        return Repeated(item, least, most)

    def _group(self) -> Node:
        node = self._either()
        if self._take() != ")":
            raise Unfollowed(f"a group of {self.text!r} does not end")
        return node

    def _set(self) -> Node:
        """Behind the bracket that opens it."""
        negated = self._next() == "^"
        self.at += negated
        letters = ""
        while self._next() != "]" or not letters:
            low = self._letter()
            if len(low) == 1 and self._next() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                low = "".join(map(chr, range(ord(low), ord(self._letter()) + 1)))
            letters += low
        self.at += 1
        if negated:
            letters = "".join(letter for letter in _ANY if letter not in letters)
        if not letters:
            raise Unfollowed(f"a set of {self.text!r} is empty")
        return Letters(letters)

    def _letter(self) -> str:
        letter = self._take()
        return self._escaped() if letter == "\\" else letter

    def _escaped(self) -> str:
        """The characters that an escape stands for; behind its backslash."""
        letter = self._take()
        if letter in _WIDTHS:
            return chr(int(self._take(_WIDTHS[letter]), 16))
        if letter.lower() in _CLASSES:
            letters = _CLASSES[letter.lower()]
            return letters if letter.islower() else "".join(other for other in _ANY if other not in letters)
        return _CONTROLS.get(letter, letter)


class _Regex(_Reader):
    def _atom(self) -> Node:
        letter = self._take()
        if letter == "(":
            return self._opened()
        if letter == "[":
            return self._set()
        if letter == ".":
            return Letters(_ANY)
        if letter in "^$":
            return Literal("")
        if letter != "\\":
            return Literal(letter)
        if self._next() in ("b", "A", "Z", "z"):
            self.at += 1
            return Literal("")
        if self._next() in tuple("123456789BpP"):
            raise Unfollowed(f"cannot follow \\{self._next()}")
        return Letters(self._escaped())

    def _opened(self) -> Node:
        if self._next() == "?":
            kind = re.compile(r"\?(?::|P?<\w+>)").match(self.text, self.at)
            if kind is None:
                raise Unfollowed(f"cannot follow {self.text[self.at - 1 :][:4]!r}")
            self.at = kind.end()
        return self._group()


class _Rule(_Reader):
    """What stands behind `::=`."""

    _NAME = re.compile(r"[A-Za-z_][\w-]*")
    _QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')

    def _skip(self) -> None:
        while self._next().isspace():
            self.at += 1

    def _atom(self) -> Node:
        quoted, name = self._QUOTED.match(self.text, self.at), self._NAME.match(self.text, self.at)
        if quoted is not None:
            self.at = quoted.end()
            return Literal(_unquoted(quoted.group()))
        if name is not None:
            self.at = name.end()
            return Named(name.group())
        letter = self._take()
        if letter == "(":
            return self._group()
        if letter == "[":
            return self._set()
        raise Unfollowed(f"cannot follow {letter!r} in a grammar")


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise Unfollowed(f"cannot follow {text}: {error}") from None


def _rules(grammar: str) -> dict[str, Node]:
    text = "\n".join(line for line in grammar.splitlines() if not line.lstrip().startswith("#"))
    heads = list(re.finditer(r"(?m)^[ \t]*([A-Za-z_][\w-]*)[ \t]*::=", text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    return {head[1]: _Rule(text[head.end() : end]).read() for head, end in zip(heads, ends, strict=True)}
