"""Primitives that move elements."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import case, jax, jnp, like_jax

lax = jax.lax

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

CASES = [
    case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (8, 3, 6), (0, 2)), X),
    case("broadcast_in_dim of size 1", lambda x: lax.broadcast_in_dim(x[:1], (4, 3, 6), (0, 2)), X),
    case("median", lambda x: jnp.median(x, 0), X),
    case("concatenate", lambda x: lax.concatenate([x, 2 * x], 1), X),
    case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 1), (3, 2)), X, np.int32(2)),
    case("dynamic_update_slice", lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 1)), X, X[:2, :3], np.int32(2)),
    case("dynamic_slice_unsigned", lambda x, i: lax.dynamic_slice(x, (i, 1 + 0 * i), (3, 2)), X, np.uint32(2**32 - 1)),
    case("dynamic_slice_short", lambda x, i: lax.dynamic_slice(x, (i, i), (3, 2)), X, np.uint8(1)),
    case("empty", lambda x: x + 0 * lax.empty((8, 6), jnp.float32), X, no_grad="the values are undefined"),
    case("expand_dims", lambda x: lax.expand_dims(x, (1,)), X),
    case("fft", jnp.fft.fft, X, tolerance=1e-4),
    case("irfft", lambda x: jnp.fft.irfft(jnp.fft.rfft2(x)), X, tolerance=1e-4),
    case("iota", lambda x: x + lax.broadcasted_iota(jnp.float32, (8, 6), 1), X),
    case("pad", lambda x: lax.pad(x, 1.5, ((1, 2, 1), (-1, 0, 0))), X),
    case("pad_by_numpy_integers", lambda x: jnp.pad(x, 1)[2:, 1:-1], X),
    case("reshape", lambda x: x.reshape(4, 12), X),
    case("reshape_and_transpose", lambda x: lax.reshape(x, (4, 12), (1, 0)), X),
    case("rev", lambda x: lax.rev(x, (0, 1)), X),
    case("slice", lambda x: lax.slice(x, (1, 0), (7, 5), (2, 1)), X),
    case("split", lambda x: lax.split(x, (2, 5, 1)), X),
    case("squeeze", lambda x: lax.squeeze(x[:, :1], (1,)), X),
    case("stack", lambda x: lax.stack([x, 2 * x], 1), X),
    case("tile", lambda x: lax.tile(x, (2, 3)), X),
    case("transpose", lambda x: x.T, X),
    case("unstack", lambda x: lax.unstack(x, 1), X),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
