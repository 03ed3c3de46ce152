"""remat: a call whose derivative recomputes values instead of saving them (`jax.checkpoint`)."""

from collections.abc import Sequence
from typing import Any, final

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ops.elementwise.identities import Barrier
from shardwise.compiler.transforms.checkpoint_policy import Policy
from shardwise.compiler.transforms.remat import rematerialize_program


@final
@record
class Remat(CallLike):
    """A call whose derivative recomputes the values that `policy` does not allow it to save."""

    name = "remat"
    policy: Policy | None = None
    prevent_cse: bool = True

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        forward, linear, out_active = rematerialize_program(self.program, present_mask(tangents), self.policy)
        results = self.with_programs([forward])(*primals)
        count = len(self.program.outputs)
        out_tangents = self.with_programs([linear])(*primals, *results[count:], *drop_none(tangents))
        return results[:count], insert_none(out_tangents, out_active)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        if self.prevent_cse:
            # XLA must neither merge the recomputation with the forward pass nor schedule it before the cotangents
            # exist.
            barrier = Barrier(before_recomputation=True)
            operands = tuple(x if isinstance(x, UndefinedPrimal) else barrier(x) for x in operands)
            cotangent = [None if ct is None else barrier(ct) for ct in cotangent]
        return super().transpose(cotangent, *operands)
