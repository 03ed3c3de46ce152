"""Sources: fingerprints, and errors for wrong arguments."""

import numpy as np
import pytest

from shardwise.data import ArraySource, PackedSource, TokenSource, pack
from shardwise.errors import DataError
from tests.data.test_token_source import TOKENS


def test_fingerprints_differ(tmp_path):
    rows = np.arange(40).reshape(20, 2)
    changed = rows.copy()
    changed[-1, 0] += 1
    prints = {ArraySource(x).fingerprint for x in (rows, changed, rows[:19], rows.astype(float), {"x": rows})}
    assert len(prints) == 5 and ArraySource(rows.copy()).fingerprint in prints
    TOKENS.astype(np.uint16).tofile(tmp_path / "a.bin")
    TOKENS[::-1].astype(np.uint16).tofile(tmp_path / "b.bin")
    files = [TokenSource(tmp_path / name, 4, dtype=np.uint16).fingerprint for name in ("a.bin", "b.bin", "a.bin")]
    assert files[0] == files[2] != files[1]


def test_errors_of_other_sources():
    with pytest.raises(DataError, match="'y' has 3 rows, but 'x' has 2"):
        ArraySource({"x": np.zeros(2), "y": np.zeros(3)})
    with pytest.raises(DataError, match="the arrays have no rows"):
        ArraySource(np.zeros((0, 3)))
    with pytest.raises(DataError, match=r"document 1 has shape .2, 2. and dtype int64; documents are one-dimensional"):
        list(pack([[1], [[1, 2], [3, 4]]], 4))
    with pytest.raises(DataError, match="pack: length must be at least 1, not 0"):
        pack([], 0)
    with pytest.raises(DataError, match="2 documents need as many integers as lengths"):
        PackedSource([[1], [2]], 4, lengths=[1])
    with pytest.raises(DataError, match=r"document 1 has 1 tokens, but lengths\[1\] is 2"):
        PackedSource([[1], [2]], 4, lengths=[1, 2])
    with pytest.raises(DataError, match="not all 0"):
        PackedSource([[], []], 4)
