"""ControlRules: the transformation rules that all control ops share, derived from their bindings."""

from collections.abc import Sequence
from typing import Any

from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.masks import insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ops.placement.reshard import shard_batch_dim
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.vmap import vmap_program


class ControlRules(Control):
    """A control op whose jvp and vmap rules are derived from its bindings."""

    def active_bindings(self, tangents: Sequence[Any], linearizing: bool = False) -> tuple[bool, ...]:
        """Return, for each binding, whether it has a tangent, given the tangents of the operands.

        Args:
            tangents: the tangents; None is zero.
            linearizing: whether programs are differentiated by `linearize`, else by `jvp`. Some ops have only one of
                the two rules.
        """

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            program = self.programs[n]
            return linearize_program(program, entries)[2] if linearizing else jvp_program(program, entries)[1]

        return self.propagate_marks(present_mask(tangents), step)

    def instantiate_tangents(
        self, active: Sequence[bool], primals: Sequence[Any], tangents: Sequence[Any]
    ) -> list[Any]:
        """Return the tangents of the operands, with zeros instead of None for active bindings.

        A carry whose initial value has no tangent may get one in an iteration.
        """
        return [
            zeros_of(primal.type) if tangent is None and is_active else tangent
            for primal, tangent, is_active in zip(
                primals, tangents, self.endpoint_marks(active, "operand"), strict=True
            )
        ]

    def jvp_programs(self, tangents: Sequence[Any]) -> tuple[tuple[bool, ...], list[Program]]:
        """Return the active bindings, and the programs that also compute tangents."""
        active = self.active_bindings(tangents)
        programs = [
            jvp_program(program, self.endpoint_marks(active, "entry", n), self.endpoint_marks(active, "exit", n))[0]
            for n, program in enumerate(self.programs)
        ]
        return active, programs

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Add a tangent binding for every active binding."""
        active, programs = self.jvp_programs(tangents)
        entries = [self.endpoint_marks(active, "entry", n) for n in range(len(self.programs))]
        exits = [self.endpoint_marks(active, "exit", n) for n in range(len(self.programs))]
        primal_ports = self.ports(
            primals,
            [program.inputs[: len(mask)] for program, mask in zip(programs, entries, strict=True)],
            [program.outputs[: len(mask)] for program, mask in zip(programs, exits, strict=True)],
        )
        tangent_ports = self.ports(
            self.instantiate_tangents(active, primals, tangents),
            [insert_none(p.inputs[len(mask) :], mask) for p, mask in zip(programs, entries, strict=True)],
            [insert_none(p.outputs[len(mask) :], mask) for p, mask in zip(programs, exits, strict=True)],
        )
        active_ports = [port for port, is_active in zip(tangent_ports, active, strict=True) if is_active]
        results = self.apply([*primal_ports, *active_ports], programs)
        result_tangents = insert_none(results[len(primal_ports) :], active)
        numbers = [number for number, port in enumerate(primal_ports) if port.has_result]
        return [results[number] for number in numbers], [result_tangents[number] for number in numbers]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.vmap_bindings(axis, operands, dims, self.batched_bindings(axis, present_mask(dims)))

    def batched_bindings(self, axis: BatchAxis, operands: Sequence[bool]) -> tuple[bool, ...]:
        """Return, for each binding, whether it is batched, given the batched operands."""

        def step(n: int, entries: tuple[bool, ...]) -> tuple[bool, ...]:
            return present_mask(vmap_program(self.programs[n], axis, batch_dims(entries))[1])

        return self.propagate_marks(operands, step)

    def vmap_bindings(
        self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None], batched: Sequence[bool]
    ) -> tuple[Any, Any]:
        """Apply the op with a batch dim in the marked bindings, in front of the dims of the values inside."""
        programs = [
            vmap_program(
                program,
                axis,
                batch_dims(self.endpoint_marks(batched, "entry", n)),
                self.endpoint_marks(batched, "exit", n),
            )[0]
            for n, program in enumerate(self.programs)
        ]
        batch_places = [
            (end, binding.boundary.leading, is_batched)
            for binding, is_batched in zip(self.bindings, batched, strict=True)
            for end in binding.endpoints
        ]
        batched_operands = list(operands)
        for end, leading, is_batched in batch_places:
            if end.kind == "operand" and is_batched:
                batched_operand = batch_dim_at(operands[end.number], dims[end.number], leading, axis.size)
                batched_operands[end.number] = shard_batch_dim(batched_operand, leading, axis)
        out_dims = {
            end.number: leading if is_batched else None
            for end, leading, is_batched in batch_places
            if end.kind == "result"
        }
        results = self.with_programs(programs)(*batched_operands)
        return results, [out_dims[index] for index in range(len(results))]


def batch_dims(batched: Sequence[bool]) -> tuple[int | None, ...]:
    """Return batch dims for `vmap`: 0 for batched values, None for the others."""
    return tuple(0 if is_batched else None for is_batched in batched)
