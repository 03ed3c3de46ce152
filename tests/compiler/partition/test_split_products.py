"""Products that XLA splits along the contracting dim on GPUs."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.split_products import split_products
from shardwise.compiler.plan.hardware import chip

H200 = chip("h200")
GENERATOR = np.random.default_rng(0)


def program_of(function, *args):
    return sw.jit(function).lower(*args)._prepared.stages.local.program


def products_of(function, *args):
    program = split_products(program_of(function, *args), H200)
    return [equation.outputs[0].type for equation in program.walk() if equation.op.name == "dot"]


def array(*shape, dtype=np.float32):
    return sw.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("m", "n", "k", "parts"),
    [
        (256, 256, 4096, 16),  # of the recorded step of the clipped policy
        (512, 512, 8192, 8),  # of the natural gradient, and the next one
        (784, 512, 8192, 4),
        (32, 32, 131072, 256),  # of the point cloud
        (131, 256, 1024, 16),
        (512, 512, 256, 1),  # of the selective scan
    ],
)
def test_products_have_as_many_parts_as_xla_makes(m, n, k, parts):
    (product,) = products_of(lambda x, y: x.T @ y, array(k, m), array(k, n))
    assert product.shape == ((parts, m, n) if parts > 1 else (m, n))


PROGRAMS = {
    "several contracting dims": (lambda x, y: jnp.einsum("abi,abj->ij", x, y), [(4, 4096, 8), (4, 4096, 6)]),
    "a contracting dim that is padded": (lambda x, y: x.T @ y, [(16382, 8), (16382, 6)]),
    "batches": (lambda x, y: jnp.einsum("aib,ajb->bij", x, y), [(65536, 3, 2), (65536, 4, 2)]),
    "transposed operands": (lambda x, y: x.T @ y, [(16384, 8), (16384, 6)]),
    "transposed batches": (
        lambda x, y: jnp.transpose(x, (2, 1, 0)) @ jnp.transpose(y, (2, 0, 1)),
        [(65536, 3, 2), (65536, 4, 2)],
    ),
    "the minor dim": (lambda x, y: x @ y, [(8, 16384), (16384, 6)]),
    "a loop": (lambda x, y: lax.fori_loop(0, 2, lambda _, c: c + x.T @ y, jnp.zeros((8, 6))), [(16384, 8), (16384, 6)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_split_products_compute_the_same(name):
    function, shapes = PROGRAMS[name]
    args = [GENERATOR.standard_normal(shape).astype(np.float32) for shape in shapes]
    program = program_of(function, *args)
    split = split_products(program, H200)
    assert split is not program
    for actual, expected in zip(evaluate(split, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-2)


def test_sums_of_parts_are_in_f32_and_rounded_once():
    (product,) = products_of(
        lambda x, y: x.T @ y, array(16384, 64, dtype=jnp.bfloat16), array(16384, 64, dtype=jnp.bfloat16)
    )
    assert product.dtype == np.float32
    program = split_products(program_of(lambda x: x.T @ x, array(16384, 64, dtype=jnp.bfloat16)), H200)
    assert program.outputs[0].type.dtype == jnp.bfloat16


def test_products_that_fill_the_cores_are_not_split():
    program = program_of(lambda x, y: x @ y, array(4096, 4096), array(4096, 4096))
    assert split_products(program, H200) is program
