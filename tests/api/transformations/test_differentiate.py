"""grad and value_and_grad: compared with finite differences and each other; no op runs twice."""

from collections import Counter

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.control.call import Call
from shardwise.compiler.ir import dispatch
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def executed(monkeypatch):
    """Count the ops that run eagerly; a call counts as the ops inside it."""
    counts = Counter()
    run, call = dispatch.executor.run, dispatch.executor.call

    def note(program):
        for equation in program.equations:
            if isinstance(equation.op, Call):
                note(equation.op.program)
            else:
                counts[equation.op.name] += 1

    def counted_run(op, args):
        if isinstance(op, Call):
            note(op.program)
        else:
            counts[op.name] += 1
        return run(op, args)

    def counted_call(function, args, static):
        counts[function.__name__] += 1
        return call(function, args, static)

    monkeypatch.setattr(dispatch.executor, "run", counted_run)
    monkeypatch.setattr(dispatch.executor, "call", counted_call)
    return counts


def numeric(f, x, eps=1e-3):
    return (f(x + eps) - f(x - eps)) / (2 * eps)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x * x,
        lambda x: jnp.exp(-x) / (x + 3.0),
        lambda x: jnp.maximum(x, 0.5) * jnp.where(x > 0.0, x, -2.0 * x),
        lambda x: sw.jit(lambda y: y * jnp.exp(y * x))(x),
        lambda x: sw.vmap(lambda y: x * y)(jnp.arange(3.0)).sum(),
        lambda x: sw.grad(lambda y: jnp.exp(x * y) + y * y)(x),
    ],
    ids=["cube", "exp_div", "max_where", "jit_closure", "vmap_closure", "nested"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, sw.jit], ids=["eager", "jit"])
def test_against_finite_differences(f, wrap):
    for x in (-1.3, 0.7, 1.9):
        np.testing.assert_allclose(wrap(sw.grad(f))(x), numeric(lambda v: float(f(v)), x), rtol=2e-2)


def test_no_perturbation_confusion():
    assert float(sw.grad(lambda x: x * sw.grad(lambda y: x + y)(1.0))(1.0)) == 1.0


def test_python_if_works_under_grad_outside_jit():
    def f(x):
        return x * x * x if x > 0.0 else -x

    assert [float(sw.grad(f)(v)) for v in (2.0, -2.0)] == [12.0, -1.0]
    assert float(sw.grad(sw.grad(f))(2.0)) == 12.0


def test_argnums_pytrees_aux_and_unused_arguments():
    def f(p, x, unused):
        return (p["a"] * x).sum(), {"seen": x * 2}

    p, x = {"a": jnp.arange(3.0), "b": jnp.ones(2)}, jnp.full((3,), 5.0)
    (value, aux), (gp, gu) = sw.value_and_grad(f, argnums=(0, 2), has_aux=True)(p, x, 1.0)
    assert float(value) == 15.0
    np.testing.assert_array_equal(aux["seen"], [10, 10, 10])
    np.testing.assert_array_equal(gp["a"], [5, 5, 5])
    np.testing.assert_array_equal(gp["b"], [0, 0])
    assert float(gu) == 0.0
    grad, aux = sw.grad(f, argnums=1, has_aux=True)(p, x, 1.0)
    np.testing.assert_array_equal(grad, [0, 1, 2])
    with pytest.raises(TypeError, match=r"must return a pair \(value, aux\) with has_aux=True"):
        sw.grad(lambda v: v, has_aux=True)(1.0)


def test_forward_ops_run_once_under_grad(executed):
    sw.grad(jnp.exp)(1.0)
    assert executed["exp"] == 1


def test_forward_ops_run_once_if_python_reads_a_value(executed):
    def f(x):
        y = jnp.exp(x)
        return y * y if y > 1.0 else y

    sw.grad(f)(1.0)
    assert executed["exp"] == 1
    executed.clear()
    sw.grad(sw.grad(f))(1.0)
    assert executed["exp"] == 1


def test_forward_ops_run_once_under_grad_of_grad(executed):
    sw.grad(sw.grad(jnp.exp))(1.0)
    assert executed["exp"] == 1


def test_forward_ops_run_once_under_grad_of_jit(executed):
    sw.grad(sw.jit(lambda x: jnp.exp(x) * 2.0))(1.0)
    assert executed["exp"] == 1
    executed.clear()
    sw.grad(sw.jit(jnp.exp))(1.0)
    assert executed["exp"] == 1


def test_dead_forward_ops_do_not_run(executed):
    def f(x):
        jnp.exp(x)
        return x * x

    sw.grad(f)(3.0)
    assert executed["exp"] == 0


def test_gradient_on_eight_devices_equals_one(mesh):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(10, 5)).astype(np.float32), rng.normal(size=(5, 7)).astype(np.float32)

    def f(w, x):
        return jnp.mean(jnp.exp(-jnp.square(x @ w)))

    expected = sw.grad(f)(w, x)
    sharded = sw.device_put(w, NamedSharding(mesh, P(None, "model"))), sw.device_put(x, NamedSharding(mesh, P("data")))
    for g in (sw.grad(f)(*sharded), sw.jit(sw.grad(f))(*sharded)):
        np.testing.assert_allclose(g, expected, rtol=1e-4, atol=1e-6)
        assert g.sharding.spec == P(None, "model")


def test_vjp_function_is_a_pytree_for_jitted_functions():
    value, pullback = sw.jit(lambda x: sw.vjp(lambda x: jnp.exp(x) * x, x))(2.0)
    assert float(value) == pytest.approx(2 * np.exp(2))
    assert float(sw.jit(lambda pull, ct: pull(ct))(pullback, 2.0)[0]) == pytest.approx(6 * np.exp(2))
    assert len(sw.tree.leaves(pullback)) == 2


@pytest.mark.parametrize("jacobian", [sw.jacfwd, sw.jacrev])
def test_jacobians_of_holomorphic_functions(jacobian):
    z = jnp.array([1 + 2j, 3])
    np.testing.assert_allclose(np.asarray(jacobian(lambda z: z * z, holomorphic=True)(z)), np.diag([2 + 4j, 6]))
    with pytest.raises(TypeError, match="holomorphic: pass holomorphic=True if it is"):
        jacobian(lambda z: z * z)(z)
    with pytest.raises(TypeError, match="derivatives need a floating or complex dtype"):
        jacobian(lambda x: x * 2.0)(3)


def test_reduce_axes_raise_as_in_jax():
    with pytest.raises(NotImplementedError, match="reduce_axes"):
        sw.grad(lambda x: x, reduce_axes=("i",))


def test_gradient_of_a_real_function_of_complex_numbers():
    z = jnp.array([1 + 2j, 3])
    np.testing.assert_allclose(np.asarray(sw.grad(lambda z: (z * z.conj()).real.sum())(z)), [2 - 4j, 6])
    np.testing.assert_allclose(np.asarray(sw.jacrev(lambda z: z.real)(z)), np.eye(2))


def test_zero_derivative_is_weakly_typed_if_the_primal_is():
    for function in (lambda x: 3.0, jnp.sign, sw.lax.stop_gradient):
        assert sw.grad(function)(2.0).weak_type
        assert not sw.grad(function)(jnp.float32(2)).weak_type
    assert sw.jvp(lambda x: 3.0, (2.0,), (1.0,))[1].weak_type
    assert [x.weak_type for x in sw.vjp(lambda x, y: 3.0, 2.0, jnp.float32(1))[1](1.0)] == [True, False]
