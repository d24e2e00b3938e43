"""Makes the demo model's files from words.txt: `python -m app.demo_model.make [FOLDER]`. Same words, same bytes.

The vocabulary: the 256 bytes, the pieces that byte-pair encoding needs to put the words together, every word with a
blank before it, a few runs of blanks and lines, and the chat's control tokens. A word with its blank is always put
together last, so every token that begins with a blank is a whole word, and ids drawn at random read like words.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

HERE = Path(__file__).parent
CONTEXT_LENGTH = 8192
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, START, END)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
RUNS = ("  ", "    ", "        ", "\n\n")
SPLIT = r" ?[\p{L}\p{M}]+(?:'\p{L}+)?|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

Pair = tuple[str, str]


def byte_characters() -> list[str]:
    """The printable character that stands for each byte: itself where it is one, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


CHARACTERS = byte_characters()
BLANK = CHARACTERS[0x20]


def spelt(text: str) -> tuple[str, ...]:
    return tuple(CHARACTERS[byte] for byte in text.encode("utf-8"))


def words(source: str) -> Iterator[str]:
    """The words of words.txt, in order, with their endings."""
    for line in source.splitlines():
        if line.startswith("#"):
            continue
        for word in line.removeprefix("~").split():
            yield word
            if line.startswith("~"):
                yield from inflected(word)


def inflected(word: str) -> tuple[str, str, str]:
    """The three endings, by rules plain enough that a few words come out wrong."""
    if word.endswith("e"):
        return f"{word}s", f"{word}d", f"{word[:-1]}ing"
    if word.endswith(("sh", "ch", "s", "x", "z")):
        return f"{word}es", f"{word}ed", f"{word}ing"
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies", f"{word[:-1]}ied", f"{word}ing"
    if len(word) == 4 and word[-1] in "bdgmnprt" and word[-2] in "aiou" and word[-3] not in "aeiou":
        return f"{word}s", f"{word}{word[-1]}ed", f"{word}{word[-1]}ing"
    return f"{word}s", f"{word}ed", f"{word}ing"


def merged(parts: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    out: list[str] = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def merges_for(counts: Counter[str]) -> list[Pair]:
    """Byte-pair encoding until every word is one piece: always the pair that is seen most, ties by spelling."""
    spellings = {word: spelt(word) for word in counts}
    seen: Counter[Pair] = Counter()
    places: defaultdict[Pair, set[str]] = defaultdict(set)

    def count(word: str, sign: int) -> None:
        parts = spellings[word]
        for pair in pairwise(parts):
            seen[pair] += sign * counts[word]
            places[pair].add(word)

    for word in counts:
        count(word, 1)
    merges: list[Pair] = []
    while any(seen.values()):
        best = max(seen, key=lambda pair: (seen[pair], pair))
        merges.append(best)
        for word in sorted(places.pop(best)):
            count(word, -1)
            spellings[word] = merged(spellings[word], best)
            count(word, 1)
        del seen[best]
    return merges


def all_merges(source: str) -> list[Pair]:
    """The merges in their order: words, then words with their blank, then runs."""
    listed = list(dict.fromkeys(words(source)))
    merges = merges_for(Counter({word: 1 + 200_000 // (rank + 40) for rank, word in enumerate(listed)}))
    merges += [(BLANK, "".join(spelt(word))) for word in listed]
    for run in RUNS:
        parts = spelt(run)
        half = len(parts) // 2
        merges.append(("".join(parts[:half]), "".join(parts[half:])))
    return merges


def tokenizer(source: str) -> dict[str, Any]:
    """tokenizer.json."""
    merges = all_merges(source)
    pieces = [*CHARACTERS, *dict.fromkeys(left + right for left, right in merges)]
    vocab = {piece: token_id for token_id, piece in enumerate(sorted(pieces[:256]) + pieces[256:])}
    added = [
        {
            "id": len(vocab) + place,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": content in SPECIAL,
        }
        for place, content in enumerate((*SPECIAL, *MARKS))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def files(source: str) -> dict[str, dict[str, Any]]:
    """The model's JSON files by name."""
    definition = tokenizer(source)
    ids = {token["content"]: token["id"] for token in definition["added_tokens"]}
    return {
        "tokenizer.json": definition,
        "tokenizer_config.json": {
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": CONTEXT_LENGTH,
            "pad_token": END_OF_TEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "config.json": {
            "architectures": ["TandemDemoForCausalLM"],
            "eos_token_id": ids[END],
            "max_position_embeddings": CONTEXT_LENGTH,
            "model_type": "tandem_demo",
            "pad_token_id": ids[END_OF_TEXT],
            "vocab_size": max(ids.values()) + 1,
        },
        "generation_config.json": {
            "eos_token_id": [ids[END], ids[END_OF_TEXT]],
            "temperature": 0.7,
            "top_p": 0.95,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="where to write the files")
    folder: Path = parser.parse_args().folder
    for name, content in files((HERE / "words.txt").read_text(encoding="utf-8")).items():
        option = 0 if name == "tokenizer.json" else orjson.OPT_INDENT_2
        (folder / name).write_bytes(orjson.dumps(content, option=option) + b"\n")


if __name__ == "__main__":
    main()
