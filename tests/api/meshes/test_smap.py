"""smap: shard_map along one axis of the current mesh."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import ShardingError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.device_shards import shard_bounds

X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def test_shards_keep_their_rank(mesh):
    @sw.smap(in_axes=(None, 1), out_axes={"sum": None, "rows": 1}, axis_name="model")
    def f(p, x):
        assert p["w"].shape == (8,) and x.shape == (8, 4)
        return {"sum": lax.psum(x @ jnp.ones(4), "model"), "rows": p["w"][:, None] * x}

    with mesh:
        for wrap in (lambda f: f, sw.jit):
            found = wrap(f)({"w": X[0]}, X)
            np.testing.assert_allclose(found["sum"], X.sum(1))
            np.testing.assert_array_equal(found["rows"], X[0][:, None] * X)
    assert found["sum"].is_fully_replicated and found["rows"].sharding == NamedSharding(mesh, P(None, "model"))


def test_nested_smaps(mesh):
    inner = sw.smap(lambda x: lax.psum(x, ("data", "model")), in_axes=1, out_axes=None, axis_name="model")
    outer = sw.smap(inner, in_axes=0, out_axes=None, axis_name="data")
    with mesh:
        found = sw.jit(outer)(X)
        slope = sw.grad(lambda x: (outer(x) ** 2).sum())(X)
    expected = X.reshape(4, 2, 2, 4).sum((0, 2))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(slope, np.tile(2 * expected, (4, 2)))


def test_axes_are_inferred_from_the_arguments(mesh):
    twice = sw.smap(lambda x: x * lax.axis_size("data"), out_axes=0, axis_name="data")
    with mesh:
        found = twice(sw.device_put(X, NamedSharding(mesh, P("data", "model"))))
        np.testing.assert_array_equal(found, X * 4)
        with pytest.raises(
            ValueError, match=r"smap of `<lambda>` .*: in_specs cannot be inferred, because `x` has no NamedSharding"
        ):
            twice(X)


def test_invalid_input_raises(mesh):
    def f(x):
        return x

    def smapped(**options):
        return sw.smap(f, **{"in_axes": 0, "out_axes": 0, "axis_name": "data", **options})

    text = r"smap of `f` \(test_smap.py:\d+\) needs a mesh: set one with `with mesh:` or `set_mesh"
    with pytest.raises(ValueError, match=text):
        smapped()(X)
    with mesh:
        with pytest.raises(ShardingError, match=r"smap of `f` .*: axis_names has 'date', .* Did you mean 'data'\?"):
            smapped(axis_name="date")(X)
        with pytest.raises(
            ShardingError, match=r"requires result 0 to be replicated along 'data', but it may vary there"
        ):
            smapped(out_axes=None)(X)
        with pytest.raises(
            ShardingError, match=r"smap of `f` .*: 'data' is already a manual axis of an enclosing shard_map"
        ):
            sw.smap(smapped(), in_axes=0, out_axes=0, axis_name="data")(X)
        with pytest.raises(
            ValueError, match=r"smap of `f` .*: dim 0 of `x`, f32\[6,8\], has size 6, which is not divisible by 4"
        ):
            smapped()(X[:6])
        with pytest.raises(TypeError, match=r"smap of `f` .* accepts positional arguments only"):
            smapped()(x=X)
    with pytest.raises(ValueError, match=r"smap of `f` .*: in_axes must hold nonnegative integers and None, not -1"):
        smapped(in_axes=-1)
    with pytest.raises(ValueError, match=r"smap of `f` .*: out_axes must hold nonnegative integers and None, not 'x'"):
        smapped(out_axes="x")
    with pytest.raises(TypeError, match=r"smap of `f` .*: in_axes must be an integer, None, or a tuple .*, not \[0\]"):
        smapped(in_axes=[0])
    with pytest.raises(TypeError, match=r"smap of `f` .*: axis_name must be the name of one mesh axis, not \('data',"):
        smapped(axis_name=("data", "model"))
    with pytest.raises(TypeError, match="smap needs a function, not 3"):
        sw.smap(3, in_axes=0, out_axes=0, axis_name="data")


@pytest.mark.jax
def test_like_jax(mesh):
    jax = pytest.importorskip("jax")
    theirs = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def program(m):
        def f(p, x):
            return {"sum": m.lax.psum(x, "data"), "rows": p * x, "where": x + m.lax.axis_index("data")}

        return m.jit(m.smap(f, in_axes=(None, 0), out_axes={"sum": None, "rows": 0, "where": 1}, axis_name="data"))

    with mesh:
        ours = program(sw)(X[0], X)
    with jax.set_mesh(theirs):
        expected = program(jax)(X[0], X)
    for name, other in expected.items():
        np.testing.assert_array_equal(ours[name], other)
        assert ours[name].dtype == other.dtype and shard_bounds(ours[name]) == shard_bounds(other)
