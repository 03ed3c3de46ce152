"""The table of differences in docs/from-jax.md: what JAX does there, and what we do."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

BOTH = pytest.mark.parametrize("library", [sw, jax], ids=lambda library: library.__name__)


def mesh_of(library):
    auto = (library.sharding.AxisType.Auto,) * 2
    return library.make_mesh((4, 2), ("data", "model"), axis_types=auto)


def sharding(library, *spec, **options):
    return library.NamedSharding(mesh_of(library), library.P(*spec), **options)


def rows(count):
    return np.ones((count,), np.float32)


@BOTH
def test_default_axis_types(library):
    explicit = library.make_mesh((4, 2), ("data", "model")).axis_types == (library.sharding.AxisType.Explicit,) * 2
    assert explicit == (library is jax)


@BOTH
def test_uneven_dims(library):
    uneven = sharding(library, "data")
    constrained = library.jit(lambda x: library.lax.with_sharding_constraint(2 * x, uneven))(rows(6))
    assert constrained.sharding.is_fully_replicated == (library is jax)
    if library is jax:
        with pytest.raises(ValueError):
            jax.device_put(rows(6), uneven)
        with pytest.raises(ValueError):
            jax.jit(lambda x: x, out_shardings=uneven)(rows(6))
    else:
        assert sw.device_put(rows(6), uneven).sharding == uneven
        assert sw.jit(lambda x: x, out_shardings=uneven)(rows(6)).sharding == uneven


@BOTH
def test_argument_that_does_not_have_the_sharding_of_in_shardings(library):
    x = library.device_put(rows(8), sharding(library, "data"))
    identity = library.jit(lambda x: x, in_shardings=sharding(library, "model"))
    if library is jax:
        with pytest.raises(ValueError):
            identity(x)
    else:
        with pytest.warns(UserWarning, match="every call reshards it"):
            assert identity(x).sharding == sharding(sw, "model")


@BOTH
def test_memory_of_results(library):
    on_host = library.device_put(rows(8), sharding(library, "data", memory_kind="pinned_host"))
    on_device = library.device_put(rows(8), sharding(library, "data"))
    if library is jax:
        assert (on_host + 1).sharding.memory_kind == "pinned_host"
        with pytest.raises(ValueError):
            on_host + on_device
    else:
        assert (on_host + 1).sharding.memory_kind == on_device.sharding.memory_kind
        assert (on_host + on_device).sharding.memory_kind == on_device.sharding.memory_kind


@BOTH
def test_text_of_types(library):
    x = library.device_put(rows(8), sharding(library, "data"))
    assert str(library.typeof(x)) == ("float32[8]" if library is jax else "f32[8]")


@BOTH
def test_second_derivatives_of_custom_jvp_in_scan(library):
    cube = library.custom_jvp(lambda x: x**3)
    cube.defjvp(lambda primals, tangents: (cube(*primals), 10 * cube(*primals) * tangents[0]))
    in_scan = lambda x: library.lax.scan(lambda carry, _: (cube(carry), None), x, None, length=1)[0]  # noqa: E731
    assert library.grad(library.grad(cube))(2.0) == 800
    assert library.grad(in_scan)(2.0) == 80
    assert library.grad(library.grad(in_scan))(2.0) == (120 if library is jax else 800)
