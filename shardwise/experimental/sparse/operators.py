"""The operators and methods of BCOO arrays: functions of dense arrays that `sparsify` transforms."""

from typing import Any

import shardwise.numpy as jnp
from shardwise.experimental.sparse.base import JAXSparse
from shardwise.experimental.sparse.transform import sparsify

absolute = sparsify(jnp.abs)
negative = sparsify(jnp.negative)
positive = sparsify(jnp.positive)
matmul = sparsify(jnp.matmul)
multiply = sparsify(jnp.multiply)
divide = sparsify(jnp.true_divide)
add = sparsify(jnp.add)
subtract = sparsify(jnp.subtract)
greater = sparsify(jnp.greater)
greater_equal = sparsify(jnp.greater_equal)
less = sparsify(jnp.less)
less_equal = sparsify(jnp.less_equal)
equal = sparsify(jnp.equal)
not_equal = sparsify(jnp.not_equal)


def power(x: Any, y: Any) -> Any:
    """Return `x ** y`. An exponent that is a number stays one: integer powers keep zeros."""
    if isinstance(y, JAXSparse):
        return sparsify(jnp.power)(x, y)
    return sparsify(lambda x: x**y)(x)


def getitem(mat: JAXSparse, item: Any) -> Any:
    """Return `mat[item]`."""
    return sparsify(lambda x: x[item])(mat)


def reshape(mat: JAXSparse, *args: Any, **keywords: Any) -> Any:
    """Return `mat.reshape(...)`."""
    return sparsify(lambda x: x.reshape(*args, **keywords))(mat)


def astype(mat: JAXSparse, *args: Any, **keywords: Any) -> Any:
    """Return `mat.astype(...)`."""
    return sparsify(lambda x: x.astype(*args, **keywords))(mat)


def sum(mat: JAXSparse, *args: Any, **keywords: Any) -> Any:
    """Return `mat.sum(...)`."""
    return sparsify(lambda x: x.sum(*args, **keywords))(mat)
