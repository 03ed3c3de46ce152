"""Polynomials as rows of coefficients, the highest power first."""

import operator
from typing import Any

import numpy as np

from shardwise.api.control import scan
from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.elementwise import Compare, Convert, Mul, Select, like
from shardwise.compiler.ops.numeric import absolute, add, divide, multiply, numbers, subtract
from shardwise.compiler.ops.operands import (
    as_inexact,
    as_operand,
    astype_weak,
    composed,
    composed_list,
    known,
    stretch,
    type_of,
)
from shardwise.compiler.ops.powers import IntegerPow
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.shape import Iota, Reshape, full
from shardwise.compiler.ops.slicing import Concatenate, Pad, along
from shardwise.errors import ConcretizationTypeError
from shardwise.numpy import linalg
from shardwise.numpy.convolution import convolve
from shardwise.numpy.functions import sum as total
from shardwise.numpy.products import outer

_UNROLLED = 16  # a longer polynomial is evaluated in a loop


def _row(name: str, p: Any) -> Any:
    """Coefficients as one row."""
    found = as_operand(p, name)
    if found.type.ndim > 1:
        raise ValueError(f"{name}: needs one row of coefficients, not {found.type}")
    return Reshape((found.type.size,))(found)


def _lengthened(row: Any, size: int) -> Any:
    """Zeros before the first."""
    return Pad((size - row.type.size,), (0,), (0,))(row, full((), 0, row.type.dtype, row.type.weak))


def _two(name: str, a1: Any, a2: Any) -> list[Any]:
    dtype, weak = meet(name, (type_of(a1, name), type_of(a2, name)))
    rows = [astype_weak(_row(name, a), dtype, weak) for a in (a1, a2)]
    size = max(row.type.size for row in rows)
    return [_lengthened(row, size) for row in rows]


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials.

    >>> jnp.polyadd(jnp.array([1, 2]), jnp.array([3, 0, 1]))
    Array([3, 1, 3], dtype=int32)
    """
    return _polyadd(a1, a2)


@composed
def _polyadd(a1: Any, a2: Any) -> Any:
    return add(*_two("polyadd", a1, a2))


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials.

    >>> jnp.polysub(jnp.array([1, 2]), jnp.array([3, 0, 1]))
    Array([-3,  1,  1], dtype=int32)
    """
    return _polysub(a1, a2)


@composed
def _polysub(a1: Any, a2: Any) -> Any:
    return subtract(*_two("polysub", a1, a2))


def _trimmed(name: str, p: Any) -> Any:
    """Without zeros before the first other number; which there are must be known."""
    unknown = (
        "nobody knows which coefficients are zero, and the shape of the result: leave `trim_leading_zeros` out, or "
        "call it outside of compiled functions"
    )
    host = known(name, p, unknown)
    (places,) = np.nonzero(host)
    start = int(places[0]) if places.size else host.size
    return p[start:]


def polymul(a1: Any, a2: Any, *, trim_leading_zeros: bool = False) -> Any:
    """The product of two polynomials; integers become floats.

    `trim_leading_zeros`: without those before the first power, of polynomials that are known.

    >>> jnp.polymul(jnp.array([1, 5]), jnp.array([1, 2]))
    Array([ 1.,  7., 10.], dtype=float32)
    """
    if trim_leading_zeros:
        a1, a2 = _trimmed("polymul", a1), _trimmed("polymul", a2)
    x, y = (_at_least_one(a) for a in (a1, a2))
    return convolve(x, y)


@composed
def _at_least_one(p: Any) -> Any:
    row = _row("polymul", p)
    return row if row.type.size else full((1,), 0, row.type.dtype)


def polydiv(u: Any, v: Any, *, trim_leading_zeros: bool = False) -> tuple[Any, Any]:
    """The quotient of two polynomials and what is left, with as many coefficients as `u`.

    `trim_leading_zeros`: what is left without those before its first power, of polynomials that are known.

    >>> jnp.polydiv(jnp.array([1.0, 5.0, 7.0]), jnp.array([1.0, 2.0]))
    (Array([1., 3.], dtype=float32), Array([0., 0., 1.], dtype=float32))
    """
    quotient, left = _divided(u, v)
    return quotient, _trimmed("polydiv", left) if trim_leading_zeros else left


