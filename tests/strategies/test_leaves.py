"""Names, shapes and shardings of the arrays of a tree."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.strategies.leaves import array_shapes, arrays_with_shardings, map_arrays, map_dtype

TREE = {"layers": [{"kernel": np.zeros((4, 2), np.float32), "bias": None}], "step": np.int32(3), "name": "mlp"}


def test_arrays_have_names_and_shapes():
    assert array_shapes(TREE) == {"layers/0/kernel": (4, 2), "step": ()}


def test_functions_apply_to_arrays_of_a_dtype_only():
    mapped = map_dtype(lambda x: x + 1, TREE, jnp.floating)
    assert mapped["layers"][0]["kernel"].sum() == 8
    assert (mapped["step"], mapped["name"]) == (3, "mlp")


def test_shardings_belong_to_the_arrays(mesh):
    shardings = map_arrays(lambda name, shape: sw.NamedSharding(mesh, P(*["data"][: len(shape)])), TREE)
    assert shardings["name"] is None
    found = arrays_with_shardings(TREE, shardings)
    assert {name: (shape, sharding.spec) for name, (shape, sharding) in found.items()} == {
        "layers/0/kernel": ((4, 2), P("data")),
        "step": ((), P()),
    }
