"""Bounds of the frames of zstd."""

import pytest

from shardwise.checkpoints.zstd_frames import largest_decoded_size
from tests.checkpoints.test_orbax import FOLDER


def test_bounds_of_zstd_frames():
    frame = (FOLDER / "zarr2" / "params.w" / "0.0").read_bytes()
    assert 48 <= largest_decoded_size(frame) <= 1 << 17
    assert largest_decoded_size(frame + frame) == 2 * largest_decoded_size(frame)
    assert largest_decoded_size(b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab") == 0  # a frame to be skipped
    for damaged in (frame[:-1], frame[:5], b"\x00" + frame, frame + b"x"):
        with pytest.raises(ValueError, match="zstd"):
            largest_decoded_size(damaged)
