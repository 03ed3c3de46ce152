"""Identities with a meaning for the compiler: barriers (XLA), checkpoint_name (policies of `checkpoint`)."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

from shardwise.compiler.ir.fusion import Fusion
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise


class _Identity(Elementwise):
    """The base class of identities. A tangent passes through unchanged."""

    arity = 1

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class Barrier(_Identity):
    """The identity, as an optimization barrier for XLA. Adjacent barriers with the same `launch` are lowered as one.

    `before_recomputation`: `checkpoint` inserted it, so the schedule may let arguments pass through an earlier one.
    """

    fusion = Fusion(is_barrier=True)
    name = "barrier"
    accepts_keys = True
    launch: int | None = field(default=None, repr=False)
    before_recomputation: bool = field(default=False, repr=False)


@final
@record
class CollectiveDone(_Identity):
    """The result of a collective that was started earlier, where the user waits for it. XLA receives a barrier."""

    fusion = Fusion(is_barrier=True)
    name = "collective_done"


@final
@record
class CheckpointName(_Identity):
    """The identity, with a name that checkpoint policies refer to.

    Attributes:
        label: the name.
        always_saved: whether the value is saved with every policy.
    """

    fusion = Fusion(fuses=True, is_view=True)
    name = "checkpoint_name"
    accepts_keys = True
    label: str
    always_saved: bool = False

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return x


@final
@record
class InterpretedKernel(_Identity):
    """The identity, on a result of a kernel that is interpreted. `explain` shows the kernel and the reason.

    Attributes:
        label: the name of the kernel.
        reason: why it is not compiled for GPUs.
    """

    fusion = Fusion(fuses=True, is_view=True)
    name = "interpreted_kernel"
    accepts_keys = True
    label: str
    reason: str = field(default="", repr=False)

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return x
