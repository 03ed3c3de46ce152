"""stored_values: which values of a program XLA writes to memory, and does not compute in the kernels that read them."""

from collections.abc import Mapping

from shardwise.compiler.ir.program import Equation, Value


def is_stored(value: Value, producers: Mapping[Value, Equation]) -> bool:
    """Return whether a value is an input, or the result of a kernel that XLA does not fuse with others."""
    producer = producers.get(value)
    while producer is not None and producer.op.fusion.is_view:
        producer = producers.get(producer.inputs[0])
    if producer is None:
        return True
    fusion = producer.op.fusion
    return not (fusion.fuses or fusion.is_indexed or producer.op.is_constant)
