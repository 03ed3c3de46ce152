"""Linear equations: solve, inv, pinv, lstsq, those of tensors, and determinants."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from shardwise.api.custom import custom_jvp
from shardwise.compiler.ir.types import is_inexact
from shardwise.compiler.ops.aggregate import ReduceMax, ReduceProd
from shardwise.compiler.ops.bitwise import And
from shardwise.compiler.ops.eigen import Eigh
from shardwise.compiler.ops.elementwise import INEXACT, Add, Compare, Convert, Div, Mul, Neg, Select, Sub, like
from shardwise.compiler.ops.lu import Lu, PivotsToPermutation, solve_factored
from shardwise.compiler.ops.lu import solve as solved
from shardwise.compiler.ops.matrix import (
    INDEX,
    adjoint,
    as_dtype,
    as_matrices,
    by_column,
    by_row,
    compared_indices,
    diagonal,
    epsilon,
    identity,
    product,
)
from shardwise.compiler.ops.operands import (
    as_operand,
    astype_weak,
    broadcast_shapes,
    composed,
    composed_list,
    stretch,
    type_of,
)
from shardwise.compiler.ops.parts import Abs
from shardwise.compiler.ops.promote import default_dtype, meet
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.shape import Broadcast, Iota, Reshape, full, permuted, zeros_like
from shardwise.compiler.ops.slicing import along
from shardwise.compiler.ops.svd import Svd
from shardwise.compiler.ops.transcendental import Log
from shardwise.numpy.linalg.factors import as_floats


class SlogdetResult(NamedTuple):
    sign: Any
    logabsdet: Any


def solve(a: Any, b: Any) -> Any:
    """The x of `a x = b`, of square matrices a. b is a vector where it has one dim, else a stack of matrices whose
    columns are solved for; the batches of a and b broadcast.

    >>> jnp.linalg.solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([4.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    return _solve(a, b)


@composed
def _solve(a: Any, b: Any) -> Any:
    dtype, _ = meet("solve", [type_of(x, "solve") for x in (a, b)])
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    a = as_matrices("solve", astype_weak(as_operand(a), dtype, False), square=True)
    b = astype_weak(as_operand(b), dtype, False)
    if not b.type.ndim or b.type.shape[-1 if b.type.ndim == 1 else -2] != a.type.shape[-1]:
        raise ValueError(
            f"solve: matrices of {a.type} need as many rows of b, not {b.type}; a stack of vectors is "
            "solved for as b[..., None]"
        )
    if b.type.ndim == 1:
        found = _solve_stacks(a, Reshape((*b.type.shape, 1))(b))
        return Reshape(found.type.shape[:-1])(found)
    return _solve_stacks(a, b)


def _solve_stacks(a: Any, b: Any) -> Any:
    """As `solve`, of matrices."""
    if a.type.ndim == 2 and b.type.ndim > 2:  # one matrix for the whole batch: its factors are found once
        rows = b.type.ndim - 2
        order = (rows, *(dim for dim in range(b.type.ndim) if dim != rows))
        turned = permuted(b, order)
        flat = solved(a, Reshape((turned.type.shape[0], math.prod(turned.type.shape[1:])))(turned))
        return permuted(Reshape(turned.type.shape)(flat), (*range(1, rows + 1), 0, rows + 1))
    batch = broadcast_shapes("solve", a.type.shape[:-2], b.type.shape[:-2])
    return solved(*(stretch(x, (*batch, *x.type.shape[-2:])) for x in (a, b)))


def inv(a: Any) -> Any:
    """The inverses of square matrices.

    >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [1.0, 1.0]]))
    Array([[ 0.5,  0. ],
           [-0.5,  1. ]], dtype=float32)
    """
    return _inv(a)


@composed
def _inv(a: Any) -> Any:
    a = as_matrices("inv", a, square=True)
    return solved(a, identity(a.type.shape, a.type.dtype))


def slogdet(a: Any, *, method: str | None = None) -> SlogdetResult:
    """The sign of determinants, a number of magnitude 1, or 0, and the logarithms of their magnitudes.

    >>> jnp.linalg.slogdet(jnp.array([[0.0, 1.0], [1.0, 0.0]])).sign
    Array(-1., dtype=float32)
    """
    if method == "qr":
        raise NotImplementedError("slogdet: method 'qr' is not here; leave it out, or pass 'lu'")
    if method not in (None, "lu"):
        raise ValueError(f"slogdet: method {method!r} is none of None and 'lu'")
    return SlogdetResult(*_slogdet(a))


@composed_list
def _slogdet(a: Any) -> list[Any]:
    a = as_matrices("slogdet", a, square=True)
    parity, pivots = _factored(a)
    last = pivots.type.ndim - 1
    sizes = Abs()(pivots)
    unit = Select()(
        Compare("EQ")(sizes, like(sizes, 0)), zeros_like(pivots), Div()(pivots, as_dtype(sizes, a.type.dtype))
    )
    return [Mul()(parity, ReduceProd((last,))(unit)), Sum((last,))(Log()(sizes))]


def _factored(a: Any) -> tuple[Any, Any]:
    """1 or -1 as rows were exchanged an even or an odd number of times, and the diagonal of U."""
    both, places = Lu()(a)
    return _parity(places, a.type.dtype), diagonal(both)


def _parity(places: Any, dtype: Any) -> Any:
    last = places.type.ndim - 1
    exchanged = Convert(INDEX)(Compare("NE")(places, Iota(places.type.shape, last, INDEX)()))
    odd = And()(Sum((last,))(exchanged), full(places.type.shape[:-1], 1, INDEX))
    odd = as_dtype(odd, dtype)
    return Sub()(like(odd, 1), Mul()(odd, like(odd, 2)))


def det(a: Any) -> Any:
    """The determinants of square matrices.

    >>> jnp.linalg.det(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    Array(-2., dtype=float32)
    """
    kind = type_of(a, "det")
    if kind.ndim >= 2 and kind.shape[-1] == kind.shape[-2] and kind.shape[-1] <= len(_EXPANDED):
        return _small_det(a)
    return _large_det(as_floats(a, "det"))


# Terms of the determinants of small matrices: the columns to take from one row after the other, and a sign.
_EXPANDED: tuple[tuple[tuple[tuple[int, ...], int], ...], ...] = (
    (((0,), 1),),
    (((0, 1), 1), ((1, 0), -1)),
    (
        ((0, 1, 2), 1),
        ((1, 2, 0), 1),
        ((2, 0, 1), 1),
        ((2, 1, 0), -1),
        ((0, 2, 1), -1),
        ((1, 0, 2), -1),
    ),
)


@composed
def _small_det(a: Any) -> Any:
    """A polynomial, which has all derivatives everywhere."""
    a = as_matrices("det", a, square=True, takes=INEXACT)
    batch, size = a.type.shape[:-2], a.type.shape[-1]
    if not size:
        return full(batch, 1, a.type.dtype)
    rows, columns = a.type.ndim - 2, a.type.ndim - 1

    def at(row: int, column: int) -> Any:
        return Reshape(batch)(along(along(a, rows, row, row + 1), columns, column, column + 1))

    found = None
    for places, sign in _EXPANDED[size - 1]:
        term = at(0, places[0])
        for row, column in enumerate(places[1:], 1):
            term = Mul()(term, at(row, column))
        found = term if found is None else (Add() if sign > 0 else Sub())(found, term)
    return found


@custom_jvp
def _large_det(a: Any) -> Any:
    return _det_by_factors(a)


@composed
def _det_by_factors(a: Any) -> Any:
    parity, pivots = _factored(as_matrices("det", a, square=True))
    return Mul()(parity, ReduceProd((pivots.type.ndim - 1,))(pivots))


@_large_det.defjvp
def _large_det_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (a,), (da,) = primals, tangents
    return _large_det(a), _det_moved(a, da)


@composed
def _det_moved(a: Any, da: Any) -> Any:
    """det(a) times the trace of a⁻¹ da, which is a polynomial. It is the limit of those of matrices that are close to a
    singular one: pivots that are 0 are taken for so small a number that rounding hides it."""
    a = as_matrices("det", a, square=True)
    both, places = Lu()(a)
    size = a.type.shape[-1]
    ndim = a.type.ndim
    largest = ReduceMax((ndim - 2, ndim - 1))(Abs()(both))
    precision = epsilon(a.type.dtype)
    tiny = Mul()(largest, like(largest, precision))
    tiny = Select()(Compare("EQ")(tiny, like(tiny, 0)), like(tiny, precision), tiny)
    spread = as_dtype(Broadcast(a.type.shape, tuple(range(ndim - 2)))(tiny), a.type.dtype)
    gone = And()(compared_indices(a.type.shape, "EQ"), Compare("EQ")(both, like(both, 0)))
    both = Select()(gone, spread, both)
    inner = solve_factored(both, PivotsToPermutation(size)(places), da)
    volume = Mul()(_parity(places, a.type.dtype), ReduceProd((ndim - 2,))(diagonal(both)))
    return Mul()(volume, Sum((ndim - 2,))(diagonal(inner)))


def pinv(a: Any, rtol: Any = None, hermitian: bool = False, *, rcond: Any = None) -> Any:
    """The pseudo-inverses of matrices: singular values below `rtol` times the largest are taken for 0.

    >>> jnp.linalg.pinv(jnp.array([[2.0], [0.0]]))
    Array([[0.5, 0. ]], dtype=float32)
    """
    if rtol is not None and rcond is not None:
        raise ValueError("pinv: `rcond` is an old name of `rtol`: pass one of them")
    given = rcond if rtol is None else rtol
    kind = type_of(a, "pinv")
    if given is None:
        dtype = kind.dtype if is_inexact(kind.dtype) else default_dtype("float*")
        given = 10 * max(kind.shape[-2:], default=1) * epsilon(dtype)
    return _pinv(as_floats(a, "pinv"), given, bool(hermitian))


@partial(custom_jvp, nondiff_argnums=(2,))
def _pinv(a: Any, rtol: Any, hermitian: bool) -> Any:
    return _pinv_by_values(a, rtol, hermitian=hermitian)


@composed
def _pinv_by_values(a: Any, rtol: Any, *, hermitian: bool) -> Any:
    a = as_matrices("pinv", a, square=hermitian)
    if not a.type.size:
        return full((*a.type.shape[:-2], *a.type.shape[:-3:-1]), 0, a.type.dtype)
    if hermitian:
        u, s = Eigh()(a)
        v, sizes = u, Abs()(s)
    else:
        u, s, vh = Svd()(a)
        v, sizes = adjoint(vh), s
    largest = ReduceMax((s.type.ndim - 1,))(sizes)
    bound = Mul()(largest, stretch(astype_weak(as_operand(rtol), s.type.dtype, False), largest.type.shape))
    kept = Compare("GT")(sizes, Broadcast(s.type.shape, tuple(range(s.type.ndim - 1)))(bound))
    shared = Select()(kept, Div()(like(s, 1), s), like(s, 0))
    return product(by_column(v, shared), adjoint(u))


@_pinv.defjvp
def _pinv_jvp(hermitian: bool, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (a, rtol), (da, _) = primals, tangents
    found = _pinv(a, rtol, hermitian)
    return found, _pinv_moved(a, found, da)


@composed
def _pinv_moved(a: Any, p: Any, da: Any) -> Any:
    """-P dA P + P P* dA* (I - A P) + (I - P A) dA* P* P, as long as the rank stays."""
    outside_rows = Sub()(identity((*a.type.shape[:-1], a.type.shape[-2]), a.type.dtype), product(a, p))
    outside_columns = Sub()(identity((*p.type.shape[:-1], p.type.shape[-2]), a.type.dtype), product(p, a))
    back = adjoint(da)
    found = Neg()(product(p, product(da, p)))
    found = Add()(found, product(product(p, adjoint(p)), product(back, outside_rows)))
    return Add()(found, product(outside_columns, product(back, product(adjoint(p), p))))


def lstsq(a: Any, b: Any, rcond: float | None = None, *, numpy_resid: bool = False) -> tuple[Any, Any, Any, Any]:
    """The x for which `a x` is nearest to b, the squares of what is left, the rank of a, and its singular values.

    Of several x, the shortest. Singular values below `rcond` times the largest are taken for 0. `numpy_resid`: as numpy
    does, nothing is left where a has not full rank, or no more rows than columns; not inside `jit`.

    >>> jnp.linalg.lstsq(jnp.array([[2.0], [0.0]]), jnp.array([4.0, 3.0]))[0]
    Array([2.], dtype=float32)
    """
    kinds = type_of(a, "lstsq"), type_of(b, "lstsq")
    if kinds[0].ndim != 2 or kinds[1].ndim not in (1, 2) or kinds[0].shape[0] != kinds[1].shape[0]:
        raise TypeError(f"lstsq: needs a matrix, and a vector or matrix of as many rows, not {kinds[0]} and {kinds[1]}")
    x, rest, rank, values = _lstsq(a, b, rcond=None if rcond is None else float(rcond))
    rows, columns = kinds[0].shape
    if numpy_resid and (rows <= columns or int(rank) < columns):
        rest = rest[:0]
    return x, rest, rank, values


@composed_list
def _lstsq(a: Any, b: Any, *, rcond: float | None) -> list[Any]:
    dtype, _ = meet("lstsq", [type_of(x, "lstsq") for x in (a, b)])
    dtype = dtype if is_inexact(dtype) else default_dtype("float*")
    a = as_matrices("lstsq", astype_weak(as_operand(a), dtype, False))
    b = astype_weak(as_operand(b), dtype, False)
    shape = b.type.shape
    b = b if len(shape) == 2 else Reshape((*shape, 1))(b)
    rows, columns = a.type.shape
    if not a.type.size:
        size = Abs()(b)
        none = full((0,), 0, size.type.dtype)
        return [full((columns, *shape[1:]), 0, dtype), Sum((0,))(Mul()(size, size)), full((), 0, INDEX), none]
    u, s, vh = Svd()(a)
    if rcond is None:
        rcond = epsilon(dtype) * max(rows, columns)
    elif rcond < 0:
        rcond = epsilon(dtype)
    largest = _first(s)
    kept = Compare("GE")(s, Mul()(largest, like(s, rcond)))
    kept = And()(kept, Compare("GT")(s, like(s, 0)))
    shared = Select()(kept, Div()(like(s, 1), Select()(kept, s, like(s, 1))), like(s, 0))
    x = product(adjoint(vh), by_row(product(adjoint(u), b), shared))
    left = Sub()(b, product(a, x))
    size = Abs()(left)
    rest = Sum((0,))(Mul()(size, size))
    rank = Sum((0,))(Convert(INDEX)(kept))
    return [x if len(shape) == 2 else Reshape((columns,))(x), rest, rank, s]


def _first(x: Any) -> Any:
    """The first element, in place of all."""
    return Broadcast(x.type.shape, ())(Reshape(())(along(x, 0, 0, 1)))


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse of `a` as a map from its last dims to its first `ind` ones.

    >>> jnp.linalg.tensorinv(jnp.array([[2.0, 0.0], [0.0, 4.0]]), ind=1)
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    kind = type_of(a, "tensorinv")
    if ind <= 0:
        raise ValueError(f"tensorinv: ind must be positive, not {ind}")
    lead, rest = kind.shape[:ind], kind.shape[ind:]
    if math.prod(lead) != math.prod(rest):
        raise ValueError(f"tensorinv: the first {ind} dims of {kind} have not as many elements as the others")
    return inv(as_operand(a).reshape(math.prod(lead), -1)).reshape(*rest, *lead)


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """The x for which `tensordot(a, x, x.ndim)` is b; `axes` of a are moved to its end first.

    >>> jnp.linalg.tensorsolve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 8.0]))
    Array([1., 2.], dtype=float32)
    """
    kinds = type_of(a, "tensorsolve"), type_of(b, "tensorsolve")
    a = as_operand(a)
    if axes is not None:
        moved = [axis % kinds[0].ndim for axis in axes]
        a = permuted(a, (*(dim for dim in range(kinds[0].ndim) if dim not in moved), *moved))
    rest = a.shape[kinds[1].ndim :]
    if math.prod(rest) != kinds[1].size or kinds[0].size != kinds[1].size ** 2:
        raise ValueError(f"tensorsolve: {kinds[0]} does not map as many elements as {kinds[1]} has to as many")
    return solve(a.reshape(-1, math.prod(rest)), as_operand(b).reshape(-1)).reshape(rest)
