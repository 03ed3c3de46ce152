"""Rows of arrays as samples."""

import numpy as np
import pytest

from shardwise.data import ArraySource
from shardwise.data.array_source import probe_indices
from shardwise.errors import DataError


def test_samples_and_batches_are_rows():
    arrays = {"x": np.arange(12).reshape(6, 2), "y": np.arange(6.0)}
    source = ArraySource(arrays)
    assert len(source) == 6
    assert source[4]["x"].tolist() == [8, 9] and source[4]["y"] == 4
    batch = source.read_batch(np.array([5, 0]))
    assert batch["x"].tolist() == [[10, 11], [0, 1]] and batch["y"].tolist() == [5, 0]


def test_the_fingerprint_depends_on_rows_types_and_size():
    x = np.arange(100)
    others = [x + 1, x.astype(np.int32), x[:-1], {"x": x}]
    assert ArraySource(x).fingerprint == ArraySource(x.copy()).fingerprint
    assert len({ArraySource(each).fingerprint for each in [x, *others]}) == 5


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
def test_probes_are_distinct_samples_from_the_first_to_the_last(size):
    probes = probe_indices(size).tolist()
    assert (probes[0], probes[-1]) == (0, size - 1)
    assert len(set(probes)) == len(probes) == min(size, 16)


def test_arrays_without_rows_are_an_error():
    with pytest.raises(DataError, match="ArraySource: the arrays have no rows"):
        ArraySource(np.zeros((0, 3)))
