"""Updates on a mesh: their collectives."""

import numpy as np
import pytest

from shardwise.compiler.shardings.spec import PartitionSpec as P
from tests.compiler.ops.indexing.compiled import F32, I32, assert_like_one_device, collectives, compile_on_mesh


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
