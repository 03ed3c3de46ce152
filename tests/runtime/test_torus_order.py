"""The order of TPUs in meshes, compared with JAX's for the same fake devices."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import ShardingError
from shardwise.experimental.mesh_utils import create_device_mesh, create_hybrid_device_mesh


@dataclass(frozen=True)
class FakeTpu:
    """A TPU as PJRT describes it."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    device_kind: str
    process_index: int = 0
    slice_index: int = 0
    platform: str = "tpu"


def slice_of(kind, size, cores=1, start=(0, 0, 0), slice_index=0):
    """Return the devices of a slice in the order of PJRT: the core varies fastest, then x, y and z."""
    places = product(*map(range, reversed(size)), range(cores))
    return [
        FakeTpu(index, (start[0] + x, start[1] + y, start[2] + z), core, kind, index // 8, slice_index)
        for index, (z, y, x, core) in enumerate(places)
    ]


# Kind, size of the torus, cores per chip, shapes of meshes.
SLICES = [
    ("TPU v2", (2, 2, 1), 2, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
    ("TPU v3", (4, 4, 1), 2, [(32,), (4, 8), (8, 4), (2, 2, 8)]),
    ("TPU v4 lite", (2, 2, 1), 1, [(4,), (2, 2)]),
    ("TPU v4", (4, 4, 4), 1, [(64,), (4, 16), (16, 4), (4, 4, 4), (1, 64), (4, 1, 16)]),
    ("TPU v4", (2, 2, 4), 1, [(16,), (4, 4), (2, 2, 4), (4, 2, 2), (2, 8)]),
    ("TPU v4", (4, 8, 8), 1, [(4, 64), (64, 4), (8, 32), (4, 8, 8)]),
    ("TPU v5 lite", (2, 2, 1), 1, [(4,), (2, 2)]),
    ("TPU v5 lite", (2, 4, 1), 1, [(8,), (2, 4), (4, 2)]),
    ("TPU v5 lite", (4, 4, 1), 1, [(16,), (4, 4), (1, 16), (2, 8), (2, 2, 4)]),
    ("TPU v5 lite", (4, 8, 1), 1, [(32,), (4, 8), (8, 4), (2, 16), (2, 2, 8), (2, 4, 4)]),
    ("TPU v5e", (4, 8, 1), 1, [(4, 8), (2, 16)]),
    ("TPU v5 lite", (16, 16, 1), 1, [(256,), (16, 16), (8, 32), (4, 8, 8)]),
    ("TPU v5p", (2, 2, 2), 1, [(8,), (2, 4), (2, 2, 2)]),
    ("TPU v5p", (4, 4, 8), 1, [(128,), (16, 8), (8, 16), (4, 32)]),
    ("TPU v5p", (2, 2, 4), 2, [(32,), (8, 4), (4, 8), (16, 2)]),
    ("TPU v6 lite", (4, 4, 1), 1, [(16,), (4, 4)]),
    ("TPU v6 lite", (8, 16, 1), 1, [(128,), (8, 16), (16, 8)]),
    ("TPU7x", (2, 2, 2), 2, [(16,), (2, 8), (4, 4)]),
    ("TPU7x", (4, 4, 4), 2, [(128,), (4, 32), (64, 2), (16, 8)]),
    ("TPU8i", (2, 2, 1), 1, [(4,), (2, 2)]),
]
CASES = [(kind, size, cores, shape) for kind, size, cores, shapes in SLICES for shape in shapes]


def ids(grid):
    return np.vectorize(lambda device: device.id)(grid)


@pytest.mark.jax
@pytest.mark.parametrize(("kind", "size", "cores", "shape"), CASES, ids=str)
@pytest.mark.parametrize("split", [False, True], ids=["whole axes", "split axes"])
def test_order_is_that_of_jax(kind, size, cores, shape, split):
    from jax.experimental import mesh_utils  # noqa: PLC0415 - without jax, the other tests run

    devices = slice_of(kind, size, cores)
    try:
        expected = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=split)
    except NotImplementedError:
        with pytest.raises(ShardingError, match=r"does not fit the torus.*is not the product of whole axes"):
            create_device_mesh(shape, devices, allow_split_physical_axes=split)
    else:
        np.testing.assert_array_equal(
            ids(create_device_mesh(shape, devices, allow_split_physical_axes=split)), ids(expected)
        )


@pytest.mark.jax
@pytest.mark.parametrize(
    ("size", "shape"), [((2, 2, 1), (2, 2)), ((4, 4, 4), (16, 4)), ((4, 4, 4), (16, 1, 4)), ((4, 8, 8), (4, 64))]
)
def test_contiguous_order_is_that_of_jax(size, shape):
    from jax.experimental import mesh_utils  # noqa: PLC0415 - without jax, the other tests run

    devices = slice_of("TPU v4", size)
    expected = mesh_utils.create_device_mesh(shape, devices, contiguous_submeshes=True)
    np.testing.assert_array_equal(ids(create_device_mesh(shape, devices, contiguous_submeshes=True)), ids(expected))


@pytest.mark.jax
@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (2, 16), (2, 4, 4), (3, 8)])
@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v6 lite"])
def test_make_mesh_orders_as_jax(kind, shape):
    import jax  # noqa: PLC0415 - without jax, the other tests run

    devices = slice_of(kind, (4, 8, 1))
    names = tuple("abc"[: len(shape)])
    try:
        expected = jax.make_mesh(shape, names, devices=devices).devices
    except (NotImplementedError, AssertionError):
        with pytest.raises(ShardingError, match=r"torus|cuboid"):
            sw.make_mesh(shape, names, devices=devices)
    else:
        np.testing.assert_array_equal(ids(sw.make_mesh(shape, names, devices=devices).devices), ids(expected))


