"""dynamic_slice, dynamic_update_slice, gather and scatter beyond the laws: errors, and collectives on a mesh.

Each report about indexed access against another partitioner has a test here, which names it.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.reduction import MIN, OR
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.sharding import NamedSharding

MESH = AbstractMesh((4, 2), ("data", "model"))
ROWS = ((1,), (0,), (), (), (0,))


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (DynamicSlice((2,)), "f32[3,4] i32[]", "dynamic_slice: needs one start index per dim of f32[3,4], not 1"),
        (
            DynamicSlice((4,)),
            "f32[3] i32[]",
            "dynamic_slice: sizes (4,) must have one entry per dim of f32[3], none larger than the dim",
        ),
        (
            DynamicSlice((1, 1)),
            "f32[3,4] i32[] i64[]",
            "dynamic_slice: start indices must be scalars, all i32 or all i64, not i32[], i64[]",
        ),
        (
            DynamicSlice((1,)),
            "f32[3] f32[]",
            "dynamic_slice: start indices must be scalars, all i32 or all i64, not f32[]",
        ),
        (
            DynamicUpdateSlice(),
            "f32[3] f32[4] i32[]",
            "dynamic_update_slice: the update f32[4] must have the dtype and rank of f32[3], and no larger dims",
        ),
        (
            DynamicUpdateSlice(),
            "f32[3] i32[2] i32[]",
            "dynamic_update_slice: the update i32[2] must have the dtype and rank of f32[3], and no larger dims",
        ),
        (
            Gather(*ROWS, (1, 4)),
            "f32[3,4] f32[5,1]",
            "gather: needs index vectors of i32 or i64 along the last dim, not f32[5,1]",
        ),
        (Gather(*ROWS, (1, 4)), "f32[3,4] i32[5,2]", "gather: i32[5,2] holds vectors of 2, for dims (0,)"),
        (Gather(*ROWS, (1, 5)), "f32[3,4] i32[5,1]", "gather: windows of shape (1, 5) do not fit f32[3,4]"),
        (
            Gather(*ROWS, (2, 4)),
            "f32[3,4] i32[5,1]",
            "gather: windows of shape (2, 4) have more than one element along a collapsed or batch dim",
        ),
        (
            Gather((1,), (2,), (), (), (0,), (1, 4)),
            "f32[3,4] i32[5,1]",
            "gather: collapsed dims (2,) must be distinct dims of f32[3,4]",
        ),
        (
            Gather((1,), (), (0,), (0,), (0,), (1, 4)),
            "f32[3,4] i32[5,1]",
            "gather: batch dims [0] cannot be collapsed or mapped too",
        ),
        (
            Gather((), (1,), (0,), (0,), (1,), (1, 1)),
            "f32[3,4] i32[5,1]",
            "gather: batch dim 0 of f32[3,4] and batch dim 0 of i32[5,1] differ in size",
        ),
        (
            Gather((), (1,), (0,), (), (1,), (1, 1)),
            "f32[3,4] i32[5,1]",
            "gather: the batch dims (0,) of the operand and () of the indices must be pairs",
        ),
        (
            Gather((0, 1), (0,), (), (), (0,), (1, 4)),
            "f32[3,4] i32[5,1]",
            "gather: 2 window dims for the dims [1] of f32[3,4]",
        ),
        (
            Gather((2,), (0,), (), (), (0,), (1, 4)),
            "f32[3,4] i32[5,1]",
            "gather: window dims (2,) must be ascending dims of an array of rank 2",
        ),
        (
            Scatter(*ROWS, OR),
            "f32[3,4] i32[5,1] f32[5,4]",
            "scatter: cannot combine by or; supported: sum, prod, min, max",
        ),
        (
            Scatter(*ROWS, None),
            "f32[3,4] i32[5,1] i32[5,4]",
            "scatter: updates must have the dtype of f32[3,4], not i32[5,4]",
        ),
        (Scatter(*ROWS, MIN), "c64[3,4] i32[5,1] c64[5,4]", "scatter: complex numbers have no min: c64[3,4]"),
        (
            Scatter(*ROWS, None),
            "f32[3,4] i32[5,1] f32[5]",
            "scatter: the rank of the updates f32[5] does not fit dims [1] of f32[3,4] and indices i32[5,1]",
        ),
        (
            Scatter(*ROWS, None),
            "f32[3,4] i32[5,1] f32[6,4]",
            "scatter: the updates f32[6,4] must have the batch shape of the indices i32[5,1]",
        ),
    ],
    ids=str,
)
def test_wrong_operands_raise_type_error(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


def compile_on_mesh(function, *args):
    """Return the program of a function of arrays, given as (shape, dtype, spec), and its compiled stages."""
    types = [ArrayType(shape, dtype) for shape, dtype, _ in args]
    program, captured = build(lambda *xs: [function(*xs)], types, "program")
    assert not captured
    pins = [pin_of(spec, shape, MESH) for shape, _, spec in args]
    return program, run_stages(program, MESH, pins, [None])


def collectives(stages):
    """Return the name and the result shape of each collective."""
    return [(step.op.name, step.outputs[0].type.shape) for step in stages.local.collectives()]


def assert_like_one_device(program, stages, *args):
    for got, want in zip(evaluate_shards(stages.local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(got, want)


F32, I32 = np.float32, np.int32


@pytest.mark.parametrize("rows", [8, 7], ids=["even", "uneven"])
@pytest.mark.parametrize("index", [3, -1, -77, 77, 6])
@pytest.mark.parametrize("known", [True, False], ids=["static", "traced"])
def test_indexing_a_sharded_stack_sends_only_one_layer(rows, index, known):
    """XLA gathers the whole stack to index one layer (xla PR 44796)."""
    spec = P("data", None, None)
    function = (lambda w, i: w[index]) if known else (lambda w, i: w[i])
    program, stages = compile_on_mesh(function, ((rows, 16, 64), F32, spec), ((), I32, P()))
    assert collectives(stages) == [("all_reduce", (1, 16, 64))]
    assert_like_one_device(program, stages, np.arange(rows * 1024, dtype=F32).reshape(rows, 16, 64), np.int32(index))


@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
@pytest.mark.parametrize("start", [-100, -3, 0, 2, 7, 11, 100])
def test_dynamic_slice_is_not_clamped_by_each_device(size, start):
    """XLA clamped the start index to each device's shard (xla#49122)."""
    for width in (1, 3, 6):
        program, stages = compile_on_mesh(
            lambda x, i, width=width: DynamicSlice((width, 5))(x, i, i),
            ((size, 5), F32, P("data", None)),
            ((), I32, P()),
        )
        assert collectives(stages) == [("all_reduce", (width, 5))]
        assert_like_one_device(program, stages, np.arange(size * 5, dtype=F32).reshape(size, 5), np.int32(start))


