"""The steps whose memory is predicted: each belongs to one split, and has the mesh of its name. None is predicted."""

import math
from collections import Counter

import shardwise as jax
from benchmarks import memory_held_out_3, memory_models
from benchmarks.memory_predictions import HELD_OUT_SETS, LATER, SHARDED, mesh_shape, split

SETS = {LATER: memory_models, **HELD_OUT_SETS}


def names(module):
    return [*module.STEPS, *getattr(module, "SHARDED", {})]


def test_every_step_is_in_one_set():
    counts = Counter(name for module in SETS.values() for name in names(module))
    assert max(counts.values()) == 1
    for kind, module in SETS.items():
        assert {split(name) for name in names(module)} == {kind}


def test_sharded_steps_have_meshes():
    assert {*memory_held_out_3.MESHES} == {*memory_held_out_3.SHARDED}
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
