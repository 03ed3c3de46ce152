"""Meshes and variables of the command line."""

import pytest

from shardwise.launch.load_target import CommandError, parse_mesh_text, parse_variables
from shardwise.sharding import AbstractMesh


def test_texts_of_meshes_and_variables():
    assert parse_mesh_text("data=8, model=4") == AbstractMesh((8, 4), ("data", "model"))
    assert parse_variables(["batch=256", "batch=512", "name=a b", "sizes=(1, 2)"]) == {
        "batch": [256, 512],
        "name": ["a b"],
        "sizes": [(1, 2)],
    }
    with pytest.raises(CommandError, match="write NAME=VALUE"):
        parse_variables(["3=4"])