@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
@pytest.mark.parametrize("start", [-100, -3, 0, 2, 7, 11, 100])
def test_dynamic_update_slice_clamps_out_of_bounds_starts(size, start):
    """XLA dropped an update with an out-of-bounds start index on a mesh, but clamped it on one device (xla#49118)."""
    for width in (1, 3, 6):
        program, stages = compile_on_mesh(
            lambda x, u, i: DynamicUpdateSlice()(x, u, i, i),
            ((size, 5), F32, P("data", None)),
            ((width, 5), F32, P()),
            ((), I32, P()),
        )
        assert collectives(stages) == []
        x = np.arange(size * 5, dtype=F32).reshape(size, 5)
        assert_like_one_device(program, stages, x, -1 - x[:width], np.int32(start))


@pytest.mark.parametrize("size", [16, 13], ids=["even", "uneven"])
def test_static_updates_do_not_gather(size):
    """XLA gathers for `.at[static].set` along a sharded dim (jax#23052)."""
    spec = P("data", None)
    for function in (
        lambda x: x.at[3].set(1.0),
        lambda x: x.at[-1].add(2.0),
        lambda x: x.at[2:9].set(0.0),
        lambda x: x.at[1:, 0].multiply(3.0),
        lambda x: x.at[::3].max(1.5),
        lambda x: x.at[:, 2].set(7.0),
    ):
        program, stages = compile_on_mesh(function, ((size, 5), F32, spec))
        assert collectives(stages) == []
        assert stages.local.outputs[0].layout.dims == (("data",), ())
        assert_like_one_device(program, stages, np.arange(size * 5, dtype=F32).reshape(size, 5))


