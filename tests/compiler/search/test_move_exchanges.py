"""move_exchanges: chains of ops that exchange data along a sharded dim move to another dim, if that is faster.

Values are compared with one device; bytes with those of the plan along the pinned dim, and with what an expert writes.
"""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.pipeline import move_exchanges
from shardwise.sharding import AxisType, NamedSharding
from shardwise.sharding import PartitionSpec as P


def recurrence(a, b):
    """Solve h[t] = a[t] h[t-1] + b[t] along dim 1."""

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    return lax.associative_scan(combine, (a, b), axis=1)[1]


def selective_scan(params, x):
    """A selective state-space layer: the state is computed, and never an argument."""
    step = jnp.logaddexp(x * params["scale"], 0.0)
    decay = jnp.exp(-step[..., None] * params["decay"])
    update = (step * x)[..., None] * (x @ params["in"])[:, :, None, :]
    h = recurrence(decay, update)
    return jnp.mean(jnp.einsum("bldn,bln->bld", h, x @ params["out"]) ** 2)


def arguments(mesh, batch=8, length=512, width=64, state=8, dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {"scale": (width,), "decay": (width, state), "in": (width, state), "out": (width, state)}
    params = {name: rng.uniform(0.1, 1, shape).astype(dtype) for name, shape in shapes.items()}
    x = rng.normal(size=(batch, length, width)).astype(dtype)
    return sw.device_put(params, NamedSharding(mesh, P())), sw.device_put(x, NamedSharding(mesh, P(None, "x")))


@pytest.fixture
def unmoved(monkeypatch):
    """Plans without this pass."""

    def plan(function, *args):
        with monkeypatch.context() as patch:
            patch.setattr(move_exchanges, "move_exchanges", lambda program, donated: program)
            sw.clear_caches()
            lowered = function.lower(*args)
        sw.clear_caches()
        return lowered

    return plan


@pytest.mark.slow
def test_a_scan_along_a_sharded_dim_is_sharded_along_another(unmoved):
    mesh = sw.make_mesh((8,), ("x",))
    args = arguments(mesh)
    step = sw.jit(sw.grad(selective_scan, (0, 1)))
    before, after = unmoved(step, *args).plan, step.lower(*args).plan
    assert len(before.collectives) > 40 and len(after.collectives) <= 8
    assert after.wire_bytes < before.wire_bytes / 4 and after.seconds < before.seconds / 2
    assert [row.layout for row in after.outputs] == [row.layout for row in before.outputs]
    kinds = [row.kind for row in after.collectives if (row.type != "f32[]" and "64" in row.type) or "[8,8" in row.type]
    assert kinds.count("all_to_all") <= 2  # of the argument, and of its gradient
    results, expected = step(*args), sw.grad(selective_scan, (0, 1))(*sw.tree.map(np.asarray, args))
    for result, value in zip(sw.tree.leaves(results), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "sizes", "spec"),
    [((512, 384), (8,), P("x")), ((16, 128, 96), (4,), P(None, "x")), ((512, 256), (2, 4), P(("x", "y")))],
    ids=str,
)
def test_a_transform_and_its_inverse_need_one_exchange_each(shape, sizes, spec):
    mesh = sw.make_mesh(sizes, ("x", "y")[: len(sizes)], devices=sw.devices()[: int(np.prod(sizes))])
    rng = np.random.default_rng(1)
    x = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    there_and_back = sw.jit(lambda x: jnp.fft.ifft2(jnp.fft.fft2(x) * 2))
    placed = sw.device_put(x, NamedSharding(mesh, spec))
    plan = there_and_back.lower(placed).plan
    assert plan.counts() == {"all_to_all": 2}
    np.testing.assert_allclose(there_and_back(placed), 2 * x, atol=1e-5)


def test_output_shardings_and_constraints_of_the_user_hold():
    mesh = sw.make_mesh((8,), ("x",))
    along = NamedSharding(mesh, P(None, "x"))
    args = arguments(mesh)[1:] * 2

    def program(a, b):
        a = lax.with_sharding_constraint(jnp.abs(a), along)
        return recurrence(a, b)

    out = sw.jit(program, out_shardings=along)(*args)
    assert out.sharding.is_equivalent_to(along, 3)
    a, b = (np.asarray(x, np.float64) for x in args)
    h, expected = np.zeros_like(b[:, 0]), []
    for t in range(a.shape[1]):
        h = np.abs(a[:, t]) * h + b[:, t]
        expected.append(h)
    np.testing.assert_allclose(out, np.stack(expected, 1), rtol=1e-4, atol=1e-4)


def test_types_decide_along_explicit_axes():
    """A dim that is sharded by its type is not moved."""
    mesh = sw.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    with sw.set_mesh(mesh):
        x = sw.device_put(np.ones((64, 48), np.complex64), NamedSharding(mesh, P("x")))
        out = sw.jit(lambda x: jnp.fft.fft(x, axis=1) * 2)(x)
        assert sw.typeof(out).sharding.spec == P("x", None)


def test_a_cheap_exchange_stays_where_it_is(unmoved):
    """A difference of neighbours sends one row; an all-to-all would send the array. So does a small transform."""
    mesh = sw.make_mesh((8,), ("x",))
    x = sw.ShapeDtypeStruct((4096, 64), np.float32, sharding=NamedSharding(mesh, P("x")))
    difference = sw.jit(lambda x: x[1:] - x[:-1])
    assert str(difference.lower(x).plan) == str(unmoved(difference, x).plan)
    small = sw.ShapeDtypeStruct((64, 48), np.complex64, sharding=NamedSharding(mesh, P("x")))
    there_and_back = sw.jit(lambda x: jnp.fft.ifft2(jnp.fft.fft2(x)))
    assert str(there_and_back.lower(small).plan) == str(unmoved(there_and_back, small).plan)
