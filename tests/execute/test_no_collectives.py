"""sharding.no_collectives: ops that communicate along forbidden axes are errors; other lines are not affected."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ForbiddenCollectiveError
from shardwise.sharding import AxisType, no_collectives
from shardwise.sharding import PartitionSpec as P

X = np.arange(16, dtype=np.float32).reshape(8, 2)


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=str)
def x(request):
    with sw.set_mesh(sw.make_mesh((4, 2), ("x", "y"), axis_types=request.param)):
        yield sw.device_put(X, P("x", "y"))


def test_a_sum_along_a_forbidden_axis_is_an_error(x):
    @sw.jit
    def total(x):
        with no_collectives({"x"}):
            return x.sum(0)  # its all-reduce is forbidden

    with pytest.raises(ForbiddenCollectiveError, match=r"test_no_collectives.py:\d+: .* all_reduce, runs along 'x'"):
        total(x)
    with no_collectives({"x"}), pytest.raises(ForbiddenCollectiveError, match="'x'"):
        x.sum(0)


def test_a_sum_along_another_axis_is_none(x):
    with no_collectives({"x"}):
        np.testing.assert_allclose(sw.jit(lambda x: x.sum(1))(x), X.sum(1))


def test_lines_outside_may_communicate(x):
    @sw.jit
    def around(x):
        total = x.sum(0)
        with no_collectives({"x", "y"}):
            doubled = 2 * jnp.sin(total)  # the planner may reduce the sum here
        return doubled.sum()

    np.testing.assert_allclose(around(x), 2 * np.sin(X.sum(0)).sum(), rtol=1e-5)


def test_the_setting_is_part_of_the_cache_key(x):
    total = sw.jit(lambda x: x.sum(0))
    total(x)
    with no_collectives({"x"}), pytest.raises(ForbiddenCollectiveError):
        total(x)
    np.testing.assert_allclose(total(x), X.sum(0))


def test_sums_may_stay_unreduced(explicit_mesh):
    x, w = sw.device_put(X, P("X", "Y")), sw.device_put(np.ones((2, 3), np.float32), P("Y"))

    @sw.jit
    def product(x, w):
        with no_collectives({"Y"}):
            return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("X", unreduced={"Y"}))

    result = product(x, w)
    assert result.sharding.spec.unreduced == {"Y"}
    np.testing.assert_allclose(sw.reshard(result, P("X")), X @ np.ones((2, 3)))


def test_a_reshard_is_an_error(explicit_mesh):
    x = sw.device_put(X, P("X"))
    with no_collectives({"X"}), pytest.raises(ForbiddenCollectiveError, match="all_gather, runs along 'X'"):
        sw.reshard(x, P())


def test_axes_are_a_set_of_strings():
    with pytest.raises(TypeError, match="set of names of mesh axes, not 'x'"):
        no_collectives("x")
    with pytest.raises(TypeError, match="frozenset of names"), no_collectives({1}):
        pass
