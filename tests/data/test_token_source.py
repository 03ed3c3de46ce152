"""Sequences of token files, against loops over tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data import TokenSource

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
