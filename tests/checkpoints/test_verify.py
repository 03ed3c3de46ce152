"""verify names every corrupt array."""

import numpy as np
import pytest

from shardwise import checkpoints
from shardwise.errors import CorruptCheckpoint


def test_verify_names_every_corrupt_small_array(tmp_path):
    checkpoints.save(tmp_path / "a", [np.full(70_000, number) for number in range(20)]).wait()
    content = bytearray((file := tmp_path / "a/packs/0/c/0").read_bytes())
    for number in (3, 17):
        content[number * 560_000 + 40_000] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpoint) as caught:
        checkpoints.verify(tmp_path / "a")
    first, *lines = str(caught.value).splitlines()
    assert f"is corrupt in {len(lines)} places" in first
    assert {line.split("'")[1] for line in lines} == {"1", "2", "3", "16", "17", "18"}  # in chunks 1 and 9
