"""`shard_map` and its collectives."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import P, case, inside_jax, jax, jnp, like_jax, mesh, place

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


BOTH = P("data", "model")


def mapped(function, in_specs=BOTH, out_specs=BOTH, **options):
    return jax.shard_map(function, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, **options)


def region(name, function, out_specs=BOTH, *, no_grad="", args=(X,), **options):
    return case(name, mapped(function, out_specs=out_specs, **options), *args, no_grad=no_grad)


def exchange_rows(x):
    """Send row i to member i of `model`."""
    sizes = jnp.ones(2, jnp.int32)
    offsets = jnp.arange(2, dtype=jnp.int32)
    starts = jnp.full(2, lax.axis_index("model"), jnp.int32)
    return lax.ragged_all_to_all(x, jnp.zeros_like(x), offsets, sizes, starts, sizes, axis_name="model")


INDICES = "indices have no gradient"
PERMUTATION = [(0, 1), (1, 2), (2, 3), (3, 0)]

CASES = [
    region("psum", lambda x: lax.psum(x, "data"), P(None, "model")),
    region("psum_two_axes", lambda x: lax.psum(x, ("data", "model")), P()),
    region("psum_of_tree", lambda x: lax.psum((x, 2 * x), "data"), (P(None, "model"), P(None, "model"))),
    region("psum_groups", lambda x: lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]]), check_vma=False),
    region("psum_unchecked", lambda x: lax.psum(x, "data"), P(None, "model"), check_vma=False),
    region("pmean", lambda x: lax.pmean(x, "data"), P(None, "model")),
    region("pmax", lambda x: lax.pmax(x, "data"), P(None, "model"), no_grad="JAX has none"),
    region("pmin", lambda x: lax.pmin(x, "data"), P(None, "model"), no_grad="JAX has none"),
    region("ppermute", lambda x: lax.ppermute(x, "data", PERMUTATION)),
    region("ppermute_of_some", lambda x: lax.ppermute(x, "data", PERMUTATION[:2])),
    region("pshuffle", lambda x: lax.pshuffle(x, "data", [3, 1, 0, 2])),
    region("all_gather", lambda x: lax.all_gather(x, "data", axis=1, tiled=True), P("data", "model")),
    region("all_gather_stacked", lambda x: lax.all_gather(x, "model"), P(None, "data", "model")),
    region("all_gather_invariant", lambda x: lax.all_gather(x, "data", tiled=True, to="invarying"), P(None, "model")),
    region("all_gather_groups", lambda x: lax.all_gather(x, "data", axis_index_groups=[[0, 1], [2, 3]], tiled=True)),
    region(
        "all_gather_reduced",
        lambda x: lax.pcast(lax.all_gather(x, "data", tiled=True, to="reduced"), "data", to="varying"),
    ),
    region("unreduced_psum", lambda x: lax.psum(lax.pcast(x, "data", to="unreduced"), "data"), P(None, "model")),
    region(
        "unreduced_reduce_scatter",
        lambda x: lax.psum_scatter(lax.pcast(jnp.tile(x, (2, 1)), "data", to="unreduced"), "data", tiled=True),
    ),
    region("preduced", lambda x: x * lax.pcast(lax.pcast(jnp.float32(3), "data", to="reduced"), "data", to="varying")),
    region("reduce_scatter", lambda x: lax.psum_scatter(jnp.tile(x, (2, 1)), "data", tiled=True)),
    region("reduce_scatter_untiled", lambda x: lax.psum_scatter(jnp.tile(x, (2, 1)), "data"), P(("data", "model"))),
    region("all_to_all", lambda x: lax.all_to_all(x, "model", 0, 1, tiled=True), P(("data", "model"))),
    region("all_to_all_untiled", lambda x: lax.all_to_all(x, "model", 0, 0)),
    region("axis_index", lambda x: x * 0 + lax.axis_index("data") + 10 * lax.axis_index("model"), no_grad=INDICES),
    region("pcast", lambda x: lax.pcast(jnp.float32(2), ("data", "model"), to="varying") * x),
    case(
        "partly_manual",
        jax.shard_map(
            lambda x: lax.psum(jnp.sin(x), "data"), mesh=mesh(), in_specs=P("data"), out_specs=P(), axis_names={"data"}
        ),
        X,
    ),
    region(
        "scan_of_psum",
        lambda x: lax.scan(
            lambda c, r: (c + lax.psum(r, "data"), r), lax.pcast(jnp.zeros(2), "model", to="varying"), x
        ),
        (P("model"), P("data", "model")),
    ),
    case("vmap_of_psum", jax.vmap(lambda x: x / lax.psum(x, "i"), axis_name="i"), X),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)


# JAX lowers these on GPUs only.
def broadcast_from_second(x):
    return lax.pbroadcast(x, ("data",), 2)


def test_pbroadcast():
    result = inside_jax.jit(mapped(broadcast_from_second, check_vma=False))(place(X))
    np.testing.assert_array_equal(result, np.tile(X[4:6], (4, 1)))


def test_ragged_all_to_all():
    result = inside_jax.jit(mapped(exchange_rows))(place(X))
    blocks = X.reshape(4, 2, 2, 2)  # data, row, model, column
    np.testing.assert_array_equal(result, blocks.transpose(0, 2, 1, 3).reshape(8, 4))


def test_psend_is_an_error():
    with pytest.raises(Exception, match=r"'psend' of JAX at test_collectives.py"):
        inside_jax.jit(mapped(lambda x: (lax.psend(x, "data", [(0, 1)]), x)[1]))(place(X))
