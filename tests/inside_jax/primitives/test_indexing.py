"""Gathers and scatters."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import case, jax, jnp, like_jax

lax = jax.lax

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 6)).astype(np.float32)
ROWS = np.array([3, 1, 3, 7], np.int32)
UPDATES = RNG.normal(size=(4, 6)).astype(np.float32)
UNIQUE = np.array([3, 1, 0, 7], np.int32)

CASES = [
    case("gather", lambda x, i: x[i], X, ROWS),
    case("gather_clip", lambda x, i: x.at[i + 5].get(mode="clip"), X, ROWS),
    case("gather_fill", lambda x, i: x.at[i + 5].get(mode="fill", fill_value=2.5), X, ROWS),
    case("gather_fill_nan", lambda x, i: jnp.nan_to_num(x.at[i + 5].get(mode="fill")), X, ROWS),
    case("gather_two_dims", lambda x, i: x[i, i % 3], X, ROWS),
    case("take_along_axis", lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), X),
    case("gather_batching", jax.vmap(lambda x, i: x[i]), X, np.tile(ROWS % 6, 2)),
    case("scatter", lambda x, i, u: x.at[i].set(u, unique_indices=True), X, UNIQUE, UPDATES),
    case("scatter_drop", lambda x, i, u: x.at[i + 5].set(u, mode="drop", unique_indices=True), X, UNIQUE, UPDATES),
    case("scatter_add", lambda x, i, u: x.at[i].add(u), X, ROWS, UPDATES),
    case("scatter_sub", lambda x, i, u: x.at[i].subtract(u), X, ROWS, UPDATES),
    case("scatter_mul", lambda x, i, u: x.at[i].multiply(u, unique_indices=True), X, UNIQUE, UPDATES),
    case("scatter_min", lambda x, i, u: x.at[i].min(u), X, UNIQUE, UPDATES),
    case("scatter_max", lambda x, i, u: x.at[i].max(u), X, UNIQUE, UPDATES),
    case("scatter_apply", lambda x, i: x.at[i].apply(jnp.sin), X, UNIQUE, no_grad="JAX has none"),
    case("scatter_apply_twice", lambda x, i: x.at[i].apply(jnp.sin), X, ROWS, no_grad="JAX has none"),
    case(
        "scatter_apply_constant",
        lambda x, i, c: x.at[i].apply(lambda y: y * np.float32(2) + 1) * c,
        X,
        UNIQUE,
        np.float32(3),
        no_grad="JAX has none",
    ),
    case("scatter_batching", jax.vmap(lambda x, u: x.at[2].add(u)), X, X[:, 0].copy()),
    case("segment_sum", lambda x: jax.ops.segment_sum(x, jnp.array([0, 1, 1, 2, 2, 2, 0, 0]), 3), X),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
