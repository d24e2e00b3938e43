"""Encoding with fastokens (optional, several times faster on long texts), where it provably gives the same ids.

"Provably" is a trial at load: texts of many scripts, with emoji, odd whitespace, digits, broken markup and the model's
own special tokens are encoded by both; one differing id, and the reference stays in charge.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

Encode = Callable[[str, bool], list[int]]
"""`(text, add_special_tokens)` to ids."""

SAMPLES: tuple[str, ...] = (
    "",
    " ",
    "The quick brown fox jumps over the lazy dog. It's they'll we've I'D don't THAT'S",
    "  two  three   four    spaces\tand\t\ttabs\n\nlines\r\n\r\n end \n \n  \t \u00a0\u2003\u3000\u200b x ",
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
