"""Batches in host memory: stacked samples, checks and digests."""

import numpy as np
import pytest

from shardwise.data.host_batch import batch_digest, check_batch, stack_samples
from shardwise.errors import DataError


def test_samples_are_stacked_along_a_new_first_dim():
    samples = [{"x": np.array([1, 2]), "y": 0.5}, {"x": np.array([3, 4]), "y": 1.5}]
    batch = stack_samples(samples, ["sample 0", "sample 1"])
    assert batch["x"].tolist() == [[1, 2], [3, 4]]
    assert batch["y"].tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"x": np.zeros(3)}, r"sample 1: the leaf 'x' has shape \(3,\) .* but that of sample 0 has shape \(2,\)"),
        ({"x": np.zeros(2, np.int32)}, "dtype int32, but that of sample 0"),
        ({"y": np.zeros(2)}, "sample 1 has the structure"),
        ({"x": "text"}, "the leaf 'x' is 'text', with dtype"),
    ],
    ids=["shape", "dtype", "structure", "text"],
)
def test_samples_of_other_types_are_errors(other, text):
    with pytest.raises(DataError, match=text):
        stack_samples([{"x": np.zeros(2)}, other], ["sample 0", "sample 1"])


def test_batches_have_equal_rows():
    batch, rows = check_batch({"x": np.arange(6).reshape(3, 2), "y": np.zeros(3)}, "batch 0")
    assert rows == 3 and batch["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(DataError, match="batch 0 is ragged: the leaf 'y' has 2 rows, but 'x' has 3"):
        check_batch({"x": np.zeros(3), "y": np.zeros(2)}, "batch 0")
    with pytest.raises(DataError, match="the leaf of the batch has no dims"):
        check_batch(1.0, "batch 0")
    with pytest.raises(DataError, match="batch 0 has no arrays"):
        check_batch({}, "batch 0")


def test_digests_differ_by_values_dtypes_and_names():
    batches = [
        {"x": np.arange(4)},
        {"x": np.arange(4)[::-1].copy()},
        {"x": np.arange(4).astype(np.int32)},
        {"y": np.arange(4)},
        {"x": np.arange(4).reshape(2, 2)},
    ]
    assert len({batch_digest(batch) for batch in batches}) == len(batches)
    assert batch_digest({"x": np.arange(4)}) == batch_digest(batches[0])
