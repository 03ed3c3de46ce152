"""refine_program: express the constraints and manual regions of a program on a finer mesh."""

from dataclasses import replace

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.control.control import Control
from shardwise.compiler.ops.control.manual import Manual
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh
from shardwise.compiler.shardings.refine import refine_pin, sub_axes_of


@verifies_result
def refine_program(program: Program, mesh: Mesh | AbstractMesh) -> Program:
    """Return a program without calls on `mesh`, which refines all meshes that the program uses."""
    fine = mesh.abstract
    equations = []
    for equation in program.equations:
        op = equation.op
        if isinstance(op, Constrain):
            pin = refine_pin(op.pin, op.mesh.abstract, fine)
            op = replace(op, dims=pin.layout.dims, mesh=mesh)
        elif isinstance(op, Manual):
            sub_axes = sub_axes_of(op.mesh.abstract, fine)
            manual = [part for axes in op.mesh_axes.values() for axis in axes for part in sub_axes[axis]]
            inner_mesh = fine.update_axis_types(dict.fromkeys(manual, AxisType.Manual))
            op = op.on_refined_mesh(mesh, sub_axes, refine_program(op.program, inner_mesh))
        elif isinstance(op, Control):
            op = op.map_programs(lambda inner: refine_program(inner, mesh))
        equations.append(equation.replace(op=op))
    return program.with_equations(equations)
