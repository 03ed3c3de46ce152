"""Reductions, cumulative reductions, sorts and windows."""

from functools import partial

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import case, jax, jnp, like_jax

lax = jax.lax

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype(np.float32)
IMAGE = RNG.normal(size=(4, 8, 6)).astype(np.float32)
INTS = RNG.integers(0, 50, (8, 6)).astype(np.int32)
INTEGERS = "integers have no gradient"


def pool(start, combine, *, window=(1, 3, 2), strides=(1, 2, 1), padding="SAME", **dilations):
    return lambda x: lax.reduce_window(x, start, combine, window, strides, padding, **dilations)


def sum_of_squares(x, y):
    return x + y + 0.25 * x * y


CASES = [
    *(case(name, getattr(jnp, name), X) for name in ("sum", "prod", "max", "min")),
    *(case(f"{name}_along", partial(getattr(jnp, name), axis=0), X) for name in ("sum", "prod", "max", "min")),
    *(case(name, partial(getattr(lax, name), axis=1), X) for name in ("cumsum", "cumprod", "cummax", "cummin")),
    case("cumsum_reverse", lambda x: lax.cumsum(x, 0, reverse=True), X),
    case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 0), X),
    case("argmax", lambda x: lax.argmax(x, 0, jnp.int32), X, no_grad=INTEGERS),
    case("argmin", lambda x: lax.argmin(x, 1, jnp.uint8), X, no_grad=INTEGERS),
    case("all", lambda i: jnp.all(i > 1, 0), INTS, no_grad=INTEGERS),
    case("any", lambda i: jnp.any(i > 48, 1), INTS, no_grad=INTEGERS),
    case("reduce_xor", lambda i: jnp.bitwise_xor.reduce(i, 0), INTS, no_grad=INTEGERS),
    case("reduce_and", lambda i: lax.reduce(i, np.int32(-1), lax.bitwise_and, (0,)), INTS, no_grad=INTEGERS),
    case("reduce_or", lambda i: lax.reduce(i, np.int32(0), lax.bitwise_or, (0,)), INTS, no_grad=INTEGERS),
    case("reduce", lambda x: lax.reduce(x, np.float32(0), sum_of_squares, (1,)), X, no_grad="JAX has none"),
    case(
        "reduce_pair",
        lambda x, i: lax.reduce(
            (x, i),
            (np.float32(-10), np.int32(0)),
            lambda a, b: (jnp.maximum(a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1])),
            (0,),
        ),
        X,
        INTS,
        no_grad="JAX has none",
    ),
    case("sort", lambda x: lax.sort(x, 0), X),
    case("sort_keys", lambda i, x: lax.sort((i % 5, x, i), 1, num_keys=2), INTS, X),
    case("top_k", lambda x: lax.top_k(x, 3), X),
    case("top_k_axis", lambda x: lax.top_k(x, 3, axis=0), X),
    case("approx_max_k", lambda x: lax.approx_max_k(x, 3), X),
    case("approx_min_k", lambda x: lax.approx_min_k(x, 3), X),
    case("pool_sum", pool(0.0, lax.add), IMAGE),
    case("pool_max", pool(-jnp.inf, lax.max), IMAGE),
    case("pool_min", pool(jnp.inf, lax.min, window_dilation=(1, 2, 1)), IMAGE, no_grad="JAX has none"),
    case("pool_dilated", pool(0.0, lax.add, padding="VALID", base_dilation=(1, 2, 1)), IMAGE),
    case("pool_other", pool(1.0, lax.mul), IMAGE, no_grad="JAX has none"),
    case(
        "pool_pair",
        lambda x: lax.reduce_window(
            (x, 2 * x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1, 3, 1), (1, 1, 1), "VALID"
        ),
        IMAGE,
        no_grad="JAX has none",
    ),
    case("pool_max_twice", jax.grad(lambda x: jnp.sum(pool(-jnp.inf, lax.max)(x) ** 2)), IMAGE),
    case("pool_max_tangent", lambda x: jax.jvp(pool(-jnp.inf, lax.max), (x,), (jnp.cos(x),)), IMAGE),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
