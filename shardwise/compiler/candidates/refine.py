"""refine_program: express the constraints and manual regions of a program on a finer mesh."""

from dataclasses import replace

from shardwise.compiler.control.manual import Manual
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.refine import refine_axis_types, refine_pin, sub_axes_of


@verifies_result
def refine_program(program: Program, mesh: Mesh | AbstractMesh) -> Program:
    """Return a program without calls on `mesh`, which refines all meshes that the program uses."""
    fine = mesh.abstract
    equations = []
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Constrain):
            pin, sub_axes = refine_pin(op.pin, op.mesh.abstract, fine), sub_axes_of(op.mesh.abstract, fine)
            axes = None if op.axes is None else tuple(part for axis in op.axes for part in sub_axes[axis])
            op = replace(op, dims=pin.layout.dims, mesh=mesh, axes=axes)
        elif isinstance(op, Manual):
            coarse = op.mesh.abstract
            typed = refine_axis_types(coarse, fine)  # the types of results depend on the axis types
            region_mesh = mesh.with_axes(typed) if isinstance(mesh, Mesh) and not typed.manual_axes else typed
            op = op.on_refined_mesh(region_mesh, sub_axes_of(coarse, fine), refine_program(op.program, mesh))
        elif isinstance(op, Control):
            op = op.map_programs(lambda inner: refine_program(inner, mesh))
        equations.append(equation.replace(op=op))
    return program.with_equations(equations)
