"""The steps whose memory is predicted: each belongs to one split, and has the mesh of its name.

Rows that were recorded on an H200 are those of the present programs.
"""

import json
import math
from collections import Counter

import shardwise as jax
from benchmarks import memory_held_out_3, memory_held_out_4, memory_held_out_5, memory_models
from benchmarks.memory_predictions import (
    HELD_OUT_SETS,
    LATER,
    SHARDED,
    developed_steps,
    digest,
    mesh_shape,
    recorded,
    split,
)

SETS = {LATER: memory_models, **HELD_OUT_SETS}


def names(module):
    return [*module.STEPS, *getattr(module, "SHARDED", {})]


def test_every_step_is_in_one_set():
    counts = Counter(name for module in SETS.values() for name in names(module))
    assert max(counts.values()) == 1
    for kind, module in SETS.items():
        assert {split(name) for name in names(module)} == {kind}


def test_sharded_steps_have_meshes():
    for module in (memory_held_out_3, memory_held_out_4, memory_held_out_5):
        assert {*module.MESHES} == {*module.SHARDED}
    sizes = {math.prod(mesh_shape(name).values()) for name in SHARDED}
    assert sizes == {2, 4, 8}
    assert mesh_shape("selective scan") == {"x": 1}


def test_types_of_sharded_steps_have_the_axes_of_their_mesh():
    for name, make in SHARDED.items():
        shape = mesh_shape(name)
        _, types = make(jax.sharding.AbstractMesh(tuple(shape.values()), tuple(shape)))
        leaves = [leaf.sharding for leaf in jax.tree.leaves(types) if leaf.sharding is not None]
        assert all(sharding.mesh.shape == shape for sharding in leaves)
        assert any(sharding.spec != jax.P() for sharding in leaves)


def test_recorded_rows_of_other_devices_and_programs_are_left_out(tmp_path):
    name, function, types = next(step for step in developed_steps() if step[0] == "mlp × 16")
    kept = {
        "name": name,
        "device": "NVIDIA H200",
        "program": digest(jax.simulate(function, hardware="h200")(*types)),
        "assigned": 1,
    }
    for change, reason in (({}, None), ({"device": "cpu"}, "on cpu"), ({"program": "0"}, "another program")):
        file = tmp_path / "recorded.json"
        file.write_text(json.dumps([{**kept, **change}]))
        (row,) = recorded(file, [name])
        assert reason in row["stale"] if reason else row["predicted"] > 0
