"""Compare activations, softmax and related functions with JAX."""

import functools

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import nn
from tests.agreement import (
    PARTS,
    Case,
    batch_name,
    batches,
    eagerly_like,
    gradients_like,
    mesh_like_one_device,
    values_like,
    vmap_like_loop,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = (3 * RNG.normal(size=(5, 6))).astype(np.float32)
# Points where a function is not differentiable, and numbers whose exponentials overflow.
KINKS = np.array([-7.0, -3.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, 6.0, 90.0, -90.0], np.float32)
EXTREMES = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38], np.float32)
NARROW = X.astype(ml_dtypes.bfloat16)
EMPTY = np.zeros((0, 4), np.float32)
POINT = np.array(0.5, np.float32)
WHERE = RNG.integers(0, 2, (5, 6)).astype(bool)
ROW = np.array([True, False, True, True, False, True])

UNARY = (
    *("identity", "relu", "relu6", "sigmoid", "silu", "swish", "softplus", "log_sigmoid", "squareplus", "sparse_plus"),
    *("sparse_sigmoid", "soft_sign", "mish", "elu", "selu", "celu", "leaky_relu", "hard_tanh", "hard_sigmoid"),
    *("hard_silu", "hard_swish", "gelu", "tanh"),
)
ELEMENTWISE = [
    # JAX's derivative of gelu at negative numbers suffers from cancellation: at −6.4 it is −6e-6 instead of −3e-14.
    *(
        Case(name, (x,), atol=1e-5 if name == "gelu" else 5e-6)
        for name in UNARY
        for x in (np.concatenate([X.reshape(-1), KINKS]), NARROW)
    ),
    *(Case(name, (x,)) for name in ("relu", "gelu", "softplus") for x in (EMPTY, POINT)),
    *(Case(name, (EXTREMES,), smooth=False) for name in UNARY),
    Case("relu", (np.array([-3, 0, 5], np.int32),)),
    Case("relu6", (np.array([-3, 0, 9], np.int32),)),
    Case("gelu", (np.array([-3, 0, 9], np.int32),)),
    Case("gelu", (X, False)),
    Case("gelu", (NARROW, False)),
    Case("celu", (X, 0.5)),
    Case("elu", (X, POINT)),
    Case("leaky_relu", (X, 0.2)),
    Case("squareplus", (X, POINT)),
    Case("log1mexp", (np.array([1e-8, 0.1, 0.7, 2.0, 50.0], np.float32),)),
    Case("glu", (X,)),
    Case("glu", (X[:4], 0)),
    Case("one_hot", (np.array([0, 2, -1, 9], np.int32), 4)),
    Case("one_hot", (np.array([[0, 2], [1, 1]], np.int32), 3), {"axis": 0, "dtype": np.int8}),
    Case("one_hot", (np.array(1, np.uint8), 3)),
]
ALONG_AXES = [
    *(Case(name, (x,)) for name in ("softmax", "log_softmax") for x in (X, KINKS, NARROW, EMPTY)),
    *(Case(name, (EXTREMES,), smooth=False) for name in ("softmax", "log_softmax", "logsumexp", "logmeanexp")),
    Case("softmax", (X, 0)),
    Case("softmax", (X, (0, 1))),
    Case("softmax", (X, -1, WHERE)),
    Case("softmax", (X, 0, ROW[:5, None].copy())),
    Case("log_softmax", (X, (0, 1))),
    Case("log_softmax", (X, -1, WHERE), smooth=False),
    Case("logsumexp", (X,)),
    Case("logsumexp", (X, 1), {"keepdims": True}),
    Case("logsumexp", (NARROW, (0,))),
    Case("logsumexp", (X, 0, X[0])),
    Case("logsumexp", (X, 0, np.abs(X)), {"return_sign": True}),
    Case("logsumexp", (X, 1, X), {"return_sign": True, "keepdims": True}),
    Case("logsumexp", (X, 1), {"where": ROW}),
    Case("logsumexp", (np.full((2, 3), -np.inf, np.float32), 1), smooth=False),
    Case("logsumexp", (EMPTY, 0)),
    Case("logsumexp", (np.arange(4, dtype=np.int32),)),
    Case("logsumexp", ((X[:2, :3] + 1j * X[2:4, :3]).astype(np.complex64), 1), smooth=False),
    Case("logmeanexp", (X, 1)),
    Case("logmeanexp", (X,), {"where": WHERE, "keepdims": True}),
    Case("standardize", (X,)),
    Case("standardize", (X, 0), {"algorithm": "stable"}),
    Case("standardize", (X, (0, 1)), {"epsilon": 0.1, "where": WHERE}),
    Case("standardize", (X, -1, X[:, :1], np.abs(X[:, 1:2]))),
    Case("standardize", (NARROW,)),
]
CASES = [*ELEMENTWISE, *ALONG_AXES]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_values_match_jax(cases):
    values_like(nn, jax.nn, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES, 60), ids=batch_name)
