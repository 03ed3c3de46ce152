"""The planner prices the exchange inside an op as the report prices the collectives that the op becomes."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.traffic import one_after_another
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4,), ("rows",))

FUNCTIONS = {
    "argmax": (lambda x: jnp.argmax(x, 0), (32, 6), np.float32),
    "cumsum": (lambda x: jnp.cumsum(x, 0), (32, 6), np.float32),
    "fft": (lambda x: jnp.fft.fft(x, axis=0), (32, 8), np.complex64),
    "fft of few columns": (lambda x: jnp.fft.fft(x, axis=0), (32, 1), np.complex64),
    "fft of reals": (lambda x: jnp.fft.rfft(x, axis=0), (32, 8), np.float32),  # the result has 17 rows
    "roll": (lambda x: jnp.roll(x, 3, 0), (32, 6), np.float32),
    "sort": (lambda x: jnp.sort(x, 0), (32, 8), np.float32),
    "sort of two operands": (lambda x: lax.sort((x, x + 1), dimension=0), (32, 8), np.float32),
    "top_k": (lambda x: lax.top_k(x.T, 3), (32, 6), np.float32),
    "xor": (lambda x: lax.reduce_xor(x, (0,)), (32, 6), np.int32),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exchange_traffic_equals_the_traffic_of_the_collectives(name):
    function, shape, dtype = FUNCTIONS[name]
    x = sw.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, P("rows")))
    stages = sw.jit(function).lower(x)._prepared.stages
    equations = stages.problem.program.equations
    calls = [(equation.op, [value.type for value in equation.inputs]) for equation in equations]
    ((op, types),) = [(op, types) for op, types in calls if op.factors(*types).exchange]
    (factor,) = op.factors(*types).exchange
    collectives = [equation.op.traffic(equation.inputs[0].type, MESH) for equation in stages.local.collectives()]
    expected = one_after_another(*collectives)[0]  # by rings
    planned = op.exchange_traffic(factor, 4, *types)[0]
    assert expected.bytes_sent > 0 and planned == expected
