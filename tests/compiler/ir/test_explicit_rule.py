"""The rule of result shardings for reshapes, slices at traced indices, scatters and keys; values equal numpy's."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingTypeError
from shardwise.sharding import AxisType, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put


@pytest.fixture
def mesh():
    mesh = sw.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Explicit,) * 3)
    with sw.set_mesh(mesh):
        yield mesh


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("before", "spec", "after", "text"),
    [
        ((2, 2), ("x", "y"), (4,), "f32[4@(x,y)]"),
        ((2, 4), ("x", "y"), (8,), "f32[8@(x,y)]"),
        ((2, 4), ("x", ("y", "z")), (8,), "f32[8@(x,y,z)]"),
        ((4, 2), (("x", "y"), "z"), (8,), "f32[8@(x,y,z)]"),
        ((2, 2, 2, 2), ("x", "y", "z"), (16,), "f32[16@(x,y,z)]"),
        ((8, 3), (("x", "y"), None), (2, 2, 2, 3), "f32[2@x,2@y,2,3]"),
        ((8, 3), (("x", "y"), None), (4, 6), "f32[4@(x,y),6]"),
        ((1, 8), ("x", "y"), (8,), "f32[8@y]"),
    ],
)
@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
def test_reshapes_that_split_and_merge_sharded_dims(mesh, before, spec, after, text, under_jit):
    x = numbers(*before)

    def f(x):
        return x.reshape(after) * 2

    result = (sw.jit(f) if under_jit else f)(put(x, *spec))
    assert str(sw.typeof(result)) == text
    np.testing.assert_array_equal(result, 2 * x.reshape(after))
    gradient = sw.jit(sw.grad(lambda x: (f(x) ** 2).sum()))(put(x, *spec))
    assert gradient.sharding.is_equivalent_to(put(x, *spec).sharding, x.ndim)
    np.testing.assert_array_equal(gradient, 8 * x)


@pytest.mark.parametrize(
    ("before", "spec", "after"),
    [((4, 2), ("x", "y"), (8,)), ((4, 2, 3, 8), (None, "y", None, "x"), (4, 8, 6)), ((6, 4), ("x", "y"), (4, 6))],
)
def test_reshapes_whose_shards_are_not_contiguous_are_errors(mesh, before, spec, after):
    x = put(numbers(*before), *spec)
    with pytest.raises(ShardingTypeError, match=r"reshape: dim . of .*`reshard"):
        x.reshape(after)
    result = jnp.reshape(x, after, out_sharding=P())
    np.testing.assert_array_equal(result, numbers(*before).reshape(after))


@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
def test_slices_at_traced_indices_keep_their_sharding(mesh, under_jit):
    def read(x, i):
        return lax.dynamic_slice(x, (i, 0), (4, 3))

    def write(x, update, i):
        return lax.dynamic_update_slice(x, update, (i, 0))

    x, update = numbers(16, 4), -numbers(8, 4)
    args = put(x, "x", "y"), jnp.int32(3)
    result = (sw.jit(read) if under_jit else read)(*args)
    assert str(sw.typeof(result)) == "f32[4@x,3@y]"
    np.testing.assert_array_equal(result, x[3:7, :3])
    args = put(x, "x", None), put(update, ("x", "y"), None), jnp.int32(3)
    result = (sw.jit(write) if under_jit else write)(*args)
    assert str(sw.typeof(result)) == "f32[16@x,4]"
    expected = x.copy()
    expected[3:11] = update
    np.testing.assert_array_equal(result, expected)
    gradients = sw.jit(sw.grad(lambda *args: (write(*args) ** 2).sum(), argnums=(0, 1)))(*args)
    assert [str(sw.typeof(gradient)) for gradient in gradients] == ["f32[16@x,4]", "f32[8@(x,y),4]"]
    np.testing.assert_array_equal(gradients[1], 2 * update)


def test_sums_over_sharded_updates_are_replicated(mesh):
    ids = np.array([0, 0, 1, 1, 1, 2, 2, 3], np.int32)
    for reduce, expected in [(sw.ops.segment_sum, [1, 9, 11, 7]), (sw.ops.segment_max, [1, 4, 6, 7])]:
        result = sw.jit(reduce, static_argnums=2)(put(np.arange(8), "x"), put(ids, "x"), 4)
        assert str(sw.typeof(result)) == "i32[4]"
        assert result.tolist() == expected
    product = sw.jit(sw.ops.segment_prod, static_argnums=2)(put(np.arange(8), "x"), put(ids, "x"), 4)
    assert product.tolist() == [0, 24, 30, 7]


def test_keys_are_sharded_as_other_arrays(mesh):
    keys = sw.random.split(sw.random.key(0), 8)

    def f(keys):
        keys = reshard(keys, P("x"))
        words = sw.random.key_data(keys)
        assert str(sw.typeof(words)) == "u32[8@x,2]"
        assert str(sw.typeof(sw.random.wrap_key_data(words))).endswith("[8@x]")
        return sw.vmap(lambda key: sw.random.normal(key, (3,)))(keys)

    result = sw.jit(f)(keys)
    assert str(sw.typeof(result)) == "f32[8@x,3]"
    np.testing.assert_array_equal(result, sw.vmap(lambda key: sw.random.normal(key, (3,)))(keys))
