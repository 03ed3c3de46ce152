"""Ops between the memories of a device: in_memory, and the copies of arguments and results in host memory."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

from shardwise.compiler.ir.fusion import OWN_KERNEL, Fusion
from shardwise.compiler.ir.op import Hlo, HloValue, NumpyArray, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.base import Elementwise

DEVICE = "device"  # the kind of the memory that ops compute in
PINNED_HOST = "pinned_host"  # the kind of the host memory that XLA copies from and to while kernels run


class _MemoryIdentity(Elementwise):
    """The base class of identities that copy their operand to another memory. XLA does not fuse them."""

    accepts_keys = True
    arity = 1
    cheap_to_recompute = False

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), tangents[0]

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (cotangent,)

    def reference(self, *operands: NumpyArray) -> Any:
        return operands[0]


@final
@record
class InMemory(_MemoryIdentity):
    """The identity; the result is kept in a memory of this kind (`pinned_host`). Ops read it into device memory."""

    name = "in_memory"
    kind: str

    @property
    def fusion(self) -> Fusion:  # type: ignore[override]
        return Fusion(is_view=True) if self.kind == DEVICE else OWN_KERNEL

    def host_bytes(self, *types: ArrayType) -> int:
        return 0 if self.kind == DEVICE else 2 * types[0].nbytes  # to the host, and back for the uses

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        if hlo.platform == "cpu":  # the CPU platform has only one memory
            return x
        return hlo.in_memory(hlo.in_memory(x, self.kind), DEVICE)  # move to this memory, and back for the uses


class _HostCopy(_MemoryIdentity):
    """The base class of copies between device memory and pinned host memory."""

    fusion = OWN_KERNEL
    target: ClassVar[str]  # the kind of the memory of the result

    def host_bytes(self, *types: ArrayType) -> int:
        return types[0].nbytes

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return x if hlo.platform == "cpu" else hlo.in_memory(x, self.target)


@final
@record
class CopyToDevice(_HostCopy):
    """The copy of an argument in pinned host memory to device memory. Its operand is in host memory."""

    name = "copy_to_device"
    reads_host_memory = True
    target = DEVICE


@final
@record
class CopyToHost(_HostCopy):
    """The copy of a result to pinned host memory. Its result is in host memory."""

    name = "copy_to_host"
    writes_host_memory = True
    target = PINNED_HOST
