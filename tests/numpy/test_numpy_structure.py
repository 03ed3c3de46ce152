"""Compare functions that reshape and rearrange arrays with numpy; check their errors and collectives."""

import io

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ConcretizationTypeError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.agreement import batch_name, batches, values_like_numpy
from tests.numpy.structure_cases import CHOICES, GRIDS, MOVES, ROW, SHAPES, SQUARE, TRIANGLES, X

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


@pytest.mark.parametrize("rows", [2**16, 2**16 - 3], ids=["even", "uneven"])
def test_roll_along_a_sharded_dim_sends_only_the_halo(rows):
    """jax#39301: XLA's partitioner gave wrong numbers for the transpose of roll along a sharded dim."""
    mesh = sw.make_mesh((8,), ("rows",))
    x = np.cos(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4)
    sharded = sw.device_put(x, NamedSharding(mesh, P("rows")))
    weights = np.sin(np.arange(rows * 4, dtype=np.float32)).reshape(rows, 4)

    def loss(x):
        return (jnp.roll(x, 3, axis=0) * weights).sum()

    np.testing.assert_array_equal(sw.jit(lambda x: jnp.roll(x, -5, axis=0))(sharded), np.roll(x, -5, axis=0))
    np.testing.assert_array_equal(sw.jit(sw.grad(loss))(sharded), np.roll(weights, -3, axis=0))
    plan = sw.explain(sw.jit(lambda x: jnp.roll(x, 3, axis=0)))(sharded)
    local = plan.stages.local
    row_bytes = 4 * 4
    assert sum(local.bytes_sent(equation) for equation in local.collectives()) <= 4 * 3 * row_bytes


def test_triangles_need_no_collectives(mesh):
    x = sw.device_put(SQUARE, NamedSharding(mesh, P("data", "model")))
    for function in (jnp.tril, jnp.triu, lambda x: jnp.fill_diagonal(x, 2.0, inplace=False)):
        assert sw.explain(sw.jit(function))(x).stages.local.collectives() == []


def test_splitting_and_merging_heads_needs_no_collectives(mesh):
    x = sw.device_put(np.arange(64, dtype=np.float32).reshape(2, 32), NamedSharding(mesh, P(None, "data")))

    def split_and_merge(x):
        heads = jnp.moveaxis(jnp.reshape(x, (2, 8, 4)), 1, 0)
        return jnp.reshape(jnp.moveaxis(heads * 2, 0, 1), (2, 32))

    assert sw.explain(sw.jit(split_and_merge))(x).stages.local.collectives() == []
    np.testing.assert_array_equal(sw.jit(split_and_merge)(x), 2 * np.asarray(x))


def test_save_and_load_round_trip():
    for x in (jnp.arange(3), jnp.ones((2, 2), jnp.bfloat16) * 1.5, jnp.array(2.5)):
        file = io.BytesIO()
        jnp.save(file, x)
        file.seek(0)
        loaded = jnp.load(file)
        assert loaded.dtype == x.dtype
        assert loaded.tolist() == x.tolist()
    file = io.BytesIO()
    jnp.savez(file, a=jnp.arange(2), b=jnp.ones(3))
    file.seek(0)
    with jnp.load(file) as arrays:
        assert arrays["a"].tolist() == [0, 1]
        assert arrays["b"].tolist() == [1, 1, 1]


def test_array_repr_and_str():
    x = jnp.array([1.23456, 2.0])
    assert jnp.array_repr(x, precision=3) == "Array([1.235, 2.   ], dtype=float32)"
    assert jnp.array_str(x, precision=3) == "[1.235 2.   ]"
    with jnp.printoptions(precision=1):
        assert str(x) == "[1.2 2. ]"
    assert jnp.array_repr(np.array([1, 2])) == "array([1, 2])"


def test_frompyfunc_methods():
    weighted = jnp.frompyfunc(lambda x, y: x + 2 * y, 2, 1)
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(weighted(x, jnp.ones(3)), np.asarray(x) + 2)
    assert weighted.reduce(jnp.array([1, 2, 3])).tolist() == 11
    assert weighted.reduce(x, axis=1, keepdims=True).tolist() == [[6.0], [21.0]]
    assert weighted.reduce(x, axis=None, initial=100).tolist() == 130.0
    assert weighted.reduce(x, initial=1.0, where=x > 2).tolist() == [7.0, 9.0, 11.0]
    assert weighted.accumulate(x, axis=1).tolist() == [[0.0, 2.0, 6.0], [3.0, 11.0, 21.0]]
    assert weighted.outer(jnp.arange(2), jnp.arange(3)).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert weighted.at(jnp.zeros(3), jnp.array([0, 0, 2]), jnp.array([1.0, 2.0, 3.0]), inplace=False).tolist() == [
        6,
        0,
        6,
    ]
    plus = jnp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0)
    assert (
        plus.reduceat(jnp.arange(6), np.array([0, 3, 1])).tolist() == np.add.reduceat(np.arange(6), [0, 3, 1]).tolist()
    )
    assert plus.reduce(jnp.zeros((0, 2))).tolist() == [0.0, 0.0]
    increment = jnp.frompyfunc(lambda x: x + 1, 1, 1)
    assert increment.at(jnp.zeros(3), jnp.array([0, 0, 1]), inplace=False).tolist() == [2, 1, 0]
    assert (plus.nin, plus.nout, plus.nargs, plus.identity) == (2, 1, 2, 0)
    overridden = jnp.ufunc(jnp.add, 2, 1, name="plus", reduce=lambda x, **options: "override")
    assert overridden.reduce(x) == "override"
    assert repr(overridden) == "<shardwise.numpy.ufunc 'plus'>"


def test_vectorize_broadcasts_core_functions():
    dot = jnp.vectorize(jnp.dot, signature="(n),(n)->()")
    assert dot(jnp.ones((4, 1, 3)), jnp.arange(6.0).reshape(2, 3)).shape == (4, 2)
    assert jnp.vectorize(lambda x, y, z: x + y * z, excluded={2})(
        jnp.arange(2), jnp.arange(2)[:, None], 3
    ).tolist() == [
        [0, 1],
        [3, 4],
    ]
    assert jnp.vectorize(lambda x, k: x * k, excluded={"k"})(jnp.arange(3), k=2).tolist() == [0, 2, 4]
    assert jnp.vectorize(lambda x, k: x * k)(jnp.arange(3), k=jnp.arange(3)).tolist() == [0, 1, 4]
    assert jnp.vectorize(lambda x, k: x if k is None else k)(jnp.arange(3), None).tolist() == [0, 1, 2]
    outer = jnp.vectorize(lambda x, y: (x[:, None] * y, x.sum()), signature="(n),(m)->(n,m),()")
    first, second = outer(jnp.ones((5, 2)), jnp.ones(3))
    assert first.shape == (5, 2, 3)
    assert second.tolist() == [2.0] * 5
    assert jnp.vectorize(lambda x: x + 1)(jnp.zeros((2, 0))).shape == (2, 0)


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
