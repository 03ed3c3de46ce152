"""refine_program: express the constraints and manual regions of a program on a finer mesh."""

from functools import partial

from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh


@verifies_result
def refine_program(program: Program, mesh: Mesh | AbstractMesh) -> Program:
    """Return a program without calls on `mesh`, which refines all meshes that the program uses."""
    refine_inner = partial(refine_program, mesh=mesh)
    equations = [equation.replace(op=equation.op.refine(mesh, refine_inner)) for equation in program.equations]
    return program.with_equations(equations)
