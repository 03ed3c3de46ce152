"""Fusion: how XLA groups an op with others into kernels. `partition/kernels.py` counts memory traffic by it."""

from typing import Literal, final

from shardwise.compiler.ir.record import record


@final
@record
class Fusion:
    """How XLA compiles an op among others.

    Attributes:
        fuses: whether the op can be part of a kernel with other ops.
        duplicates: whether the op is computed again in each of several consumers, so that its result is not stored:
            "never"; "cheap": if that reads no more bytes than the result has; or "always".
        is_view: whether the result shares the memory of the operand.
        is_view_in_products: whether the result does so if only contractions read it.
        is_barrier: whether the op only separates kernels: its result is the operand's memory, once that is complete.
        reads_part: whether the op reads only as many bytes of its first operand as it returns.
        updates: the operand whose elements replace some of the first operand's, in place; None for other ops.
    """

    fuses: bool = False
    duplicates: Literal["never", "cheap", "always"] = "never"
    is_view: bool = False
    is_view_in_products: bool = False
    is_barrier: bool = False
    reads_part: bool = False
    updates: int | None = None


OWN_KERNEL = Fusion()
FUSED = Fusion(fuses=True)
CHEAP = Fusion(fuses=True, duplicates="cheap")
ALWAYS_FUSED = Fusion(fuses=True, duplicates="always")
