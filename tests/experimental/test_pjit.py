"""pjit: jit that follows the mesh of `with mesh:`."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import ShardingError
from shardwise.experimental.pjit import pjit
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_pjit_is_jit_with_shardings(mesh):
    with mesh:
        out = pjit(lambda x: x * 2, in_shardings=P("data"), out_shardings=P(None))(np.ones(8, np.float32))
    assert out.sharding == NamedSharding(mesh, P())


def test_pjit_runs_on_the_mesh_of_with_mesh(mesh):
    x = jnp.arange(8)
    f = pjit(lambda x: x * 2)
    with mesh:
        assert f(x).sharding == pjit(lambda: 1)().sharding == NamedSharding(mesh, P())
        assert len(sw.jit(lambda x: x * 2)(x).devices()) == 1
    assert len(f(x).devices()) == 1


def test_none_in_the_shardings_of_pjit_is_replicated(mesh):
    x = sw.device_put(np.arange(8), NamedSharding(mesh, P("data")))
    for options in ({"out_shardings": None}, {"in_shardings": P("data"), "out_shardings": [None]}):
        with mesh:
            assert pjit(lambda x: [x * 2], **options)(x)[0].sharding == NamedSharding(mesh, P())
    with mesh:
        assert pjit(lambda x: x * 2, in_shardings=(None,))(np.arange(8)).sharding == NamedSharding(mesh, P())
    assert pjit(lambda x: x * 2, None, None)(x).sharding == NamedSharding(mesh, P("data"))
    with mesh:
        assert (
            pjit(lambda x: x * 2)(x).sharding == sw.jit(lambda x: x * 2, out_shardings=None)(x).sharding == x.sharding
        )


def test_pjit_decorates(mesh):
    @pjit(static_argnames="times")
    def f(x, times):
        return x * times

    with mesh:
        assert f(3, times=2) == 6
    with mesh, pytest.raises(ShardingError, match="in_shardings must be a tree prefix"):
        pjit(lambda x: x, (P("data"), P("data")), P("data"))(np.ones(8))
