"""Types without mesh axes of size 1, `remove_size_one_mesh_axis_from_type`: collectives, errors, and traces."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import AxisType
from shardwise.sharding import PartitionSpec as P

X = np.arange(16, dtype=np.float32).reshape(8, 2)


@pytest.fixture
def mesh():
    """Set a mesh with the Explicit axes x=2 and y=1."""
    with sw.set_mesh(sw.make_mesh((2, 1), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)):
        yield


@pytest.mark.usefixtures("mesh")
def test_collectives_over_an_axis_of_size_one_accept_values_that_do_not_vary_over_it():
    """JAX rejects such operands of `ppermute`, although it cannot make them vary over the axis."""
    types = []

    def body(x):
        for collective in (
            lambda x: sw.lax.ppermute(x, "y", [(0, 0)]),
            lambda x: sw.lax.all_gather(x, "y", tiled=True),
            lambda x: sw.lax.psum_scatter(x, "y", tiled=True),
            lambda x: sw.lax.all_to_all(x, "y", 0, 1, tiled=True),
            lambda x: sw.lax.pmax(x, ("x", "y")),
        ):
            x = collective(x)
            types.append(str(sw.typeof(x)))
        return x

    with sw.remove_size_one_mesh_axis_from_type(True):
        array = sw.device_put(X, P("x", "y"))
        result = sw.jit(sw.shard_map(body, in_specs=P("x", "y"), out_specs=P()))(array)
        np.testing.assert_array_equal(result, np.maximum(X[:4], X[4:]))
    assert types == ["f32[4,2]{V:x}"] * 4 + ["f32[4,2]"]


@pytest.mark.usefixtures("mesh")
def test_errors_show_the_types_without_axes_of_size_one():
    with sw.remove_size_one_mesh_axis_from_type(True):
        rows, columns = sw.device_put(X[:2], P("x", "y")), sw.device_put(X[:2], P("y", "x"))
        with pytest.raises(sw.errors.ShardingTypeError, match=r"f32\[2@x,2\] and f32\[2,2@x\]"):
            rows + columns


@pytest.mark.usefixtures("mesh")
def test_the_setting_selects_the_types_of_traced_values():
    texts = []
    f = sw.jit(lambda x: texts.append(str(sw.typeof(sw.reshard(x, P("x", "y"))))) or x)
    f(X)
    with sw.remove_size_one_mesh_axis_from_type(True):
        f(X)
    f(X)
    assert texts == ["f32[8@x,2@y]", "f32[8@x,2]"]
