"""The text in `text.txt` as tokens, one per character, and batches of it."""

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


TOKENS = encode(TEXT)


def text_batch(step, rows, length, seed=1):
    """Return the batch of a step: random sequences of the text, each with the character that follows it."""
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(0, len(TOKENS) - length, (rows, 1))
    return TOKENS[starts + np.arange(length + 1)]
