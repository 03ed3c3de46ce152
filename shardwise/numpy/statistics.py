"""Averages, spreads and how variables go together. On a mesh these are sums of parts: no element leaves its device."""

from typing import Any

import numpy as np

from shardwise.compiler.ir.types import carrier, is_inexact
from shardwise.compiler.ops import along_axes
from shardwise.compiler.ops.bitwise import And
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.elementwise import Compare, Select, like
from shardwise.compiler.ops.extremum import Clamp
from shardwise.compiler.ops.numeric import absolute, conjugate, divide, imag, multiply, real, subtract, truth
from shardwise.compiler.ops.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    composed_list,
    no_out,
    static_axes,
    stretch,
    type_of,
)
from shardwise.compiler.ops.parts import Complex
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype, meet
from shardwise.compiler.ops.shape import Iota, Reshape, full, permuted
from shardwise.compiler.ops.slicing import Concatenate
from shardwise.lax.named import psum
from shardwise.numpy.elementwise import isnan
from shardwise.numpy.named import apart


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements along `axis` (of all where none is given) differ from 0.

    >>> jnp.count_nonzero(jnp.array([[1, 0], [2, 3]]), axis=0)
    Array([2, 1], dtype=int32)
    """
    dims, names = apart(axis)
    count = _counted(a, axis=dims, keepdims=keepdims)
    return psum(count, names) if names else count


@composed
def _counted(a: Any, *, axis: Any, keepdims: bool) -> Any:
    return along_axes.sum(truth(a, "count_nonzero"), axis=axis, dtype=default_dtype("int*"), keepdims=keepdims)


def ptp(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The distance from the smallest to the largest element along `axis` (of all where none is given).

    >>> jnp.ptp(jnp.array([[1, 5], [7, 4]]), axis=1)
    Array([4, 3], dtype=int32)
    """
    no_out("ptp", out)
    return _range(a, axis=static_axes(axis), keepdims=keepdims)


@composed
def _range(a: Any, *, axis: Any, keepdims: bool) -> Any:
    largest, smallest = (find(a, axis=axis, keepdims=keepdims) for find in (along_axes.amax, along_axes.amin))
    return subtract(largest, smallest)


def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False) -> Any:
    """The mean along `axis` (of all where none is given), in which each element counts as its weight says.

    Weights have the shape of `a`, or are one for each place along `axis`. `returned`: give the sum of weights too.

    >>> jnp.average(jnp.array([1.0, 3.0]), weights=jnp.array([3, 1]))
    Array(1.5, dtype=float32)
    """
    axes = static_axes(axis)
    if weights is None:
        mean, total = _averaged(a, axis=axes, keepdims=keepdims)
    else:
        x, w = type_of(a, "average"), type_of(weights, "average")
        if x.shape != w.shape:
            if axis is None:
                raise ValueError(f"average: weights {w} have not the shape of {x}: say with `axis` what they are for")
            wanted = along_axes.reduced_dims("average", axes, x)
            if w.shape != tuple(x.shape[dim] for dim in wanted):
                raise ValueError(f"average: weights {w} are not one for each place along axis {axis} of {x}")
        mean, total = _averaged(a, weights, axis=axes, keepdims=keepdims)
    return (mean, total) if returned else mean


