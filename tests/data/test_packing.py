"""Packed sequences hold every token of the documents once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.data import PackedSource, pack


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
