"""Reads of checkpoints: small arrays together, and a store opened once."""

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import blocks, read, snapshot
from shardwise.checkpoints.read import Reader
from shardwise.checkpoints.safetensors import read_safetensors
from tests.checkpoints.test_commands import run


@pytest.mark.slow
def test_small_arrays_are_read_together(tmp_path, monkeypatch, capsys):
    tree = [jnp.full(9, index) for index in range(200)]
    for name in ("a", "b"):
        checkpoints.save(tmp_path / name, tree).wait()
    reads, read_pack = [], Reader._read_pack
    monkeypatch.setattr(Reader, "_read_pack", lambda self, *range: reads.append(range) or read_pack(self, *range))
    for command, count in ((("verify", "a"), 1), (("diff", "a", "b"), 2), (("export", "a", "x"), 1)):
        assert run(command[0], *(tmp_path / name for name in command[1:])) == 0
        assert len(reads) == count, command
        reads.clear()
    np.testing.assert_array_equal(read_safetensors(tmp_path / "x")["113"], [113] * 9)


def test_a_store_is_opened_once_for_all_boxes(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "LARGEST_FILE", 1 << 20)
    monkeypatch.setattr(snapshot, "LARGEST_FILE", 1 << 20)
    checkpoints.save(tmp_path / "a", {"x": np.arange(1 << 20), "y": np.arange(1 << 19)}).wait()
    opened = []
    monkeypatch.setattr(read, "open_blocks", lambda *args: opened.append(args[3].folder) or blocks.open_blocks(*args))
    assert len(Reader(tmp_path / "a").boxes("x")) == 8
    checkpoints.verify(tmp_path / "a")
    assert opened == ["arrays/0", "arrays/1"]
