"""Real models' chat templates, where `make tokenizers` has fetched the packages that ship them.

They stay where they are: not all of their licences let us hand them on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests.text.real_tokenizers import ENVIRONMENT


def _found(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.glob("*/package/models/tokenizer_config.json")):
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if template:
            yield path.parts[-4], template
    for path in sorted(root.glob("templates/*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")


REAL = dict(_found(Path(os.environ.get(ENVIRONMENT, "nowhere"))))
"""By name; empty where none were fetched."""
