"""erase_shardings: move the Explicit shardings of a program from its types into a table, and reshards into constraints.

Types carry shardings while a program is traced and differentiated. The planner reads them from the table: along an
Explicit axis, a value has the sharding of its type, or is a partial sum that is reduced later. Parts of the program
(`auto_axes`, `use_abstract_mesh`) have their own meshes; their shardings are expressed on the mesh that the program
runs on. The axis types of each sharding's own mesh determine along which axes the planner decides.
"""

from dataclasses import replace

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.verify import verifies_result
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import Reshard
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.refine import refine_sharding
from shardwise.errors import ShardingError

ValueShardings = dict[Value, ExplicitSharding]


@verifies_result
def erase_shardings(program: Program, mesh: AbstractMesh) -> tuple[Program, ValueShardings]:
    """Return the program with plain types, and the sharding of each value that is not replicated along Explicit axes.

    Args:
        program: a program without calls.
        mesh: the mesh that it runs on.

    Raises:
        ShardingError: if the mesh has no Explicit axes, but a reshard needs them.
    """
    shardings: ValueShardings = {}
    if not mesh.explicit_axes:
        reshards = [(equation, equation.op) for equation in program.walk() if isinstance(equation.op, Reshard)]
        for equation, op in reshards:
            if not mesh.axis_names or (op.mesh is not None and not op.scoped):
                raise ShardingError(
                    f"reshard at {equation.source}: {op.mesh!r} has Explicit axes, but `{program.name}` runs where "
                    "none of its arguments is on such a mesh. Put an argument on a mesh with devices, or set the "
                    "current mesh with `set_mesh`."
                )
        if not reshards:
            return program, shardings
    return _erase_program(program, mesh, shardings), shardings


def _erase_program(program: Program, mesh: AbstractMesh, shardings: ValueShardings) -> Program:
    new_values: dict[Value, Value] = {}

    def erase_value(value: Value) -> Value:
        erased = new_values[value] = Value(value.type.with_explicit(None))
        if value.type.explicit is not None:
            shardings[erased] = refine_sharding(value.type.explicit, mesh)
        return erased

    inputs = tuple(erase_value(value) for value in program.inputs)
    equations = []
    for equation in program.equations:
        operands = [new_values[value] for value in equation.inputs]
        op = _erase_op(equation.op, mesh, shardings)
        if isinstance(op, Constrain) and op.axes == ():  # the planner decides along all axes
            new_values[equation.outputs[0]] = operands[0]
            continue
        results = [erase_value(value) for value in equation.outputs]
        if isinstance(op, Convert) and (typed := equation.inputs[0].type.explicit) and typed.unreduced:
            op = replace(op, of_terms=True)
        equations.append(equation.replace(op=op, inputs=operands, outputs=results))
    return Program(inputs, tuple(equations), tuple(new_values[value] for value in program.outputs), program.name)


def _erase_op(op: Op, mesh: AbstractMesh, shardings: ValueShardings) -> Op:
    if isinstance(op, Reshard):
        sharding = op.sharding and refine_sharding(op.sharding, mesh)
        if sharding is None:
            return Constrain(op.dims, mesh, (), mesh.explicit_axes, requested_by="reshard")
        axes = sharding.mesh.explicit_axes if sharding.scoped else mesh.explicit_axes
        return Constrain(sharding.dims, mesh, (), axes, sharding.unreduced, requested_by="reshard")
    if not isinstance(op, Control):
        return op
    inside = op.mesh_inside(mesh)
    op = op.map_programs(lambda program: _erase_program(program, inside, shardings))
    return op.without_explicit()
