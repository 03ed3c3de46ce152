"""dynamic_slice, gather and scatter: errors for wrong operands, and results and gradients on a mesh."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.compiler.ir.op import result_types
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.reduction import MIN, OR
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.sharding import NamedSharding
from tests.compiler.ops.indexing.compiled import F32, I32

ROWS = ((1,), (0,), (), (), (0,))


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (DynamicSlice((2,)), "f32[3,4] i32[]", "dynamic_slice: needs one start index per dim of f32[3,4], not 1"),
        (
            DynamicSlice((4,)),
            "f32[3] i32[]",
            "dynamic_slice: slice_sizes (4,) must be from 0 to the size of each dim: "
            "dim 0 of f32[3] has 3 elements, not 4",
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
