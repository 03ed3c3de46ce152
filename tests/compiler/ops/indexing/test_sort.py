"""sort and top_k beyond the laws: errors, ties and special values, collectives on a mesh, and derivatives."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.indexing.sort import Sort, TopK
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from shardwise.sharding import NamedSharding


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Sort(0), "", "sort: needs at least one operand"),
        (Sort(0), "f32[3] i32[4]", "sort: operands must have one shape, not f32[3], i32[4]"),
        (Sort(1), "f32[3]", "sort: dim 1 does not exist in f32[3]"),
        (Sort(0, 2), "f32[3]", "sort: the number of keys must be from 1 to 1, the number of operands, not 2"),
        (Sort(0, 0), "f32[3] f32[3]", "sort: the number of keys must be from 1 to 2, the number of operands, not 0"),
        (TopK(1), "f32[]", "top_k: needs an array of rank 1 or more, not f32[]"),
        (TopK(4), "f32[5,3]", "top_k: k must be from 0 to 3, the size of the last dim of f32[5,3], not 4"),
        (TopK(-1), "f32[5,3]", "top_k: k must be from 0 to 3, the size of the last dim of f32[5,3], not -1"),
        (TopK(1), "c64[3]", "top_k: complex numbers have no order: c64[3]"),
    ],
    ids=str,
)
def test_wrong_operands_raise_type_error(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def test_sort_puts_nan_last_and_treats_zeros_as_equal():
    x = np.array([0.0, np.nan, -0.0, np.inf, -np.nan, -np.inf, 0.0, -0.0], np.float32)
    found, order = Sort(0)(jnp.array(x), jnp.arange(8))
    assert order.tolist() == [5, 0, 2, 6, 7, 3, 1, 4]
    assert np.asarray(found).tobytes() == x[np.asarray(order)].tobytes()
    _, order = Sort(0, 1, descending=True)(jnp.array(x), jnp.arange(8))
    assert order.tolist() == [1, 4, 3, 0, 2, 6, 7, 5]


def test_top_k_treats_nan_as_largest_and_breaks_ties_by_index():
    x = jnp.array([1.0, np.nan, -np.inf, 2.0, -np.nan, 2.0, np.inf, -0.0, 0.0])
    _, places = lax.top_k(x, 9)
    assert places.tolist() == [1, 4, 6, 3, 5, 0, 8, 7, 2]
    _, places = lax.top_k(jnp.array([False, True, False, True]), 4)
    assert places.tolist() == [1, 3, 0, 2]
    _, places = lax.top_k(jnp.array([-(2**31), 2**31 - 1, 0, 2**31 - 1], np.int32), 4)
    assert places.tolist() == [1, 3, 2, 0]


MESH = AbstractMesh((8,), ("x",))


def stages(op, shape, spec):
    program = rewrite("program", [ArrayType(shape, np.float32)], lambda x: list(op(x)))
    return program, run_stages(program, MESH, [pin_of(spec, shape, MESH)], [None] * len(program.outputs))


def assert_same(local, program, args):
    for got, want in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("columns", [65536, 65531], ids=["even", "uneven"])
def test_top_k_along_a_sharded_dim_gathers_k_candidates_per_shard(columns):
    """XLA was reported to gather the complete operand (14.7 MB) and to return indices within the shards."""
    program, found = stages(TopK(8), (64, columns), P(None, "x"))
    steps = found.local.collectives()
    assert [step.op.name for step in steps] == ["all_gather"] * 2
    assert sum(map(found.local.bytes_sent, steps)) == 7 * 64 * 8 * (4 + 4)
    assert_same(found.local, program, [np.random.default_rng(0).integers(0, 10**4, (64, columns)).astype(np.float32)])


def test_batch_dims_stay_sharded():
    for op in (Sort(1), TopK(3)):
        program, found = stages(op, (21, 10), P("x", None))
        assert found.local.collectives() == []
        assert_same(found.local, program, [np.random.default_rng(0).normal(size=(21, 10)).astype(np.float32)])


@pytest.mark.parametrize("columns", [4096, 4093], ids=["even", "uneven"])
def test_sort_along_a_sharded_dim_needs_two_all_to_alls(columns):
    program, found = stages(Sort(1), (64, columns), P(None, "x"))
    steps = found.local.collectives()
    assert [step.op.name for step in steps] == ["all_to_all"] * 2
    assert sum(map(found.local.bytes_sent, steps)) <= 2 * 64 * 4096 * 4 / 8 * 7 / 8
    assert [placement.layout.dims for placement in found.local.outputs] == [((), ("x",))]
    assert_same(found.local, program, [np.random.default_rng(0).normal(size=(64, columns)).astype(np.float32)])


def test_a_single_row_is_gathered():
    program, found = stages(Sort(0), (100_003,), P("x"))
    assert [step.op.name for step in found.local.collectives()] == ["all_gather"]
    assert_same(found.local, program, [np.random.default_rng(0).normal(size=100_003).astype(np.float32)])


SHARDED = [
    ((16, 3), P("data")),
    ((13, 3), P("data", "model")),
    ((3, 9), P("data")),
    ((19, 1), P(("data", "model"))),
    ((10, 8), P(("model", "data"))),
    ((9, 16), P("model")),
]


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(t, marks=pytest.mark.slow) for t in (np.int8, np.bool_))])
def test_sort_on_a_mesh_matches_one_device(mesh, dtype, descending):
    """Many elements are equal; the second operand shows that the sort is stable."""
    rng = np.random.default_rng(0)
    for shape, spec in SHARDED:
        x = rng.integers(-2, 3, shape).astype(dtype)
        if dtype == np.float32:
            x.flat[::5] = np.nan
        payload = rng.permutation(x.size).reshape(shape).astype(np.int32)
        sharded = [sw.device_put(array, NamedSharding(mesh, spec)) for array in (x, payload)]
        sort = sw.jit(Sort(0, 1, descending))
        for got, want in zip(sort(*sharded), sort(x, payload), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.table(default=4)
@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_])
def test_top_k_on_a_mesh_matches_one_device(mesh, dtype, k):
    """Shards with fewer than k elements, shards of nothing but padding, ties, and rows of only the lowest number."""
    rng = np.random.default_rng(0)
    lowest = np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -np.inf if dtype == np.float32 else False
    for columns, spec in [(16, P(None, "data")), (9, P("model", "data")), (9, P(None, ("data", "model")))]:
        x = rng.integers(-2, 3, (4, columns)).astype(dtype)
        x[1] = lowest
        x[2, 1:] = lowest
        if dtype == np.float32:
            x[3, ::2] = np.nan
        top_k = sw.jit(lambda x, k=k: lax.top_k(x, k))
        sharded = sw.device_put(x, NamedSharding(mesh, spec))
        for got, want in zip(top_k(sharded), top_k(x), strict=True):
            np.testing.assert_array_equal(got, want)


def test_gradients_are_scattered_to_the_source_indices(mesh):
    x = np.array([[3.0, 1.0, 2.0], [5.0, 9.0, 7.0]], np.float32)
    weight = np.array([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]], np.float32)
    expected = [[30, 10, 20], [1, 3, 2]]
    for arg in (x, sw.device_put(x, NamedSharding(mesh, P(None, "data")))):
        sort_grad = sw.jit(sw.grad(lambda x: (jnp.sort(x) * weight).sum()))(arg)
        np.testing.assert_array_equal(sort_grad, expected)
        values_grad = sw.jit(sw.grad(lambda y, keys=arg: (lax.sort_key_val(keys, y)[1] * weight).sum()))(arg)
        np.testing.assert_array_equal(values_grad, expected)
        top_k_grad = sw.jit(sw.grad(lambda x: (lax.top_k(x, 2)[0] * weight[:, :2]).sum()))(arg)
        np.testing.assert_array_equal(top_k_grad, [[10, 0, 20], [0, 1, 2]])


def test_infinite_cotangents_do_not_reach_other_elements():
    pulled = sw.vjp(lambda x: lax.top_k(x, 2)[0], jnp.array([1.0, 2.0, 3.0]))[1](jnp.array([np.inf, np.nan]))
    np.testing.assert_array_equal(pulled[0], [0, np.nan, np.inf])
