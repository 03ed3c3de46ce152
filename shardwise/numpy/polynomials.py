"""Polynomials, as 1-d arrays of coefficients with the highest power first."""

import operator
from typing import Any, Literal, overload

import numpy as np

from shardwise.api.control import scan
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.arithmetic import absolute, add, divide, multiply, promote_numeric, subtract
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    broadcast_shapes,
    broadcast_to_shape,
    compiled_function,
    compiled_list_function,
    concrete_value,
    type_of,
)
from shardwise.compiler.arrays.promotion import inexact_dtype, promote_dtypes
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.powers import IntegerPow
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, slice_along
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy import linalg
from shardwise.numpy.convolution import convolve
from shardwise.numpy.families import ARRAYS, NOT_AN_ARRAY, NOT_AN_INTEGER
from shardwise.numpy.products import outer
from shardwise.numpy.reductions import sum as total
from shardwise.typing import ArrayLike

_COEFFICIENTS = "the coefficients, the highest power first."
_POLYNOMIAL = ARRAYS.extended(
    {
        "p": Parameter(_COEFFICIENTS, NOT_AN_ARRAY),
        "m": Parameter(error=NOT_AN_INTEGER),
        "k": Parameter(error=NOT_AN_ARRAY),
        "N": Parameter(error=NOT_AN_INTEGER),
        "unroll": Parameter(error=NOT_AN_INTEGER),
    }
)
_POLYNOMIALS = Family(
    {
        "a1, a2": _COEFFICIENTS,
        "trim_leading_zeros": Parameter(
            "whether to remove leading zeros of the operands. Not supported inside `jit`.",
            "ConcretizationTypeError: if {} is set and an operand is traced.",
        ),
    },
    raises=[
        "TypeError: if an argument is not an array or a number.",
        "ValueError: if an argument has a rank above 1.",
    ],
)

_UNROLL_LIMIT = 16  # `polyval` evaluates polynomials with more coefficients in a loop


def _as_coefficients(name: str, p: ArrayLike) -> Any:
    """Return coefficients as an operand of rank 1. `name` is the caller, for errors."""
    x = as_operand(p, name)
    if x.type.ndim > 1:
        raise ValueError(f"{name}: coefficients must have rank 1, not {x.type}")
    return Reshape((x.type.size,))(x)


def _pad_front(coefficients: Array, size: int) -> Any:
    """Pad coefficients with leading zeros to `size`."""
    zero = full((), 0, coefficients.type.dtype, coefficients.type.weak)
    return Pad((size - coefficients.type.size,), (0,), (0,))(coefficients, zero)


def _align_pair(name: str, a1: ArrayLike, a2: ArrayLike) -> list[Any]:
    """Promote two polynomials to one dtype and one size."""
    dtype, weak = promote_dtypes(name, (type_of(a1, name), type_of(a2, name)))
    pair = [astype_weak(_as_coefficients(name, a), dtype, weak) for a in (a1, a2)]
    size = max(each.type.size for each in pair)
    return [_pad_front(each, size) for each in pair]


@compiled_function
@documented(_POLYNOMIALS, returns="The coefficients of the sum.")
def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Add two polynomials.

    Example:
        >>> jnp.polyadd(jnp.array([1, 2]), jnp.array([3, 0, 1]))
        Array([3, 1, 3], dtype=int32)
    """
    return add(*_align_pair("polyadd", a1, a2))


@compiled_function
@documented(_POLYNOMIALS, returns="The coefficients of the difference `a1 - a2`.")
def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Subtract a polynomial from another.

    Args:
        a1, a2: the coefficients of the minuend and the subtrahend, the highest power first.

    Example:
        >>> jnp.polysub(jnp.array([1, 2]), jnp.array([3, 0, 1]))
        Array([-3,  1,  1], dtype=int32)
    """
    return subtract(*_align_pair("polysub", a1, a2))


