"""vjp, jvp, linearize, linear_transpose, Jacobians: compared with numpy and each other, and error texts."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp

A = np.arange(6.0, dtype=np.float32).reshape(2, 3) / 5
X = np.array([0.3, -0.7, 1.1], np.float32)


def affine(p, x):
    return {"y": p["a"] @ x + p["b"], "n": (x * x).sum()}


P = {"a": A, "b": np.ones(2, np.float32)}


def test_vjp_of_pytrees():
    out, pull = sw.vjp(affine, P, X)
    np.testing.assert_allclose(out["y"], A @ X + 1, rtol=1e-6)
    gp, gx = pull({"y": np.array([1.0, 2.0], np.float32), "n": 3.0})
    np.testing.assert_allclose(gp["a"], np.outer([1, 2], X), rtol=1e-6)
    np.testing.assert_allclose(gp["b"], [1, 2])
    np.testing.assert_allclose(gx, A.T @ [1, 2] + 6 * X, rtol=1e-6)


def test_jvp_and_linearize_agree():
    primals, tangents = (P, X), ({"a": A * 2, "b": np.zeros(2, np.float32)}, X + 1)
    out, moved = sw.jvp(affine, primals, tangents)
    np.testing.assert_allclose(moved["y"], 2 * A @ X + A @ (X + 1), rtol=1e-6)
    np.testing.assert_allclose(moved["n"], 2 * X @ (X + 1), rtol=1e-6)
    same, push = sw.linearize(affine, *primals)
    for k in out:
        np.testing.assert_array_equal(out[k], same[k])
        np.testing.assert_allclose(push(*tangents)[k], moved[k], rtol=1e-6)


def test_aux_is_returned_unchanged():
    def f(x):
        return (x * x).sum(), {"double": x * 2}

    value, _, aux = sw.vjp(f, X, has_aux=True)
    np.testing.assert_allclose(value, (X * X).sum(), rtol=1e-6)
    np.testing.assert_array_equal(aux["double"], 2 * X)
    _, moved, aux = sw.jvp(f, (X,), (X,), has_aux=True)
    np.testing.assert_allclose(moved, 2 * (X * X).sum(), rtol=1e-6)
    np.testing.assert_array_equal(aux["double"], 2 * X)
    jacobian, aux = sw.jacfwd(lambda x: (x * x, x), has_aux=True)(X)
    np.testing.assert_allclose(jacobian, np.diag(2 * X), rtol=1e-6)
    np.testing.assert_array_equal(aux, X)


def test_linear_transpose_is_the_adjoint():
    pull = sw.linear_transpose(lambda x, y: A @ x + 3.0 * y, X, np.zeros(2, np.float32))
    gx, gy = pull(np.array([1.0, -2.0], np.float32))
    np.testing.assert_allclose(gx, A.T @ [1, -2], rtol=1e-6)
    np.testing.assert_allclose(gy, [3, -6])


@pytest.mark.parametrize("jacobian", [sw.jacfwd, sw.jacrev])
def test_jacobians(jacobian):
    def f(x, w):
        return {"a": jnp.exp(x) * w, "b": (x * w).sum()}

    found = jacobian(f, argnums=(0, 1))(X, X + 1)
    np.testing.assert_allclose(found["a"][0], np.diag(np.exp(X) * (X + 1)), rtol=1e-5)
    np.testing.assert_allclose(found["a"][1], np.diag(np.exp(X)), rtol=1e-5)
    np.testing.assert_allclose(found["b"][0], X + 1, rtol=1e-6)
    single = jacobian(lambda m: m @ m.T)(A)
    expected = np.einsum("ik,jl->ijkl", np.eye(2), A) + np.einsum("jk,il->ijkl", np.eye(2), A)
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-6)


def test_hessian_of_a_pytree():
    found = sw.hessian(lambda p: (p["x"] * p["x"]).sum() * p["s"])({"x": X, "s": 2.0})
    np.testing.assert_allclose(found["x"]["x"], 4 * np.eye(3), rtol=1e-5)
    np.testing.assert_allclose(found["x"]["s"], 2 * X, rtol=1e-5)
    np.testing.assert_allclose(found["s"]["s"], 0)


def test_integers_have_float0_derivatives():
    grads = sw.grad(lambda x, n: x * n, argnums=(0, 1), allow_int=True)(2.0, 3)
    assert float(grads[0]) == 3.0
    assert grads[1].dtype == np.dtype([("float0", np.void, 0)])
    _, moved = sw.jvp(lambda n: n * 2, (3,), (np.zeros((), grads[1].dtype),))
    assert moved.dtype == grads[1].dtype


def test_holomorphic():
    z = np.complex64(1 + 2j)
    np.testing.assert_allclose(sw.grad(lambda z: z * z * z, holomorphic=True)(z), 3 * z * z, rtol=1e-5)
    with pytest.raises(TypeError, match="returns one real scalar"):
        sw.grad(lambda z: z * z)(z)
    with pytest.raises(TypeError, match="with holomorphic=True it must have a complex dtype"):
        sw.grad(lambda z: z * z, holomorphic=True)(2.0)


def test_python_if_under_jvp_and_jacfwd():
    def f(x):
        return x * x if x > 0 else -x

    assert float(sw.jvp(f, (3.0,), (1.0,))[1]) == 6.0
    assert float(sw.jvp(f, (-3.0,), (1.0,))[1]) == -1.0
    assert float(sw.jacfwd(f)(3.0)) == 6.0


def test_mismatched_tangents_raise():
    with pytest.raises(TypeError, match=r"tangent 0 is f32\[2\], expected f32\[3\]"):
        sw.jvp(lambda x: x, (X,), (np.ones(2, np.float32),))
    with pytest.raises(TypeError, match=r"tangent 0 is i32\[3\], expected f32\[3\]"):
        sw.jvp(lambda x: x, (X,), (np.ones(3, np.int32),))
    with pytest.raises(TypeError, match="the cotangent has structure"):
        sw.vjp(lambda x: (x, x), X)[1](X)
    with pytest.raises(TypeError, match="must be tuples or lists"):
        sw.jvp(lambda x: x, X, X)


def test_in_every_nesting():
    def f(x):
        return jnp.exp(x) * x

    x = 0.7
    second = np.exp(x) * (x + 2)
    fwd, rev = (lambda g: lambda x: sw.jvp(g, (x,), (1.0,))[1]), (lambda g: lambda x: sw.vjp(g, x)[1](1.0)[0])
    for outer in (fwd, rev, sw.grad, sw.jacfwd, sw.jacrev):
        for inner in (fwd, rev, sw.grad, sw.jacfwd, sw.jacrev):
            for wrap in (lambda g: g, sw.jit):
                np.testing.assert_allclose(wrap(outer(wrap(inner(f))))(x), second, rtol=1e-5)
