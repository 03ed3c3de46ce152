"""sparsify: functions of dense arrays with sparse arguments, compared with dense arguments and with JAX."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.nn
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental import sparse
from shardwise.experimental.sparse import BCOO, BCSR, COO, CSC, CSR, sparsify

X = np.array([[0, 0.1, 0, 0.2], [0.3, 0, 0, 0], [0, 0, 0.4, 0]], np.float32)
V = np.arange(1, 5, dtype=np.float32)


def power_iteration(x):
    def step(vector, _):
        image = x.T @ (x @ vector)
        return image / jnp.linalg.norm(image), image[0]

    return lax.scan(step, jnp.ones(4), None, length=5)


def logistic_loss(x):
    logits = x @ jnp.asarray(V) + 0.5
    return -jnp.mean(jnp.log(0.5 * (jnp.tanh(logits / 2) + 1)))


@jnp.vectorize
def cube(x):
    return x**3


# Functions with dense results, and functions with sparse ones.
DENSE = {
    "matvec": lambda x: x @ V,
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, X),
    "tensordot": lambda x: jnp.tensordot(x, X, axes=((0,), (0,))),
    "norm": jnp.linalg.norm,
    "mean": jnp.mean,
    "todense": lambda x: sparse.todense(x) + 1,
    "logistic_loss": logistic_loss,
    "scan": power_iteration,
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, total: total + x @ V, jnp.zeros(3)),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x @ V, lambda x: x @ (2 * V), x),
    "jit": sw.jit(lambda x: 2 * x @ V),
    "vmap": sw.vmap(lambda row: row @ V),
    "checkpoint": sw.checkpoint(lambda x: x @ V),
    "gradient": sw.grad(lambda x: (x @ V).sum()),
}
SPARSE = {
    "zero_preserving": lambda x: jnp.sin(x) * jnp.tanh(x) + jnp.log1p(x) - jnp.sqrt(x),
    "rounding": lambda x: jnp.floor(10 * x).astype(jnp.int32),
    "relu": shardwise.nn.relu,
    "vectorize": cube,
    "stack": lambda x: jnp.stack([x, 2 * x]),
    "hstack": lambda x: jnp.hstack([x, -x]),
    "split": lambda x: jnp.split(x, [1]),
    "roll": lambda x: jnp.roll(x, 1, axis=1),
    "flip": lambda x: jnp.flip(x, 0),
    "swapaxes": lambda x: jnp.swapaxes(x, 0, 1).reshape(2, 6),
    "expand_dims": lambda x: jnp.expand_dims(x, 1),
    "while_loop": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, abs(c[1] * 2)), (0, x)),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, x),
    "scan_carry": lambda x: lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0],
    "nested": lambda x: {"a": x * 2, "b": [x[0], x[1:, ::2]]},
    "convolve": lambda x: jnp.convolve(x[0], x[1]),
}


def leaves(result):
    return [np.asarray(sparse.todense(x)) for x in sw.tree.leaves(result, is_leaf=lambda x: hasattr(x, "todense"))]


@pytest.mark.table(default=6)
@pytest.mark.parametrize("name", [f"dense_{name}" for name in DENSE] + [f"sparse_{name}" for name in SPARSE])
def test_like_dense_arguments(name):
    kind, _, key = name.partition("_")
    function = (DENSE if kind == "dense" else SPARSE)[key]
    result = sw.jit(sparsify(function))(BCOO.fromdense(X))
    expected = sw.jit(function)(X)
    for ours, theirs in zip(leaves(result), leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    has_sparse = any(isinstance(x, BCOO) for x in sw.tree.leaves(result, is_leaf=lambda x: isinstance(x, BCOO)))
    assert has_sparse == (kind == "sparse")


@pytest.mark.slow
@pytest.mark.jax
def test_layouts_like_jax():
    jax = pytest.importorskip("jax")
    peer = pytest.importorskip("jax.experimental.sparse")
    calls = {
        "stack": lambda np, x: np.stack([x, x]),
        "index": lambda np, x: x[1, 1:],
        "product": lambda np, x: (x * 2) @ x.T,
        "sum": lambda np, x: np.sum(x, axis=1, keepdims=True),
        "zero_preserving": lambda np, x: np.sin(x) + np.tanh(x),
    }
    for name, call in calls.items():
        ours = sparsify(lambda x, call=call: call(jnp, x))(BCOO.fromdense(X))
        theirs = peer.sparsify(lambda x, call=call: call(jax.numpy, x))(peer.BCOO.fromdense(X))
        assert repr(ours) == repr(theirs), name
        np.testing.assert_allclose(ours.todense(), theirs.todense(), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("format_class", [BCOO, BCSR, COO, CSR, CSC])
def test_formats_and_pytrees(format_class):
    function = sparsify(lambda args, scale: args["x"] @ V * scale, use_tracer=True)
    np.testing.assert_allclose(function({"x": format_class.fromdense(X)}, 2.0), X @ V * 2, rtol=1e-6)


def test_duplicates_are_added_before_nonlinear_functions():
    mat = BCOO((jnp.array([1.0, 2.0]), jnp.array([[1], [1]])), shape=(3,))
    np.testing.assert_array_equal((mat**2).todense(), [0, 9, 0])
    np.testing.assert_array_equal(abs(-mat).todense(), [0, 3, 0])
    halves = BCOO((jnp.array([0.5, 0.5]), jnp.array([[1], [1]])), shape=(3,))
    np.testing.assert_array_equal(halves.astype(int).todense(), [0, 1, 0])


def test_padding_stays_zero_under_division():
    mat = BCOO((jnp.array([1.0, 0.0]), jnp.array([[1], [3]])), shape=(3,))
    np.testing.assert_array_equal((mat / np.array([1.0, 2.0, 4.0], np.float32)) @ jnp.ones(3), 0.5)


def test_todense_is_differentiable_and_batched():
    function = sparsify(lambda x: jnp.exp(sparse.todense(x)).sum())
    gradient = sparse.grad(function)(BCOO.fromdense(X))
    np.testing.assert_allclose(gradient.todense(), np.where(X != 0, np.exp(X), 0), rtol=1e-6)
    np.testing.assert_allclose(sw.vmap(sw.grad(lambda x: sparse.todense(x).sum()))(X), np.ones_like(X))
    np.testing.assert_allclose(sw.jit(sparse.todense)(X), X)
