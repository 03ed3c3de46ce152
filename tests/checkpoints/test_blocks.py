"""Blocks of arrays: shapes that are read together, and dtypes that zarr has."""

import ml_dtypes
import numpy as np
import pytest

from shardwise.checkpoints.blocks import (
    LARGEST_FILE,
    PACK_CHUNK,
    pack_blocks,
    read_shape,
    storage_error_text,
    stored_dtype,
)
from shardwise.checkpoints.manifest import Chunked


@pytest.mark.parametrize(
    ("limit", "shape"), [(1, (2, 4)), (32, (2, 4)), (64, (2, 8)), (200, (2, 16)), (256, (4, 16)), (10**6, (8, 16))]
)
def test_chunks_are_read_together_up_to_a_limit(limit, shape):
    assert read_shape(4, Chunked("arrays/0", (8, 16), (2, 4)), limit) == shape


@pytest.mark.parametrize("nbytes", [0, 1, PACK_CHUNK, 10 * PACK_CHUNK + 1, 3 * LARGEST_FILE])
def test_the_files_of_a_pack_hold_whole_chunks(nbytes):
    pack = pack_blocks(3, nbytes)
    (file,), (chunk,) = pack.file_shape, pack.chunk_shape
    assert pack.folder == "packs/3"
    assert file % chunk == 0 and 0 < chunk <= PACK_CHUNK
    assert min(nbytes, LARGEST_FILE) <= file <= LARGEST_FILE


def test_dtypes_that_zarr_does_not_have_are_stored_as_bytes():
    assert stored_dtype(np.dtype(ml_dtypes.float8_e4m3fn)) == np.uint8
    assert stored_dtype(np.dtype(ml_dtypes.int4)) == np.uint8
    for dtype in (np.float32, np.bool_, ml_dtypes.bfloat16):
        assert stored_dtype(np.dtype(dtype)) == dtype


def test_errors_of_tensorstore_are_shortened():
    assert storage_error_text(ValueError("no such chunk [tensorstore_spec='{...}']")) == "no such chunk"