def _trim_leading_zeros(name: str, p: ArrayLike) -> Any:
    """Remove leading zeros; the coefficients must be concrete. `name` is the caller, for errors."""
    unknown = (
        "the number of leading zeros and the shape of the result are unknown: omit `trim_leading_zeros`, or call "
        f"`{name}` outside of `jit`"
    )
    host = concrete_value(name, p, unknown)
    (nonzero,) = np.nonzero(host)
    start = int(nonzero[0]) if nonzero.size else host.size
    return as_operand(p)[start:]


@documented(_POLYNOMIALS, returns="The coefficients of the product; integers become floats.")
def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """Multiply two polynomials.

    Example:
        >>> jnp.polymul(jnp.array([1, 5]), jnp.array([1, 2]))
        Array([ 1.,  7., 10.], dtype=float32)
    """
    if trim_leading_zeros:
        a1, a2 = _trim_leading_zeros("polymul", a1), _trim_leading_zeros("polymul", a2)
    x, y = (_zero_if_empty(a) for a in (a1, a2))
    return convolve(x, y)


@compiled_function
def _zero_if_empty(p: ArrayLike) -> Any:
    """Return coefficients as an array of rank 1, with the coefficient 0 if there are none."""
    coefficients = _as_coefficients("polymul", p)
    return coefficients if coefficients.type.size else full((1,), 0, coefficients.type.dtype)


