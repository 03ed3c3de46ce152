"""The older and rarer forms of control flow and indexing behave as in JAX."""

import numpy as np
import pytest

import shardwise as sw

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax
GRID = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)


def both(function, *args):
    """Compare a function of a package, called with each of the two, jitted and not."""
    expected = function(jax)(*args)
    for run in (function(sw), sw.jit(function(sw))):
        results = run(*args)
        sw.tree.map(np.testing.assert_allclose, results, sw.tree.map(np.asarray, expected))
        assert sw.tree.map(np.shape, results) == jax.tree.map(np.shape, expected)


@pytest.mark.parametrize("pred", [True, False, 0, 2])
def test_cond_with_an_operand_for_each_branch(pred):
    def choose(m):
        return lambda p, x, y: m.lax.cond(p, (x, 2), lambda t: t[0] * t[1], y, lambda z: z["a"] + 1)

    both(choose, pred, 3.0, {"a": np.float32(5)})


def test_errors_of_cond_with_operands():
    with pytest.raises(TypeError, match="cond: true_fun must be a function, not 1"):
        sw.lax.cond(True, 1, lambda x: x, 2, 3)


@pytest.mark.parametrize("unroll", [0, True, False, 3])
@pytest.mark.parametrize("length", [0, 7])
def test_unrolled_scan(unroll, length):
    def scan(m):
        def step(carry, x):
            return carry * 2 + x, carry - x

        return lambda xs: m.lax.scan(step, np.float32(1), xs, unroll=unroll)

    both(scan, np.arange(length, dtype=np.float32))


def test_unroll_zero_unrolls_the_whole_loop():
    program = sw.make_jaxpr(lambda xs: sw.lax.scan(lambda c, x: (c + x, None), 0.0, xs, unroll=0))(np.ones(5, "f"))
    (loop,) = [equation.op for equation in program.program.equations if equation.op.name == "scan"]
    assert loop.unroll == 5
    assert int(sw.lax.fori_loop(0, 5, lambda i, x: x + i, 0, unroll=0)) == 10
    with pytest.raises(ValueError, match="scan: unroll must be a bool or an integer of at least 0, not -1"):
        sw.lax.scan(lambda c, x: (c, x), 0.0, np.ones(3), unroll=-1)


MASKS = {
    "True": True,
    "False": False,
    "numpy scalar": np.bool_(True),
    "0-d array": np.array(False),
    "two": (True, True),
    "two that differ": (False, True),
    "with a slice": (slice(1), True),
    "with an integer": (0, True),
    "with an array": (True, np.array([1, 0, 1])),
    "apart from an array": (True, slice(None), np.array([1, 0, 1])),
    "with None": (None, True, None),
    "with ...": (..., True),
    "empty": np.zeros(0, bool),
    "empty dims": np.zeros((2, 0), bool),
    "empty of rank 3": np.zeros((0, 3, 4), bool),
    "none true": np.zeros((2, 3), bool),
    "mask": GRID > 5,
    "mask and scalar": (GRID[..., 0] > 5, True),
}


@pytest.mark.parametrize("name", MASKS)
def test_boolean_indices(name):
    index = MASKS[name]
    if name not in ("numpy scalar", "with None"):  # JAX 0.10.2 fails, and returns a part of the array
        both(lambda m: lambda x: m.numpy.asarray(x)[index], GRID)
        both(lambda m: lambda x: m.numpy.asarray(x).at[index].set(-1.0), GRID)
        both(lambda m: lambda x: m.numpy.asarray(x).at[index].add(m.numpy.asarray(x)[index]), GRID)
    if name[:5] != "empty":  # NumPy needs masks of the size of the dims
        np.testing.assert_array_equal(sw.numpy.asarray(GRID)[index], GRID[index])
        updated = GRID.copy()
        updated[index] = -1
        np.testing.assert_array_equal(sw.numpy.asarray(GRID).at[index].set(-1.0), updated)


