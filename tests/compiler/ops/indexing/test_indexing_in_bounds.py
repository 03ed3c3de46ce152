"""The indices that reach XLA are in bounds.

XLA merges nested slices without clamping their starts (`ops/indexing/lower_slices.py`). So `localize` must not use an
index that is out of bounds of a shard, even where the result is masked; and lowering must clamp the user's indices.
"""

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.indexing.scatter import Scatter
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.ops.cases import op_cases
from tests.compiler.ops.laws import is_shardable, sharded_programs

INDEX_OPS = (DynamicSlice, DynamicUpdateSlice, Gather, Scatter)

# The ops whose `localize` emits an index op. A new one is added here, and checked by the next test.
EMIT_INDICES = {
    "conv", "dynamic_slice", "dynamic_update_slice", "gather", "gather_from_window", "reduce_window", "scatter",
    "scatter_add_to_window", "top_k", "window_arg_extremum",
}  # fmt: skip


def starts_and_limits(op, operands):
    """Return pairs of start indices, as an array, and the largest start that is in bounds."""
    x, *rest = operands
    shape = np.shape(x)
    if isinstance(op, DynamicSlice):
        return [(start, n - size) for start, n, size in zip(rest, shape, op.sizes, strict=True)]
    if isinstance(op, DynamicUpdateSlice):
        update, *starts = rest
        return [(start, n - size) for start, n, size in zip(starts, shape, np.shape(update), strict=True)]
    if isinstance(op, Gather):
        sizes = op.sizes
    else:
        sizes = op.sizes_of(ArrayType(shape, x.dtype), ArrayType(np.shape(rest[1]), x.dtype))
    return [(rest[0][..., index], shape[dim] - sizes[dim]) for index, dim in enumerate(op.mapped)]


def args_in_bounds(case):
    """Return the operands of a case, with the start indices of an index op in bounds."""
    args = [np.array(arg) for arg in case.args]
    if isinstance(case.op, INDEX_OPS):
        for start, limit in starts_and_limits(case.op, args):
            start[...] = np.clip(start, 0, limit)
    return args


def pads_indices(case, local):
    """Return whether shards have padded index vectors, which are arbitrary: only padding of the result uses them."""
    if not isinstance(case.op, Gather | Scatter):
        return False
    indices = local.inputs[1]
    counts = [local.mesh.extent(axes) for axes in indices.layout.dims]
    return any(size % count for size, count in zip(indices.type.shape, counts, strict=True))


@contextmanager
def checked_indices():
    """Check the operands of all index ops that are simulated."""

    def checked(reference):
        def check_and_run(op, *operands):
            for start, limit in starts_and_limits(op, operands):
                # A scatter drops updates at -1; its lowering does not rely on XLA for that if there is one update.
                low = -1 if isinstance(op, Scatter) else 0
                assert np.all((start >= low) & (start <= limit)), f"{op}: {start} is not in [{low}, {limit}]"
            return reference(op, *operands)

        return check_and_run

    with ExitStack() as stack:
        for op in INDEX_OPS:
            stack.enter_context(patch.object(op, "reference", checked(op.reference)))
        yield


CASES = defaultdict(list)
for op_case in op_cases():
    if type(op_case.op).localize is not Op.localize and is_shardable(op_case) and not op_case.op.programs:
        CASES[op_case.op.name].append(op_case)


def emits_indices(cases):
    """Check the indices of all devices. Return whether any local program has an index op."""
    emits = False
    for case in cases:
        for local in sharded_programs(case):
            if any(isinstance(equation.op, INDEX_OPS) for equation in local.program.equations):
                emits = True
                if not pads_indices(case, local):
                    with checked_indices():
                        evaluate_shards(local, args_in_bounds(case))
    return emits


@pytest.mark.table(default=18)
@pytest.mark.parametrize("name", sorted(CASES))
def test_devices_index_their_shards_in_bounds(name):
    assert emits_indices(CASES[name][:6]) <= (name in EMIT_INDICES)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_devices_index_their_shards_in_bounds_in_all_cases(name):
    assert emits_indices(CASES[name]) == (name in EMIT_INDICES)


X = np.arange(100, 112, dtype=np.float32)
BOUNDS = [-100, -5, -1, 0, 3, 4, 7, 100]


@pytest.mark.parametrize("outer", BOUNDS)
@pytest.mark.parametrize("inner", [-3, 2, 50])
def test_nested_slices_are_clamped_one_after_the_other(inner, outer):
    """XLA merges the slices without clamping their starts, also on one device."""

    def sliced(x, start, size):
        first = int(np.clip(start, 0, len(x) - size))
        return x[first : first + size]

    window = sliced(X, inner, 4)
    is_inside = 0 <= outer < 4
    changed = {name: window.copy() for name in ("set", "add", "max")}
    if is_inside:
        changed["set"][outer] = 500
        changed["add"][outer] += 500
        changed["max"][outer] = max(500, window[outer])

    def both(x, inner, outer):
        x = lax.dynamic_slice(x, (inner,), (4,), allow_negative_indices=False)
        at = x.at[outer]
        updated = {
            name: getattr(at, name)(500.0, mode="drop", wrap_negative_indices=False) for name in ("set", "add", "max")
        }
        return (
            lax.dynamic_slice(x, (outer,), (2,), allow_negative_indices=False),
            lax.dynamic_slice(x.reshape(1, 4).T, (outer, 0), (2, 1), allow_negative_indices=False).reshape(2),
            at.get(mode="clip", wrap_negative_indices=False),
            at.get(mode="fill", fill_value=-1, wrap_negative_indices=False),
            updated,
        )

    plain, reshaped, clipped, filled, updated = sw.jit(both)(X, np.int32(inner), np.int32(outer))
    np.testing.assert_array_equal(plain, sliced(window, outer, 2))
    np.testing.assert_array_equal(reshaped, sliced(window, outer, 2))
    assert clipped == window[np.clip(outer, 0, 3)]
    assert filled == (window[outer] if is_inside else -1)
    for name, expected in changed.items():
        np.testing.assert_array_equal(updated[name], expected)


@pytest.mark.table(default=5)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
def test_one_update_of_a_replicated_array_whose_result_is_sharded(method, dtype):
    mesh = sw.make_mesh((4,), ("a",))
    x = np.arange(1, 13).astype(dtype)
    new = np.asarray(3).astype(dtype)
    combine = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
    for index in range(12):
        update = sw.jit(lambda x, i: getattr(x.at[i], method)(new), out_shardings=NamedSharding(mesh, P("a")))
        expected = x.copy()
        expected[index] = new if method == "set" else combine[method](expected[index], new)
        np.testing.assert_array_equal(np.asarray(update(x, np.int32(index))), expected)
