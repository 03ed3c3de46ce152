"""while: a program that runs as long as another says so."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import BatchAxis, Hlo, ProgramRunner, Shards
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.control.call import Call
from shardwise.compiler.ops.control.control import (
    Binding,
    DataDependentControl,
    batch_dims,
    entry,
    exit_,
    operand,
    result,
    select_per_device,
)
from shardwise.compiler.ops.control.region_boundary import Carry, Enter, Predicate
from shardwise.compiler.ops.control.scan import vmap_by_scan
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceOr
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import full


@final
@record
class While(DataDependentControl):
    """`body` (its consts, carried → carried) runs as long as `cond` (its consts, carried → bool) is true.

    Operands: consts of `cond`, consts of `body`, what is carried at first. Results: what is carried in the end.
    """

    name = "while"
    irreversible = (
        "how often a while_loop runs is not known beforehand, so what it computes on the way cannot be kept. "
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
        first, second = (self.cond_consts, self.body_consts) if counts is None else counts[:2]
        return While(cond, body, first, second, self.may_diverge)

    def allowing_divergence(self) -> "While":
        return replace(self, may_diverge=True)

    def parts(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Consts of `cond`, consts of `body`, carried."""
        after = self.cond_consts + self.body_consts
        return list(operands[: self.cond_consts]), list(operands[self.cond_consts : after]), list(operands[after:])

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        cond_consts, body_consts, carried = self.parts(operands)
        while any(goes_on := self.choice_per_device(run(0, [*cond_consts, *carried])[0])):
            carried = select_per_device(goes_on, 1, run(1, [*body_consts, *carried]), carried)
        return carried

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        # Nothing can be kept on the way: the tangents' loop goes through the primals once more, and in silence.
        return self(*primals), installed.transforms.without_effects(self).jvp(primals, tangents)[1]

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        batched = self.batched_bindings(axis, [dim is not None for dim in dims])
        cond, places = installed.transforms.vmap(self.cond, axis, batch_dims(self.endpoint_marks(batched, "entry", 0)))
        if places == (None,):
            return self.vmap_bindings(axis, operands, dims, batched)
        if self.effect:
            return vmap_by_scan(self, axis, operands, dims)
        # Each element stops on its own: the loop goes on while any does, and those that have stopped stay.
        consts, more, carried = self.parts(list(zip(operands, dims, strict=True)))
        consts_dims, more_dims = tuple(dim for _, dim in consts), tuple(dim for _, dim in more)
        everything = (0,) * len(carried)
        cond, _ = installed.transforms.vmap(self.cond, axis, (*consts_dims, *everything))
        body, _ = installed.transforms.vmap(self.body, axis, (*more_dims, *everything), everywhere=True)

        def any_goes_on(*args: Any) -> list[Any]:
            (goes_on,) = Call(cond)(*args)
            count = Sum((0,))(Convert(np.dtype(np.int32))(goes_on))
            return [Compare("GT")(count, full((), 0, np.int32))]

        def step(*args: Any) -> list[Any]:
            before = args[len(consts) + len(more) :]
            (goes_on,) = Call(cond)(*args[: len(consts)], *before)
            after = Call(body)(*args[len(consts) :])
            return [
                Select()(Broadcast(new.type.shape, (0,))(goes_on), new, old)
                for new, old in zip(after, before, strict=True)
            ]

        rewrite = installed.transforms.rewrite
        head = rewrite(cond.name, cond.in_types, any_goes_on)
        both = rewrite(body.name, [*cond.in_types[: len(consts)], *body.in_types], step)
        loop = While(head, both, len(consts), len(consts) + len(more))
        given = [x for x, _ in consts]
        starts = [batch_dim_at(x, dim, 0, axis.size) for x, dim in carried]
        return loop(*given, *given, *(x for x, _ in more), *starts), [0] * len(starts)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        cond_consts, body_consts, carried = self.parts(operands)
        return hlo.loop(
            carried,
            lambda at: hlo.program(self.cond, [*cond_consts, *at])[0],
            lambda at: hlo.program(self.body, [*body_consts, *at]),
            self.effect == "ordered",
        )


def while_any(
    name: str, start: Sequence[Any], goes_on: Callable[..., Any], step: Callable[..., Sequence[Any]]
) -> list[Any]:
    """Values that `step` replaces as long as any element of `goes_on` is true of them."""
    types = [x.type for x in start]

    def any_goes_on(*values: Any) -> list[Any]:
        found = goes_on(*values)
        return [ReduceOr(tuple(range(found.type.ndim)))(found)]

    rewrite = installed.transforms.rewrite
    return list(While(rewrite(name, types, any_goes_on), rewrite(name, types, step), 0, 0)(*start))