def test_a_stencil_update_exchanges_only_halos():
    """The updates get the sharding of the array that they are written to."""
    program, stages = compile_on_mesh(lambda x: x.at[1:-1].set(x[2:] + x[:-2]), ((4096, 64), F32, P("data", None)))
    assert {name for name, _ in collectives(stages)} == {"take_window"}
    assert sum(map(stages.local.bytes_sent, stages.local.collectives())) <= 8 * 64 * 4
    assert_like_one_device(program, stages, np.arange(4096 * 64, dtype=F32).reshape(4096, 64) % 97)


@pytest.mark.parametrize("words", [48, 50], ids=["even", "uneven"])
def test_lookup_in_an_embedding_sharded_along_the_vocabulary_needs_one_all_reduce(words):
    table, tokens = ((words, 16), F32, P("model", None)), ((8, 6), I32, P("data", None))
    program, stages = compile_on_mesh(lambda table, tokens: table[tokens], table, tokens)
    assert collectives(stages) == [("all_reduce", (2, 6, 16))]
    rng = np.random.default_rng(0)
    args = rng.standard_normal((words, 16)).astype(F32), rng.integers(-99, 99, (8, 6)).astype(I32)
    assert_like_one_device(program, stages, *args)
    program, stages = compile_on_mesh(lambda table, tokens: jnp.take(table, tokens, axis=0), table, tokens)
    assert collectives(stages) == [("all_reduce", (2, 6, 16))]  # the fill value is a term of the sum too
    assert_like_one_device(program, stages, *args)


@pytest.mark.parametrize("spec", [P("data", None), P(None, "model"), P()], ids=str)
@pytest.mark.parametrize("words", [48, 50], ids=["even", "uneven"])
def test_gradient_of_an_embedding(words, spec):
    """XLA's partitioned scatter-add returned wrong gradients (xla#42481)."""

    def step(table, tokens):
        return table - 0.5 * sw.grad(lambda table: (table[tokens] * jnp.arange(16.0)).sum())(table)

    program, stages = compile_on_mesh(step, ((words, 16), F32, spec), ((8, 6), I32, P("data", None)))
    assert stages.local.outputs[0].layout.dims == pin_of(spec, (words, 16), MESH).layout.dims
    rng = np.random.default_rng(0)
    args = rng.integers(-8, 8, (words, 16)).astype(F32), rng.integers(-99, 99, (8, 6)).astype(I32)
    assert_like_one_device(program, stages, *args)


@pytest.mark.parametrize("count", [16, 11], ids=["even", "uneven"])
@pytest.mark.parametrize("how", ["add", "min", "max"])
def test_sharded_updates_need_one_all_reduce(how, count):
    """The operand that they are added to must count only once."""
    program, stages = compile_on_mesh(
        lambda x, i, u: getattr(x.at[i], how)(u),
        ((20, 8), F32, P()),
        ((count,), I32, P("data")),
        ((count, 8), F32, P("data", None)),
    )
    assert collectives(stages) == [("all_reduce", (20, 8))]
    rng = np.random.default_rng(0)
    x, u = (rng.integers(-9, 9, shape).astype(F32) for shape in ((20, 8), (count, 8)))
    assert_like_one_device(program, stages, x, rng.integers(-30, 30, count).astype(I32), u)