@pytest.mark.jax
def test_hybrid_mesh_orders_each_slice_as_jax():
    from jax.experimental import mesh_utils  # noqa: PLC0415 - without jax, the other tests run

    devices = [device for index in (1, 0) for device in slice_of("TPU v4", (2, 2, 4), slice_index=index)]
    expected = mesh_utils.create_hybrid_device_mesh((4, 4), (2, 1), devices)
    found = create_hybrid_device_mesh((4, 4), (2, 1), devices)
    assert [[(d.slice_index, d.id) for d in row] for row in found] == [
        [(d.slice_index, d.id) for d in row] for row in expected
    ]


def test_neighbours_along_the_last_axis_have_a_link():
    grid = create_device_mesh((4, 4, 4), slice_of("TPU v4", (4, 4, 4)))
    for axis in range(3):
        steps = {
            tuple(np.subtract(a.coords, b.coords))
            for a, b in zip(np.moveaxis(grid, axis, 0)[:-1].flat, np.moveaxis(grid, axis, 0)[1:].flat, strict=True)
        }
        (step,) = steps
        assert sorted(map(abs, step)) == [0, 0, 1]


def test_a_cuboid_need_not_start_at_the_origin():
    devices = slice_of("TPU v4", (2, 2, 4), start=(4, 0, 8))
    at_origin = slice_of("TPU v4", (2, 2, 4))
    np.testing.assert_array_equal(ids(create_device_mesh((4, 4), devices)), ids(create_device_mesh((4, 4), at_origin)))


@pytest.mark.parametrize(
    ("devices", "shape", "options", "message"),
    [
        (slice_of("TPU v4", (4, 4, 4))[:63], (63,), {}, "the 63 devices are not a cuboid without holes"),
        (slice_of("TPU v4", (2, 2, 2), 2), (16,), {}, "'TPU v4' must be one per chip, but some are a second core"),
        (slice_of("TPU v4", (4, 4, 4)), (8, 8), {}, r"axis 1 of size 8 is not the product of whole axes"),
        (
            slice_of("TPU v4", (4, 4, 4)),
            (4, 16),
            {"contiguous_submeshes": True},
            r"no contiguous order .* \(4, 4, 4\). Shapes that have one: \(16, 4\).",
        ),
    ],
    ids=["hole", "cores", "shape", "contiguous"],
)
def test_errors(devices, shape, options, message):
    with pytest.raises(ShardingError, match=message):
        create_device_mesh(shape, devices, **options)


def test_make_mesh_of_several_slices_is_an_error():
    devices = [device for index in range(2) for device in slice_of("TPU v4", (2, 2, 1), slice_index=index)]
    with pytest.raises(ShardingError, match=r"several slices.*create_hybrid_device_mesh"):
        sw.make_mesh((8,), ("x",), devices=devices)
