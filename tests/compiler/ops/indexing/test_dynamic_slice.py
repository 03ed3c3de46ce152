"""dynamic_slice and dynamic_update_slice on a mesh: clamped starts, and collectives."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise.compiler.ops.indexing.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from shardwise.compiler.shardings.spec import PartitionSpec as P
from tests.compiler.ops.indexing.compiled import F32, I32, assert_like_one_device, collectives, compile_on_mesh


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
