"""Calls of the functions of `shardwise.nn`, `nn.initializers` and `ops` on arrays of `n` rows and columns."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes

from shardwise import nn, ops, random
from tests.layouts.call import Call, call, floats, integers, probabilities

UNARY = (
    *("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu"),
    *("log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus"),
    *("sparse_sigmoid", "squareplus", "swish", "tanh"),
)
ALONG_AXES = ("log_softmax", "logmeanexp", "logsumexp", "softmax", "standardize")
RANDOM_INITIALIZERS = (
    *("glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "kaiming_normal", "kaiming_uniform"),
    *("lecun_normal", "lecun_uniform", "normal", "truncated_normal", "uniform", "xavier_normal", "xavier_uniform"),
)


def nn_functions(n: int) -> Iterator[Call]:
    x = floats(n, n)
    for name in UNARY:
        yield call(f"nn.{name}", getattr(nn, name), 3 * x)
    for name in ALONG_AXES:
        function = getattr(nn, name)
        yield call(f"nn.{name}", lambda x, f=function: [f(x, axis) for axis in (0, -1, (0, 1))], x, atol=1e-5)
    yield call("nn.log1mexp", nn.log1mexp, probabilities(n, n))
    yield call("nn.glu", lambda x: [nn.glu(x, axis) for axis in (0, 1)], x)
    yield call("nn.one_hot", lambda i: [nn.one_hot(i, n), nn.one_hot(i, n, axis=0)], integers(n))
    yield call(
        "nn.dot_product_attention",
        lambda q, k, v: [nn.dot_product_attention(q, k, v, is_causal=causal) for causal in (False, True)],
        floats(n, 5, 2, n),
        floats(n, 7, 2, n, seed=1),
        floats(n, 7, 2, n, seed=2),
        rtol=1e-4,
        atol=1e-5,
    )
    yield call(
        "nn.dot_product_attention",
        lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True),
        floats(n, 2, n),
        floats(n, 2, n, seed=1),
        floats(n, 2, n, seed=2),
        rtol=1e-4,
        atol=1e-5,
    )
    float8 = ml_dtypes.float8_e4m3fn
    yield call(
        "nn.scaled_matmul",
        nn.scaled_matmul,
        floats(n, 3, 32 * n).astype(float8),
        floats(n, 4, 32 * n, seed=1).astype(float8),
        probabilities(n, 3, n).astype(ml_dtypes.float8_e8m0fnu),
        probabilities(n, 4, n, seed=3).astype(ml_dtypes.float8_e8m0fnu),
        rtol=1e-2,
        atol=1e-2,
    )
    yield call(
        "nn.scaled_dot_general", block_scaled_dot, floats(n, 32 * n), floats(n, 32 * n, seed=1), rtol=1e-4, atol=1e-3
    )
    yield call("nn.scaled_dot_general", lambda x: block_scaled_dot(x, x, 0), floats(32, n), rtol=1e-4, atol=1e-3)


def segment_reductions(n: int) -> Iterator[Call]:
    for name in ops.__all__:
        function: Any = getattr(ops, name)
        yield call(
            f"ops.{name}",
            lambda x, i, f=function: [f(x, i, n), f(x, i, 3, mode="drop")],
            probabilities(n, n),
            integers(n, low=0, high=5),
        )


def block_scaled_dot(x: Any, y: Any, dim: int = 1) -> Any:
    configs_of_modes = [[nn.get_scaled_dot_general_config(mode)] * 2 for mode in ("mxfp8", "nvfp4")]
    return [nn.scaled_dot_general(x, y, (((dim,), (dim,)), ((), ())), configs=configs) for configs in configs_of_modes]


def initializers(n: int) -> Iterator[Call]:
    key = random.key(1)
    for name in RANDOM_INITIALIZERS:
        function = getattr(nn.initializers, name)
        yield call(f"nn.initializers.{name}", lambda f=function: f()(key, (n, n)))
    yield call(
        "nn.initializers.variance_scaling",
        lambda: nn.initializers.variance_scaling(2.0, "fan_avg", "truncated_normal")(key, (n, n)),
    )
    for name in ("zeros", "ones"):
        function = getattr(nn.initializers, name)
        yield call(f"nn.initializers.{name}", lambda f=function: f(key, (n, n)), exact=True)
    yield call("nn.initializers.constant", lambda: nn.initializers.constant(3.0)(key, (n, n)), exact=True)
    loose = {"rtol": 1e-4, "atol": 1e-4}
    yield call("nn.initializers.orthogonal", lambda: nn.initializers.orthogonal()(key, (n, n)), **loose)
    yield call("nn.initializers.delta_orthogonal", lambda: nn.initializers.delta_orthogonal()(key, (3, n, n)), **loose)


FAMILIES = (nn_functions, initializers, segment_reductions)
