"""The dims that each mesh axis may shard, and the axes that a reshape splits, worked out by hand."""

import pytest

from shardwise.compiler.candidates.axis_seeds import seed_axes, split_axes
from shardwise.compiler.candidates.dim_groups import dim_groups
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Add
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import rewrite

MESH = AbstractMesh((4, 2), ("data", "model"))


def seeds(types, body, layouts, mesh=MESH):
    """Return a function that says whether an axis may shard a dim of an input or of the last output."""
    program = rewrite("seeds", [parse_type(type) for type in types], body)
    pins = [(value, Pin(Layout(layout))) for value, layout in zip(program.inputs, layouts, strict=True)]
    groups = dim_groups(program.equations)
    fine = split_axes(program.equations, mesh, pins, groups)
    found = seed_axes(program.equations, mesh, mesh, pins, groups) if fine == mesh else {}
    values = (*program.inputs, *program.outputs)
    return fine, lambda axis, value, dim: found[axis].has(values[value], dim)


def test_a_pin_seeds_all_dims_of_its_group():
    _, has = seeds(["f32[8,4]", "f32[8,4]"], lambda a, b: [Add()(a, b)], [(("data",), ()), ((), ())])
    assert has("data", 1, 0) and has("data", 2, 0)
    assert not has("data", 2, 1) and not has("model", 2, 0)


def test_a_second_axis_shards_the_minor_factor_of_a_reshape():
    """32 rows over data=4 and model=2 become 4 × 8: data shards the 4 and model the 8."""
    fine, has = seeds(["f32[32]"], lambda a: [Reshape((4, 8))(a)], [(("data", "model"),)])
    assert fine == MESH
    assert has("data", 1, 0) and has("model", 1, 1)


def test_the_minor_factor_is_not_sharded_alone():
    """A shard of the 8 would be 4 separate parts of the 32."""
    _, has = seeds(["f32[32]"], lambda a: [Reshape((4, 8))(a)], [(("model",),)])
    assert has("model", 1, 0) and not has("model", 1, 1)


@pytest.mark.parametrize(
    ("shape", "sizes", "names"),
    [
        ((4, 8), (4, 2), 2),  # 8 = 4 · 2: one part for each factor
        ((8, 4), (8,), 1),  # the first factor is large enough
        ((3, 8), (8,), 1),  # 3 and 8 have no common divisor: shards would start inside of a row
    ],
)
def test_an_axis_that_is_larger_than_the_first_factor_is_split(shape, sizes, names):
    mesh = AbstractMesh((8,), ("data",))
    size = shape[0] * shape[1]
    fine, _ = seeds([f"f32[{size}]"], lambda a: [Reshape(shape)(a)], [(("data",),)], mesh)
    assert fine.axis_sizes == sizes
    assert len(fine.axis_names) == names


def test_axes_are_not_split_without_reshapes():
    mesh = AbstractMesh((8,), ("data",))
    fine, _ = seeds(["f32[32]"], lambda a: [Add()(a, a)], [(("data",),)], mesh)
    assert fine == mesh
