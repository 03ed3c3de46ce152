"""The order of the loads and stores of a step of a Pallas kernel.

The threads of a step do not wait for each other: a thread may load an element before or after another one stores it.
Each element of a block is stored by one thread. If a block has fewer elements than there are threads, each element is
loaded by several ones.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from shardwise.compiler.kernels.pallas.memory_ops import Access
from shardwise.compiler.kernels.pallas.tile import Range

_MOST_THREADS = 1024

Span: TypeAlias = "range | None"  # elements along a dim, the same ones in every step; None if unknown


@final
class AccessRecord(NamedTuple):
    """A load or a store of a step.

    Attributes:
        number: its position among all of them.
        writes: whether it is a store or an atomic update.
        spans: the elements of the block along each dim.
        is_scalar: whether it accesses one element. One thread stores all of these.
        repeats: whether it is in a loop.
        collides: whether different threads may store an element in different iterations of loops.
    """

    number: int
    writes: bool
    spans: tuple[Span, ...]
    is_scalar: bool
    repeats: bool
    collides: bool

    def has_elements_of(self, other: "AccessRecord") -> bool:
        """Return whether both access the same elements. If both are stores, the same thread stores each of them."""
        return None not in self.spans and self.spans == other.spans

    def is_overwritten(self, write: "AccessRecord") -> bool:
        """Return whether a load has the elements of a later store, and each thread loads only what it stores."""
        elements = math.prod(len(span) for span in self.spans if span is not None)
        return self.has_elements_of(write) and elements >= _MOST_THREADS

    def is_apart(self, other: "AccessRecord") -> bool:
        """Return whether no element is accessed by both."""
        pairs = zip(self.spans, other.spans, strict=True)
        return any(x is not None and y is not None and not set(x) & set(y) for x, y in pairs)


def access_spans(access: Access, starts: Sequence[Range | None], sizes: Sequence[int]) -> tuple[Span, ...]:
    """Return the elements of an access along each dim of a block.

    Args:
        access: the access.
        starts: the ranges of its starts and indices.
        sizes: the sizes of the block.
    """
    spans: list[Span] = []
    for dim, start, size in zip(access.dims, starts, sizes, strict=True):
        is_static = start is not None and start.low == start.high and not start.factors
        span = range(start.low, start.low + dim.size * dim.stride, dim.stride) if start and is_static else None
        is_inside = span is not None and span.start >= 0 and (access.masked or span[-1] < size)
        spans.append(span if is_inside else None)
    return tuple(spans)


def reads_first(loads: Sequence[AccessRecord], writes: Sequence[AccessRecord]) -> bool:
    """Return whether a step reads all elements of an operand before it writes the same ones."""
    last_read = max(load.number for load in loads)
    return all(
        not write.repeats and write.number > last_read and all(load.is_overwritten(write) for load in loads)
        for write in writes
    )


def unordered(accesses: Sequence[AccessRecord]) -> str:
    """Return how two accesses of a step to a result may be out of order; "" if they are not."""
    for write in accesses:
        if not write.writes:
            continue
        if write.collides:
            return "writes elements twice, in several iterations of a loop,"
        for access in accesses:
            if access is write or write.is_apart(access):
                continue
            is_later = access.number > write.number or write.repeats
            if not access.writes:
                if is_later:
                    return "reads elements after it writes them"
                if not access.is_overwritten(write):
                    return "reads elements before other threads write them"
            elif is_later and not (write.is_scalar and access.is_scalar) and not access.has_elements_of(write):
                return "writes elements twice"
    return ""
