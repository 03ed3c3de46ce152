"""`associative_scan` against loops in NumPy: under jit, grad and vmap, and on a mesh; its complexity and its errors."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, tree
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def affine(numpy):
    """Compose x ↦ ax + b and x ↦ cx + d. The composition does not commute."""
    return lambda f, g: {"a": f["a"] * g["a"], "b": g["a"] * f["b"] + g["b"]}


def largest_and_count(numpy):
    """The maximum so far, and the number of its occurrences."""

    def combine(x, y):
        (top_x, count_x), (top_y, count_y) = x, y
        tied = numpy.where(top_x == top_y, count_x + count_y, count_x)
        return numpy.maximum(top_x, top_y), numpy.where(top_x < top_y, count_y, tied)

    return combine


def numbers(shape):
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


# Each entry: the combining function, for a NumPy module; and a function that makes elements of a shape, which may add
# trailing dims.
COMBINES = {
    "add": (lambda numpy: numpy.add, numbers),
    "multiply": (lambda numpy: numpy.multiply, numbers),
    "matmul": (lambda numpy: numpy.matmul, lambda shape: numbers((*shape, 2, 2))),
    "affine": (affine, lambda shape: {"a": numbers(shape), "b": numbers(shape) - 1}),
    "largest and count": (
        largest_and_count,
        lambda shape: (np.round(numbers(shape) * 4), np.ones(shape, np.int32)),
    ),
    "later": (lambda numpy: lambda x, y: y + 0 * x, numbers),
    "earlier": (lambda numpy: lambda x, y: x + 0 * y, numbers),
}
ALL_COMBINES = pytest.mark.parametrize("name", COMBINES)


def scan_by_loop(combine, elems, reverse, axis):
    """Compute the prefixes sequentially."""
    leaves, structure = tree.flatten(elems)
    count = leaves[0].shape[axis]
    indices = range(count)[::-1] if reverse else range(count)
    prefixes, total = {}, None
    for index in indices:
        element = structure.unflatten([np.take(x, index, axis) for x in leaves])
        total = element if total is None else combine(total, element)
        prefixes[index] = tree.leaves(total)
    if not count:
        return leaves
    return [np.stack([prefixes[index][i] for index in range(count)], axis) for i in range(len(leaves))]


def evaluate_traced(function, leaves):
    """Trace a function of arrays and evaluate the program in NumPy."""
    program, captured = build(function, [ArrayType(x.shape, x.dtype) for x in leaves], "scanned")
    assert captured == []
    return evaluate(program, leaves)


@pytest.mark.table(default=14)
@ALL_COMBINES
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_every_length(name, reverse, axis):
    combine, make = COMBINES[name]
    for count in range(18):
        elems = make((count, 3) if axis == 0 else (3, count))
        leaves, structure = tree.flatten(elems)
        axis = 1 if name == "matmul" and axis == -1 else axis  # its last dims are the matrices'

        def scan(*leaves, axis=axis, structure=structure):
            return tree.leaves(lax.associative_scan(combine(jnp), structure.unflatten(leaves), reverse, axis))

        scanned = evaluate_traced(scan, leaves)
        for got, want in zip(scanned, scan_by_loop(combine(np), elems, reverse, axis), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.table(default=5)
@ALL_COMBINES
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_compiled(name, reverse):
    combine, make = COMBINES[name]
    elems = make((3, 11))
    scanned = sw.jit(lambda elems: lax.associative_scan(combine(jnp), elems, reverse=reverse, axis=1))(elems)
    assert tree.structure(scanned) == tree.structure(elems)
    for got, want in zip(tree.leaves(scanned), scan_by_loop(combine(np), elems, reverse, 1), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_eager_calls_match_numpy(count):
    x = numbers((count, 2))
    np.testing.assert_allclose(lax.associative_scan(jnp.add, x), np.cumsum(x, 0), rtol=1e-6)
    np.testing.assert_allclose(
        lax.associative_scan(jnp.multiply, jnp.asarray(x), reverse=True), np.cumprod(x[::-1], 0)[::-1], rtol=1e-6
    )


def test_integers_wrap_and_booleans_stay_booleans():
    x = np.array([2**31 - 1, 1, 7, -(2**31), -1, 3], np.int32)
    np.testing.assert_array_equal(lax.associative_scan(jnp.add, x), np.cumsum(x, dtype=np.int32))
    flags = np.array([False, False, True, False])
    assert lax.associative_scan(jnp.add, flags).tolist() == [False, False, True, True]


def test_nan_and_infinity_do_not_affect_other_elements():
    x = np.array([-0.0, np.inf, 1, -np.inf, np.nan, 2], np.float32)
    scanned = np.asarray(sw.jit(lambda x: lax.associative_scan(lambda x, y: y, x))(x))
    assert scanned.tobytes() == x.tobytes()


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_gradient_matches_finite_differences(reverse):
    x, weights = numbers((7, 2)), numbers((7, 2))[::-1].copy()

    def loss(x):
        return (lax.associative_scan(jnp.multiply, x, reverse=reverse) * weights).sum()

    def loss_by_loop(x):
        return (scan_by_loop(np.multiply, x, reverse, 0)[0] * weights).sum()

    gradient = np.asarray(sw.jit(sw.grad(loss))(x))
    step = 1e-4
    x64 = x.astype(np.float64)
    for index in np.ndindex(x.shape):
        delta = np.zeros(x.shape)
        delta[index] = step
        difference = (loss_by_loop(x64 + delta) - loss_by_loop(x64 - delta)) / (2 * step)
        np.testing.assert_allclose(gradient[index], difference, rtol=1e-4)


@pytest.mark.parametrize("in_axes", [0, 1, {"a": None, "b": 2}], ids=str)
def test_vmap_matches_loop(in_axes):
    wide = {"a": numbers((5, 4, 3)), "b": numbers((5, 4, 3))}
    axes = in_axes if isinstance(in_axes, dict) else {"a": in_axes, "b": in_axes}
    elems = {key: x if axes[key] is not None else x[:, :, 0] for key, x in wide.items()}
    scanned = sw.jit(sw.vmap(lambda e: lax.associative_scan(affine(jnp), e, axis=1), (axes,)))(elems)
    size = next(elems[key].shape[axis] for key, axis in axes.items() if axis is not None)
    for i in range(size):
        one = {key: x if axes[key] is None else np.take(x, i, axes[key]) for key, x in elems.items()}
        for key, want in zip("ab", scan_by_loop(affine(np), one, False, 1), strict=True):
            np.testing.assert_allclose(scanned[key][i], want, rtol=1e-5)


@pytest.mark.table(default=5)
@ALL_COMBINES
@pytest.mark.parametrize(
    ("shape", "axis", "spec"),
    [
        ((9, 8), 0, P(None, "data")),
        ((9, 7), 0, P(None, "data")),
        ((7, 9), 1, P(("data", "model"))),
        ((8, 6), 0, P("model", "data")),
    ],
    ids=str,
)
def test_sharded_elements_match_loop(mesh, name, shape, axis, spec):
    combine, make = COMBINES[name]
    elems = make(shape)
    sharded = tree.map(lambda x: sw.device_put(x, NamedSharding(mesh, spec)), elems)
    scanned = sw.jit(lambda elems: lax.associative_scan(combine(jnp), elems, axis=axis))(sharded)
    for got, want in zip(tree.leaves(scanned), scan_by_loop(combine(np), elems, False, axis), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_no_collectives_if_only_other_dims_are_sharded():
    mesh, type = AbstractMesh((4, 2), ("data", "model")), ArrayType((9, 7), np.float32)
    program, _ = build(lambda x: [lax.associative_scan(jnp.add, x, reverse=True)], [type], "scanned")
    local = run_stages(program, mesh, [pin_of(P(None, "data"), type.shape, mesh)], [None]).local
    assert local.collectives() == []
    assert local.outputs[0].layout.dims == ((), ("data",))


@pytest.mark.table(default=2)
@pytest.mark.parametrize("count", [2, 3, 16, 17, 1000])
def test_work_is_linear_and_depth_logarithmic(count):
    """At most two combinations per element, in at most two rounds per halving."""
    sizes = []

    def combine(x, y):
        sizes.append(x.shape[0])
        return x + y

    build(lambda x: [lax.associative_scan(combine, x)], [ArrayType((count,), np.float32)], "counted")
    assert sum(sizes) < 2 * count
    assert len(sizes) <= 2 * np.ceil(np.log2(count))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: lax.associative_scan(3, x),
            TypeError,
            "associative_scan: fn must be a function of two pytrees, not 3",
        ),
        (lambda x: lax.associative_scan(jnp.add, ()), ValueError, "associative_scan: elems has no arrays"),
        (
            lambda x: lax.associative_scan(jnp.add, x, axis=2),
            ValueError,
            "associative_scan: axis 2 does not exist in an array of rank 2",
        ),
        (
            lambda x: lax.associative_scan(jnp.add, 2.0),
            ValueError,
            "associative_scan: axis 0 does not exist in an array of rank 0",
        ),
        (
            lambda x: lax.associative_scan(affine(jnp), {"a": x, "b": x[1:]}),
            ValueError,
            "associative_scan: all arrays must have the same size along axis 0, not f32[5,2], f32[4,2]",
        ),
        (
            lambda x: lax.associative_scan(affine(jnp), {"a": x, "b": x[0]}, axis=1),
            ValueError,
            "associative_scan: all arrays must have the same size along axis 1, not f32[5,2], f32[2]",
        ),
        (
            lambda x: lax.associative_scan(lambda x, y: (x + y)[:1], x),
            TypeError,
            "associative_scan: fn must return arrays of the types of its arguments: f32[2,2], not f32[1,2]",
        ),
        (
            lambda x: lax.associative_scan(lambda x, y: x < y, x),
            TypeError,
            "associative_scan: fn must return arrays of the types of its arguments: f32[2,2], not bool[2,2]",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_messages(call, error, message):
    with pytest.raises(error) as caught:
        call(numbers((5, 2)))
    assert str(caught.value) == message


def test_result_has_the_structure_of_elems_if_fn_returns_another_container():
    class Message(NamedTuple):
        scale: Any
        shift: Any

    elems = Message(numbers((5,)), numbers((5,)))
    result = lax.associative_scan(lambda x, y: (x.scale * y.scale, x.shift + y.shift), elems)
    assert isinstance(result, Message)
    np.testing.assert_allclose(result.scale, np.cumprod(elems.scale), rtol=1e-6)
    np.testing.assert_allclose(result.shift, np.cumsum(elems.shift), rtol=1e-6)


def test_error_if_fn_returns_another_number_of_arrays():
    with pytest.raises(TypeError, match="associative_scan: fn must return a pytree of the structure of its arguments"):
        lax.associative_scan(lambda x, y: (x, y), numbers((5,)))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_sharded_scan_sends_little_and_stays_sharded(reverse):
    """Elements move only between neighbouring shards; a reversed scan does not reverse its operand."""
    mesh = sw.make_mesh((8,), ("rows",))
    x = np.random.default_rng(0).integers(0, 9, (8192, 64)).astype(np.float32)
    placed = sw.device_put(x, NamedSharding(mesh, P("rows")))
    function = sw.jit(lambda x: lax.associative_scan(lambda a, b: a + b, x, reverse=reverse))
    plan = sw.explain(function)(placed)
    assert plan.wire_bytes < x.nbytes / 8
    result = function(placed)
    assert result.sharding == placed.sharding
    np.testing.assert_array_equal(result, np.cumsum(x[::-1], 0)[::-1] if reverse else np.cumsum(x, 0))


def test_a_short_sharded_scan_in_reverse_stays_sharded(mesh):
    x = numbers((64, 8))
    placed = sw.device_put(x, NamedSharding(mesh, P("data", "model")))
    result = sw.jit(lambda x: lax.associative_scan(lambda a, b: a + b, x, reverse=True))(placed)
    assert result.sharding == placed.sharding
    np.testing.assert_allclose(result, np.cumsum(x[::-1], 0)[::-1], rtol=1e-5)
