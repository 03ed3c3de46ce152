"""drop_shardings: programs without constraints and Explicit shardings."""

import numpy as np

import shardwise as sw
from shardwise.compiler.transforms.drop_shardings import drop_shardings
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import NamedSharding, PartitionSpec


def names(program):
    return {equation.op.name for equation in program.walk()}


def test_constraints_are_dropped_inside_loops_too(mesh):
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    def body(carry, _):
        return sw.lax.with_sharding_constraint(carry * 2, sharding), None

    def function(x):
        return sw.lax.scan(body, sw.lax.with_sharding_constraint(x, sharding), length=3)[0]

    program = inline(sw.jit(function).trace(np.ones(8, np.float32)).program)
    dropped = drop_shardings(program)
    assert "constrain" in names(program)
    assert names(dropped) == names(program) - {"constrain"}
    assert dropped.out_types == program.out_types


def test_explicit_shardings_are_dropped(explicit_mesh):
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(explicit_mesh, PartitionSpec("X")))
    program = inline(sw.jit(lambda x: sw.sharding.reshard(x + 1, PartitionSpec("Y"))).trace(x).program)
    dropped = drop_shardings(program)
    assert program.in_types[0].explicit is not None
    assert [type.explicit for type in (*dropped.in_types, *dropped.out_types)] == [None, None]
    assert "reshard" not in names(dropped)
