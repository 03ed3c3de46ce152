"""inspect_array_sharding: immediately outside jit, at compile time inside, without changing the plan."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.debug import inspect_array_sharding
from shardwise.sharding import NamedSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def x(mesh):
    return sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data", "model")))


def test_outside_jit_it_is_called_immediately(x, mesh, capsys):
    inspect_array_sharding(x)
    assert capsys.readouterr().out == f"{x.sharding}\n"
    seen = []
    inspect_array_sharding(np.ones(3), callback=seen.append)
    assert seen == [SingleDeviceSharding(sw.devices()[0])]


def test_inside_jit_it_reports_the_planned_sharding_once_per_compilation(x, mesh):
    seen = []

    @sw.jit
    def f(x):
        inspect_array_sharding(x, callback=lambda s: seen.append(("x", s)))
        y = sw.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("model", None)))
        inspect_array_sharding(y, callback=lambda s: seen.append(("y", s)))
        z = x + 1
        inspect_array_sharding(z, callback=lambda s: seen.append(("z", s)))
        return y, z

    for _ in range(3):
        y, z = f(x)
    assert seen == [
        ("x", x.sharding),
        ("y", y.sharding),
        ("z", z.sharding),
    ]
    del seen[:]
    sw.jit(lambda x: inspect_array_sharding(x, callback=seen.append))(1.0)
    assert seen == [SingleDeviceSharding(sw.devices()[0])]


def test_inspection_does_not_change_the_plan(x, mesh):
    """A partial sum, a product, a loop: the collectives are the same with and without inspection."""
    seen = []

    def f(x, look):
        total = x.sum(0)
        product = x @ x.T
        for value in (total, product):
            if look:
                inspect_array_sharding(value, callback=seen.append)

        def step(carry, _):
            if look:
                inspect_array_sharding(carry, callback=seen.append)
            return carry * 2, None

        return total * 2, sw.lax.scan(step, product, None, length=3)[0]

    with_look, without = (sw.explain(lambda x, look=look: f(x, look))(x) for look in (True, False))
    assert with_look.counts() == without.counts()
    assert with_look.wire_bytes == without.wire_bytes
    assert not seen  # nothing was compiled
    found = sw.jit(lambda x: f(x, True))(x)
    np.testing.assert_array_equal(np.asarray(found[1]), np.full((8, 8), 32.0))
    assert len(seen) == 3
    assert seen[2] == found[1].sharding


def test_under_transformations(x, mesh):
    seen = []

    def f(x):
        inspect_array_sharding(x, callback=seen.append)
        return (x * x).sum()

    assert sw.grad(f)(x).sharding == x.sharding
    assert seen == [x.sharding]
    del seen[:]
    sw.jit(sw.grad(f))(x)
    assert seen == [x.sharding]
    del seen[:]
    sw.jit(sw.vmap(f))(x)
    assert seen == [x.sharding]
    del seen[:]
    sw.jit(sw.grad(lambda x: sw.checkpoint(f)(x) * 2))(x)
    assert seen == [x.sharding]  # not again in the rematerialized part
    del seen[:]
    with sw.disable_jit():
        sw.jit(f)(x)
    assert seen == [x.sharding]


def test_arguments_report_their_own_sharding(x):
    seen = []
    sw.jit(lambda y: (inspect_array_sharding(x, callback=seen.append), y + x)[1])(jnp.float32(1))
    assert seen == [x.sharding]


def test_errors(x):
    with pytest.raises(TypeError, match="inspect_array_sharding: callback must be a function, not 3"):
        inspect_array_sharding(x, callback=3)
    with pytest.raises(TypeError, match="inspect_array_sharding: needs an array or a number, not 'x'"):
        inspect_array_sharding("x")
    with pytest.raises(ZeroDivisionError):
        sw.jit(lambda x: inspect_array_sharding(x, callback=lambda _: 1 / 0))(x)
