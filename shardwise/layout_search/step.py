"""Step: a traced step, the roles of its arguments, and the outputs that correspond to them.

An argument is *state* if an output is passed as this argument to the next call: parameters and the optimizer's state.
The output has the same path in its tree; for an argument that is an array, the output is computed from it elementwise.
All other arguments are *batch*. State on which other outputs depend, such as the loss, is *parameters*.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from shardwise import tree_util
from shardwise.api.jit import Jitted
from shardwise.compiler.candidates.dim_groups import DimGroups
from shardwise.compiler.candidates.layout_problem import ProgramStructure
from shardwise.compiler.candidates.next_outputs import next_outputs
from shardwise.compiler.candidates.open_arguments import loop_groups
from shardwise.compiler.candidates.unfold import Unfolded
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.pipeline import simplify
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.transforms.dce import dce
from shardwise.execute.executor import as_array
from shardwise.execute.request import Request, lift_held_arrays

STATE, PARAMETER, BATCH, FIXED = "state", "parameter", "batch", "fixed"


@final
@dataclass(frozen=True, eq=False)
class Step:
    """A traced step.

    Attributes:
        request: the request of the traced function, with captured arrays as its last inputs.
        program: the program without calls, in which keys are words.
        structure: the structure of the results.
        pins: for each input, the user's pinned sharding; None if it is open.
        next_outputs: for each input that is state, the output that is passed as it to the next call.
        roles: for each input, `parameter`, `state`, `batch`, or `fixed` if its layout is not chosen.
    """

    request: Request
    program: Program
    structure: Any
    pins: tuple[NamedSharding | None, ...]
    next_outputs: dict[int, int]
    roles: tuple[str, ...]

    @cached_property
    def program_structure(self) -> ProgramStructure:
        """The structure of the program, which all plans share."""
        return ProgramStructure.from_program(self.program)

    @property
    def unfolded(self) -> Unfolded:
        return self.program_structure.unfolded

    @cached_property
    def groups(self) -> DimGroups:
        """The dim groups of the program, in which the dims of state and of its outputs are merged."""
        groups = self.program_structure.groups.copy()
        for number, output in self.next_outputs.items():
            for dim in range(self.program.inputs[number].type.ndim):
                groups.join((self.program.inputs[number], dim), (self.program.outputs[output], dim))
        return groups

    @cached_property
    def loop_groups(self) -> set[int]:
        """The dim groups along which loops slice: the layers of a stack, microbatches."""
        return loop_groups(self.unfolded.equations, self.groups)

    @cached_property
    def state_groups(self) -> set[int]:
        """The dim groups of parameters and of the optimizer's state."""
        return {
            self.groups.find(self.program.inputs[index], dim)
            for index, role in enumerate(self.roles)
            if role in (PARAMETER, STATE)
            for dim in range(self.types[index].ndim)
        }

    def batch_dims(self, index: int) -> list[int]:
        """Return the dims of a batch argument that no state has: the rows, and the positions in their sequences."""
        value = self.program.inputs[index]
        return [dim for dim in self.dims(index) if self.groups.find(value, dim) not in self.state_groups]

    @property
    def rows(self) -> int:
        """The number of rows of the batch: the greatest common divisor over its arguments; 1 without any."""
        batches = [index for index, role in enumerate(self.roles) if role == BATCH]
        return math.gcd(*(self.types[index].shape[dim] for index in batches for dim in self.batch_dims(index)[:1])) or 1

    @cached_property
    def expert_groups(self) -> set[int]:
        """The dim groups of experts: batch dims of products in which an operand has only dims of parameters.

        Such an operand is a stack of matrices, one per expert. Both operands of attention have dims of the batch.
        """
        parameters = {
            self.groups.find(self.program.inputs[index], dim)
            for index, role in enumerate(self.roles)
            if role == PARAMETER
            for dim in range(self.types[index].ndim)
        }
        experts: set[int] = set()
        for equation in self.unfolded.equations:
            if isinstance(equation.op, Dot):
                for value, batch in zip(equation.inputs, equation.op.batch, strict=True):
                    groups = [self.groups.find(value, dim) for dim in range(value.type.ndim)]
                    if parameters.issuperset(groups):
                        experts.update(groups[dim] for dim in batch)
        return experts - self.loop_groups

    @property
    def types(self) -> tuple[ArrayType, ...]:
        return self.program.in_types

    def open_inputs(self) -> dict[int, int | None]:
        """Return the inputs with an open layout, each with the output that is this input in the next call, or None."""
        return {index: self.next_outputs.get(index) for index, role in enumerate(self.roles) if role != FIXED}

    def dims(self, number: int) -> list[int]:
        """Return the dims of an input that may be sharded, which excludes dims along which loops slice."""
        value = self.program.inputs[number]
        return [dim for dim in range(value.type.ndim) if self.groups.find(value, dim) not in self.loop_groups]


def trace_step(jitted: Jitted[..., Any], args: tuple[Any, ...]) -> Step:
    """Trace a step for arrays or ShapeDtypeStructs and classify its arguments."""
    request, traced = jitted.request(args, {})
    request, _ = lift_held_arrays(request, [as_array(x) for x in traced.captured])
    program = simplify(request.program)
    leaves = tree_util.tree_leaves(args)
    pins = [pinned_sharding(leaf) for leaf in leaves] + [None] * (len(program.inputs) - len(leaves))
    arguments = len(leaves)
    passed_on = next_outputs(request.program, program, args, traced.structure, arguments)
    others = tuple(v for number, v in enumerate(program.outputs) if number not in passed_on.values())
    used = dce(replace(program, outputs=others)).used if others else program.used

    def role(number: int) -> str:
        type = request.program.in_types[number]
        if number >= arguments or pins[number] is not None or is_key(type.dtype) or not type.ndim:
            return FIXED
        if number not in passed_on:
            return BATCH
        return PARAMETER if program.inputs[number] in used else STATE

    roles = tuple(role(number) for number in range(len(program.inputs)))
    return Step(request, program, traced.structure, tuple(pins), passed_on, roles)


def program_meshes(program: Program) -> list[Mesh | AbstractMesh]:
    """Return the meshes of the constraints and manual regions of a program, without duplicates."""
    return list(dict.fromkeys(mesh for equation in program.walk() if (mesh := equation.op.user_mesh)))


def pinned_sharding(leaf: Any) -> NamedSharding | None:
    """Return the user's sharding of an argument, or None."""
    sharding = getattr(leaf, "sharding", None) if getattr(leaf, "committed", True) else None
    return sharding if isinstance(sharding, NamedSharding) else None
