"""shard_map with the parameters that it has under `experimental`."""

import importlib
import inspect
import warnings
from functools import partial

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.errors import ShardingError
from shardwise.experimental.shard_map import shard_map
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.device_shards import shard_bounds

X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def total(x):
    return lax.psum(x.sum(), ("data", "model"))


def test_all_call_forms_are_equal(mesh):
    spec = P("data", "model")

    @partial(shard_map, mesh=mesh, in_specs=(spec,), out_specs=P())
    def with_partial(x):
        return total(x)

    @shard_map(mesh=mesh, in_specs=spec, out_specs=P(), check_rep=True)
    def decorated(x):
        return total(x)

    functions = [
        shard_map(total, mesh, spec, P()),
        shard_map(total, mesh, (spec,), P(), False),
        shard_map(f=total, mesh=mesh, in_specs=spec, out_specs=P()),
        with_partial,
        decorated,
        sw.jit(with_partial),
        sw.shard_map(total, mesh=mesh, in_specs=spec, out_specs=P()),
    ]
    for function in functions:
        assert function(X) == X.sum()
        assert function.__name__ in ("total", "with_partial", "decorated")
    with mesh:
        assert shard_map(total, in_specs=spec, out_specs=P())(X) == X.sum()


def test_check_rep_checks_replicated_results(mesh):
    first = shard_map(lambda x: x * 2, mesh, P("data"), P(), check_rep=False)
    np.testing.assert_array_equal(first(X), X[:2] * 2)
    with pytest.raises(ShardingError, match=r"out_specs=P.* requires result 0 to be replicated along 'data'"):
        shard_map(lambda x: x * 2, mesh, P("data"), P())(X)


def test_auto_axes_stay_automatic(mesh):
    @sw.jit
    @partial(shard_map, mesh=mesh, in_specs=P("data"), out_specs=P(), auto=frozenset({"model"}))
    def f(x):
        assert x.shape == (2, 8)  # not sharded along the automatic axis
        return lax.psum(lax.with_sharding_constraint(x * x, NamedSharding(mesh, P(None, "model"))), "data")

    np.testing.assert_array_equal(f(X), (X * X).reshape(4, 2, 8).sum(0))
    assert "model" in str(f(X).sharding.spec)


def test_invalid_arguments_raise(mesh):
    with pytest.raises(ShardingError, match=r"shard_map of `total` .*: auto has 'modal', .* Did you mean 'model'\?"):
        shard_map(total, mesh, P(), P(), auto={"modal"})
    with pytest.raises(ShardingError, match=r"shard_map of `total` .*: auto has all axes of the mesh data=4, model=2"):
        shard_map(total, mesh, P(), P(), auto={"data", "model"})
    with pytest.raises(
        TypeError, match="shard_map: out_specs is missing; it defines how the shards of the results are concatenated"
    ):
        shard_map(total, mesh, P())
    with pytest.raises(TypeError, match="shard_map: f must be a function of shards, not Mesh"):
        shard_map(mesh, in_specs=P(), out_specs=P())


@pytest.mark.jax
def test_parameters_and_values_match_jax(mesh):
    jax = pytest.importorskip("jax")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = importlib.import_module("jax.experimental.shard_map").shard_map
    names = list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(shard_map).parameters)[: len(names)] == names

    def program(m, mapped, mesh):
        p = m.sharding.PartitionSpec

        def f(x, w):
            y = m.lax.psum(x @ w, "model")
            return y, m.lax.all_gather(y.sum(1), "data", tiled=True), m.lax.ppermute(x, "data", [(0, 1), (1, 0)])

        specs = (p("data", None), p("data"), p("data", "model"))
        return mapped(f, mesh, (p("data", "model"), p("model", None)), specs)(X, X)

    grid = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    for ours, other in zip(program(sw, shard_map, mesh), program(jax, theirs, grid), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-6)
        assert ours.dtype == other.dtype
        assert shard_bounds(ours) == shard_bounds(other)
