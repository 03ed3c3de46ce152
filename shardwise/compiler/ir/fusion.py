"""Fusion: how XLA groups an op with others into kernels. `partition/kernels.py` counts memory traffic with it."""

from typing import Literal, final

from shardwise.compiler.ir.record import record


@final
@record
class Fusion:
    """The fusion properties of an op in XLA.

    Attributes:
        fuses: whether the op can be part of a kernel with other ops.
        is_indexed: whether XLA fuses the op, although its reads are not contiguous. The traffic of such an op is that
            of a kernel of its own, and its memory that of a fused op.
        fuses_updates: whether XLA computes the operand `updates` in the kernel of the op, on GPUs.
        duplicates: whether the op is recomputed in each of several consumers, so that its result is not stored:
            "never"; "cheap", if that reads no more bytes than the result has; "on CPU" or "on GPUs", for the same on
            this platform only; or "always". On CPU, cheap ops are recomputed if all consumers can be fused with them.
        is_view: whether the result shares the memory of the operand.
        is_view_in_products: whether the result shares the memory of the operand if only contractions read it.
        is_barrier: whether the op only separates kernels. Its result shares the operand's memory, once it is complete.
        reads_part: whether the op reads only as many bytes of its first operand as its result has.
        updates: the operand that is written in place into the first operand; None for other ops.
        overwrites: whether each result overwrites the operand of its index on CPU, if that is not read later.
        stores_updated: whether XLA stores a first operand that is constant, such as zeros, before it is updated.
    """

    fuses: bool = False
    duplicates: Literal["never", "on CPU", "on GPUs", "cheap", "always"] = "never"
    is_view: bool = False
    is_view_in_products: bool = False
    is_barrier: bool = False
    reads_part: bool = False
    updates: int | None = None
    is_indexed: bool = False
    fuses_updates: bool = False
    stores_updated: bool = False
    overwrites: bool = False


OWN_KERNEL = Fusion()
FUSED = Fusion(fuses=True)
CHEAP = Fusion(fuses=True, duplicates="cheap")
CHEAP_ON_CPU = Fusion(fuses=True, duplicates="on CPU")
ALWAYS_FUSED = Fusion(fuses=True, duplicates="always")
