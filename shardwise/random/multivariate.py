"""The multivariate normal distribution, and random orthogonal matrices."""

import operator
from typing import Any

from shardwise.base.docstrings import documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, astype_weak, type_of
from shardwise.compiler.arrays.promotion import default_dtype, promote_dtypes, requested_dtype
from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ops.elementwise.powers import Sqrt
from shardwise.numpy.elementwise import sign
from shardwise.numpy.linalg.decompositions import cholesky, eigh, qr, svd
from shardwise.numpy.linalg.products import diagonal, matrix_transpose
from shardwise.random.families import PARAMETRIC, SAMPLES
from shardwise.random.keys import single_key
from shardwise.random.normal import sample_normal
from shardwise.random.sampling import (
    StaticShape,
    broadcast_sample_shape,
    canonical_shape,
    check_one_of,
    inexact_dtype,
    run_sampler,
)
from shardwise.typing import ArrayLike, DTypeLike, OutSharding, Shape


@documented(PARAMETRIC, returns="An array of floats, whose last dim has size n.")
def multivariate_normal(
    key: ArrayLike,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    method: str = "cholesky",
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample from the multivariate normal distribution.

    Args:
        mean: the mean, whose last dim has size n; dims before it are a batch.
        cov: the covariance, whose last dims are n × n; dims before them are a batch.
        shape: the shape of the result without its last dim; by default the shape that the batch dims broadcast to.
        dtype: the floating-point dtype of the result; by default that of `mean` and `cov`.
        method: how to compute a square root of the covariance: "cholesky", "eigh" or "svd". "cholesky" needs a
            positive definite covariance.

    Raises:
        TypeError: if `key` is not a PRNG key, or if the batch dims and `shape` do not broadcast.
        ValueError: if `key` is an array of keys, if `method` is unknown, if `mean` is a scalar, if `cov` does not have
            the size of `mean`, if `dtype` is not a floating-point dtype, or if the batch dims broadcast to a larger
            shape than `shape`.

    Example:
        >>> jax.random.multivariate_normal(jax.random.key(0), jnp.zeros(2), jnp.eye(2)).round(3)
        Array([1.623, 2.025], dtype=float32)
    """
    name = "multivariate_normal"
    check_one_of(name, "method", method, ("svd", "eigh", "cholesky"))
    mean_type, cov_type = type_of(mean, name), type_of(cov, name)
    if not mean_type.ndim:
        raise ValueError(f"{name}: mean must have at least one dim, not {mean_type}")
    size = mean_type.shape[-1]
    if cov_type.shape[-2:] != (size, size):
        raise ValueError(f"{name}: cov must end with the dims ({size}, {size}), the size of mean, not {cov_type}")
    compute_dtype, _ = promote_dtypes(name, (mean_type, cov_type))
    compute_dtype = compute_dtype if is_float(compute_dtype) else default_dtype("float*")
    out_dtype = compute_dtype if dtype is None else requested_dtype(name, dtype)
    if not is_float(out_dtype):
        raise ValueError(f"{name}: dtype must be a floating-point dtype, not {out_dtype}")
    shape = broadcast_sample_shape(name, shape, mean_type.shape[:-1], cov_type.shape[:-2])
    return run_sampler(
        _multivariate_normal,
        single_key(name, key),
        mean,
        cov,
        shape=shape,
        compute_dtype=compute_dtype,
        dtype=out_dtype,
        method=method,
        out_sharding=out_sharding,
    )


def _multivariate_normal(
    key: Array, mean: Array, cov: Array, *, shape: StaticShape, compute_dtype: DType, dtype: DType, method: str
) -> Any:
    mean, cov = (astype_weak(as_operand(x), compute_dtype, False) for x in (mean, cov))
    if method == "cholesky":
        root = cholesky(cov)
    elif method == "eigh":
        values, vectors = eigh(cov)
        root = vectors * Sqrt()(values)[..., None, :]
    else:
        vectors, values, _ = svd(cov)
        root = vectors * Sqrt()(values)[..., None, :]
    standard = sample_normal(key, shape=(*shape, mean.type.shape[-1]), dtype=dtype)
    return mean + (root @ standard[..., None])[..., 0]


@documented(SAMPLES, returns="An array of shape `(*shape, n, m)`.")
def orthogonal(
    key: ArrayLike,
    n: int,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    m: int | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Array:
    """Sample uniformly from the orthogonal matrices (the Haar distribution).

    Args:
        n: the number of rows.
        shape: the batch dims of the result.
        dtype: the floating-point or complex dtype of the result; by default the default float dtype.
        m: the number of columns; by default `n`. The columns are orthonormal if `m <= n`,
            else the rows.

    Raises:
        TypeError: if `key` is not a PRNG key, if `n` or `m` is not an integer, or if `shape` does not consist of
            integers.
        ValueError: if `key` is an array of keys, if a size in `shape` is negative, or if `dtype` is neither a
            floating-point nor a complex dtype.

    Example:
        >>> jax.random.orthogonal(jax.random.key(0), 1).round(3)
        Array([[1.]], dtype=float32)
    """
    dtype, shape = inexact_dtype("orthogonal", dtype), canonical_shape("orthogonal", shape)
    rows = operator.index(n)
    columns = rows if m is None else operator.index(m)
    key = single_key("orthogonal", key)
    return run_sampler(
        _orthogonal, key, shape=shape, rows=rows, columns=columns, dtype=dtype, out_sharding=out_sharding
    )


def _orthogonal(key: Array, *, shape: StaticShape, rows: int, columns: int, dtype: DType) -> Any:
    q, r = qr(sample_normal(key, shape=(*shape, max(rows, columns), min(rows, columns)), dtype=dtype))
    q = q * sign(diagonal(r))[..., None, :]  # without this the distribution is not uniform
    return matrix_transpose(q) if rows < columns else q