def test_replicated_updates_of_a_sharded_array_need_no_collectives():
    program, stages = compile_on_mesh(
        lambda x, i, u: x.at[i].set(u), ((50, 8), F32, P("data", None)), ((7,), I32, P()), ((7, 8), F32, P())
    )
    assert collectives(stages) == []
    rng = np.random.default_rng(0)
    x, u = (rng.standard_normal(shape).astype(F32) for shape in ((50, 8), (7, 8)))
    assert_like_one_device(program, stages, x, np.array([0, 49, 12, 12, 50, -50, -51], I32), u)


def test_updates_of_a_cache_sharded_along_time_need_no_collectives():
    """Also under vmap, with an own start index for each batch element."""
    cache, new = ((6, 128, 8), F32, P(None, "data", None)), ((6, 1, 8), F32, P())
    _, stages = compile_on_mesh(lambda c, u, t: lax.dynamic_update_slice(c, u, (0, t, 0)), cache, new, ((), I32, P()))
    assert collectives(stages) == []
    each = sw.vmap(lambda c, u, t: lax.dynamic_update_slice_in_dim(c, u, t, 0))
    program, stages = compile_on_mesh(each, cache, new, ((6,), I32, P()))
    assert collectives(stages) == []
    x = np.arange(6 * 128 * 8, dtype=F32).reshape(6, 128, 8)
    assert_like_one_device(program, stages, x, -x[:, :1], np.array([0, 5, 127, 500, -1, -500], I32))


def test_lookup_of_target_logits_needs_one_all_reduce():
    """Both the batch and the classes are sharded."""
    program, stages = compile_on_mesh(
        lambda x, i: jnp.take_along_axis(x, i[:, None], 1), ((16, 50), F32, P("data", "model")), ((16,), I32, P("data"))
    )
    assert collectives(stages) == [("all_reduce", (4, 1))]
    x = np.arange(800, dtype=F32).reshape(16, 50)
    assert_like_one_device(program, stages, x, np.arange(-8, 8, dtype=I32) * 7)


def test_minus_zero_survives_a_lookup():
    _, stages = compile_on_mesh(lambda x, i: x[i], ((8,), F32, P("data")), ((3,), I32, P()))
    (found,) = evaluate_shards(stages.local, [np.full(8, -0.0, F32), np.array([1, 7, 4], I32)])
    assert np.signbit(found).all()


@pytest.mark.table(default=2)
@pytest.mark.parametrize("spec", [P("data"), P("model", "data"), P(None, "data"), P(("data", "model"))], ids=str)
@pytest.mark.parametrize("shape", [(16, 8), (13, 7)], ids=["even", "uneven"])
def test_results_and_gradients_on_a_mesh_match_one_device(mesh, shape, spec):
    x = np.cos(np.arange(np.prod(shape), dtype=F32)).reshape(shape)
    rows = np.array([0, 12, -1, 5, 5, 40, -40], I32)
    update = np.ones((3, shape[1]), F32)

    def function(x, i, rows):
        return [
            lax.dynamic_slice(x, (i, i), (5, 2)),
            lax.dynamic_update_slice(x, update, (i, 0)),
            lax.dynamic_index_in_dim(x, i, 1),
            x[rows],
            x[:, rows % 5],
            x.at[rows].add(x[rows + 1]),
            x.at[rows].max(0.25),
            x.at[i, 1:].set(2.0),
            sw.vmap(lambda r: lax.dynamic_slice_in_dim(x, r, 3, 0))(rows),
            sw.grad(lambda x: (x[rows] * x.at[rows].multiply(0.5)[rows]).sum())(x),
        ]

    for i in (-100, -2, 0, 6, 100):
        expected = sw.jit(function)(x, i, rows)
        found = sw.jit(function)(sw.device_put(x, NamedSharding(mesh, spec)), i, rows)
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
