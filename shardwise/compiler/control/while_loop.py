"""while: run a program as long as a predicate, computed by another program, is true."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.control_rules import batch_dims
from shardwise.compiler.control.data_dependent import DataDependentControl, select_per_device
from shardwise.compiler.control.region_boundary import Carry, Enter, Predicate
from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.control import Binding, KeyTracker, entry, exit_, operand, result
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, ProgramRunner, Shards
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.placement.reshard import shard_batch_dim
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build, rewrite
from shardwise.compiler.transforms.drop_effects import without_effects
from shardwise.compiler.transforms.vmap import vmap_program


@final
@record
class While(DataDependentControl):
    """Run `body` (its consts, carry → carry) while `cond` (its consts, carry → bool) is true.

    Operands: the consts of `cond`, the consts of `body`, the initial carry. Results: the final carry.
    """

    name = "while"
    irreversible = (
        "the trip count of a while_loop is not known before it runs, so its residuals cannot be saved. "
        "Use scan, or fori_loop with bounds that are Python integers; forward mode (jvp, jacfwd) works."
    )
    cond: Program
    body: Program
    cond_consts: int
    body_consts: int
    may_diverge: bool = field(default=False, repr=False)

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.cond, self.body)

    @property
    def trip_count(self) -> int | None:
        return None

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        first, after = self.cond_consts, self.cond_consts + self.body_consts
        return (
            *(Binding(0, Enter(1), (operand(i),), (entry(i, 0),)) for i in range(first)),
            *(Binding(1, Enter(1), (operand(first + i),), (entry(i, 1),)) for i in range(self.body_consts)),
            *(
                Binding(
                    2,
                    Carry(3),
                    (operand(after + i), exit_(i, 1)),
                    (entry(first + i, 0), entry(self.body_consts + i, 1), result(i)),
                )
                for i in range(len(self.body.outputs))
            ),
            Binding(3, Predicate(), (exit_(0, 0),)),
        )

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((0, (0,)), (1, (1,)))

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "While":
        cond, body = programs
        cond_consts, body_consts = (self.cond_consts, self.body_consts) if counts is None else counts[:2]
        return While(cond, body, cond_consts, body_consts, self.may_diverge)

    def allowing_divergence(self) -> "While":
        return replace(self, may_diverge=True)

    def split_operands(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split the operands into consts of `cond`, consts of `body`, and carry."""
        after = self.cond_consts + self.body_consts
        return list(operands[: self.cond_consts]), list(operands[self.cond_consts : after]), list(operands[after:])

    def track_keys(
        self, uses: KeyTracker, operands: list[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None]:
        """Check two iterations, which represent all."""
        cond_consts, body_consts, carry = self.split_operands(operands)
        carry = [x if is_key(type.dtype) else None for x, type in zip(carry, types, strict=True)]
        for _ in range(2):
            uses.run(self.cond, [*cond_consts, *carry])
            carry = uses.run(self.body, [*body_consts, *carry])
            carry = [x if is_key(type.dtype) else None for x, type in zip(carry, types, strict=True)]
        return carry

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        cond_consts, body_consts, carry = self.split_operands(operands)
        while any(predicates := self.choice_per_device(run(0, [*cond_consts, *carry])[0])):
            carry = select_per_device(predicates, 1, run(1, [*body_consts, *carry]), carry)
        return carry

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        # Residuals cannot be saved, so the tangent loop recomputes the primals, without their effects.
        return self(*primals), without_effects(self).jvp(primals, tangents)[1]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = self.batched_bindings(axis, [dim is not None for dim in dims])
        _, predicate_dims = vmap_program(self.cond, axis, batch_dims(self.endpoint_marks(batched, "entry", 0)))
        if predicate_dims == (None,):
            return self.vmap_bindings(axis, operands, dims, batched)
        if self.effect:
            return vmap_by_scan(self, axis, operands, dims)
        return self._vmap_predicate(axis, operands, dims)

    def _vmap_predicate(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Batch a loop with a batched predicate: run while any predicate is true, and select the old or new carry."""
        cond_consts, body_consts, carry = self.split_operands(operands)
        cond_dims, body_dims, carry_dims = self.split_operands(dims)
        all_batched = (0,) * len(carry)
        cond, _ = vmap_program(self.cond, axis, (*cond_dims, *all_batched))
        body, _ = vmap_program(self.body, axis, (*body_dims, *all_batched), everywhere=True)

        def any_true(*args: Operand) -> list[Any]:
            (predicates,) = Call(cond)(*args)
            count = Sum((0,))(Convert(np.dtype(np.int32))(predicates))
            return [Compare("GT")(count, full((), 0, np.int32))]

        def step(*args: Operand) -> list[Any]:
            before = args[len(cond_consts) + len(body_consts) :]
            (predicates,) = Call(cond)(*args[: len(cond_consts)], *before)
            after = Call(body)(*args[len(cond_consts) :])
            return [
                Select()(Broadcast(new.type.shape, (0,))(predicates), new, old)
                for new, old in zip(after, before, strict=True)
            ]

        loop = While(
            rewrite(cond.name, cond.in_types, any_true),
            rewrite(body.name, [*cond.in_types[: len(cond_consts)], *body.in_types], step),
            len(cond_consts),
            len(cond_consts) + len(body_consts),
        )
        start = [
            shard_batch_dim(batch_dim_at(x, dim, 0, axis.size), 0, axis)
            for x, dim in zip(carry, carry_dims, strict=True)
        ]
        return loop(*cond_consts, *cond_consts, *body_consts, *start), [0] * len(start)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        cond_consts, body_consts, start = self.split_operands(operands)
        return hlo.loop(
            start,
            lambda carry: hlo.program(self.cond, [*cond_consts, *carry])[0],
            lambda carry: hlo.program(self.body, [*body_consts, *carry]),
            self.effect == "ordered",
        )


def while_any(
    name: str, start: Sequence[Any], predicate: Callable[..., Any], step: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Apply `step` to values, beginning with `start`, while any element of their `predicate` is true.

    Returns:
        The final values.
    """
    types = [x.type for x in start]

    def any_true(*values: Operand) -> list[Any]:
        predicates = predicate(*values)
        return [ReduceOr(tuple(range(predicates.type.ndim)))(predicates)]

    return list(While(rewrite(name, types, any_true), rewrite(name, types, step), 0, 0)(*start))


def while_capturing(
    name: str, start: Sequence[Any], predicate: Callable[..., Sequence[Any]], step: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Apply `step` to values, beginning with `start`, while `predicate` is true. Both may capture outer values.

    Returns:
        The final values.
    """
    types = [x.type for x in start]
    programs, captured = [], []
    for function in (predicate, step):
        program, values = build(function, types, name)
        count = len(start)
        programs.append(replace(program, inputs=(*program.inputs[count:], *program.inputs[:count])))
        captured.append(values)
    loop = While(programs[0], programs[1], len(captured[0]), len(captured[1]))
    return list(loop(*captured[0], *captured[1], *start))
