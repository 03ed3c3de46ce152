"""Functions of matrices: the exponential, the square root, and any that is one of numbers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import numpy
from shardwise.api.control import fori_loop
from shardwise.api.differentiate import jvp
from shardwise.compiler.ops.aggregate import ReduceMax
from shardwise.compiler.ops.elementwise import Add, Compare, Mul, Select, StopGradient, Sub, like
from shardwise.compiler.ops.extremum import Max
from shardwise.compiler.ops.lu import solve
from shardwise.compiler.ops.matrix import as_dtype, as_matrices, compared_indices, diagonal_part, identity, product
from shardwise.compiler.ops.operands import composed, composed_list, type_of
from shardwise.compiler.ops.parts import Abs
from shardwise.compiler.ops.powers import Sqrt
from shardwise.compiler.ops.reduce import Sum
from shardwise.compiler.ops.rounding import Ceil
from shardwise.compiler.ops.shape import Broadcast, zeros_like
from shardwise.compiler.ops.transcendental import Exp, Log
from shardwise.compiler.ops.triangular import TriangularSolve
from shardwise.lax.indexing import dynamic_index_in_dim, dynamic_update_index_in_dim
from shardwise.numpy.linalg.factors import as_floats
from shardwise.scipy.linalg.factors import schur

# The quotient of polynomials of this degree is the exponential to the last digit, up to a norm: (degree, norm).
_SINGLE, _DOUBLE = (7, 3.925724783138660), (13, 5.371920351148152)


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """The exponential of square matrices. NaN where it takes more than `max_squarings` squares, for its norm.

    >>> jax.scipy.linalg.expm(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    return _expm(A, squarings=int(max_squarings))


@composed
def _expm(a: Any, *, squarings: int) -> Any:
    """exp(A) = exp(A / 2ˢ) ** (2ˢ), with s so large that a quotient of polynomials will do."""
    a = as_matrices("expm", a, square=True)
    if not a.type.size:
        return a
    ndim = a.type.ndim
    batch = tuple(range(ndim - 2))
    degree, bound = _DOUBLE if a.type.dtype.itemsize // (1 + (a.type.dtype.kind == "c")) == 8 else _SINGLE
    norm = ReduceMax((ndim - 2,))(Sum((ndim - 2,))(Abs()(StopGradient()(a))))
    halvings = Mul()(Sub()(Log()(norm), like(norm, math.log(bound))), like(norm, 1 / math.log(2)))
    halvings = Max()(Ceil()(halvings), zeros_like(norm))
    small = Exp()(Mul()(halvings, like(norm, -math.log(2))))
    found = _quotient(Mul()(a, as_dtype(Broadcast(a.type.shape, batch)(small), a.type.dtype)), degree)
    one = identity(a.type.shape, a.type.dtype)
    for number in range(squarings):
        still = Broadcast(a.type.shape, batch)(Compare("GT")(halvings, like(norm, number)))
        found = product(found, Select()(still, found, one))
    too_large = Broadcast(a.type.shape, batch)(Compare("GT")(halvings, like(norm, squarings)))
    return Select()(too_large, like(found, np.nan), found)


def _quotient(a: Any, degree: int) -> Any:
    """Padé's approximation: of the polynomial p, p(A) / p(-A)."""
    terms = [
        math.factorial(2 * degree - k)
        * math.factorial(degree)
        // (math.factorial(k) * math.factorial(degree - k) * math.factorial(degree))
        for k in range(degree + 1)
    ]
    scale = terms[-1]
    square = product(a, a)
    power = identity(a.type.shape, a.type.dtype)
    even, odd = zeros_like(a), zeros_like(a)
    for k in range(0, degree, 2):
        even = Add()(even, Mul()(power, like(power, terms[k] / scale)))
        odd = Add()(odd, Mul()(power, like(power, terms[k + 1] / scale)))
        power = product(power, square) if k + 2 < degree else power
    odd = product(a, odd)
    return solve(Sub()(even, odd), Add()(even, odd))


def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """The exponential of A, and how it moves where A moves by E; without `compute_expm` the latter alone.

    >>> jax.scipy.linalg.expm_frechet(jnp.zeros((1, 1)), jnp.ones((1, 1)))[1]
    Array([[1.]], dtype=float32)
    """
    if method not in (None, "SPS", "blockEnlarge"):
        raise ValueError(f"expm_frechet: method must be 'SPS' or 'blockEnlarge', not {method!r}")
    found, moved = jvp(expm, (as_floats(A, "expm_frechet"),), (as_floats(E, "expm_frechet"),))
    return (found, moved) if compute_expm else moved


def funm(A: Any, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """A function of numbers as one of a square matrix, by Schur's factors and Parlett's recurrence: a complex matrix.

    Without `disp`, also an estimate of the error. Eigenvalues that are nearly equal make it large.

    >>> jax.scipy.linalg.funm(jnp.array([[1.0, 0.0], [0.0, 4.0]]), jnp.sqrt).real
    Array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    kind = type_of(A, "funm")
    if kind.ndim != 2 or kind.shape[0] != kind.shape[1]:
        raise ValueError(f"funm: needs one square matrix, not {kind}")
    upper, vectors = schur(as_floats(A, "funm"), "complex")
    found, nearest = _parlett(upper, func(numpy.diagonal(upper)))
    found = vectors @ found @ vectors.conj().T
    if disp:
        return found
    tiny = float(np.finfo(upper.dtype).eps)
    spread = numpy.max(numpy.sum(numpy.abs(numpy.triu(upper, 1)), axis=0), initial=0)
    error = numpy.minimum(1, numpy.maximum(tiny, tiny / numpy.where(nearest == 0, tiny, nearest) * spread))
    return found, numpy.where(numpy.all(numpy.isfinite(found)), error, np.inf)


@composed_list
def _parlett(t: Any, values: Any) -> list[Any]:
    """One diagonal after the other: F and T commute, and what is known of their products gives the next of F."""
    size = t.type.shape[0]
    place = numpy.arange(size)
    apart = numpy.diagonal(t)[None, :] - numpy.diagonal(t)[:, None]
    by = numpy.where(apart == 0, 1, apart)

    def step(number: Any, found: Any) -> Any:
        is_next = place[None, :] - place[:, None] == number + 1
        return numpy.where(is_next, (t @ found - found @ t) / by, found)

    found = fori_loop(0, max(size - 1, 0), step, numpy.diag(values.astype(t.dtype)))
    above = place[None, :] > place[:, None]
    return [found, numpy.min(numpy.where(above, numpy.abs(apart), np.inf), initial=np.inf)]


def sqrtm(A: Any, blocksize: int = 1) -> Any:
    """The complex matrix whose square is A, by Schur's factors. It has no derivative.

    >>> jax.scipy.linalg.sqrtm(jnp.array([[4.0, 0.0], [0.0, 9.0]]))
    Array([[2.+0.j, 0.+0.j],
           [0.+0.j, 3.+0.j]], dtype=complex64)
    """
    if blocksize != 1:
        raise NotImplementedError(f"sqrtm: blocks of {blocksize} are not here; leave out `blocksize`")
    kind = type_of(A, "sqrtm")
    if kind.ndim != 2 or kind.shape[0] != kind.shape[1]:
        raise ValueError(f"sqrtm: needs one square matrix, not {kind}")
    upper, vectors = schur(as_floats(A, "sqrtm"), "complex")
    return vectors @ _root(upper) @ vectors.conj().T


@composed
def _root(t: Any) -> Any:
    """The upper triangular R with `R R = T`: of column j, what is above its diagonal solves (R + rⱼⱼ I) x = tⱼ."""
    by_upper = TriangularSolve(left_side=True, is_lower=False)
    one = identity(t.type.shape, t.type.dtype)
    on = compared_indices(t.type.shape, "EQ")
    roots = Select()(on, Sqrt()(diagonal_part(t)), zeros_like(t))
    above = Select()(compared_indices(t.type.shape, "LT"), t, zeros_like(t))

    def step(number: Any, found: Any) -> Any:
        pivot = dynamic_index_in_dim(dynamic_index_in_dim(roots, number, 1), number, 0)
        column = by_upper(found + one * pivot, dynamic_index_in_dim(above, number, 1))
        return dynamic_update_index_in_dim(found, column + dynamic_index_in_dim(roots, number, 1), number, 1)

    return fori_loop(0, t.type.shape[0], step, t * 0)
