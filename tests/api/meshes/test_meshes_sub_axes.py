"""Sub-axes, into which a reshape may split a mesh axis, stay internal: users see the axes of their own meshes."""

import re

import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

ROWS = P("data")
# Functions of an array of 32×16 over data=8, whose rows a reshape divides into 4×8; the sharding of the result.
FUNCTIONS = {
    "split": (lambda x: x.reshape(4, 8, 16), P(None, "data")),
    "split and scaled": (lambda x: x.reshape(4, 8, 16) * 2, P(None, "data")),
    "summed": (lambda x: x.reshape(4, 8, 16).sum(1), P(None, "data")),
    "no dim of 8": (lambda x: x.reshape(4, 8, 16).sum(1)[:, :5], P()),
    "rejoined": (lambda x: (x.reshape(4, 8, 16) + 1).reshape(32, 16), P("data")),
    "moved to the front": (lambda x: x.reshape(4, 8, 16).transpose(2, 0, 1), P(None, None, "data")),
}


@pytest.fixture
def line():
    return sw.make_mesh((8,), ("data",))


def placed(mesh, spec=ROWS):
    x = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
    return x, sw.device_put(x, NamedSharding(mesh, spec))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_sharded_along_axes_of_the_users_mesh(line, name):
    function, spec = FUNCTIONS[name]
    x, array = placed(line)
    for result in (sw.jit(function)(array), function(array)):
        np.testing.assert_array_equal(result, function(x))
        assert result.sharding.mesh == line
    assert sw.jit(function)(array).sharding.spec == spec


def test_a_gathered_result_is_not_needed_where_an_all_to_all_will_do(line):
    _, array = placed(line)
    plan = sw.explain(lambda x: x.reshape(4, 8, 16) * 2)(array)
    assert set(plan.counts()) == {"all_to_all", "permute"}  # the permute restores the order of the sub-axes
    plan = sw.explain(lambda x: (x.reshape(4, 8, 16) + 1).reshape(32, 16))(array)
    assert plan.counts() == {}


def test_an_open_dim_of_out_shardings(line):
    x, array = placed(line)
    open_dims = NamedSharding(line, P(P.UNCONSTRAINED, P.UNCONSTRAINED, None))
    result = sw.jit(lambda x: x.reshape(4, 8, 16), out_shardings=open_dims)(array)
    np.testing.assert_array_equal(result, x.reshape(4, 8, 16))
    assert result.sharding == NamedSharding(line, P(None, "data"))


def test_two_meshes_of_the_same_devices(line):
    """Results are sharded along the axes of one of the meshes, not along those of their common refinement."""
    square = sw.make_mesh((4, 2), ("a", "b"))
    x, rows = placed(line)
    _, columns = placed(square, P("b", "a"))
    result = sw.jit(lambda x, y: (x + y).reshape(4, 8, 16).sum(1))(rows, columns)
    np.testing.assert_array_equal(result, (2 * x).reshape(4, 8, 16).sum(1))
    assert result.sharding.mesh in (line, square)


def test_a_report_names_arguments_and_results_in_the_users_axes(line):
    _, array = placed(line)
    plan = sw.explain(lambda x: x.reshape(4, 8, 16).sum(1))(array)
    ends = [line for line in str(plan).splitlines() if line.startswith(("  in ", "  out "))]
    assert len(ends) == 2
    assert "P('data', None)" in ends[0] and "P(None, 'data')" in ends[1]


def test_an_intermediate_sharding_prints_how_sub_axes_relate_to_axes(line):
    """The number in parentheses is the size of the parts of the axis that are major to the sub-axis, as in Shardy."""
    _, array = placed(line)
    seen = []

    def function(x):
        y = x.reshape(4, 8, 16)
        sw.debug.inspect_array_sharding(y, callback=seen.append)
        return (y * 2).reshape(32, 16)

    sw.jit(function)(array)
    assert re.search(r"P\('data:\(1\)4', 'data:\(4\)2'\)", str(seen[0]))