@documented(_POLYNOMIALS)
def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Divide a polynomial by another, with remainder.

    Args:
        u, v: the coefficients of the dividend and the divisor, the highest power first.
        trim_leading_zeros: whether to remove leading zeros of the remainder. Not supported inside `jit`.

    Returns:
        A pair of the quotient and the remainder, which has as many coefficients as `u` unless it is trimmed.

    Raises:
        ValueError: if an argument has a rank above 1, or if the divisor has no coefficients.

    Example:
        >>> jnp.polydiv(jnp.array([1.0, 5.0, 7.0]), jnp.array([1.0, 2.0]))
        (Array([1., 3.], dtype=float32), Array([0., 0., 1.], dtype=float32))
    """
    quotient, remainder = _polydiv(u, v)
    return quotient, _trim_leading_zeros("polydiv", remainder) if trim_leading_zeros else remainder


@compiled_list_function
def _polydiv(u: ArrayLike, v: ArrayLike) -> list[Any]:
    """Divide by synthetic division."""
    dtype, _ = promote_dtypes("polydiv", (type_of(u, "polydiv"), type_of(v, "polydiv")))
    dtype = inexact_dtype(dtype)
    remainder, divisor = (astype_weak(_as_coefficients("polydiv", p), dtype, False) for p in (u, v))
    size, length = remainder.type.size, divisor.type.size
    if not length:
        raise ValueError("polydiv: the divisor has no coefficients")
    if size < length:
        return [full((1,), 0, dtype), remainder]
    leading = slice_along(divisor, 0, 0, 1)
    quotient = []
    for index in range(size - length + 1):
        factor = divide(slice_along(remainder, 0, index, index + 1), leading)
        quotient.append(factor)
        shifted = Pad((index,), (size - length - index,), (0,))(multiply(divisor, factor), full((), 0, dtype))
        remainder = subtract(remainder, shifted)
    return [Concatenate(0)(*quotient) if len(quotient) > 1 else quotient[0], remainder]


@documented(_POLYNOMIAL, returns="The coefficients of the derivative; integers become floats.")
def polyder(p: ArrayLike, m: int = 1) -> Array:
    """Differentiate a polynomial.

    Args:
        m: the order of the derivative.

    Raises:
        ValueError: if `p` has a rank above 1, or if `m` is negative.

    Example:
        >>> jnp.polyder(jnp.array([1, 2, 3]))
        Array([2., 2.], dtype=float32)
    """
    order = _as_order("polyder", m)
    return _polyder(p, order=order)


def _as_order(name: str, m: int) -> int:
    order = operator.index(m)
    if order < 0:
        raise ValueError(f"{name}: the order m cannot be negative: {order}")
    return order


@compiled_function
def _polyder(p: ArrayLike, *, order: int) -> Any:
    coefficients = as_inexact(_as_coefficients("polyder", p), "polyder")
    if not order:
        return coefficients
    size = max(coefficients.type.size - order, 0)
    result = slice_along(coefficients, 0, 0, size)
    for step in range(order):
        result = Mul()(result, _descending_powers(size, order - step, result))
    return result


def _descending_powers(size: int, last: int, dtype_like: Array) -> Any:
    """Return `size` consecutive integers in descending order, down to `last`, in the dtype of `dtype_like`."""
    index = Iota((size,), 0, np.dtype(np.int32))()
    powers = subtract(full_like(index, size - 1 + last), index)
    return Convert(dtype_like.type.dtype, dtype_like.type.weak)(powers)


@documented(_POLYNOMIAL, returns="The coefficients of the integral; integers become floats.")
def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """Integrate a polynomial.

    Args:
        m: the order of the integral.
        k: the constants of integration, one for all `m` integrations or one for each. By default 0.

    Raises:
        ValueError: if `p` has a rank above 1, if `m` is negative, or if the number of constants is not 1 or `m`.

    Example:
        >>> jnp.polyint(jnp.array([6, 2]), k=5)
        Array([3., 2., 5.], dtype=float32)
    """
    order = _as_order("polyint", m)
    constants = 0 if k is None else k
    constants_type = type_of(constants, "polyint")
    if constants_type.ndim > 1 or constants_type.size not in (1, order):
        raise ValueError(f"polyint: k must be one constant or {order} constants, not {constants_type}")
    return _polyint(p, constants, order=order)


@compiled_function
def _polyint(p: ArrayLike, k: ArrayLike, *, order: int) -> Any:
    result = as_inexact(_as_coefficients("polyint", p), "polyint")
    dtype, weak = promote_dtypes("polyint", (result.type, type_of(k)))
    result, constants = (astype_weak(x, dtype, weak) for x in (result, as_operand(k)))
    constants = broadcast_to_shape(constants, (order,)) if constants.type.size == 1 else Reshape((order,))(constants)
    for step in range(order):
        result = divide(result, _descending_powers(result.type.size, 1, result))
        result = Concatenate(0)(result, slice_along(constants, 0, step, step + 1))
    return result


@documented(_POLYNOMIAL, returns="The values, of the shape of `x` broadcast with that of one coefficient.")
def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int | None = 16) -> Array:
    """Evaluate a polynomial by Horner's method.

    Args:
        p: the coefficients along dim 0, the highest power first. Further dims are broadcast with those of `x`.
        x: the points, of any shape.
        unroll: the number of steps per iteration of the loop, which is used for more than 16 coefficients; None for 16.

    Raises:
        ValueError: if the shapes cannot be broadcast, or if there is a loop and `unroll` is less than 1.

    Example:
        >>> jnp.polyval(jnp.array([1, 0, 2]), jnp.array([2, 3]))
        Array([ 6, 11], dtype=int32)
    """
    return _polyval(p, x, unroll=16 if unroll is None else operator.index(unroll))


@compiled_function
def _polyval(p: ArrayLike, x: ArrayLike, *, unroll: int) -> Any:
    dtype, _ = promote_dtypes("polyval", (type_of(p, "polyval"), type_of(x, "polyval")))
    coefficients, points = (astype_weak(as_operand(z, "polyval"), dtype, False) for z in (p, x))
    count, *dims = coefficients.type.shape or (1,)
    shape = broadcast_shapes("polyval", tuple(dims), points.type.shape)
    points = broadcast_to_shape(points, shape)
    result = full_like(points, 0)

    def step(total: Array, coefficient: Array) -> Any:
        return add(multiply(total, points), broadcast_to_shape(coefficient, shape)), None

    if count > _UNROLL_LIMIT:
        return scan(step, result, coefficients, unroll=unroll)[0]
    for index in range(count):
        coefficient = coefficients if coefficients.type.ndim == 0 else slice_along(coefficients, 0, index, index + 1)
        result, _ = step(result, Reshape(tuple(dims))(coefficient))
    return result


@compiled_function
def _from_roots(roots: Array) -> Any:
    """Multiply the factors x - r of all roots r."""
    dtype = roots.type.dtype
    result = full((1,), 1, dtype)
    for index in range(roots.type.size):
        root = slice_along(roots, 0, index, index + 1)
        scaled = Concatenate(0)(full((1,), 0, dtype), multiply(result, root))
        result = subtract(Concatenate(0)(result, full((1,), 0, dtype)), scaled)
    return result


def poly(seq_of_zeros: ArrayLike) -> Array:
    """Return the monic polynomial with given roots.

    Args:
        seq_of_zeros: the roots, of rank 1, or a square matrix, whose eigenvalues are the roots.

    Returns:
        The coefficients, the highest power first; integers become floats.

    Raises:
        TypeError: if the argument is not an array or a number.
        ValueError: if the argument is neither of rank 1 nor a square matrix.

    Example:
        >>> jnp.poly(jnp.array([1.0, 2.0]))
        Array([ 1., -3.,  2.], dtype=float32)
    """
    roots_type = type_of(seq_of_zeros, "poly")
    if roots_type.ndim == 2:
        if roots_type.shape[0] != roots_type.shape[1]:
            raise ValueError(f"poly: seq_of_zeros must have rank 1 or be a square matrix, not {roots_type}")
        seq_of_zeros = linalg.eigvals(seq_of_zeros)
    elif roots_type.ndim != 1:
        raise ValueError(f"poly: seq_of_zeros must have rank 1 or be a square matrix, not {roots_type}")
    if not type_of(seq_of_zeros).size:
        return full((), 1, inexact_dtype(roots_type.dtype))
    return _from_roots(_as_strong_inexact(seq_of_zeros))


@compiled_function
def _as_strong_inexact(x: ArrayLike) -> Any:
    x = as_inexact(x, "poly")
    return astype_weak(x, x.type.dtype, False)


@documented(_POLYNOMIAL, returns="A matrix with one row per element of `x`.")
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Return the Vandermonde matrix, whose columns are powers of a vector.

    Args:
        x: the vector.
        N: the number of columns. By default the size of `x`.
        increasing: whether the powers ascend from the left to the right. By default they descend.

    Raises:
        ValueError: if `x` is not of rank 1, or if `N` is negative.

    Example:
        >>> jnp.vander(jnp.array([2, 3]), 3)
        Array([[4, 2, 1],
               [9, 3, 1]], dtype=int32)
    """
    x_type = type_of(x, "vander")
    if x_type.ndim != 1:
        raise ValueError(f"vander: x must have rank 1, not {x_type}")
    count = x_type.size if N is None else operator.index(N)
    if count < 0:
        raise ValueError(f"vander: N cannot be negative: {count}")
    return _vander(x, count=count, increasing=bool(increasing))


