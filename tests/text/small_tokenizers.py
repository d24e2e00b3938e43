"""Tokenizers small enough to read, one of each kind that decodes differently. Built here, so that no test waits."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from text.byte_level import ALPHABET
from text.tokenizer import Tokenizer

EOS = "<|end|>"
CALL = "<|call|>"

_CHARACTER = {byte: character for character, byte in ALPHABET.items()}
_BYTE_RUNS = (
    b"th", b"the", b" the", b"in", b"ing", b" a", b" b", b"st", b"op", b"stop", b" stop", b"ST", b"OP", b"STOP",
    b"\xc3\xa9", b"\xe2\x82", b"\xe2\x82\xac", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80", b"\x80\xf0\x9f",
    b" \xe2", b"a\xcc", b"\xa4\xbe", b"\xa4\xbe\xe0", b"\xe0\xa4", b"\xac\xe2",
)  # fmt: skip
"""Tokens beside the single bytes: words, whole characters, and bytes that begin, end or straddle characters."""


def _json(tokenizer: HfTokenizer) -> bytes:
    return tokenizer.to_str().encode()


def _named(data: bytes) -> str:
    return "".join(_CHARACTER[byte] for byte in data)


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE (Llama 3, Qwen, DeepSeek): ids 0..255 are the bytes, the last three are added tokens."""
    vocab = {_CHARACTER[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for run in _BYTE_RUNS:
        name = _named(run)
        if name not in vocab:
            left = next(n for n in range(len(run) - 1, 0, -1) if _named(run[:n]) in vocab and _named(run[n:]) in vocab)
            merges.append((_named(run[:left]), _named(run[left:])))
            vocab[name] = len(vocab)
    hf = HfTokenizer(models.BPE(vocab=vocab, merges=merges))
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([EOS, CALL])
    hf.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return Tokenizer(_json(hf))


def _sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "▁▁", "▁the", "▁stop", "stop", "▁Hello", "Hello", "world", "▁world", ".", "é", "er", "▁a", "ing"]
    letters = [chr(code) for code in range(0x20, 0x7F)]
    vocab = [(piece, 0.0) for piece in pieces]
    vocab += [(word, -1.0 - n / 100) for n, word in enumerate(words)]
    vocab += [(letter, -10.0) for letter in letters if letter not in words]
    hf = HfTokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    hf.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    hf.decoder = decoder
    hf.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(_json(hf))


@cache
def llama_2() -> Tokenizer:
    """SentencePiece with byte fallback, the first blank of a text dropped (Llama 2, Mistral 7B)."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _sentencepiece(decoders.Sequence(steps))


@cache
def gemma() -> Tokenizer:
    """SentencePiece with byte fallback, every blank kept (Gemma)."""
    return _sentencepiece(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]))


@cache
def metaspace() -> Tokenizer:
    """SentencePiece without byte fallback (T5)."""
    return _sentencepiece(decoders.Metaspace())


@cache
def word_piece() -> Tokenizer:
    """WordPiece (BERT): blanks stand between tokens, and punctuation takes one back."""
    words = ["[UNK]", "[SEP]", "the", "sto", "##p", "##ping", "it", "'", "s", ".", ",", "do", "n", "##'", "t", "a", "é"]
    hf = HfTokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    hf.decoder = decoders.WordPiece()
    hf.add_special_tokens(["[SEP]"])
    return Tokenizer(_json(hf))


ALL = {
    "byte_level": byte_level,
    "llama_2": llama_2,
    "gemma": gemma,
    "metaspace": metaspace,
    "word_piece": word_piece,
}
