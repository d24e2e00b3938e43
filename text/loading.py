"""Reads a model's files: the one place in this room that touches the disk.

A model is a folder as Hugging Face lays it out. tokenizer.json is needed; config.json, generation_config.json,
tokenizer_config.json, special_tokens_map.json and the chat template's files are read where they are.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from protocols.model_card import checksum_of
from text.chat_template import DEFAULT, ChatTemplate
from text.tokenizer import Tokenizer

TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
TEMPLATE = "chat_template.jinja"
PROCESSOR_TEMPLATE = "chat_template.json"
NAMED_TEMPLATES = "additional_chat_templates"

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_NESTED_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")
_ENDLESS = 100_000_000
"""transformers writes 10^30 where nobody gave the tokenizer a limit."""
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ModelFilesError(ValueError):
    """A model's file is missing or cannot be read. The message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model's folder says.

    `chat_template` is None for a model without one (completions only). `eos_token_ids` are all that any of the files
    names, in ascending order. `context_length` is in tokens, None when no file says. `vocab_size` is how many ids the
    model itself takes (config.json; it may be more than the tokenizer has names for). `sampling_defaults`: those of
    `SAMPLING_DEFAULTS` that generation_config.json sets.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    context_length: int | None
    vocab_size: int
    checksum: str
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)


def load_model(path: str | Path, *, fast: bool = True) -> ModelFiles:
    """Reads a model's folder; takes a second or two for a large vocabulary. `fast`: see `Tokenizer`.

    Raises ModelFilesError.
    """
    folder = _Folder(Path(path))
    try:
        tokenizer = Tokenizer(folder.needed(TOKENIZER), fast=fast)
    except ValueError as error:
        if isinstance(error, ModelFilesError):
            raise
        raise folder.unreadable(TOKENIZER, error) from error
    config, generation, named = folder.json(CONFIG), folder.json(GENERATION), folder.json(TOKENIZER_CONFIG)
    special = {**_special_tokens(folder.json(SPECIAL_TOKENS)), **_special_tokens(named)}
    _release_memory()
    return ModelFiles(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, named, special),
        eos_token_ids=_eos_token_ids(tokenizer, (*_layers(config), generation), special),
        bos_token_id=_bos_token_id(tokenizer, (*_layers(config), generation), special),
        context_length=_context_length(config, named),
        vocab_size=_vocab_size(config, tokenizer),
        checksum=checksum_of(*folder.read()),
        sampling_defaults={
            name: generation[name] for name in SAMPLING_DEFAULTS if isinstance(generation.get(name), int | float)
        },
    )


def _release_memory() -> None:
    """Hands back to the system what making a tokenizer has left behind: as much again as the tokenizer itself."""
    if sys.platform == "linux":
        # glibc keeps it otherwise; other C libraries have no such call.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class _Folder:
    """The model's folder, and what was read of it so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._contents: dict[str, bytes | None] = {}
        if not path.is_dir():
            raise ModelFilesError(f"{path}: no such folder; give the folder that holds the model's {TOKENIZER}")

    def needed(self, name: str) -> bytes:
        content = self.optional(name)
        if content is None:
            raise ModelFilesError(
                f"{self.path / name}: no such file; download it with the model, or save it with "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        return content

    def optional(self, name: str) -> bytes | None:
        if name not in self._contents:
            try:
                self._contents[name] = (self.path / name).read_bytes()
            except FileNotFoundError:
                self._contents[name] = None
            except OSError as error:
                raise ModelFilesError(f"{self.path / name}: cannot be read: {error.strerror}") from error
        return self._contents[name]

    def json(self, name: str) -> dict[str, Any]:
        """A file's JSON object; an empty one when there is no such file."""
        content = self.optional(name)
        if content is None:
            return {}
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise self.unreadable(name, error) from error
        if not isinstance(value, dict):
            raise self.unreadable(name, "it holds no JSON object")
        return value

    def text(self, name: str) -> str | None:
        content = self.optional(name)
        try:
            return None if content is None else content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.unreadable(name, error) from error

    def names(self, sub_folder: str, suffix: str) -> list[str]:
        return sorted(f"{sub_folder}/{file.name}" for file in (self.path / sub_folder).glob(f"*{suffix}"))

    def read(self) -> Iterator[bytes]:
        """All that was read, in the order of the names."""
        for name, content in sorted(self._contents.items()):
            if content is not None:
                yield name.encode()
                yield content

    def unreadable(self, name: str, why: object) -> ModelFilesError:
        return ModelFilesError(f"{self.path / name}: {why}; download the file again")


def _layers(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and those nested in it: models with media keep the language model's own one level down."""
    yield config
    for name in _NESTED_CONFIGS:
        nested = config.get(name)
        if isinstance(nested, dict):
            yield from _layers(nested)


def _special_tokens(source: Mapping[str, Any]) -> dict[str, str]:
    """Named special tokens by name. A token stands as a string or as an object with its content."""
    found = {name: source.get(name) for name in _TOKEN_NAMES}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _ids(value: Any) -> Iterator[int]:
    for token_id in value if isinstance(value, list) else (value,):
        if type(token_id) is int and token_id >= 0:
            yield token_id


def _eos_token_ids(
    tokenizer: Tokenizer, layers: tuple[Mapping[str, Any], ...], special: Mapping[str, str]
) -> tuple[int, ...]:
    ids = {token_id for layer in layers for token_id in _ids(layer.get("eos_token_id"))}
    ids.update(_ids(tokenizer.token_id(special.get("eos_token", ""))))
    return tuple(sorted(ids))


def _bos_token_id(
    tokenizer: Tokenizer, layers: tuple[Mapping[str, Any], ...], special: Mapping[str, str]
) -> int | None:
    ids = [token_id for layer in layers for token_id in _ids(layer.get("bos_token_id"))]
    return ids[0] if ids else tokenizer.token_id(special.get("bos_token", ""))


def _context_length(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int | None:
    stated = [layer.get(name) for layer in _layers(config) for name in _CONTEXT_LENGTHS]
    for length in (*stated, tokenizer_config.get("model_max_length")):
        if isinstance(length, int | float) and 0 < length < _ENDLESS:
            return int(length)
    return None


def _vocab_size(config: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    stated = (layer.get("vocab_size") for layer in _layers(config))
    return next((size for size in stated if type(size) is int and size > 0), tokenizer.vocab_size)


def _chat_template(
    folder: _Folder, tokenizer_config: Mapping[str, Any], special: Mapping[str, str]
) -> ChatTemplate | None:
    sources = _template_sources(folder, tokenizer_config)
    if not sources:
        return None
    try:
        return ChatTemplate(sources, special_tokens=special)
    except ValueError as error:
        raise ModelFilesError(f"{folder.path}: {error}; correct the template, or give another in {TEMPLATE}") from error


def _template_sources(folder: _Folder, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by name. A file of its own goes before tokenizer_config.json, as in transformers."""
    stated = tokenizer_config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(stated, str):
        sources[DEFAULT] = stated
    elif isinstance(stated, list):
        entries = [entry for entry in stated if isinstance(entry, dict)]
        sources = {entry["name"]: entry["template"] for entry in entries if {"name", "template"} <= entry.keys()}
    processor = folder.json(PROCESSOR_TEMPLATE).get("chat_template")
    if isinstance(processor, str):
        sources[DEFAULT] = processor
    own = folder.text(TEMPLATE)
    if own is not None:
        sources[DEFAULT] = own
    for name in folder.names(NAMED_TEMPLATES, ".jinja"):
        sources[Path(name).stem] = folder.text(name) or ""
    return sources
