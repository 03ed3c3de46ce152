"""The function that `vjp` returns: its residuals, which can be dropped and restored, and gradients in Refs."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.api.transformations.vjp_function import NotNeeded

LIBRARIES = ["shardwise", pytest.param("jax", marks=pytest.mark.jax)]


@pytest.fixture(params=LIBRARIES)
def lib(request):
    """Return Shardwise, and JAX, for which the same must hold."""
    return sw if request.param == "shardwise" else pytest.importorskip("jax")


def product(x, y):
    return x * y


def test_arguments_that_are_residuals_can_be_dropped_and_restored(lib):
    value, vjp_fun = lib.vjp(product, lib.numpy.float32(2), lib.numpy.float32(3))
    assert [float(x) for x in vjp_fun.args_res] == [2, 3] and not vjp_fun.opaque_residuals
    vjp_fun.args_res = [None, None]
    assert lib.tree.leaves(vjp_fun) == []
    vjp_fun.args_res = [np.float32(2), np.float32(3)]
    assert (float(value), *map(float, vjp_fun(1.0))) == (6, 3, 2)


def test_arguments_are_dropped_in_one_jitted_function_and_restored_in_another(lib):
    @lib.jit
    def forward(x, y):
        value, vjp_fun = lib.vjp(product, x, y)
        vjp_fun.args_res = [None, None]
        return value, vjp_fun

    @lib.jit
    def backward(vjp_fun, x, y):
        vjp_fun.args_res = [x, y]
        return vjp_fun(1.0)

    value, vjp_fun = forward(2.0, 3.0)
    assert (float(value), *map(float, backward(vjp_fun, 2.0, 3.0))) == (6, 3, 2)


def test_an_argument_is_restored_in_its_own_structure(lib):
    value, vjp_fun = lib.vjp(lambda x: [x["hi"] * x["bye"]], {"hi": 2.0, "bye": 3.0})
    vjp_fun.args_res = [None]
    vjp_fun.args_res = [{"hi": 2.0, "bye": 3.0}]
    (gradient,) = vjp_fun([1.0])
    assert {name: float(x) for name, x in gradient.items()} == {"hi": 3, "bye": 2}
    assert float(value[0]) == 6


def test_the_residual_of_sine_is_opaque(lib):
    _, vjp_fun = lib.vjp(lib.numpy.sin, 3.0)
    assert type(vjp_fun.args_res[0]).__name__ == NotNeeded.__name__
    assert len(vjp_fun.opaque_residuals) == 1
    np.testing.assert_allclose(vjp_fun(1.0)[0], np.cos(3.0), rtol=1e-6)


def test_one_argument_can_be_dropped(lib):
    x, w = np.ones((3, 4), np.float32), np.full((4, 4), 2, np.float32)
    value, vjp_fun = lib.vjp(lambda x, w: 2.0 * ((1.0 * x) @ w), lib.numpy.array(x), lib.numpy.array(w))
    vjp_fun.args_res[1] = None
    vjp_fun.args_res[1] = w
    x_gradient, w_gradient = vjp_fun(lib.numpy.ones_like(value))
    np.testing.assert_allclose(x_gradient, 2 * np.ones((3, 4)) @ w.T)
    np.testing.assert_allclose(w_gradient, 2 * x.T @ np.ones((3, 4)))


def test_gradients_are_added_to_refs_returned_or_left_out(lib):
    x, y = lib.numpy.arange(3.0), lib.numpy.arange(3.0) + 1
    _, vjp_fun = lib.vjp(product, x, y)
    ref = lib.new_ref(lib.numpy.ones(3))
    assert vjp_fun.with_refs(ref, lib.ad.DontWant())(lib.numpy.ones(3)) == (lib.ad.GradRef(), lib.ad.DidntWant())
    np.testing.assert_array_equal(ref[...], [2, 3, 4])
    unwanted, gradient = vjp_fun.with_refs(lib.ad.DontWant(), lib.ad.GradValue())(lib.numpy.ones(3))
    assert unwanted == lib.ad.DidntWant()
    np.testing.assert_array_equal(gradient, x)


def test_markers_are_results_of_jitted_functions(lib):
    _, vjp_fun = lib.vjp(product, 2.0, 3.0)
    unwanted, gradient = lib.jit(vjp_fun.with_refs(lib.ad.DontWant(), lib.ad.GradValue()))(1.0)
    assert unwanted == lib.ad.DidntWant() and float(gradient) == 2


def test_gradients_of_several_batches_are_added_in_a_scan(lib):
    def total(weights, batches):
        accumulated = lib.new_ref(lib.numpy.zeros_like(weights))

        def step(carry, batch):
            loss, vjp_fun = lib.vjp(lambda w: (batch @ w).sum(), weights)
            vjp_fun.with_refs(accumulated)(lib.numpy.ones_like(loss))
            return carry, loss

        lib.lax.scan(step, (), batches)
        return lib.freeze(accumulated)

    batches = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    expected = np.broadcast_to(batches.sum((0, 1))[:, None], (3, 5))
    np.testing.assert_allclose(lib.jit(total)(np.ones((3, 5), np.float32), batches), expected)


def test_a_zero_gradient_leaves_its_ref_unchanged():
    _, vjp_fun = sw.vjp(lambda x, y: x + 0 * sw.lax.stop_gradient(y), 2.0, 3.0)
    ref = sw.new_ref(jnp.array(7.0))
    assert vjp_fun.with_refs(sw.ad.GradValue(), ref)(1.0)[1] == sw.ad.GradRef() and float(ref[...]) == 7


def test_a_dropped_argument_is_an_error_in_the_call():
    _, vjp_fun = sw.vjp(product, 2.0, 3.0)
    vjp_fun.args_res[0] = None
    with pytest.raises(
        ValueError, match=r"vjp of `product`.*: args_res has 1 leaves, but the arguments have 2: set it"
    ):
        vjp_fun(1.0)


def test_with_refs_expects_the_structure_of_the_arguments():
    _, vjp_fun = sw.vjp(product, 2.0, 3.0)
    with pytest.raises(
        ValueError, match=r"with_refs of `product`.*: the arguments have structure PyTreeDef\(\(\*,\)\)"
    ):
        vjp_fun.with_refs(sw.ad.DontWant())


def test_an_argument_is_a_ref():
    def square_of_sine(ref, factor):
        ref[...] = jnp.sin(ref[...]) * factor
        return ref[...] ** 2, {"factor": factor}

    ref, gradient = sw.new_ref(2.0), sw.new_ref(100.0)
    value, vjp_fun, aux = sw.vjp(square_of_sine, ref, 3.0, has_aux=True)
    np.testing.assert_allclose([value, ref[...], aux["factor"]], [9 * np.sin(2) ** 2, 3 * np.sin(2), 3], rtol=1e-6)
    marker, of_factor = vjp_fun.with_refs(gradient, sw.ad.GradValue())(1.0)
    np.testing.assert_allclose([gradient[...], of_factor], [100 + 9 * np.sin(4), 6 * np.sin(2) ** 2], rtol=1e-5)
    assert marker == sw.ad.GradRef()
    assert vjp_fun.with_refs(sw.ad.DontWant(), sw.ad.DontWant())(1.0) == (sw.ad.DidntWant(),) * 2
    for call in (lambda: vjp_fun(1.0), lambda: vjp_fun.with_refs(sw.ad.GradValue(), sw.ad.GradValue())):
        with pytest.raises(ValueError, match="an argument is a Ref, so its gradient is added to a Ref, not returned"):
            call()


def test_an_argument_is_a_ref_in_jit():
    @sw.jit
    def gradient(ref, x):
        _, vjp_fun = sw.vjp(lambda ref, x: ref[...] * x, ref, x)
        result = sw.new_ref(0.0)
        vjp_fun.with_refs(result, sw.ad.DontWant())(1.0)
        return result[...]

    assert gradient(sw.new_ref(2.0), 4.0) == 4
