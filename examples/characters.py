"""The text in `text.txt` as tokens, one per character, and sequences of it."""

from pathlib import Path

import numpy as np

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
ALPHABET = sorted(set(TEXT))
VOCABULARY = 64  # 49 characters; padded, so that 2, 4 and 8 devices divide it


def encode(text):
    """Return the tokens of a text."""
    return np.array([ALPHABET.index(character) for character in text], np.int32)


def decode(tokens):
    """Return the text of tokens."""
    return "".join(ALPHABET[token] if token < len(ALPHABET) else "?" for token in tokens)


def sequences(length, stride=8):
    """Return the sequences of `length + 1` tokens of the text that begin at the multiples of `stride`."""
    return np.lib.stride_tricks.sliding_window_view(encode(TEXT), length + 1)[::stride]