@compiled_function
def _vander(x: ArrayLike, *, count: int, increasing: bool) -> Any:
    (row,) = promote_numeric("vander", x)
    row = astype_weak(row, row.type.dtype, False)
    size = row.type.size
    if not count:
        return full((size, 0), 0, row.type.dtype)
    powers = range(count) if increasing else reversed(range(count))
    columns = [Reshape((size, 1))(IntegerPow(power)(row)) for power in powers]
    return Concatenate(1)(*columns) if count > 1 else columns[0]


@documented(_POLYNOMIAL, returns="The roots, complex and in no particular order.")
def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """Compute the roots of a polynomial, as the eigenvalues of its companion matrix.

    Args:
        strip_zeros: whether to remove leading zeros first. Inside `jit` their number is unknown, so False is required
            there; the result is then padded with NaN.

    Raises:
        ValueError: if `p` is not of rank 1.
        ConcretizationTypeError: if `p` is traced and `strip_zeros` is true.

    Example:
        >>> np.sort(np.round(jnp.roots(jnp.array([1.0, -3.0, 2.0])).real, 3)).tolist()
        [1.0, 2.0]
    """
    p_type = type_of(p, "roots")
    if p_type.ndim != 1:
        raise ValueError(f"roots: coefficients must have rank 1, not {p_type}")
    if strip_zeros:
        try:
            p = _trim_leading_zeros("roots", as_operand(p))
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"roots: {p_type} is traced, so the number of leading zeros and the number of roots are unknown: "
                "pass `strip_zeros=False`, which pads the roots with NaN"
            ) from None
    if type_of(p).size < 2:
        dtype, _ = promote_dtypes("roots", (type_of(p), full((), 0, np.complex64).type))
        return full((0,), 0, dtype)
    return _roots(p)