@composed_list
def _divided(u: Any, v: Any) -> list[Any]:
    dtype, _ = meet("polydiv", (type_of(u, "polydiv"), type_of(v, "polydiv")))
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    left, by = (astype_weak(_row("polydiv", p), dtype, False) for p in (u, v))
    size, length = left.type.size, by.type.size
    if not length:
        raise ValueError("polydiv: the divisor has no coefficients")
    if size < length:
        return [full((1,), 0, dtype), left]
    scale = along(by, 0, 0, 1)
    found = []
    for place in range(size - length + 1):
        factor = divide(along(left, 0, place, place + 1), scale)
        found.append(factor)
        taken = Pad((place,), (size - length - place,), (0,))(multiply(by, factor), full((), 0, dtype))
        left = subtract(left, taken)
    return [Concatenate(0)(*found) if len(found) > 1 else found[0], left]


def polyder(p: Any, m: int = 1) -> Any:
    """The derivative of order `m`; integers become floats.

    >>> jnp.polyder(jnp.array([1, 2, 3]))
    Array([2., 2.], dtype=float32)
    """
    order = _order("polyder", m)
    return _derived(p, order=order)


def _order(name: str, m: Any) -> int:
    found = operator.index(m)
    if found < 0:
        raise ValueError(f"{name}: the order m cannot be negative: {found}")
    return found


@composed
def _derived(p: Any, *, order: int) -> Any:
    row = as_inexact(_row("polyder", p), "polyder")
    if not order:
        return row
    size = max(row.type.size - order, 0)
    kept = along(row, 0, 0, size)
    for step in range(order):
        powers = _falling(size, order - 1 - step, kept)
        kept = Mul()(kept, powers)
    return kept


