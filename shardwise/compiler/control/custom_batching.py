"""CustomVmap: a function with a user-defined batching rule. Rules compare by identity."""

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, final

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.transforms.jvp import jvp_program
from shardwise.errors import MissingRuleError


class BatchingRule(Protocol):
    """A batching rule on flat lists: the batch dim of a batched operand or result is dim 0."""

    @property
    def name(self) -> str: ...
    def vmap(self, axis: BatchAxis, operands: Sequence[Any], batched: Sequence[bool]) -> tuple[list[Any], list[bool]]:
        """Return the results of the batched function, and which of them are batched."""

    def jvp(self, active: tuple[bool, ...]) -> "BatchingRule":
        """Return the rule of the function's jvp, whose operands are the primals and the tangents of the active ones."""


@final
@record
class CustomVmap(CallLike):
    """A call of a function with a batching rule."""

    name = "custom_vmap"
    opaque = True
    rule: BatchingRule

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        leading = [
            x if dim is None else batch_dim_at(x, dim, 0, axis.size) for x, dim in zip(operands, dims, strict=True)
        ]
        results, batched = self.rule.vmap(axis, leading, present_mask(dims))
        return results, [0 if is_batched else None for is_batched in batched]

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = present_mask(tangents)
        differentiable = tuple(is_inexact(type.dtype) for type in self.program.out_types)
        program, _ = jvp_program(self.program, active, differentiable)
        results = CustomVmap(program, self.rule.jvp(active))(*primals, *drop_none(tangents))
        count = len(differentiable)
        return results[:count], insert_none(results[count:], differentiable)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        self._raise_irreversible()

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        self._raise_irreversible()

    def _raise_irreversible(self) -> NoReturn:
        raise MissingRuleError(
            f"custom_vmap: `{self.rule.name}` cannot be differentiated in reverse mode. Wrap it in custom_vjp, which "
            "defines its derivative: `f = custom_vjp(custom_vmap(f))`, with `f.def_vmap` and `f.defvjp`."
        )