def _roots(p: ArrayLike) -> Any:
    matrix, leading_zeros = _companion_matrix(p)
    return _mask_surplus_roots(linalg.eigvals(matrix), leading_zeros)


@compiled_list_function
def _companion_matrix(p: ArrayLike) -> list[Any]:
    """Return the companion matrix of a polynomial and the number of its leading zeros.

    Leading zeros are moved to the end, so that the shape is static: each adds the root 0.
    """
    row = as_inexact(p, "roots")
    row = astype_weak(row, row.type.dtype, False)
    size = row.type.size
    index = Iota((size,), 0, np.dtype(np.int32))()
    is_zero = Compare("EQ")(row, full_like(row, 0))
    trimmed_size = total(Select()(is_zero, full_like(index, 0), subtract(full_like(index, size), index)).max())
    leading_zeros = subtract(full((), size, np.int32), astype_weak(trimmed_size, np.int32, False))
    pairs = (size, size)
    target, source = (Iota(pairs, dim, np.dtype(np.int32))() for dim in (0, 1))
    is_source = Compare("EQ")(add(target, leading_zeros), source)
    rolled = total(
        Select()(is_source, broadcast_to_shape(Reshape((1, size))(row), pairs), full(pairs, 0, row.type.dtype)), 1
    )
    first_row = divide(-slice_along(rolled, 0, 1, size), slice_along(rolled, 0, 0, 1))
    order = size - 1
    shape = (order, order)
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    subdiagonal = Convert(row.type.dtype)(Compare("EQ")(rows, add(columns, 1)))
    matrix = Select()(
        Compare("EQ")(rows, full_like(rows, 0)), broadcast_to_shape(Reshape((1, order))(first_row), shape), subdiagonal
    )
    return [matrix, leading_zeros]


@compiled_function
def _mask_surplus_roots(values: Array, leading_zeros: Array) -> Any:
    """Replace the `leading_zeros` values of least magnitude, which are surplus roots at 0, by NaN."""
    size = values.type.size
    ranks = total(_precedes(absolute(values), size), 1)
    is_root = Compare("LT")(ranks, broadcast_to_shape(subtract(full((), size, np.int32), leading_zeros), (size,)))
    return Select()(is_root, values, full_like(values, complex(np.nan, np.nan)))


def _precedes(magnitudes: Array, size: int) -> Any:
    """Return a matrix whose element (i, j) is 1 if j precedes i in a stable descending sort, else 0."""
    shape = (size, size)
    of_row, of_column = (
        broadcast_to_shape(Reshape((size, 1))(magnitudes), shape),
        broadcast_to_shape(Reshape((1, size))(magnitudes), shape),
    )
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    precedes = Select()(
        Compare("EQ")(of_row, of_column), Compare("LT")(columns, rows), Compare("GT")(of_column, of_row)
    )
    return Convert(np.dtype(np.int32))(precedes)


@overload
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: Literal[False] = False,
    w: ArrayLike | None = None,
    cov: Literal[False] = False,
) -> Array: ...


