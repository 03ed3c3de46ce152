"""Sources of samples: arrays, token files and packed documents, against loops over tokens."""

import os
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data import ArraySource, PackedSource, TokenSource, pack
from shardwise.errors import DataError

TOKENS = np.arange(1, 24) * 3 % 17


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_token_files(suffix, dtype, tmp_path):
    path = tmp_path / f"tokens{suffix}"
    if suffix == ".npy":
        np.save(path, TOKENS.astype(dtype))
    else:
        TOKENS.astype(dtype).tofile(path)
    source = TokenSource(path, 5, dtype=dtype, vocabulary=17)
    assert len(source) == 4  # 22 tokens with a target
    for index in range(4):
        sample = source[index]
        assert list(sample) == ["tokens", "targets"] and sample["tokens"].dtype == np.int32
        np.testing.assert_array_equal(sample["tokens"], TOKENS[5 * index : 5 * index + 5])
        np.testing.assert_array_equal(sample["targets"], TOKENS[5 * index + 1 : 5 * index + 6])
    with pytest.raises(IndexError):
        source[4]
    np.testing.assert_array_equal(source.read_batch(np.array([2, 0]))["tokens"], [source[2]["tokens"], TOKENS[:5]])


def test_sequences_do_not_span_files(tmp_path):
    for index, part in enumerate(np.split(TOKENS, [12])):
        part.astype(np.uint32).tofile(tmp_path / f"{index}.bin")
    source = TokenSource([tmp_path / "0.bin", tmp_path / "1.bin"], 3, dtype=np.uint32)
    assert [sample["tokens"].tolist() for sample in map(source.__getitem__, range(len(source)))] == [
        TOKENS[start : start + 3].tolist() for start in (0, 3, 6, 12, 15, 18)
    ]


@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_segments_of_a_token_file(tmp_path_factory, tokens, length):
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    np.array(tokens, np.uint8).tofile(path)
    source = TokenSource(path, length, dtype=np.uint8, separator=0)
    for index in range(len(source)):
        sample = source[index]
        segment, position = 1, 0
        for place in range(length):
            token = tokens[index * length + place]
            found = [sample[name][place] for name in ("tokens", "segment_ids", "positions", "loss_mask")]
            assert found == [token, segment, position, token != 0]
            segment, position = (segment + 1, 0) if token == 0 else (segment, position + 1)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_packed_sequences_hold_all_documents(sizes, length):
    starts = np.cumsum([0, *sizes])
    documents = [list(range(1 + start, 1 + start + size)) for start, size in zip(starts, sizes, strict=False)]
    sequences = list(pack(iter(documents), length, padding=-1))
    # All tokens are there once, in order, and nothing else.
    tokens = np.concatenate([row["tokens"][row["segment_ids"] > 0] for row in sequences])
    np.testing.assert_array_equal(tokens, np.arange(1, 1 + sum(sizes)))
    last_of_document = {document[-1] for document in documents if document}
    for row in sequences:
        padded = row["segment_ids"] == 0
        assert (row["tokens"][padded] == -1).all() and not row["loss_mask"][padded].any()
        for segment in range(1, row["segment_ids"].max() + 1):
            (places,) = np.nonzero(row["segment_ids"] == segment)
            np.testing.assert_array_equal(row["positions"][places], np.arange(len(places)))
            part = row["tokens"][places]
            (document,) = [document for document in documents if part[0] in document]
            assert set(part) <= set(document)
            for place in places:
                has_target = row["tokens"][place] not in last_of_document
                assert row["loss_mask"][place] == has_target
                assert row["targets"][place] == (row["tokens"][place] + 1 if has_target else -1)
    # A sequence ends early only if the next part would not have fitted.
    for row, following in pairwise(sequences):
        room = (row["segment_ids"] == 0).sum()
        assert (following["segment_ids"] == 1).sum() > room
    # By index, the sequences are the same.
    source = PackedSource(documents, length, padding=-1)
    assert len(source) == len(sequences) and source.fill == pytest.approx(sum(sizes) / (length * len(source)))
    for index in np.random.default_rng(0).permutation(len(source)):
        for name, expected in sequences[index].items():
            np.testing.assert_array_equal(source[index][name], expected)


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
