"""Checks of ops: a sample of every family, linear algebra and attention."""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks.gpu.check import Check, like_cpu, relative_error
from shardwise import lax, nn, random

_rng = np.random.default_rng(0)
F = _rng.normal(size=(6, 5)).astype(np.float32)
IMAGE = _rng.normal(size=(2, 3, 9, 9)).astype(np.float32)
KERNEL = _rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
SQUARE = _rng.normal(size=(3, 8, 8)).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.transpose(0, 2, 1) + 4 * np.eye(8, dtype=np.float32)
BFLOAT16_LENIENCY = 20  # bfloat16 has 8 bits of precision, the tolerance is for float32


def _loops(x: Any) -> list[Any]:
    summed = lax.scan(lambda carry, row: (carry + row, carry.sum()), x[0], x)
    return [summed, lax.fori_loop(0, 4, lambda i, carry: carry * x[i], x[0])]


def families() -> Iterator[tuple[str, Check]]:
    """Yield a sample of every family of ops, compared with the CPU."""
    yield "elementwise", like_cpu(lambda x: [jnp.tanh(x), jnp.exp(x), jnp.log1p(x * x), x**3, jnp.floor(x)], F)
    yield "special functions", like_cpu(lambda x: [lax.erf(x), lax.lgamma(x * x + 1), lax.digamma(x * x + 1)], F)
    yield "reductions", like_cpu(lambda x: [x.sum(0), x.max(1), x.prod(), x.argmax(0), jnp.var(x)], F)
    yield "narrow dtypes", like_cpu(lambda x: [x.astype(t) for t in ("bfloat16", "float16", "float8_e5m2")], F)
    yield "integers", like_cpu(lambda x: [x * 7 % 5, x >> 1, lax.population_count(x)], np.arange(40, dtype=np.int32))
    yield "dot", like_cpu(lambda x: [x @ x.T, jnp.einsum("ij,ik->jk", x, x)], F)
    yield "convolution", like_cpu(lambda x, w: lax.conv(x, w, (2, 1), "SAME"), IMAGE, KERNEL)
    yield (
        "pooling",
        like_cpu(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME"), IMAGE),
    )
    yield "slice, pad", like_cpu(lambda x: [x[::2, 1:], jnp.pad(x, 2), jnp.roll(x, 2, 0), x[::-1]], F)
    yield "gather, scatter", like_cpu(lambda x: [x[jnp.array([4, 0, -1])], x.at[1].add(2.0), x.at[9].set(1.0)], F)
    yield "sort, top_k", like_cpu(lambda x: [jnp.sort(x, 0), jnp.argsort(x), *lax.top_k(x, 3)], F)
    yield "top_k of NaN", like_cpu(lambda x: lax.top_k(x, 2), np.array([[1.0, np.nan, 3.0, 2.0]], np.float32))
    yield "cumulative", like_cpu(lambda x: [jnp.cumsum(x, 0), lax.cummax(x, 1), lax.cumlogsumexp(x, 0)], F)
    yield "fft", like_cpu(lambda x: [jnp.fft.fft2(x), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), 5)], F)
    yield "control flow", like_cpu(_loops, F)
    yield "gradients", like_cpu(sw.grad(lambda x: jnp.sum(nn.gelu(x @ x.T) ** 2)), F)
    yield "vmap", like_cpu(sw.vmap(lambda x: jnp.outer(x, x).sum(0)), F)
    yield (
        "random bits",
        like_cpu(lambda x: [random.bits(random.PRNGKey(3), (40,)), random.normal(random.key(1), (40,))], F),
    )


def decompositions() -> Iterator[tuple[str, Check]]:
    """Yield linear algebra. The product of the factors is compared, since the signs of factors are not determined."""

    def product_is(factors_of: Callable[..., list[Any]], expected: Any, *args: Any) -> Check:
        def check() -> float:
            product, *rest = (np.asarray(x) for x in sw.jit(factors_of)(*args))
            for factor in rest:
                product = product @ factor
            return relative_error(product, expected)

        return check

    def svd(a: Any) -> list[Any]:
        u, s, vt = jnp.linalg.svd(a, full_matrices=False)
        return [u * s[:, None], vt]

    def eigh(a: Any) -> list[Any]:
        values, vectors = jnp.linalg.eigh(a)
        return [vectors * values[:, None], vectors.mT]

    tall = SQUARE[:, :, :5]
    yield "cholesky", product_is(lambda a: [(c := jnp.linalg.cholesky(a)), c.mT], POSITIVE, POSITIVE)
    yield "qr", product_is(lambda a: list(jnp.linalg.qr(a)), tall, tall)
    yield "svd", product_is(svd, tall, tall)
    yield "eigh", product_is(eigh, POSITIVE, POSITIVE)
    yield "solve", product_is(lambda a, b: [a, jnp.linalg.solve(a, b)], SQUARE, POSITIVE, SQUARE)
    yield "inv", product_is(lambda a: [jnp.linalg.inv(a), a], np.broadcast_to(np.eye(8), (3, 8, 8)), POSITIVE)
    bands = [np.abs(SQUARE[:, 0]), np.abs(SQUARE[:, 1]) + 4, np.abs(SQUARE[:, 2])]
    for perturbs in (False, True):
        yield (
            f"tridiagonal solve{', perturbed' if perturbs else ''}",
            like_cpu(
                lambda *xs, perturbs=perturbs: lax.linalg.tridiagonal_solve(*xs, perturb_singular=perturbs),
                *bands,
                SQUARE,
            ),
        )


def attention() -> Iterator[tuple[str, Check]]:
    """Yield gradients of attention by cuDNN's kernel, compared with those of the ops that XLA compiles."""
    q, k, v = (_rng.normal(size=(2, 128, 4, 64)).astype(ml_dtypes.bfloat16) for _ in range(3))
    kernel = "cudnn" if sw.default_backend() == "gpu" else "xla"
    for name, options in (("attention", {}), ("causal attention", {"is_causal": True})):

        def check(options: dict[str, Any] = options) -> float:
            def gradients(implementation: str) -> Any:
                def loss(q: Any, k: Any, v: Any) -> Any:
                    out = nn.dot_product_attention(q, k, v, implementation=implementation, **options)
                    return (out.astype(np.float32) * np.cos(np.arange(64))).sum()

                return sw.jit(sw.grad(loss, (0, 1, 2)))(q, k, v)

            pairs = zip(gradients(kernel), gradients("xla"), strict=True)
            errors = [relative_error(x.astype(np.float32), y.astype(np.float32)) for x, y in pairs]
            return max(errors) / BFLOAT16_LENIENCY

        yield name, check