@overload
def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any: ...


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayLike | None = None,
    cov: bool | str = False,
) -> Any:
    """Fit a polynomial to points by least squares.

    Args:
        x: the abscissas of the points, of rank 1.
        y: the ordinates, or a matrix with one set of ordinates per column; each column is fitted separately.
        deg: the degree of the polynomial.
        rcond: the cutoff: singular values of the least-squares problem below `rcond` times the largest one count as 0.
            By default the number of points times the machine epsilon.
        full: whether to return diagnostics of the least-squares problem too.
        w: one weight per point, which multiplies its residual. By default 1.
        cov: whether to return the covariance matrix of the coefficients too: True scales it by the variance of the
            residuals, "unscaled" does not.

    Returns:
        The coefficients, the highest power first, with one column per column of `y`. With `full`, a tuple of the
        coefficients, the sums of squared residuals, the rank, the singular values and `rcond`. Otherwise, with `cov`, a
        pair of the coefficients and their covariance matrix.

    Raises:
        TypeError: if `x` is not of rank 1 or is empty, or if `y` or `w` does not match it.
        ValueError: if `deg` is negative, or if there are too few points to scale the covariance.

    Example:
        >>> [round(c, 2) for c in jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).tolist()]
        [2.0, 1.0]
    """
    degree = operator.index(deg)
    x_type, y_type = type_of(x, "polyfit"), type_of(y, "polyfit")
    if degree < 0:
        raise ValueError(f"polyfit: the degree cannot be negative: {degree}")
    if x_type.ndim != 1 or not x_type.size:
        raise TypeError(f"polyfit: x must have rank 1 and at least one element, not {x_type}")
    if not 1 <= y_type.ndim <= 2 or y_type.shape[0] != x_type.size:
        raise TypeError(f"polyfit: y must have one value or one row per element of x {x_type}, not {y_type}")
    if w is not None and type_of(w, "polyfit").shape != x_type.shape:
        raise TypeError(f"polyfit: w must have one weight per element of x {x_type}, not {type_of(w)}")
    optional_weights = () if w is None else (w,)
    matrix, values, scale = _least_squares_problem(x, y, *optional_weights, count=degree + 1)
    if rcond is None:
        rcond = x_type.size * float(np.finfo(matrix.dtype).eps)
    solution, residuals, rank, singular_values = linalg.lstsq(matrix, values, rcond)
    coefficients = _undo_scale(solution, scale)
    if full:
        return coefficients, residuals, rank, singular_values, as_operand(rcond)
    if not cov:
        return coefficients
    covariance = divide(linalg.inv(matrix.T @ matrix), outer(scale, scale))
    if cov == "unscaled":
        return coefficients, covariance
    if x_type.size <= degree + 1:
        raise ValueError(
            f"polyfit: {x_type.size} points are too few to scale the covariance of {degree + 1} coefficients; pass "
            "more points, or cov='unscaled'"
        )
    variance = divide(residuals, x_type.size - (degree + 1))
    return coefficients, covariance * variance if y_type.ndim == 1 else covariance[:, :, None] * variance


@compiled_list_function
def _least_squares_problem(x: ArrayLike, y: ArrayLike, *weights: ArrayLike, count: int) -> list[Any]:
    """Return the weighted Vandermonde matrix with columns of norm 1, the weighted values, and the norms."""
    dtype, _ = promote_dtypes("polyfit", [type_of(z) for z in (x, y, *weights)])
    dtype = inexact_dtype(dtype)
    points, values = (astype_weak(as_operand(z), dtype, False) for z in (x, y))
    matrix = _vander(points, count=count, increasing=False)
    if weights:
        w = astype_weak(as_operand(weights[0]), dtype, False)
        matrix = multiply(matrix, Reshape((w.type.size, 1))(w))
        values = multiply(values, w if values.type.ndim == 1 else Reshape((w.type.size, 1))(w))
    scale = total(multiply(matrix, matrix), 0) ** 0.5
    return [divide(matrix, scale), values, scale]


@compiled_function
def _undo_scale(solution: Array, scale: Array) -> Any:
    return divide(solution, scale if solution.type.ndim == 1 else Reshape((scale.type.size, 1))(scale))
