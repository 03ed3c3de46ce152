"""Functions that are written for both libraries: `FUNCTIONS` maps names to builders and arguments.

A builder gets `jax` or `shardwise`, and returns the function.
"""

import numpy as np


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp(jax):
    def function(params, x):
        hidden = jax.nn.gelu(x @ params["w"] + params["b"])
        return jax.nn.log_softmax(hidden @ params["out"])

    return function


def integers_and_floats(jax):
    return lambda x, n: (x * n, n // 2, x > 0)


def loop(jax):
    def function(x):
        def body(carry, row):
            carry = jax.numpy.tanh(carry + row)
            return carry, carry.sum()

        return jax.lax.scan(body, jax.numpy.zeros(x.shape[1]), x)

    return function


def branches(jax):
    return lambda x: jax.lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, x)


def sorting(jax):
    return lambda x: (jax.numpy.sort(x, 0), jax.numpy.argmax(x, 1), jax.numpy.cumsum(x, 1))


def indexing(jax):
    return lambda x, i: (x[i], x.at[i].add(1.0), x[::-1, 1:3])


def convolution(jax):
    return lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def linear_algebra(jax):
    return lambda x: jax.numpy.linalg.cholesky(x @ x.T + 8 * jax.numpy.eye(x.shape[0]))


def closure(jax):
    w = jax.numpy.asarray(normal(3, 5, seed=7))
    mask = jax.numpy.asarray([True, False, True, True, False])
    return lambda x: jax.numpy.where(mask, x @ w, 0.5)


def unused_argument(jax):
    return lambda x, unused: {"a": x + 1, "b": None}


def narrow_floats(jax):
    return lambda x: (x.astype(jax.numpy.bfloat16) * 2, x.astype(jax.numpy.float16))


def complex_numbers(jax):
    return lambda x: jax.numpy.fft.fft(x).conj()


def scalars(jax):
    return lambda x: (x.sum(), 3)


PARAMS = {"w": normal(4, 8), "b": normal(8, seed=1), "out": normal(8, 3, seed=2)}
FUNCTIONS = {
    "mlp": (mlp, (PARAMS, normal(6, 4))),
    "integers_and_floats": (integers_and_floats, (normal(5), np.arange(5, dtype=np.int32))),
    "loop": (loop, (normal(4, 3),)),
    "branches": (branches, (normal(4),)),
    "sorting": (sorting, (normal(4, 5),)),
    "indexing": (indexing, (normal(4, 5), np.array([2, 0], np.int32))),
    "convolution": (convolution, (normal(1, 2, 6, 6), normal(3, 2, 3, 3))),
    "linear_algebra": (linear_algebra, (normal(4, 4),)),
    "closure": (closure, (normal(2, 3),)),
    "unused_argument": (unused_argument, (normal(2), normal(3))),
    "narrow_floats": (narrow_floats, (normal(3),)),
    "complex_numbers": (complex_numbers, (normal(8),)),
    "scalars": (scalars, (normal(3),)),
}
DIFFERENTIABLE = ["closure", "integers_and_floats", "branches", "mlp", "loop", "convolution", "linear_algebra"]
