"""Random vectors with a given covariance, and random orthogonal matrices."""

import operator
from typing import Any

from shardwise.compiler.ir.types import DType, is_float
from shardwise.compiler.ops.operands import as_operand, astype_weak, type_of
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype, meet
from shardwise.numpy.elementwise import sign
from shardwise.numpy.linalg.factors import cholesky, eigh, qr, svd
from shardwise.numpy.linalg.products import diagonal, matrix_transpose
from shardwise.random.draw import Shape, draw, fitting, inexact_dtype, one_of, sizes
from shardwise.random.keys import words
from shardwise.random.normal import normals


def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Any = None,
    dtype: Any = None,
    method: str = "cholesky",
    *,
    out_sharding: Any = None,
) -> Any:
    """Vectors of normal numbers with mean `mean` and covariance `cov`, of which dims before the last are a batch.

    `method` is how a root of the covariance is found: "cholesky", "eigh" or "svd".

    >>> jax.random.multivariate_normal(jax.random.key(0), jnp.zeros(2), jnp.eye(2)).round(3)
    Array([1.623, 2.025], dtype=float32)
    """
    name = "multivariate_normal"
    one_of(name, "method", method, ("svd", "eigh", "cholesky"))
    center, spread = type_of(mean, name), type_of(cov, name)
    if not center.ndim:
        raise ValueError(f"{name}: mean should be a vector, not {center}")
    if spread.shape[-2:] != (center.shape[-1],) * 2:
        raise ValueError(f"{name}: cov should be {center.shape[-1]} by {center.shape[-1]}, as mean is long: {spread}")
    kind, _ = meet(name, (center, spread))
    kind = kind if is_float(kind) else default_dtype("float*")
    wanted = kind if dtype is None else canonical_dtype(dtype)
    if not is_float(wanted):
        raise ValueError(f"{name}: dtype should be a float, not {wanted}")
    shape = fitting(name, shape, center.shape[:-1], spread.shape[:-2])
    return draw(
        _vectors,
        words(name, key),
        mean,
        cov,
        shape=shape,
        kind=kind,
        dtype=wanted,
        method=method,
        out_sharding=out_sharding,
    )


def _vectors(key: Any, mean: Any, cov: Any, *, shape: Shape, kind: DType, dtype: DType, method: str) -> Any:
    mean, cov = (astype_weak(as_operand(x), kind, False) for x in (mean, cov))
    if method == "cholesky":
        root = cholesky(cov)
    elif method == "eigh":
        weights, vectors = eigh(cov)
        root = vectors * Sqrt()(weights)[..., None, :]
    else:
        vectors, weights, _ = svd(cov)
        root = vectors * Sqrt()(weights)[..., None, :]
    numbers = normals(key, shape=(*shape, mean.type.shape[-1]), dtype=dtype)
    return mean + (root @ numbers[..., None])[..., 0]


def orthogonal(
    key: Any, n: int, shape: Any = (), dtype: Any = None, m: int | None = None, *, out_sharding: Any = None
) -> Any:
    """Matrices of `n` rows and `m` columns (`n`, unless given) whose shorter side is orthonormal, all equally likely.

    >>> jax.random.orthogonal(jax.random.key(0), 1).round(3)
    Array([[1.]], dtype=float32)
    """
    kind, shape = inexact_dtype("orthogonal", dtype), sizes("orthogonal", shape)
    rows = operator.index(n)
    columns = rows if m is None else operator.index(m)
    key = words("orthogonal", key)
    return draw(_rotations, key, shape=shape, rows=rows, columns=columns, dtype=kind, out_sharding=out_sharding)


def _rotations(key: Any, *, shape: Shape, rows: int, columns: int, dtype: DType) -> Any:
    q, r = qr(normals(key, shape=(*shape, max(rows, columns), min(rows, columns)), dtype=dtype))
    found = q * sign(diagonal(r))[..., None, :]
    return matrix_transpose(found) if rows < columns else found
