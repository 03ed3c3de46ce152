"""The order of the loads and stores of a step of a Pallas kernel.

The threads of a step do not wait for each other: a thread may load an element before or after another one stores it.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, final

from shardwise.compiler.kernels.pallas.memory_ops import Access
from shardwise.compiler.kernels.pallas.tile import Range

Span: TypeAlias = "range | None"  # elements along a dim, the same ones in every step; None if unknown


@final
class AccessRecord(NamedTuple):
    """A load or a store of a step.

    Attributes:
        number: its position among all of them.
        writes: whether it is a store or an atomic update.
        spans: the elements of the block along each dim.
        is_scalar: whether it accesses one element. One thread does all of these.
        repeats: whether it is in a loop.
    """

    number: int
    writes: bool
    spans: tuple[Span, ...]
    is_scalar: bool
    repeats: bool

    def has_elements_of(self, other: "AccessRecord") -> bool:
        """Return whether both access the same elements, each by the same thread."""
        return None not in self.spans and self.spans == other.spans

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
        not write.repeats and write.number > last_read and all(load.has_elements_of(write) for load in loads)
        for write in writes
    )


def unordered(accesses: Sequence[AccessRecord]) -> str:
    """Return how two accesses of a step to a result may be out of order; "" if they are not."""
    for position, write in enumerate(accesses):
        if not write.writes:
            continue
        for access in accesses[position + 1 :] if not write.repeats else accesses:
            if write.is_apart(access) or (write.is_scalar and access.is_scalar):
                continue
            if not access.writes:
                return "reads elements after it writes them"
            if access is not write and not access.has_elements_of(write):
                return "writes elements twice"
    return ""
