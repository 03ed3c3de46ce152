"""vmap: against loops."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 3)).astype(np.float32)
B = RNG.normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("in_axes", "rows"), [((0, 1), (4, 4)), ((1, 0), (3, 3)), ((-1, -2), (3, 3))])
def test_in_axes(wrap, in_axes, rows):
    def f(a, b):
        return jnp.exp(a) * b.sum() + a

    got = wrap(sw.vmap(f, in_axes=in_axes))(A, B)
    a, b = np.moveaxis(A, in_axes[0], 0), np.moveaxis(B, in_axes[1], 0)
    np.testing.assert_allclose(got, [np.exp(x) * y.sum() + x for x, y in zip(a, b, strict=True)], rtol=1e-5)


def test_trees_of_axes_and_unmapped_arguments():
    def f(p, x):
        assert p["w"].shape == (3,)
        return {"y": p["w"] * x, "w": p["w"]}

    out = sw.vmap(f, in_axes=({"w": None}, 0), out_axes={"y": 1, "w": None})({"w": A[0]}, B[0])
    np.testing.assert_allclose(out["y"], np.outer(A[0], B[0]), rtol=1e-6)
    np.testing.assert_array_equal(out["w"], A[0])


def test_python_if_on_an_unmapped_value():
    out = sw.vmap(lambda x, positive: x if positive > 0 else -x, in_axes=(0, None))(A, 1.0)
    np.testing.assert_array_equal(out, A)


def test_nested_with_grad_and_jit():
    def loss(w, x):
        return (sw.jit(lambda z: jnp.exp(z * w))(x)).sum()

    got = sw.vmap(sw.grad(loss), in_axes=(None, 0))(A[0], A)
    np.testing.assert_allclose(got, A * np.exp(A * A[0]), rtol=1e-5)
    hessian_diagonal = sw.vmap(sw.grad(sw.grad(lambda x: x * x * x)))(A[0])
    np.testing.assert_allclose(hessian_diagonal, 6 * A[0], rtol=1e-5)


def test_vmap_of_vmap_is_an_outer_product():
    outer = sw.vmap(sw.vmap(lambda x, y: x * y, in_axes=(None, 0)), in_axes=(0, None))(A[0], B[0])
    np.testing.assert_allclose(outer, np.outer(A[0], B[0]), rtol=1e-6)


def test_result_that_does_not_depend_on_the_mapped_argument():
    out = sw.vmap(lambda x: (x, 3.0, jnp.ones(2)))(A[0])
    np.testing.assert_array_equal(out[1], [3, 3, 3])
    np.testing.assert_array_equal(out[2], np.ones((3, 2)))


def test_on_eight_devices(mesh):
    x = sw.device_put(A, NamedSharding(mesh, P("data")))
    y = sw.jit(sw.vmap(lambda row: row / row.sum()))(x)
    np.testing.assert_allclose(y, A / A.sum(1, keepdims=True), rtol=1e-5)
    assert y.sharding.spec == P("data")
