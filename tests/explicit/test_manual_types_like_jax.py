"""Types in manual regions, results and gradients: as JAX has them, where it runs the same program."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 4)).astype(np.float32)


def sum_of_unreduced(lib, seen):
    def body(a, w):
        terms = seen(lib.lax.pcast(a @ w, "x", to="unreduced"))
        return seen(lib.lax.psum(seen(terms + terms), "x"))

    return body, lambda P: ((P("x"), P()), P())


def scatter_of_unreduced(lib, seen):
    def body(a, w):
        terms = lib.lax.pcast(a @ w, "x", to="unreduced")
        return seen(lib.lax.psum_scatter(seen(terms), "x", scatter_dimension=1, tiled=True))

    return body, lambda P: ((P("x"), P()), P(None, "x"))


def gather_to_reduced(lib, seen):
    def body(a, w):
        gathered = seen(lib.lax.all_gather(a, "x", tiled=True, to="reduced"))
        return seen(a * gathered[:2]) @ w

    return body, lambda P: ((P("x"), P()), P("x"))


def gather_to_invarying(lib, seen):
    def body(a, w):
        return seen(lib.lax.all_gather(a, "x", tiled=True, to="invarying")) @ w

    return body, lambda P: ((P("x"), P()), P())


def cast_to_reduced(lib, seen):
    def body(a, w):
        w = seen(lib.lax.pcast(w, "x", to="reduced"))
        return seen(lib.numpy.sin(a @ seen(w.T)))

    return body, lambda P: ((P("x"), P()), P("x"))


def reduced_argument(lib, seen):
    def body(a, w):
        return seen(lib.numpy.tanh(seen(a) @ seen(w)))

    return body, lambda P: ((P("x"), P(reduced={"x"})), P("x"))


def reduced_beside_replicated_axes(lib, seen):
    def body(a, w):
        return lib.lax.psum(seen(a @ seen(w)), "y")

    return body, lambda P: ((P("x", "y"), P("y", None, reduced={"x"})), P("x"))


def unreduced_result(lib, seen):
    def body(a, w):
        return seen(a @ w)

    return body, lambda P: ((P("x"), P()), P(unreduced={"x"}))


CASES = [
    sum_of_unreduced,
    scatter_of_unreduced,
    gather_to_reduced,
    gather_to_invarying,
    cast_to_reduced,
    reduced_argument,
    reduced_beside_replicated_axes,
    unreduced_result,
]


def run(lib, case):
    """Return the types that the region sees, the types of result and gradients, and their values, all reduced."""
    sharding = lib.sharding
    P = sharding.PartitionSpec
    mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(sharding.AxisType.Explicit,) * 2)
    types = []

    def seen(x):
        types.append(lib.typeof(x).str_short(True))
        return x

    with lib.set_mesh(mesh):
        body, specs = case(lib, seen)
        in_specs, out_specs = specs(P)
        region = lib.shard_map(body, in_specs=in_specs, out_specs=out_specs)
        args = [lib.device_put(x, spec) for x, spec in zip((X, W), in_specs, strict=True)]

        def loss(a, w):
            result = sharding.reshard(region(a, w), P())
            return (result * result).sum()

        result = lib.jit(region)(*args)
        inside = list(types)
        gradients = lib.jit(lib.grad(loss, (0, 1)))(*args)
        arrays = (result, *gradients)
        outside = [lib.typeof(x).str_short(True) for x in arrays]
        return inside, outside, [np.asarray(lib.jit(lambda x: sharding.reshard(x, P()))(x)) for x in arrays]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_region_like_jax(case):
    inside, outside, values = run(sw, case)
    expected_inside, expected_outside, expected = run(jax, case)
    assert inside == expected_inside and outside == expected_outside
    for actual, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)
