"""Detokenizing one id at a time: our stream beside HF's DecodeStream, in µs per token.

    python benchmarks/detokenize.py [FOLDER_OR_TOKENIZER_JSON]

Without an argument the demo model serves. English text and text of many scripts are measured apart: the second has
characters that lie across tokens, which the table cannot answer by a look-up.
"""

from __future__ import annotations

import argparse
import sys
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers.decoders import DecodeStream

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from protocols.outputs import LLMEngineOutput  # noqa: E402
from protocols.preprocessed import PreprocessedRequest  # noqa: E402
from text.decoder import Decoder  # noqa: E402
from text.fast_encoder import SAMPLES  # noqa: E402
from text.tokenizer import Tokenizer  # noqa: E402

ENGLISH = "The river ran quiet past the old mill, and nobody in the village could say when it had been built. " * 20
REPEATS = 7


def table(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    step = tokenizer.decode_stream(skip_special_tokens=True).step
    for token_id in ids:
        step(token_id)


def reference(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    stream, hf = DecodeStream(skip_special_tokens=True), tokenizer._hf
    for token_id in ids:
        stream.step(hf, token_id)


def whole_decoder(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    feed = Decoder(tokenizer, PreprocessedRequest(model="m", token_ids=(), eos_token_ids=(1,))).feed
    for token_id in ids:
        feed(LLMEngineOutput(token_ids=[token_id]))


WAYS: dict[str, Callable[[Tokenizer, Sequence[int]], None]] = {
    "our stream": table,
    "HF DecodeStream": reference,
    "decoder, outputs included": whole_decoder,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", nargs="?", type=Path, default=ROOT / "app" / "demo_model")
    path: Path = parser.parse_args().path
    tokenizer = Tokenizer((path / "tokenizer.json" if path.is_dir() else path).read_bytes())
    for title, text in (("English", ENGLISH), ("many scripts", "\n".join(SAMPLES) * 2)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        print(f"{title}, {len(ids)} tokens")
        for name, way in WAYS.items():
            best = min(timeit.repeat(lambda way=way, ids=ids: way(tokenizer, ids), number=1, repeat=REPEATS))
            print(f"  {name:<28}{best / len(ids) * 1e6:8.3f} µs per token")


if __name__ == "__main__":
    main()