def _falling(size: int, past: int, row: Any) -> Any:
    """Powers of so many coefficients, of which the last has power `past` + 1."""
    index = Iota((size,), 0, np.dtype(np.int32))()
    return Convert(row.type.dtype, row.type.weak)(subtract(like(index, size + past), index))


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The integral of order `m`; integers become floats. `k`: the constants of each, one for all or `m` of them.

    >>> jnp.polyint(jnp.array([6, 2]), k=5)
    Array([3., 2., 5.], dtype=float32)
    """
    order = _order("polyint", m)
    given = 0 if k is None else k
    kind = type_of(given, "polyint")
    if kind.ndim > 1 or kind.size not in (1, order):
        raise ValueError(f"polyint: k is one constant or {order} of them, not {kind}")
    return _integrated(p, given, order=order)


@composed
def _integrated(p: Any, k: Any, *, order: int) -> Any:
    row = as_inexact(_row("polyint", p), "polyint")
    dtype, weak = meet("polyint", (row.type, type_of(k)))
    row, constants = (astype_weak(x, dtype, weak) for x in (row, as_operand(k)))
    constants = stretch(constants, (order,)) if constants.type.size == 1 else Reshape((order,))(constants)
    for step in range(order):
        row = divide(row, _falling(row.type.size, 0, row))
        row = Concatenate(0)(row, along(constants, 0, step, step + 1))
    return row


def polyval(p: Any, x: Any, *, unroll: int = 16) -> Any:
    """The value of a polynomial at each element of `x`. A long one is evaluated in a loop, `unroll` powers a turn.

    >>> jnp.polyval(jnp.array([1, 0, 2]), jnp.array([2, 3]))
    Array([ 6, 11], dtype=int32)
    """
    return _evaluated(p, x, unroll=operator.index(unroll))


@composed
def _evaluated(p: Any, x: Any, *, unroll: int) -> Any:
    dtype, weak = meet("polyval", (type_of(p, "polyval"), type_of(x, "polyval")))
    row, at = (astype_weak(z, dtype, weak) for z in (_row("polyval", p), as_operand(x, "polyval")))
    found = like(at, 0)
    if row.type.size > _UNROLLED:
        return scan(lambda sum, power: (add(multiply(sum, at), power), None), found, row, unroll=unroll)[0]
    for place in range(row.type.size):
        power = Reshape(())(along(row, 0, place, place + 1))
        found = add(multiply(found, at), stretch(power, at.type.shape))
    return found


@composed
def _from_zeros(zeros: Any) -> Any:
    found = full((1,), 1, zeros.type.dtype)
    for place in range(zeros.type.size):
        zero = along(zeros, 0, place, place + 1)
        rest = Concatenate(0)(full((1,), 0, zeros.type.dtype), multiply(found, zero))
        found = subtract(Concatenate(0)(found, full((1,), 0, zeros.type.dtype)), rest)
    return found


def poly(seq_of_zeros: Any) -> Any:
    """The polynomial that is zero at each element of a row, or at the eigenvalues of a square matrix.

    >>> jnp.poly(jnp.array([1.0, 2.0]))
    Array([ 1., -3.,  2.], dtype=float32)
    """
    kind = type_of(seq_of_zeros, "poly")
    if kind.ndim == 2:
        if kind.shape[0] != kind.shape[1]:
            raise ValueError(f"poly: needs a row of zeros or a square matrix, not {kind}")
        seq_of_zeros = linalg.eigvals(seq_of_zeros)
    elif kind.ndim != 1:
        raise ValueError(f"poly: needs a row of zeros or a square matrix, not {kind}")
    if not type_of(seq_of_zeros).size:
        return full((), 1, kind.dtype if is_inexact(kind.dtype) else default_dtype("float*"))
    return _from_zeros(_floats(seq_of_zeros))


@composed
def _floats(x: Any) -> Any:
    found = as_inexact(x, "poly")
    return astype_weak(found, found.type.dtype, False)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """The powers of each element: a row for each, the highest of `N` powers first, or with `increasing` last.

    >>> jnp.vander(jnp.array([2, 3]), 3)
    Array([[4, 2, 1],
           [9, 3, 1]], dtype=int32)
    """
    kind = type_of(x, "vander")
    if kind.ndim != 1:
        raise ValueError(f"vander: needs one row, not {kind}")
    count = kind.size if N is None else operator.index(N)
    if count < 0:
        raise ValueError(f"vander: N cannot be negative: {count}")
    return _powers(x, count=count, increasing=bool(increasing))


@composed
def _powers(x: Any, *, count: int, increasing: bool) -> Any:
    (row,) = numbers("vander", x)
    row = astype_weak(row, row.type.dtype, False)
    size = row.type.size
    if not count:
        return full((size, 0), 0, row.type.dtype)
    order = range(count) if increasing else reversed(range(count))
    columns = [Reshape((size, 1))(IntegerPow(power)(row)) for power in order]
    return Concatenate(1)(*columns) if count > 1 else columns[0]


def roots(p: Any, *, strip_zeros: bool = True) -> Any:
    """The zeros of a polynomial, as complex numbers in no order.

    Zeros before its first power are left out, which must be known; without `strip_zeros` they need not be, and NaN
    comes in their place.

    >>> np.sort(np.round(jnp.roots(jnp.array([1.0, -3.0, 2.0])).real, 3)).tolist()
    [1.0, 2.0]
    """
    kind = type_of(p, "roots")
    if kind.ndim != 1:
        raise ValueError(f"roots: needs one row of coefficients, not {kind}")
    if strip_zeros:
        try:
            p = _trimmed("roots", as_operand(p))
        except ConcretizationTypeError:
            raise ConcretizationTypeError(
                f"roots: {kind} is traced, so nobody knows which coefficients are zero, and how many roots there are: "
                "give `strip_zeros=False`, and NaN comes in place of those that are not there"
            ) from None
    if type_of(p).size < 2:
        dtype, _ = meet("roots", (type_of(p), full((), 0, np.complex64).type))
        return full((0,), 0, dtype)
    return _roots(p)


def _roots(p: Any) -> Any:
    matrix, lead = _companion(p)
    return _known(linalg.eigvals(matrix), lead)


@composed_list
def _companion(p: Any) -> list[Any]:
    """The matrix whose eigenvalues are the zeros, once zeros before the first power were put behind the last; and how
    many these are."""
    row = as_inexact(p, "roots")
    row = astype_weak(row, row.type.dtype, False)
    size = row.type.size
    index = Iota((size,), 0, np.dtype(np.int32))()
    is_zero = Compare("EQ")(row, like(row, 0))
    first = total(Select()(is_zero, like(index, 0), subtract(like(index, size), index)).max())
    lead = subtract(full((), size, np.int32), astype_weak(first, np.int32, False))
    pairs = (size, size)
    here, there = (Iota(pairs, dim, np.dtype(np.int32))() for dim in (0, 1))
    moves = Compare("EQ")(add(here, lead), there)
    moved = total(Select()(moves, stretch(Reshape((1, size))(row), pairs), full(pairs, 0, row.type.dtype)), 1)
    top = divide(-along(moved, 0, 1, size), along(moved, 0, 0, 1))
    order = size - 1
    shape = (order, order)
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    below = Convert(row.type.dtype)(Compare("EQ")(rows, add(columns, 1)))
    matrix = Select()(Compare("EQ")(rows, like(rows, 0)), stretch(Reshape((1, order))(top), shape), below)
    return [matrix, lead]


@composed
def _known(values: Any, lead: Any) -> Any:
    """Those that are farthest from zero; NaN in place of as many others as there were zeros."""
    size = values.type.size
    far = absolute(values)
    ranks = total(_before(far, size), 1)
    is_there = Compare("LT")(ranks, stretch(subtract(full((), size, np.int32), lead), (size,)))
    return Select()(is_there, values, like(values, complex(np.nan, np.nan)))


def _before(far: Any, size: int) -> Any:
    """Whether element j comes before element i: it is farther from zero, or as far and earlier."""
    shape = (size, size)
    mine, others = stretch(Reshape((size, 1))(far), shape), stretch(Reshape((1, size))(far), shape)
    rows, columns = (Iota(shape, dim, np.dtype(np.int32))() for dim in (0, 1))
    earlier = Select()(Compare("EQ")(mine, others), Compare("LT")(columns, rows), Compare("GT")(others, mine))
    return Convert(np.dtype(np.int32))(earlier)


def polyfit(
    x: Any,
    y: Any,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Any = None,
    cov: bool | str = False,
) -> Any:
    """The polynomial of degree `deg` that is nearest to the points `x`, `y`, by the sum of squares.

    Columns of `y` are fitted one by one. `w`: how much each point's distance counts. `full`: also the sums of squares
    that are left, the rank of the problem, its singular values and `rcond`, the share of the largest below which these
    count as 0. `cov`: also how the coefficients go together, or "unscaled" without the spread that is left.

    >>> [round(c, 2) for c in jnp.polyfit(jnp.array([0.0, 1.0, 2.0]), jnp.array([1.0, 3.0, 5.0]), 1).tolist()]
    [2.0, 1.0]
    """
    degree = operator.index(deg)
    places, values = type_of(x, "polyfit"), type_of(y, "polyfit")
    if degree < 0:
        raise ValueError(f"polyfit: the degree cannot be negative: {degree}")
    if places.ndim != 1 or not places.size:
        raise TypeError(f"polyfit: x must be one row of places, not {places}")
    if not 1 <= values.ndim <= 2 or values.shape[0] != places.size:
        raise TypeError(f"polyfit: y must have a value, or a row of them, for each of {places}, not {values}")
    if w is not None and type_of(w, "polyfit").shape != places.shape:
        raise TypeError(f"polyfit: w must be one for each of {places}, not {type_of(w)}")
    given = () if w is None else (w,)
    table, wanted, scale = _problem(x, y, *given, count=degree + 1)
    if rcond is None:
        rcond = places.size * float(np.finfo(table.dtype).eps)
    found, left, rank, singular = linalg.lstsq(table, wanted, rcond)
    found = _scaled_back(found, scale)
    if full:
        return found, left, rank, singular, as_operand(rcond)
    if not cov:
        return found
    base = divide(linalg.inv(table.T @ table), outer(scale, scale))
    if cov == "unscaled":
        return found, base
    if places.size <= degree + 1:
        raise ValueError(f"polyfit: {places.size} points leave nothing to scale the covariance of {degree + 1} by")
    spread = divide(left, places.size - (degree + 1))
    return found, base * spread if values.ndim == 1 else base[:, :, None] * spread


@composed_list
def _problem(x: Any, y: Any, *weights: Any, count: int) -> list[Any]:
    """A table of powers whose columns have length 1, the values, and how long the columns were."""
    dtype, _ = meet("polyfit", [type_of(z) for z in (x, y, *weights)])
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    places, values = (astype_weak(as_operand(z), dtype, False) for z in (x, y))
    table = _powers(places, count=count, increasing=False)
    if weights:
        each = astype_weak(as_operand(weights[0]), dtype, False)
        table = multiply(table, Reshape((each.type.size, 1))(each))
        values = multiply(values, each if values.type.ndim == 1 else Reshape((each.type.size, 1))(each))
    scale = total(multiply(table, table), 0) ** 0.5
    return [divide(table, scale), values, scale]


@composed
def _scaled_back(found: Any, scale: Any) -> Any:
    return divide(found, scale if found.type.ndim == 1 else Reshape((scale.type.size, 1))(scale))
