"""refine_program: constraints and regions rewritten for a finer mesh."""

import shardwise as sw
from shardwise import lax
from shardwise.compiler.candidates.refine import refine_program
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import split_mesh, sub_axes_of
from shardwise.compiler.trace.build import build
from shardwise.sharding import PartitionSpec as P

COARSE = AbstractMesh((8,), ("data",))
FINE = split_mesh(COARSE, {"data": 4})
PARTS = sub_axes_of(COARSE, FINE)["data"]


def refined(function, *types):
    program, _ = build(function, [parse_type(type) for type in types], "refined")
    return program, refine_program(program, FINE)


def test_the_axis_has_two_parts():
    assert FINE.axis_sizes == (4, 2)
    assert FINE.axis_names == PARTS


def test_constraints_name_the_parts_of_their_axis():
    _, fine = refined(lambda x: [Constrain((("data",), ()), COARSE, (1,))(x)], "f32[8,4]")
    (equation,) = fine.equations
    assert equation.op.constraint.layout.dims == (PARTS, ())
    assert equation.op.constraint.open_dims == {1}
    assert equation.op.mesh == FINE


def test_other_equations_are_unchanged():
    program, fine = refined(lambda x: [x * 2 + x], "f32[8]")
    assert fine == program


def test_constraints_inside_of_control_flow_are_refined():
    def body(carry, _):
        return Constrain((("data",),), COARSE, ())(carry), None

    _, fine = refined(lambda x: [lax.scan(body, x, None, length=2)[0]], "f32[8]")
    (scan,) = fine.equations
    (inner,) = [equation for program in scan.op.programs for equation in program.equations]
    assert inner.op.constraint.layout.dims == (PARTS,)


def test_manual_regions_are_manual_along_the_parts_of_their_axis():
    region = sw.shard_map(lambda x: lax.psum(x, "data"), mesh=COARSE, in_specs=P("data"), out_specs=P())
    _, fine = refined(lambda x: [region(x)], "f32[8]")
    (manual,) = [equation.op for equation in fine.equations if isinstance(equation.op, Manual)]
    assert manual.mesh.abstract == FINE
    assert manual.mesh_axes == {"data": PARTS}