def test_an_ellipsis_of_no_dims_separates_arrays():
    rows, columns = np.array([0, 1]), np.array([2, 3])
    for index in (
        (slice(None), rows, ..., columns),
        (slice(None), ..., rows, columns),
        (..., rows, slice(None), columns),
    ):
        both(lambda m: lambda x: m.numpy.asarray(x)[index], GRID)  # noqa: B023
        np.testing.assert_array_equal(sw.numpy.asarray(GRID)[index], GRID[index])


def test_lists_with_traced_elements_index_arrays():
    both(lambda m: lambda x, i: m.numpy.asarray(x)[0, [i, i + 1], [[0], [i]]], GRID, 1)


def test_integers_are_converted_to_the_dtype_of_the_array():
    assert int(sw.numpy.zeros(1, "uint32").at[0].set(2**32 - 1)[0]) == 2**32 - 1


def test_static_indices_are_checked_in_get():
    with sw.config.override("check_static_indices", True):
        with pytest.raises(IndexError, match="out of bounds"):
            sw.numpy.asarray(GRID).at[0, 3].get()
        assert np.isnan(sw.numpy.asarray(GRID).at[0, 3].get(mode="fill")).all()


def test_lax_dtype_of_dtypes():
    for x in (np.float32, "int16", np.dtype("float16"), float, 1.0, np.ones(2, np.int8)):
        assert sw.lax.dtype(x) == jax.lax.dtype(x)


def test_gradient_through_a_scalar_mask():
    both(lambda m: m.grad(lambda x: (m.numpy.asarray(x)[True, 1] ** 2).sum() + x[False].sum()), GRID)


def test_traced_scalar_mask_raises():
    with pytest.raises(sw.errors.NonConcreteBooleanIndexError, match="traced"):
        sw.jit(lambda x, b: x[b])(GRID, True)


@pytest.mark.parametrize("mode", [None, "clip"])
def test_apply_at_traced_indices(mode):
    indices = np.array([[1, 0], [1, -1], [9, 1]])

    def update(m):
        return lambda x, i, y: m.numpy.asarray(x).at[:, i].apply(lambda v: v * 2 + y, mode=mode)

    both(update, GRID, indices, np.float32(0.5))


def test_apply_at_traced_indices_of_a_sharded_array(mesh):
    x, indices = np.arange(16.0, dtype=np.float32), np.array([3, 3, 15, 0])
    sharded = sw.device_put(x, sw.NamedSharding(mesh, sw.P("data")))
    result = sw.jit(lambda x, i: x.at[i].apply(lambda v: v * 2 + 1))(sharded, indices)
    expected = x.copy()
    for index in indices:
        expected[index] = expected[index] * 2 + 1
    np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_cumulative_extrema_at_ties(name, reverse):
    rows = np.random.default_rng(0).integers(0, 3, (7, 13)).astype(np.float32)
    weights = np.arange(1.0, 14, dtype=np.float32)
    for size in (1, 2, 5, 8, 13):
        x, w = rows[:, :size], weights[:size]
        both(lambda m: m.grad(lambda x: (getattr(m.lax, name)(x, 1, reverse) * w).sum()), x)  # noqa: B023


def test_gradient_of_a_mapped_cond_ignores_branches_that_are_not_selected():
    """The derivative of the square root is infinite at 0."""

    def gradient(m):
        def safe(x):
            return m.lax.cond(x < 1e-3, lambda: 1e-3, lambda: m.numpy.sqrt(x))

        return m.grad(lambda x: m.vmap(safe)(x).sum())

    both(gradient, np.array([0, 0, 4], np.float32))


def test_mapped_cond_forwards_operands_unbatched():
    def forward(x, y):
        return sw.lax.cond(x < 3, lambda x, y: (x * 2, y), lambda x, y: (x * 3, y), x, y)

    y = sw.numpy.array(3.0)
    doubled, same = sw.vmap(forward, in_axes=(0, None), out_axes=(0, None))(np.arange(5), y)
    np.testing.assert_array_equal(doubled, [0, 2, 4, 9, 12])
    assert same is y
