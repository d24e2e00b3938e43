"""The demo's model: a small byte-level tokenizer with a chat template, and no weights. Made by `make.py`."""