def test_gradients_match_jax(cases):
    gradients_like(nn, jax.nn, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    "cases", batches([*ELEMENTWISE[1:46:2], *(case for case in CASES if case.args[0] is X)], 60), ids=batch_name
)
def test_vmap_matches_a_loop(cases):
    vmap_like_loop(nn, cases)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_inputs_match_one_device(mesh, which, part):
    mesh_like_one_device(mesh, nn, ALONG_AXES[part], which)


@pytest.mark.table(default=1)
@PARTS
def test_sharded_elementwise_functions_match_one_device(mesh, part):
    mesh_like_one_device(mesh, nn, ELEMENTWISE[:46:2][part], "last")


def test_eager_calls_match_jax():
    eagerly_like(
        nn, jax.nn, [Case("relu", (X,)), Case("celu", (X, 0.5)), Case("softmax", (X, -1, WHERE)), ALONG_AXES[-1]]
    )


@pytest.mark.slow
def test_second_derivatives_match_jax():
    def twice(package, nn, x):
        def total(x):
            parts = (nn.softmax(x), nn.gelu(x), nn.silu(x), nn.relu(x), nn.log1mexp(x), nn.logsumexp(x, where=ROW))
            return sum((part * part).sum() for part in parts)

        return package.jit(package.grad(lambda x: (package.grad(total)(x) ** 2).sum()))(x)

    x = np.abs(X[0]) + 0.1
    np.testing.assert_allclose(twice(sw, nn, x), twice(jax, jax.nn, x), rtol=2e-4)


def test_relu_is_one_op():
    program = sw.make_jaxpr(nn.relu)(X).program
    assert [equation.op.name for equation in program.equations] == ["relu"]


def test_one_hot_along_a_named_axis():
    x = np.array([2, 0], np.int32)

    def member(index, nn):
        return nn.one_hot(x, 3, axis="i")

    ours = sw.vmap(lambda i: member(i, nn), axis_name="i")(np.arange(3))
    theirs = jax.vmap(lambda i: member(i, jax.nn), axis_name="i")(np.arange(3))
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="num_classes is 4, but the named axis 'i' has size 3"):
        sw.vmap(lambda i: nn.one_hot(x, 4, axis="i"), axis_name="i")(np.arange(3))


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="must have an even size, to be split into halves"):
        nn.glu(X[:, :5])
    with pytest.raises(ValueError, match="algorithm must be 'fast' or 'stable', not 'slow'"):
        nn.standardize(X, algorithm="slow")


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-4), (np.float64, 1e-12), (ml_dtypes.bfloat16, 0.1)])
@pytest.mark.parametrize(("name", "options"), [("gelu", {}), ("gelu", {"approximate": False}), ("silu", {})])
def test_first_to_third_derivatives(name, options, dtype, error):
    x = np.linspace(-6, 6, 101).astype(dtype)

    def derivatives(library, x):
        function = functools.partial(getattr(library.nn, name), **options)
        for _ in range(3):
            function = library.grad(lambda x, function=function: function(x).sum())
            yield np.asarray(function(x), np.float64)

    with jax.enable_x64(True):  # in float32, JAX's third derivative of gelu at -6 is -4e-4 instead of -6e-8
        expected = list(derivatives(jax, x.astype(np.float64)))
    with sw.enable_x64(dtype is np.float64):
        for ours, theirs in zip(derivatives(sw, x), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=error)
