"""Ops for computing again instead of keeping: remat (a program), barrier, and names for values that policies know."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.op import Hlo, NumpyArray, UndefinedPrimal
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import CallLike, drop_none, insert_none, present_mask
from shardwise.compiler.ops.elementwise.base import Elementwise

Policy = Callable[..., bool]  # an op and the types of its operands → whether its results may be kept


@final
@record
class Remat(CallLike):
    """The program's results; for the derivative, values that `policy` does not let it keep are computed again."""

    name = "remat"
    policy: Policy | None = None
    prevent_cse: bool = True

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        kept, again, moving = installed.transforms.rematerialize(self.program, present_mask(tangents), self.policy)
        results = self.with_programs([kept])(*primals)
        count = len(self.program.outputs)
        saved = results[count:]
        return results[:count], insert_none(self.with_programs([again])(*primals, *saved, *drop_none(tangents)), moving)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        if self.prevent_cse:  # neither found again in the first computation, nor done before the cotangents are there
            operands = tuple(x if isinstance(x, UndefinedPrimal) else Barrier()(x) for x in operands)
            cotangent = [None if ct is None else Barrier()(ct) for ct in cotangent]
        return super().transpose(cotangent, *operands)


@final
@record
class Barrier(Elementwise):
    """The operand itself; XLA does not see through. Neighbouring barriers are lowered as one."""

    name = "barrier"
    accepts_keys = True
    arity = 1

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class CheckpointName(Elementwise):
    """The operand itself, under a name that a policy can ask for."""

    name = "checkpoint_name"
    accepts_keys = True
    arity = 1
    label: str

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def lower(self, hlo: Hlo, x: Any) -> Any:
        return x

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]
