"""SEEDS.md names an equivalent for each of the seeds' tests, and each one it names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")

ROWS = ROW.findall((TESTS / "SEEDS.md").read_text(encoding="utf-8"))


def test_all_29_tests_of_the_seeds_have_a_row():
    assert len({name for name, _ in ROWS}) == len(ROWS) == 29
    assert all(".py" in where for _, where in ROWS)


def test_every_named_equivalent_exists():
    named = [found for _, where in ROWS for found in NAMED.findall(where)]
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^(async )?def {test}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert missing == []
