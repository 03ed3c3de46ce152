"""Token files that are broken, forged, shrinking, or no regular files are errors."""

import os
import pickle

import numpy as np
import pytest

from shardwise.data import TokenSource
from shardwise.errors import DataError
from tests.data.test_token_source import TOKENS


def test_errors_of_token_files(tmp_path):
    def check(message, path, length=4, **options):
        with pytest.raises(DataError, match=message):
            TokenSource(path, length, **options)

    raw, array, text = tmp_path / "raw.bin", tmp_path / "array.npy", tmp_path / "text.npy"
    TOKENS.astype(np.uint16).tofile(raw)
    np.save(array, TOKENS.astype(np.uint16))
    text.write_text("tokens")
    check("there is no file", tmp_path / "other.bin", dtype=np.uint16)
    check("there is no file", [])
    check("has no header: pass the dtype", raw)
    check("tokens are integers, not float32", raw, dtype=np.float32)
    check(
        "has 46 bytes, which is not a multiple of the 4 bytes .* another dtype, or it is truncated",
        raw,
        dtype=np.uint32,
    )
    check("has tokens of dtype uint16, not int32", array, dtype=np.int32)
    check("is not a .npy file of tokens", text)
    check("has 23 tokens, but a sequence and its targets need 24", raw, 23, dtype=np.uint16)
    check("length must be at least 1", raw, 0, dtype=np.uint16)
    check("the token 16 between 8 and 12, outside of the vocabulary of 16: is uint16", raw, dtype="u2", vocabulary=16)
    np.save(array, np.ones((2, 20)))
    check("shape .2, 20. and dtype float64; tokens are a one-dimensional", array)
    np.save(array, -TOKENS)
    check("the token -15 between 0", array)
    raw.write_bytes(b"")
    check("is empty", raw, dtype=np.uint16)


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_a_file_that_shrinks_while_it_is_read_is_an_error(suffix, tmp_path):
    path = tmp_path / f"tokens{suffix}"
    tokens = np.arange(100_000, dtype=np.uint16) % 1000
    with path.open("wb") as file:
        np.save(file, tokens) if suffix == ".npy" else tokens.tofile(file)
    source = TokenSource(path, 100, dtype=np.uint16)
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again[900]["tokens"], source[900]["tokens"])
    os.truncate(path, 50_000)
    assert source[3]["tokens"][0] == 300  # before the cut
    for index in (249, 900):
        with pytest.raises(DataError, match=rf"tokens{suffix} has shrunk: it had 200,\d+ bytes .* has 50,000 now"):
            source[index]


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-5,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (5.0,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (5,)}",
        "{'descr': '<u2', 'fortran_order': False}",
        "[" * 500 + "]" * 500,
        "{'descr': '<u2', 'shape': " + "(" * 3000,
        "__import__('os')",
    ],
)
def test_forged_npy_headers_are_errors(header, tmp_path):
    path = tmp_path / "tokens.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(100))
    with pytest.raises(DataError, match=r"tokens\.npy"):
        TokenSource(path, 4)


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_what_is_not_a_regular_file_is_an_error(suffix, tmp_path):
    path = tmp_path / f"tokens{suffix}"
    os.mkfifo(path)
    with pytest.raises(DataError, match="Is a FIFO, not a regular file"):
        TokenSource(path, 4, dtype=np.uint16)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="Is a device, not a regular file"):
        TokenSource(path, 4, dtype=np.uint16)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="Is a directory, not a regular file"):
        TokenSource(path, 4, dtype=np.uint16)
