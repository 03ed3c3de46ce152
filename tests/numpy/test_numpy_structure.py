"""Compare functions that reshape and rearrange arrays with numpy; check their errors."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from tests.agreement import batch_name, batches, values_like_numpy
from tests.numpy.structure_cases import CHOICES, GRIDS, MOVES, ROW, SHAPES, TRIANGLES, X

NOT_NUMPY = {"empty_like", "copy"}  # arbitrary elements, or a result of another type
OTHER_SIGNATURE = {"full_like", "resize", "insert", "roll", "put", "trace", "diag", "array", "asarray", "piecewise"}


def is_accepted_by_numpy(case):
    """Return whether numpy accepts this call: its functions lack some of JAX's parameters and argument forms."""
    return case.name not in NOT_NUMPY and not (
        case.name in OTHER_SIGNATURE and (len(case.args) > 3 or case.keywords or case.name in ("array", "asarray"))
    )


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    "cases",
    batches([case for case in (*SHAPES, *MOVES, *TRIANGLES, *CHOICES, *GRIDS) if is_accepted_by_numpy(case)], 40),
    ids=batch_name,
)
def test_values_match_numpy(cases):
    values_like_numpy(jnp, cases)


def jitted(function, *args):
    return lambda: sw.jit(function)(*args)


ERRORS = [
    (lambda: jnp.roll(X, (1, 2, 3), (0, 1)), ValueError, "roll: got 3 shifts for 2 axes: shift (1, 2, 3), axis (0, 1)"),
    (lambda: jnp.roll(X, 1.5), TypeError, "roll: shift must be integers, not 1.5"),
    (lambda: jnp.roll(X, 1, 2), ValueError, "roll: axis 2 does not exist in an array of rank 2"),
    (lambda: jnp.rot90(ROW), ValueError, "rot90: needs an array of 2 or more dims, not f32[7]"),
    (lambda: jnp.rot90(X, 1, (0, -2)), ValueError, "rot90: axes must be two different dims, not (0, -2)"),
    (lambda: jnp.repeat(ROW, 1.5), TypeError, "repeat: repeats must be integers, not f32[]~"),
    (lambda: jnp.repeat(ROW, -1), ValueError, "repeat: a count cannot be negative: -1"),
    (
        lambda: jnp.repeat(ROW, np.array([1, 2])),
        ValueError,
        "repeat: repeats must be one count, or one for each of the 7 elements along dim 0 of f32[7], not i32[2]",
    ),
    (
        jitted(lambda n: jnp.repeat(ROW, n), 2),
        ConcretizationTypeError,
        "repeat: i32[]~ is traced, so the shape of the result is unknown. Pass it: "
        "`repeat(a, repeats, total_repeat_length=...)`",
    ),
    (
        lambda: jnp.tile(ROW, -1),
        ValueError,
        "tile: reps must have one non-negative number for each dim of f32[7], not (-1,)",
    ),
    (lambda: jnp.squeeze(X, 0), ValueError, "squeeze: dims (0,) of f32[3,4] must have size 1 to be removed"),
    (
        lambda: jnp.moveaxis(X, (0, 1), 0),
        ValueError,
        "moveaxis: source (0, 1) and destination 0 must have the same length, not 2 and 1",
    ),
    (lambda: jnp.rollaxis(X, 0, 3), ValueError, "rollaxis: start 3 is out of range for f32[3,4]; pass -2 to 2"),
    (lambda: jnp.ravel(X, "K"), NotImplementedError, "ravel: order must be 'C' or 'F', not 'K': XLA chooses"),
    (lambda: jnp.matrix_transpose(ROW), ValueError, "matrix_transpose: needs an array of 2 or more dims, not f32[7]"),
    (lambda: jnp.array_split(ROW, 0), ValueError, "array_split: cannot split f32[7] into 0 sections; the minimum is 1"),
    (lambda: jnp.unstack(jnp.array(1)), ValueError, "unstack: needs an array of 1 or more dims, not a 0-d array"),
    (lambda: jnp.hstack([]), ValueError, "hstack: needs at least one array"),
    (lambda: jnp.block([[1], 2]), ValueError, "block: all lists must have the same nesting depth, not "),
    (lambda: jnp.block([]), ValueError, "block: a list of blocks is empty"),
    (lambda: jnp.block((1, 2)), ValueError, "block: blocks must be nested in lists, not in a tuple: (1, 2)"),
    (
        lambda: jnp.insert(ROW, 1.5, 0),
        ValueError,
        "insert: indices must be an integer, a slice or a 1-D integer array, not f32[]~",
    ),
    (lambda: jnp.delete(ROW, 9), IndexError, "delete: index 9 is out of bounds for dim 0 of f32[7]"),
    (
        jitted(lambda i: jnp.delete(ROW, i), 2),
        ConcretizationTypeError,
        "delete: i32[]~ is traced, so the number of distinct indices is unknown. If none repeats, pass "
        "`delete(arr, obj, assume_unique_indices=True)`",
    ),
    (
        jitted(jnp.trim_zeros, ROW),
        ConcretizationTypeError,
        "trim_zeros: f32[7] is traced, so its zeros, which determine the shape of the result, are unknown",
    ),
    (lambda: jnp.tril(ROW), ValueError, "tril: needs an array of 2 or more dims, not f32[7]"),
    (lambda: jnp.diag(np.ones((1, 1, 1))), ValueError, "diag: needs an array of 1 or 2 dims, not f32[1,1,1]"),
    (lambda: jnp.diagonal(X, 0, 1, -1), ValueError, "diagonal: axis1 and axis2 are both dim 1"),
    (lambda: jnp.trace(X, 0.5), TypeError, "trace: offset must be an integer, not 0.5"),
    (
        lambda: jnp.tril_indices_from(ROW),
        ValueError,
        "tril_indices_from: needs a matrix, not an array of shape (7,)",
    ),
    (
        lambda: jnp.diag_indices_from(X),
        ValueError,
        "diag_indices_from: needs 2 or more dims of equal sizes, not f32[3,4]",
    ),
    (
        lambda: jnp.fill_diagonal(X, 1),
        NotImplementedError,
        "fill_diagonal: arrays are immutable; pass `inplace=False` and use the result",
    ),
    (lambda: jnp.linspace(0, 1, -1), ValueError, "linspace: num, the number of elements, must not be negative: -1"),
    (lambda: jnp.meshgrid(X), ValueError, "meshgrid: needs 1-D arrays of coordinates, not f32[3,4]"),
    (lambda: jnp.meshgrid(ROW, indexing="zz"), ValueError, "meshgrid: indexing must be 'xy' or 'ij', not 'zz'"),
    (lambda: jnp.mgrid[2:], ValueError, "mgrid: a slice needs a stop: slice(2, None, None)"),
    (
        lambda: jnp.r_["q", 1],
        ValueError,
        "r_: the directive must be 'r', 'c' or up to three integers separated by commas, not 'q'",
    ),
    (lambda: jnp.choose(ROW, [1]), ValueError, "choose: the indices of choices must be integers, not f32[7]"),
    (lambda: jnp.choose(np.array([3]), [1, 2]), ValueError, "choose: indices from 3 to 3 are out of bounds for size 2"),
    (
        jitted(lambda a: jnp.choose(a, [1, 2]), np.array([0])),
        ConcretizationTypeError,
        "choose: i32[1] is traced, so mode='raise' cannot check its bounds; use mode='clip' or mode='wrap'",
    ),
    (lambda: jnp.select([], []), ValueError, "select: needs at least one condition"),
    (lambda: jnp.select([True], [1, 2]), ValueError, "select: 1 conditions for 2 choices; pass one choice each"),
    (lambda: jnp.compress(X, X), ValueError, "compress: the condition must be 1-D, not f32[3,4]"),
    (
        lambda: jnp.compress(np.ones(3), ROW[:2]),
        ValueError,
        "compress: the condition f32[3] is longer than dim 0 of f32[2]",
    ),
    (
        lambda: jnp.place(X, ROW, 1, inplace=False),
        ValueError,
        "place: the mask must have as many elements as f32[3,4], not f32[7]",
    ),
    (lambda: jnp.put(X, 1, 1), ValueError, "put: arrays are immutable; pass `inplace=False` and use the result"),
    (lambda: jnp.put(X, 1, 1, "zz", inplace=False), ValueError, "put: mode must be 'clip' or 'wrap', not 'zz'"),
    (
        lambda: jnp.ravel_multi_index((1,), (2, 3)),
        ValueError,
        "ravel_multi_index: 1 index arrays for the 2 dims of shape (2, 3)",
    ),
    (
        lambda: jnp.ravel_multi_index((1, 1), (200, 300), dtype=jnp.int8),
        ValueError,
        "ravel_multi_index: int8 cannot hold all flat indices of shape (200, 300); pass a wider `dtype`",
    ),
    (
        lambda: jnp.piecewise(X, [X > 1], [1, 2, 3]),
        ValueError,
        "piecewise: 1 conditions need 1 or 2 functions, not 3",
    ),
    (
        lambda: jnp.fromiter([1], int),
        NotImplementedError,
        "fromiter: not supported; use `jnp.asarray(np.fromiter(...))`",
    ),
    (
        lambda: jnp.vectorize(jnp.dot, signature="zz"),
        ValueError,
        "vectorize: invalid signature 'zz'; expected one like '(n,m),(m)->(n)'",
    ),
    (
        lambda: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(ROW, X),
        ValueError,
        "vectorize: core dim 'n' has size 7, but size 4 in f32[3,4]",
    ),
    (
        lambda: jnp.vectorize(lambda x: x, signature="(n)->()")(ROW),
        ValueError,
        "vectorize: a result of shape (7,) does not match the core dims () with sizes {'n': 7}",
    ),
    (
        lambda: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(ROW),
        TypeError,
        "vectorize: the signature has 2 operands, but the call has 1",
    ),
    (
        lambda: jnp.frompyfunc(lambda x: x, 1, 1).reduce(ROW),
        ValueError,
        "<lambda>.reduce: needs a ufunc of 2 operands and 1 result, not of nin=1 and nout=1",
    ),
    (
        lambda: jnp.apply_over_axes(lambda x, axis: x[0, 0], X, [0]),
        ValueError,
        "apply_over_axes: the function returned f32[] for axis 0; expected rank 2 or 1",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[message[:40] for _, _, message in ERRORS])
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)
