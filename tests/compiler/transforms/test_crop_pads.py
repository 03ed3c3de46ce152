"""crop_pads: slices of padded arrays are pads with less padding, and a stencil exchanges one row per neighbour."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.shape.slicing import Pad
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.crop_pads import crop_pads
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.sharding import AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P

SHAPE = (6, 5)


def difference(x):
    padded = jnp.pad(x, 1)
    return padded[2:, 1:-1] - padded[:-2, 1:-1]


def loop(x):
    return lax.fori_loop(0, 3, lambda _, x: jnp.pad(x, 1)[2:, 1:-1] + jnp.pad(x, 1)[:-2, 1:-1], x)


CROPPED = {
    "a shift": lambda x: jnp.pad(x, 1)[2:, 1:-1],
    "both neighbours": difference,
    "the array itself": lambda x: 2 * jnp.pad(x, 3)[3:-3, 3:-3],
    "the array itself, returned": lambda x: jnp.pad(x, 3)[3:-3, 3:-3],
    "some padding stays": lambda x: jnp.pad(x, ((4, 4), (0, 2)), constant_values=7.0)[1:-2, :6],
    "more than the padding": lambda x: jnp.pad(x, 1)[3:-3, 4:],
    "slices of slices": lambda x: jnp.pad(x, 2)[1:][:, 2:-2][:-1],
    "one element": lambda x: jnp.pad(x, 1)[1:2, 1:2],
    "none": lambda x: jnp.pad(x, 1)[3:3],
    "a negative pad": lambda x: lax.pad(x, jnp.float32(3), [(-2, 2, 0), (1, -1, 0)])[1:],
    "the gradient": sw.grad(lambda x: (jnp.pad(x, 1)[2:, 1:-1] ** 2).sum()),
    "in a loop": loop,
}
KEPT = {
    "a stride": lambda x: jnp.pad(x, 1)[::2],
    "interior padding": lambda x: lax.pad(x, jnp.float32(0), [(1, 1, 1), (0, 0, 0)])[1:],
    "only padding": lambda x: jnp.pad(x, 9)[:3],
    "padding after the array": lambda x: jnp.pad(x, ((0, 9), (0, 0)))[7:],
}


def simplified(function):
    program, _ = build(lambda x: [function(x)], [ArrayType(SHAPE, np.float32)], "f")
    return inline(program)


def ops(program):
    return [equation.op.name for equation in program.walk()]


@pytest.mark.parametrize("name", CROPPED)
def test_slices_of_pads_are_pads(name):
    program = simplified(CROPPED[name])
    cropped = dce(crop_pads(program))
    assert "slice" not in ops(cropped)
    x = np.arange(30, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(evaluate(cropped, [x])[0], evaluate(program, [x])[0])
    np.testing.assert_array_equal(sw.jit(CROPPED[name])(x), evaluate(program, [x])[0])


@pytest.mark.parametrize("name", KEPT)
def test_other_slices_stay(name):
    program = simplified(KEPT[name])
    assert crop_pads(program) is program


def test_the_result_is_not_weak_if_the_padding_is_not():
    types = [ArrayType((4,), np.float32, weak=True), ArrayType((), np.float32)]
    program, _ = build(lambda x, value: [Pad((1,), (1,), (0,))(x, value)[1:-1]], types, "f")
    cropped = dce(crop_pads(inline(program)))
    assert "slice" not in ops(cropped)
    assert cropped.out_types == program.out_types


@pytest.mark.parametrize(("sizes", "spec"), [((8, 1), P("a")), ((4, 2), P("a", "b")), ((2, 4), P(None, "b"))])
def test_a_stencil_exchanges_one_row_per_neighbour(sizes, spec):
    mesh = sw.make_mesh(sizes, ("a", "b"))
    x = sw.device_put(np.random.default_rng(0).normal(size=(512, 384)).astype("f4"), NamedSharding(mesh, spec))

    @sw.jit
    def laplacian(x):
        padded = jnp.pad(x, 1)
        return padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2] - 4 * x

    np.testing.assert_array_equal(laplacian(x), sw.jit(laplacian)(np.asarray(x)))
    plan = laplacian.lower(x).compile().plan
    rows, columns = x.sharding.shard_shape(x.shape)
    exchanged = 2 * columns * (rows < 512) + 2 * rows * (columns < 384)
    assert plan.wire_bytes == 4 * exchanged


def test_explicit_shardings_stay():
    mesh = sw.make_mesh((4,), ("a",), axis_types=(AxisType.Explicit,))
    with sw.set_mesh(mesh):
        x = sw.device_put(jnp.arange(16.0), P("a"))
        result = sw.jit(lambda x: sw.reshard(jnp.pad(sw.reshard(x, P()), 2)[2:-2], P("a")))(x)
    np.testing.assert_array_equal(result, np.arange(16.0))
