"""Rematerialization: remat (a program that is recomputed for its derivative), barrier, checkpoint_name."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.dispatch import installed
from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import Hlo, NumpyArray, UndefinedPrimal
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import CallLike, drop_none, insert_none, present_mask
from shardwise.compiler.ops.elementwise.base import Elementwise


@final
@record
class Offload:
    """The decision of a policy to save a value in a memory of this kind (`pinned_host`) until the backward pass."""

    kind: str


Policy = Callable[..., bool | Offload]  # an op and the types of its operands → whether its results may be saved


@final
@record
class Remat(CallLike):
    """A call whose derivative recomputes the values that `policy` does not allow it to save."""

    name = "remat"
    policy: Policy | None = None
    prevent_cse: bool = True

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        forward, linear, out_active = installed.transforms.rematerialize(
            self.program, present_mask(tangents), self.policy
        )
        results = self.with_programs([forward])(*primals)
        count = len(self.program.outputs)
        out_tangents = self.with_programs([linear])(*primals, *results[count:], *drop_none(tangents))
        return results[:count], insert_none(out_tangents, out_active)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        if self.prevent_cse:
            # XLA must neither merge the recomputation with the forward pass nor run it before the cotangents exist.
            operands = tuple(x if isinstance(x, UndefinedPrimal) else Barrier()(x) for x in operands)
            cotangent = [None if ct is None else Barrier()(ct) for ct in cotangent]
        return super().transpose(cotangent, *operands)


@final
@record
class Barrier(Elementwise):
    """The identity, as an optimization barrier for XLA. Adjacent barriers are lowered as one."""

    fusion = Fusion(is_barrier=True)
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
    """The identity, with a name that checkpoint policies refer to."""

    fusion = Fusion(fuses=True, is_view=True)
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
