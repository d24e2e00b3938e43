"""Floor 1: tokens to text and back. No async; files are read in `loading.py` only."""
