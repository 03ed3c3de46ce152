"""Products that XLA computes on GPUs with kernels of its own."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.partition.product_options import triton_chip
from shardwise.compiler.partition.triton_products import is_triton_product
from shardwise.compiler.plan.hardware import chip

H200 = chip("h200")


def array(*shape, dtype=np.float32):
    return sw.ShapeDtypeStruct(shape, dtype)


def local_of(function, *args):
    return sw.jit(function).lower(*args)._prepared.stages.local


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((16384, 96), (96, 96)), True),  # of the recorded step of the mesh simulator
        (((4096, 4096), (4096, 4096)), False),
        (((4096, 4096), (4096, 1)), True),  # a vector
        (((96, 64), (64, 96)), True),  # as fast as the library's, within the autotuner's tolerance
        (((4096, 256), (256, 512)), True),  # of the recorded step of retrieval
        (((8192, 64), (64, 4096)), False),  # of vector quantization: its time is that of writing the result
    ],
)
def test_the_autotuner_selects_the_library_for_products_that_compute(shapes, expected):
    (product,) = local_of(lambda x, y: x @ y, *[array(*shape) for shape in shapes]).program.equations
    assert is_triton_product(product, H200) == expected


def test_the_library_computes_complex_products():
    (product,) = local_of(lambda x, y: x @ y, *[array(96, 96, dtype=np.complex64)] * 2).program.equations
    assert not is_triton_product(product, H200)


def test_other_ops_are_no_products():
    (equation,) = local_of(jnp.tanh, array(64, 64)).program.equations
    assert not is_triton_product(equation, H200)


def test_the_library_computes_all_products_of_a_program_that_computes():
    assert triton_chip(local_of(lambda x: x @ x, array(4096, 4096)), H200) is None
    assert triton_chip(local_of(lambda x, y: x @ y, array(16384, 96), array(96, 96)), H200) is H200
    assert triton_chip(local_of(jnp.tanh, array(64, 64)), chip("cpu")) is None


def test_products_of_xla_compute_their_operands():
    """The step of the mesh simulator stores the sums of its layers, and no relu of them."""

    def stored(function, *args):
        local = local_of(function, *args)
        kernels = local.kernel_groups(local.program, "gpu", triton_chip(local, H200)).kernels
        return [
            equation.op.name
            for kernel in kernels
            for equation in kernel.equations
            for v in equation.outputs
            if v in kernel.writes
        ]

    rows, weights = array(16384, 96), array(96, 96)

    def two(x, w):
        h = jnp.maximum(x, 0.0)
        return h @ w, h.T @ x

    assert "max" not in stored(two, rows, weights)
    assert stored(lambda x, w, y: (x * y) @ w, rows, weights, rows) == ["mul", "dot"]  # of two arrays
    assert "mul" in stored(lambda x, w: (x * sw.nn.sigmoid(x)) @ w, rows, weights)  # reads two operands
    assert "max" in stored(two, array(4096, 4096), array(4096, 4096))  # the library reads it


def test_products_of_xla_compute_operands_that_are_stored_for_others():
    """The step of the radiance field stores the sums of a layer for the next one, and their relu for gradients."""

    def both(x, w):
        h = jnp.maximum(x, 0.0)
        return h @ w, h

    local = local_of(both, array(16384, 96), array(96, 96))
    kernels = local.kernel_groups(local.program, "gpu", triton_chip(local, H200)).kernels
    (product,) = [kernel for kernel in kernels if kernel.root.op.is_product]
    assert set(product.reads) == set(local.program.inputs)
