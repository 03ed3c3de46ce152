"""Kernels against counts by hand: what is fused, and the bytes that reach memory."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ops.collective.collectives import PPermute
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

N = 1024
MATRIX = N * N * 4


def kernels_of(function, *shapes, dtype=np.float32):
    args = [sw.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    local = sw.jit(function).lower(*args)._prepared.stages.local
    return local.kernel_groups(local.program).kernels


def traffic(function, *shapes, dtype=np.float32):
    """Return the bytes of each kernel that accesses memory."""
    return [k.bytes_accessed for k in kernels_of(function, *shapes, dtype=dtype) if k.bytes_accessed]


def test_a_chain_of_elementwise_ops_is_one_kernel():
    assert traffic(lambda x, y: jnp.tanh(jnp.sin(x) * y + 1.0), (N, N), (N, N)) == [3 * MATRIX]


def test_constants_and_broadcasts_are_never_stored():
    (kernel,) = kernels_of(lambda x, b: x * 2.0 + b, (N, N), (N,))
    assert kernel.bytes_accessed == 2 * MATRIX + N * 4


def test_constants_that_a_program_returns_are_stored():
    assert traffic(lambda x: (x * 2.0, jnp.float32(2.0)), (N, N)) == [2 * MATRIX, 4]
    assert traffic(lambda x: (x * 2.0, jnp.zeros(N)), (N, N)) == [2 * MATRIX, 4 * N]


def test_a_reduction_reads_through_elementwise_ops():
    assert traffic(lambda x: jnp.sum(jnp.exp(x), 0), (N, N)) == [MATRIX + N * 4]


def test_a_softmax_along_rows_is_one_kernel():
    assert traffic(lambda x: sw.nn.softmax(x, -1), (N, N)) == [2 * MATRIX]


def test_a_softmax_along_columns_reads_its_operand_for_each_reduction():
    assert traffic(lambda x: sw.nn.softmax(x, 0), (N, N)) == [
        MATRIX + 4 * N,  # the maximum
        2 * MATRIX + 2 * 4 * N,  # the exponentials, which are stored, and their sum
        2 * MATRIX + 4 * N,
    ]


def test_a_product_is_a_kernel_of_its_own():
    names = [kernel.root.op.name for kernel in kernels_of(lambda x, y: jnp.tanh(jnp.sin(x) @ y), (N, N), (N, N))]
    assert names == ["sin", "dot", "tanh"]


def test_a_transpose_that_only_a_product_reads_is_free():
    assert traffic(lambda x, y: x.T @ y, (N, N), (N, N)) == [3 * MATRIX]
    assert traffic(lambda x: (x + 1.0).T, (N, N)) == [2 * MATRIX]


def test_a_reshape_shares_the_memory_of_its_operand():
    assert traffic(lambda x, y: jnp.sin(x).reshape(2, N // 2, N).reshape(N, N) @ y, (N, N), (N, N)) == [
        2 * MATRIX,
        3 * MATRIX,
    ]


def test_kernels_that_read_the_same_operand_are_merged():
    both = kernels_of(lambda x: (jnp.sum(x, 0), jnp.sum(x * x, 0)), (N, N))
    assert [kernel.bytes_accessed for kernel in both] == [MATRIX + 2 * N * 4]


def test_a_cheap_value_is_computed_again_and_an_expensive_one_is_stored():
    def twice(function):
        def program(x, y):
            h = function(x)
            return h @ y, jnp.sum(jnp.cos(h), 0), jnp.sin(h) @ y  # a product needs h in memory

        def fused(x):
            h = function(x)
            column = jnp.sum(h, 0)
            return column, h * column

        return program, fused

    _, cheap = twice(lambda x: x - 1.0)
    assert traffic(cheap, (N, N)) == [MATRIX + 4 * N, 2 * MATRIX + 4 * N]
    _, expensive = twice(jnp.tanh)
    assert traffic(expensive, (N, N)) == [2 * MATRIX + 4 * N, 2 * MATRIX + 4 * N]
    stored, _ = twice(lambda x: x - 1.0)
    names = [kernel.root.op.name for kernel in kernels_of(stored, (N, N), (N, N))]
    assert names.count("dot") == 2


def test_a_barrier_ends_a_kernel():
    assert traffic(lambda x: jnp.sin(lax.optimization_barrier(jnp.cos(x))), (N, N)) == [2 * MATRIX, 2 * MATRIX]


def test_slices_and_updates_access_only_their_elements():
    assert traffic(lambda x: lax.slice(x, (0, 0), (8, N)) * 2.0, (N, N)) == [2 * 8 * N * 4]
    row = 8 * N * 4
    *indices, update = traffic(lambda x, y: lax.dynamic_update_slice(x, y, (3, 0)), (N, N), (8, N))
    assert update == pytest.approx(2 * row, abs=64) and sum(indices) < 64


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_every_result_is_computed_by_a_kernel(dtype):
    """A property of the grouping: what a kernel reads was written by an earlier kernel or is an input."""

    def loss(w, x):
        h = jnp.tanh(x @ w)
        mean = jnp.mean(h, -1, keepdims=True)
        return jnp.sum((h - mean) ** 2 @ w.T)

    args = [sw.ShapeDtypeStruct((64, 64), dtype)] * 2
    local = sw.jit(sw.value_and_grad(loss)).lower(*args)._prepared.stages.local
    program = local.program
    written = set(program.inputs)
    for kernel in local.kernel_groups(program).kernels:
        assert written.issuperset(kernel.reads)
        written.update(kernel.writes)
    views = {"reshape", "transpose"}
    outputs = [v for v in program.outputs if not any(v in e.outputs and e.op.name in views for e in program.equations)]
    assert written.issuperset(outputs)


def test_collectives_along_axes_of_size_one_share_the_memory_of_their_operand():
    mesh = sw.make_mesh((1, 4), ("one", "four"), devices=sw.devices()[:4])

    def gathered(axis):
        x = sw.ShapeDtypeStruct((N, N), np.float32, sharding=NamedSharding(mesh, P(axis)))
        replicated = sw.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))
        return replicated.lower(x)._prepared.stages.local

    local = gathered("one")
    (gather,) = local.program.equations
    assert gather.op.name == "all_gather" and local.kernel_groups(local.program).kernels == []
    (kernel,) = gathered("four").kernel_groups(gathered("four").program).kernels
    assert kernel.bytes_accessed == MATRIX // 4 + MATRIX


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("devices", [1, 2])
def test_callbacks_are_never_removed(count, devices):
    mesh = sw.make_mesh((devices,), ("one",), devices=sw.devices()[:devices])
    x = sw.device_put(np.arange(N, dtype=np.float32), NamedSharding(mesh, P()))
    result = sw.ShapeDtypeStruct((N,), np.float32)

    def program(x):
        return sw.pure_callback(lambda x: [np.asarray(x) + 1] * count, [result] * count, x)

    local = sw.jit(program).lower(x)._prepared.stages.local
    kernels = local.kernel_groups(local.program).kernels
    assert "call_once" in [kernel.root.op.name for kernel in kernels]
    for out in sw.jit(program)(x):
        np.testing.assert_array_equal(out, np.arange(N, dtype=np.float32) + 1)


def test_a_permute_along_no_axes_has_no_mesh_axes():
    assert PPermute((), ()).communicates_along == ()