@composed_list
def _averaged(a: Any, *weights: Any, axis: Any, keepdims: bool) -> list[Any]:
    if not weights:
        mean = along_axes.mean(a, axis=axis, keepdims=keepdims)
        count = type_of(a).size // max(1, mean.type.size)
        return [mean, full(mean.type.shape, count, mean.type.dtype)]
    x, w = as_operand(a, "average"), as_operand(weights[0], "average")
    dtype, _ = meet("average", (x.type, w.type))
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    x, w = (astype_weak(z, dtype, False) for z in (x, w))
    if x.type.shape != w.type.shape:
        dims = along_axes.reduced_dims("average", axis, x.type)
        order = tuple(sorted(range(len(dims)), key=lambda place: dims[place]))
        sizes = tuple(size if dim in dims else 1 for dim, size in enumerate(x.type.shape))
        w = stretch(Reshape(sizes)(permuted(w, order)), x.type.shape)
    total = along_axes.sum(w, axis=axis, keepdims=keepdims)
    return [divide(along_axes.sum(multiply(x, w), axis=axis, keepdims=keepdims), total), total]


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
) -> Any:
    """How variables go together: the mean products of their distances from their means, for all pairs.

    Each row is a variable, or without `rowvar` each column; those of `y` follow those of `m`. Sums are shared by `ddof`
    fewer than there are observations: 1 unless told, or 0 with `bias`. `fweights`: how often each observation was made;
    `aweights`: how much it counts.

    >>> jnp.cov(jnp.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    kinds = [type_of(x, "cov") for x in (m, y) if x is not None]
    for kind in kinds:
        if kind.ndim > 2:
            raise ValueError(f"cov: needs a row or a table of observations, not {kind}")
    if ddof is not None and int(ddof) != ddof:
        raise ValueError(f"cov: ddof must be an integer, not {ddof!r}")
    given = [x for x in (y, fweights, aweights) if x is not None]
    return _covariance(
        m,
        *given,
        has=(y is not None, fweights is not None, aweights is not None),
        by_row=bool(rowvar),
        ddof=(0 if bias else 1) if ddof is None else ddof,
        dtype=None if dtype is None else canonical_dtype(dtype),
    )


@composed
def _covariance(m: Any, *given: Any, has: tuple[bool, bool, bool], by_row: bool, ddof: int, dtype: Any) -> Any:
    rest = iter(given)
    y, often, much = (next(rest) if there else None for there in has)
    tables = [_table(x, by_row) for x in (m, y) if x is not None]
    common, _ = meet("cov", [x.type for x in tables])
    wanted = dtype if dtype is not None else common if is_inexact(common) else default_dtype("float*")
    tables = [astype_weak(x, wanted, False) for x in tables]
    x = Concatenate(0)(*tables) if len(tables) > 1 else tables[0]
    count = x.type.shape[1]
    weights = [_observations(name, w, count) for name, w in (("fweights", often), ("aweights", much)) if w is not None]
    if not weights:
        total, scale = full((), count, wanted), full((), count - ddof, wanted)
        away = subtract(x, along_axes.mean(x, axis=1, keepdims=True))
        counted = away
    else:
        each = weights[0] if len(weights) == 1 else multiply(*weights)
        each = astype_weak(each, wanted, False)
        total = along_axes.sum(each)
        mean = divide(along_axes.sum(multiply(x, each), axis=1, keepdims=True), total)
        away = subtract(x, mean)
        counted = multiply(away, each)
        if ddof and much is not None:  # as if each observation were as many as its weight says on average
            square = along_axes.sum(multiply(each, astype_weak(_observations("aweights", much, count), wanted, False)))
            scale = subtract(total, multiply(divide(square, total), ddof))
        else:
            scale = subtract(total, ddof)
    none = Compare("LE")(real(scale), like(real(scale), 0))
    scale = Select()(none, like(scale, 0), scale)
    products = Dot(((1,), (1,)))(counted, conjugate(away))
    found = divide(products, scale)
    return Reshape(())(found) if found.type.shape == (1, 1) else found


def _table(x: Any, by_row: bool) -> Any:
    """A row for each variable."""
    x = as_operand(x, "cov")
    if x.type.ndim < 2:
        return Reshape((1, x.type.size))(x)
    return x if by_row or x.type.shape[0] == 1 else permuted(x, (1, 0))


def _observations(name: str, weights: Any, count: int) -> Any:
    found = as_operand(weights, "cov")
    if found.type.shape != (count,):
        raise ValueError(f"cov: {name} must be a row of one for each of {count} observations, not {found.type}")
    if name == "fweights" and is_inexact(found.type.dtype):
        raise TypeError(f"cov: fweights must be integers, not {found.type}")
    return found if name == "fweights" else absolute(found)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """How variables go together, from -1 to 1: their covariances, shared by their standard deviations.

    >>> jnp.corrcoef(jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 2.0, 1.0]))
    Array([[ 1., -1.],
           [-1.,  1.]], dtype=float32)
    """
    kinds = [type_of(z, "corrcoef") for z in (x, y) if z is not None]
    for kind in kinds:
        if kind.ndim > 2:
            raise ValueError(f"corrcoef: needs a row or a table of observations, not {kind}")
    given = [z for z in (y,) if z is not None]
    wanted = None if dtype is None else canonical_dtype(dtype)
    return _correlation(x, *given, by_row=bool(rowvar), dtype=wanted)


@composed
def _correlation(x: Any, *given: Any, by_row: bool, dtype: Any) -> Any:
    found = _covariance(x, *given, has=(bool(given), False, False), by_row=by_row, ddof=1, dtype=dtype)
    if not found.type.ndim:
        return divide(found, found)
    size = found.type.shape[0]
    on = Compare("EQ")(*(Iota((size, size), dim, np.dtype(np.int32))() for dim in (0, 1)))
    spread = Sqrt()(along_axes.sum(Select()(on, real(found), like(real(found), 0)), axis=1))
    for shape in ((size, 1), (1, size)):
        found = divide(found, Reshape(shape)(spread))
    if found.type.dtype.kind == "c":
        return Complex()(*(_within_one(part(found)) for part in (real, imag)))
    return _within_one(found)


def _within_one(x: Any) -> Any:
    return Clamp()(like(x, -1), x, like(x, 1))


@composed
def variance(
    a: Any,
    *given: Any,
    has: tuple[bool, bool],
    axis: Any,
    dtype: Any,
    ddof: float,
    keepdims: bool,
    skips_nan: bool,
    is_root: bool,
) -> Any:
    """The mean square distance from the mean along `axis`, of the elements that `where` says and that are numbers.

    `given` are those of `where` and `mean` that there are, as `has` says. Where nothing is left to share by, NaN.
    """
    rest = iter(given)
    where, mean = (next(rest) if there else None for there in has)
    x = as_inexact(a, "var")
    wanted = x.type.dtype if dtype is None else canonical_dtype(dtype)
    if dtype is not None and wanted.kind != "c" and x.type.dtype.kind == "c":
        raise ValueError(f"var: {x.type} cannot be shared as {wanted}, which is real")
    x = astype_weak(x, carrier(wanted), False)
    counts = full(x.type.shape, True, np.bool_)
    if where is not None:
        shape = broadcast_shapes("var", x.type.shape, type_of(where, "var").shape)
        x, counts = stretch(x, shape), stretch(truth(where, "var"), shape)
    if skips_nan:
        counts = And()(counts, Compare("EQ")(isnan(x), full(x.type.shape, False, np.bool_)))
    number = along_axes.sum(counts, axis=axis, keepdims=True, dtype=default_dtype("float*"))
    if mean is None:
        total = along_axes.sum(Select()(counts, x, like(x, 0)), axis=axis, keepdims=True)
        middle = divide(total, number)
    else:
        middle = astype_weak(as_operand(mean, "var"), x.type.dtype, False)
    away = subtract(Select()(counts, x, like(x, 0)), middle)
    squares = real(multiply(away, conjugate(away)))
    squares = Select()(counts, squares, like(squares, 0))
    left = along_axes.sum(counts, axis=axis, keepdims=keepdims, dtype=squares.type.dtype)
    shared = subtract(left, ddof)
    none = Compare("LE")(shared, like(shared, 0))
    total = along_axes.sum(squares, axis=axis, keepdims=keepdims)
    found = Select()(none, like(total, np.nan), divide(total, Select()(none, like(shared, 1), shared)))
    found = Sqrt()(found) if is_root else found
    return astype_weak(found, found.type.dtype if wanted.kind == "c" else wanted, False)
