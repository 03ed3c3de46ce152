"""Collectives that are started and awaited: values of the plain collectives, derivatives, batching, misuse."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import PartitionSpec as P

# The plain collective and its start, of an array of shape (4, 6) along the axis `data` of 4 members.
CASES = {
    "psum": (lax.psum, lax.psum_start, ()),
    "all_gather": (lax.all_gather, lax.all_gather_start, ()),
    "all_gather tiled": (lax.all_gather, lax.all_gather_start, (("axis", 1), ("tiled", True))),
    "psum_scatter": (lax.psum_scatter, lax.psum_scatter_start, ()),
    "psum_scatter tiled": (lax.psum_scatter, lax.psum_scatter_start, (("tiled", True),)),
    "all_to_all": (lax.all_to_all, lax.all_to_all_start, (("split_axis", 0), ("concat_axis", 1))),
    "ppermute": (lax.ppermute, lax.ppermute_start, (("perm", [(0, 1), (1, 2), (2, 3), (3, 0)]),)),
}
X = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)


def mapped(mesh, function):
    return sw.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)


@pytest.mark.parametrize("case", CASES)
def test_the_value_and_the_gradient_are_those_of_the_collective(mesh, case):
    collective, start, keywords = CASES[case]
    plain = mapped(mesh, lambda x: jnp.sin(collective(x, "data", **dict(keywords))))
    started = mapped(mesh, lambda x: jnp.sin(start(x, "data", **dict(keywords)).done()))
    np.testing.assert_array_equal(sw.jit(started)(X), sw.jit(plain)(X))
    weights = jnp.cos(jnp.arange(sw.eval_shape(plain, X).size)).reshape(sw.eval_shape(plain, X).shape)
    gradients = [sw.jit(sw.grad(lambda x, f=f: (f(x) * weights).sum()))(X) for f in (started, plain)]
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_the_module_has_the_collective_and_a_barrier_where_its_result_is_needed(mesh):
    def function(x):
        future = lax.psum_scatter_start(x, "data", tiled=True)
        return (x @ x.T).sum() + future.done()

    text = sw.jit(mapped(mesh, function)).lower(X).as_text()
    positions = [text.index(f"stablehlo.{op}") for op in ("reduce_scatter", "dot_general", "optimization_barrier")]
    assert positions == sorted(positions)
    plan = sw.jit(mapped(mesh, function)).lower(X).plan
    assert plan.counts() == {"reduce_scatter": 1} and not plan.collectives[0].inserted


def test_futures_are_leaves_with_the_type_of_the_result(mesh):
    def function(x):
        futures = lax.psum_scatter_start({"a": x, "b": [2 * x]}, "data", tiled=True)
        assert (futures["a"].shape, futures["a"].dtype, futures["a"].ndim, futures["a"].size) == ((1, 6), "f4", 2, 6)
        results = sw.tree.map(lambda future: future.done(), futures)
        return results["a"] + results["b"][0]

    want = mapped(mesh, lambda x: 3 * lax.psum_scatter(x, "data", tiled=True))
    np.testing.assert_allclose(mapped(mesh, function)(X), want(X), rtol=1e-5)


def test_a_result_may_be_awaited_twice_or_not_at_all(mesh):
    def twice(x):
        future = lax.psum_start(x, "data")
        lax.all_gather_start(x, "data")  # nobody needs it
        return future.done() + future.done()

    np.testing.assert_allclose(mapped(mesh, twice)(X), mapped(mesh, lambda x: 2 * lax.psum(x, "data"))(X), rtol=1e-6)
    assert sw.jit(mapped(mesh, twice)).lower(X).plan.counts() == {"all_reduce": 1}


def test_vmap_binds_the_axis_and_batches():
    sums = sw.vmap(lambda x: lax.psum_start(x, "i").done(), axis_name="i")(X)
    np.testing.assert_allclose(sums, np.broadcast_to(X.sum(0), X.shape), rtol=1e-5)
    batched = sw.vmap(sw.vmap(lambda x: lax.psum_start(x, "i").done(), axis_name="i"), in_axes=1, out_axes=1)
    np.testing.assert_allclose(batched(X), sums, rtol=1e-5)


def test_futures_are_no_arrays(mesh):
    def start(x):
        return lax.psum_scatter_start(x, "data", tiled=True)

    flight = r"<psum_scatter in flight, f32\[1,6\]: `done\(\)` returns its result>"
    with pytest.raises(TypeError, match=f"sin: needs an array or a number, not {flight}"):
        mapped(mesh, lambda x: jnp.sin(start(x)))(X)
    with pytest.raises(TypeError, match="unsupported operand"):
        mapped(mesh, lambda x: start(x) + 1)(X)
    with pytest.raises(TypeError, match=f"returned {flight}"):
        mapped(mesh, start)(X)
    with pytest.raises(sw.errors.UnboundAxisError):
        lax.psum_start(X, "rows")
