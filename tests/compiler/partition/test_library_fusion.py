"""What XLA's library of reductions computes on CPU, seen in the memory that XLA assigns to a value that is reduced."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.compiler.partition.library_fusion import library_calls
from shardwise.compiler.partition.liveness import Liveness
from shardwise.compiler.plan.hardware import chip
from tests.compiler.partition.test_liveness import assigned_by_xla, local_of

MIB = 2**20
ROWS = sw.ShapeDtypeStruct((256, 1024), np.float32)  # 1 MiB
FEW = sw.ShapeDtypeStruct((4, 512), np.float32)

COMPUTED = [
    jnp.exp,
    jnp.expm1,
    jnp.log1p,
    jnp.tanh,
    nn.relu,
    nn.sigmoid,
    nn.silu,
    nn.gelu,
    nn.softplus,
    lax.erf,
    lax.rsqrt,
]
STORED = [jnp.sin, jnp.cbrt, lambda x: jnp.where(x > 0, x, 0.0), lambda x: x[::-1], lambda x: x[:, 1:]]


@pytest.mark.parametrize("function", COMPUTED)
def test_the_library_computes_arithmetic(function):
    jitted = sw.jit(lambda x: function(x).sum())
    assert assigned_by_xla(jitted, ROWS) == jitted.lower(ROWS).plan.peak_bytes == MIB + 4


@pytest.mark.parametrize("function", STORED)
def test_the_library_reads_other_values_from_memory(function):
    jitted = sw.jit(lambda x: function(x).sum())
    assert assigned_by_xla(jitted, ROWS) == jitted.lower(ROWS).plan.peak_bytes > 1.9 * MIB


def test_the_library_reads_a_broadcast_that_other_kernels_need_too():
    def function(x, y, scale):
        return jnp.sin(x) * scale, (y * scale).sum(-1)

    local = local_of(function, ROWS, ROWS, sw.ShapeDtypeStruct((1024,), np.float32))
    kernels = Liveness.from_program(local, (), chip("cpu")).ranges.kernels
    names = [[equation.op.name for equation in kernel.equations] for kernel in kernels]
    assert ["broadcast"] in names and ["mul", "sum"] in names


@pytest.mark.parametrize("shape", [(256, 1024), (4, 512)])
def test_a_normalization_is_one_call(shape):
    def norm(x):
        centered = x - x.mean(-1, keepdims=True)
        return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6)

    x = sw.ShapeDtypeStruct(shape, np.float32)
    jitted = sw.jit(sw.grad(lambda x: jnp.sum(jnp.cos(norm(x)))))
    assert jitted.lower(x).plan.peak_bytes == pytest.approx(assigned_by_xla(jitted, x), rel=0.1)


def test_a_call_grows_over_a_long_program():
    """The time is proportional to the number of equations: each one is examined once."""

    def function(x):
        for _ in range(3000):
            x = jnp.tanh(x)
        return jnp.tanh(x.sum(1))

    program = sw.jit(function).trace(ROWS).program
    uses = {value: [equation] for equation in program.equations for value in equation.inputs}  # one each
    calls = library_calls(program, uses)
    assert len(calls) == 3001 and set(calls.values()) == {program.equations[-2]}
