"""A model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.text import small_tokenizers
from text.loading import ModelFiles, ModelFilesError, load_model

TOKENIZER = small_tokenizers.byte_level()._hf.to_str().encode()
EOS_ID = small_tokenizers.byte_level().token_id(small_tokenizers.EOS)
USER = [{"role": "user", "content": "Hi"}]


def write(folder: Path, **files: Any) -> Path:
    """Files by name, dots written as `__`; dictionaries as JSON."""
    for name, content in {"tokenizer__json": TOKENIZER, **files}.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    return folder


def load(folder: Path, **files: Any) -> ModelFiles:
    return load_model(write(folder, **files), fast=False)


def test_a_tokenizer_alone_is_a_model_for_completions(tmp_path: Path) -> None:
    model = load(tmp_path)
    assert model.chat_template is None
    assert model.eos_token_ids == ()
    assert (model.context_length, model.bos_token_id) == (None, None)
    assert model.vocab_size == model.tokenizer.vocab_size


def test_eos_ids_come_from_every_file(tmp_path: Path) -> None:
    model = load(
        tmp_path,
        config__json={"eos_token_id": 7, "text_config": {"eos_token_id": 8}},
        generation_config__json={"eos_token_id": [9, 7]},
        tokenizer_config__json={"eos_token": small_tokenizers.EOS},
    )
    assert model.eos_token_ids == (7, 8, 9, EOS_ID)


@pytest.mark.parametrize("token", [small_tokenizers.EOS, {"content": small_tokenizers.EOS, "special": True}])
def test_a_special_token_stands_as_a_string_or_an_object(tmp_path: Path, token: Any) -> None:
    model = load(
        tmp_path,
        tokenizer_config__json={"chat_template": "{{ bos_token }}{{ eos_token }}", "eos_token": token},
        special_tokens_map__json={"bos_token": "<|call|>"},
    )
    assert model.chat_template is not None
    assert model.chat_template.render(USER) == "<|call|><|end|>"
    assert model.eos_token_ids == (EOS_ID,)
    assert model.bos_token_id == model.tokenizer.token_id("<|call|>")


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "length"),
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 512}, 4096),
        ({"text_config": {"max_position_embeddings": 8192}}, {}, 8192),
        ({}, {"model_max_length": 512}, 512),
        ({}, {"model_max_length": 1e30}, None),
        ({"max_position_embeddings": None}, {"model_max_length": 10**30}, None),
    ],
)
def test_the_context_length_is_the_first_sane_one(
    tmp_path: Path, config: Any, tokenizer_config: Any, length: int | None
) -> None:
    # orjson writes no integer beyond 64 bits, transformers does.
    text = str(tokenizer_config).replace("'", '"').encode()
    assert load(tmp_path, config__json=config, tokenizer_config__json=text).context_length == length


@pytest.mark.parametrize(("config", "size"), [({"vocab_size": 300}, 300), ({"text_config": {"vocab_size": 320}}, 320)])
def test_the_models_own_vocabulary_size_goes_before_the_tokenizers(tmp_path: Path, config: Any, size: int) -> None:
    assert load(tmp_path, config__json=config).vocab_size == size


def test_sampling_defaults_are_those_that_the_model_sets(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "max_new_tokens": 64}
    model = load(tmp_path, generation_config__json=generation)
    assert model.sampling_defaults == {"temperature": 0.6, "top_k": 20, "max_new_tokens": 64}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"tokenizer_config__json": {"chat_template": "config"}}, "config"),
        ({"tokenizer_config__json": {"chat_template": [{"name": "default", "template": "listed"}]}}, "listed"),
        ({"tokenizer_config__json": {"chat_template": "config"}, "chat_template__jinja": b"file"}, "file"),
        ({"chat_template__json": {"chat_template": "processor"}}, "processor"),
    ],
)
def test_the_chat_template_is_found(tmp_path: Path, files: dict[str, Any], text: str) -> None:
    model = load(tmp_path, **files)
    assert model.chat_template is not None
    assert model.chat_template.render(USER) == text


def test_named_templates_in_files_of_their_own_are_found(tmp_path: Path) -> None:
    files = {"chat_template__jinja": b"plain", "additional_chat_templates/tool_use__jinja": b"tools"}
    model = load(tmp_path, **files)
    assert model.chat_template is not None
    assert model.chat_template.render(USER, tools=[{}]) == "tools"


def test_the_checksum_tells_models_apart_and_only_them(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    checksums = [
        load(folder, config__json={"n": n}).checksum
        for folder, n in ((one, 1), (same, 1), (other, 2))
        if not folder.mkdir()
    ]
    assert checksums[0] == checksums[1] != checksums[2]


def test_a_missing_folder_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"nowhere: no such folder; give the folder"):
        load_model(tmp_path / "nowhere")


def test_a_missing_tokenizer_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"tokenizer.json: no such file; download"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer__json": b"{"}, r"tokenizer.json: .*; download the file again"),
        ({"config__json": b"{"}, r"config.json: .*; download the file again"),
        ({"generation_config__json": b"[]"}, r"generation_config.json: it holds no JSON object"),
        ({"chat_template__jinja": b"\xff"}, r"chat_template.jinja: .*download the file again"),
        ({"chat_template__jinja": b"{% if %}"}, r"chat template 'default', line 1: .*; correct the template"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFilesError, match=message):
        load(tmp_path, **files)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFilesError, match=r"config.json: cannot be read"):
        load_model(tmp_path, fast=False)
