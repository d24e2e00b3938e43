"""Encoding with fastokens (optional, several times faster on long texts), where it provably gives the same ids.

"Provably" is a trial at load: texts of many scripts, with emoji, odd whitespace, digits, broken markup and the model's
own special tokens are encoded by both; one differing id, and the reference stays in charge.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import pre_tokenizers

Encode = Callable[[str, bool], list[int]]
"""`(text, add_special_tokens)` to ids."""

SAMPLES: tuple[str, ...] = (
    "",
    " ",
    "The quick brown fox jumps over the lazy dog. It's they'll we've I'D don't THAT'S",
    "  two  three   four    spaces\tand\t\ttabs\n\nlines\r\n\r\n end \n \n  \t \u00a0\u2003\u3000\u200b x ",
    "\u180e \u180e\u180e's x\u180ey\u180e\n",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 2026-11-30T15:06:00Z ٣٤٥ ४५६ Ⅷ ½ ²³",
    "def f(x: int) -> str:\n    return f'{x!r}'  # ok\n\tif (a&&b||!c) {\n\t\ta[i]->b += c::d<e>(); }\n",
    "https://example.org/a_b-c?d=e&f=%20g#h user.name+tag@host.example C:\\dir\\file.txt",
    "naïve façade Ærøskøbing straße Žižkov İstanbul ﬁne e\u0301 o\u0308 n\u0303 A\u030a Å ①",
    "Быстрая лиса. Η γρήγορη αλεπού. Արագ աղվեսը. სწრაფი მელა. השועל המהיר. الثعلب السريع. تیز لومڑی",
    "तेज़ भूरी लोमड़ी। দ্রুত শিয়াল। விரைவான நரி। త్వరిత నక్క। สุนัขจิ้งจอก ລາວ ខ្មែរ မြန်မာ བོད་ཡིག አማርኛ",
    "敏捷的棕色狐狸跳过了懒狗。 素早い茶色の狐が、のろまな犬を飛び越える。ｶﾀｶﾅ 빠른 갈색 여우 ﹏ 𠮷野家 𪚥",
    "😀😃 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 1️⃣ ☕︎ ☕️ 🫠 a😀b 𝒳𝓎 𓀀 \U0010fffd",
    "\x00\x01\x1f\x7f\x80\x85\u2028\u2029\ufeff\ufffd\ue000 ...!!!???---___===***```~~~ «»“”‘’—–… …",
    "<s></s><|im_end|><|endoftext|><think>x</think> <| im_end |> <|im_end <unk>▁word▁▁ Ġword <0xE2> [INST] ##ing",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 70 + "\n" * 40 + "=" * 70 + "ha" * 40,
)


_BLANK = "\\p{Z}\t\n\v\f\r\x85"
"""Unicode's white space, spelled out: PCRE2 counts U+180E to `\\s`, HF tokenizers do not."""
GPT2_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
    rf"| ?[^{_BLANK}\p{{L}}\p{{N}}]+|[{_BLANK}]+(?![^{_BLANK}])|[{_BLANK}]+"
)
"""What a byte-level pre-tokenizer splits at when it only says `use_regex`."""


def fast_definition(definition: bytes, tokenizer: HfTokenizer) -> bytes:
    """The same tokenizer in the form that fastokens reads fastest; `tokenizer` is what HF made of `definition`.

    A byte-level step with a pattern of its own becomes a split by that pattern and a step without one: fastokens 0.3.5
    compiles the first and interprets the second, at twice the cost of all encoding.
    """
    given = tokenizer.pre_tokenizer
    if given is None:
        return definition
    steps = orjson.loads(given.__getstate__())
    steps = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    if not any(map(_splits_by_itself, steps)):
        return definition
    spelled = pre_tokenizers.Sequence([])
    spelled.__setstate__(
        orjson.dumps({"type": "Sequence", "pretokenizers": [s for step in steps for s in _spelled(step)]})
    )
    tokenizer.pre_tokenizer = spelled
    try:
        text: str = tokenizer.to_str()
    finally:
        tokenizer.pre_tokenizer = given
    return text.encode()


def _splits_by_itself(step: dict[str, Any]) -> bool:
    """With a blank put before each piece, the order of the two would matter."""
    return step["type"] == "ByteLevel" and step.get("use_regex", True) and not step["add_prefix_space"]


def _spelled(step: dict[str, Any]) -> list[dict[str, Any]]:
    if not _splits_by_itself(step):
        return [step]
    split = {"type": "Split", "pattern": {"Regex": GPT2_WORDS}, "behavior": "Isolated", "invert": False}
    return [split, {**step, "use_regex": False}]


def fast_encoder(definition: bytes, reference: Encode, special_tokens: Iterable[str]) -> Encode | None:
    """fastokens' encoder for a tokenizer.json; None when it is not installed, cannot read it or gives other ids."""
    try:
        module: Any = importlib.import_module("fastokens")
    except ImportError:
        return None
    try:
        backend = module.Tokenizer.from_json_str(definition.decode("utf-8"))
        backend.no_truncation()
        backend.no_padding()
        encode = _encode_with(backend)
        same = all(
            encode(sample, flag) == reference(sample, flag)
            for sample in (*SAMPLES, *_around(special_tokens))
            for flag in (False, True)
        )
    except (ValueError, TypeError, RuntimeError, NotImplementedError):
        return None
    return encode if same else None


def _encode_with(backend: Any) -> Encode:
    def encode(text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    return encode


def _around(special_tokens: Iterable[str]) -> list[str]:
    """Each special token in the middle of text, at its seams: blanks, newlines, digits, itself again."""
    return [f"a {token} b{token}{token}\n{token}1  {token} \n\n{token}é" for token in special_tokens]
