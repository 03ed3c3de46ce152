"""Reasons: why the partitioner inserted an equation, as data. `str` formats a reason as the sentence in reports."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any, final

from shardwise.compiler.ir.program import Equation, Reason, Source, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.trace.provenance import provenance


@final
@record
class OpSite:
    """An op at a source line of the user's program.

    Attributes:
        op: the name of the op.
        source: the user's line.
        is_output: whether the site is an output of the op's program, such as the carry of a loop after each iteration.
        after_loop: whether the site is a result of a loop, after the last iteration.
        exceeds_memory: whether an unreduced output would exceed the memory limit.
        results: the results of the op, in the unpartitioned program.
    """

    op: str
    source: Source
    is_output: bool = False
    after_loop: bool = False
    exceeds_memory: bool = False
    results: tuple[Value, ...] = field(default=(), compare=False, repr=False)

    @staticmethod
    def from_equation(
        equation: Equation, is_output: bool = False, after_loop: bool = False, exceeds_memory: bool = False
    ) -> "OpSite":
        return OpSite(
            equation.op.requested_by or equation.op.name,
            equation.source,
            is_output,
            after_loop,
            exceeds_memory,
            tuple(equation.outputs),
        )

    def __str__(self) -> str:
        site = f"{self.op} at {self.source}"
        return f"an output of {site}" if self.is_output else site


Site = OpSite | str  # an op, or the label of an input or output of the program


@record
class Conversion(Reason):
    """A consumer needs a value in another layout or with other padding.

    Attributes:
        value: the value, in the unpartitioned program.
        before: its layout before this step.
        after: the layout that the consumer needs.
        producer: the site that produces the value.
        consumer: the site that needs the other layout.
    """

    value: Value
    before: Layout
    after: Layout
    producer: Site
    consumer: Site


@final
@record
class Reshard(Conversion):
    """A consumer needs a value in another layout.

    Attributes:
        regathered: whether an earlier copy was dropped to save memory.
        summed: if the producer is a loop that leaves a sum unreduced, the ops in the loop whose results are its terms.
    """

    regathered: bool = False
    summed: tuple[OpSite, ...] = ()

    def __str__(self) -> str:
        if self.before.partial and not self.after.partial:
            text = f"{self._unreduced()}; {self.consumer} needs it reduced"
            if isinstance(self.consumer, OpSite) and self.consumer.exceeds_memory:
                text += " in every iteration, because keeping it unreduced would exceed the memory limit"
        else:
            text = f"{self.producer} has sharding {self.before}; {self.consumer} needs {self.after}"
        more = "; it is gathered again, because keeping the first copy would exceed the memory limit"
        return text + more if self.regathered else text

    def _unreduced(self) -> str:
        """Describe the op that leaves the value unreduced, and the loop that keeps it unreduced."""
        pending = _format_pending(self.before.partial)
        if not self.summed:
            return f"{self.producer} leaves an unreduced {pending}"
        first, *others = self.summed
        more = f" and {len(others)} other ops leave" if others else " leaves"
        return f"{first}{more} an unreduced {pending}, which {self.producer} keeps until its last iteration"


@final
@record
class Repad(Conversion):
    """A consumer needs an unevenly sharded value with another shard size along `dim`."""

    dim: int
    shard_size: int
    needed_size: int

    def __str__(self) -> str:
        return (
            f"{self.producer} does not divide evenly: its shards have size {self.shard_size} along dim {self.dim}; "
            f"{self.consumer} needs size {self.needed_size}"
        )


@final
@record
class Exchange(Reason):
    """An op needs elements of other shards along mesh axes, such as the halo of a convolution."""

    site: OpSite
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.site.op} needs data from other shards along {_quote(self.axes)}"


@final
@record
class Masking(Reason):
    """An op reduces along a padded dim, so the padding must hold the neutral element of the reduction."""

    consumer: Site
    dim: int
    fill: Any

    def __str__(self) -> str:
        return f"{self.consumer} reduces over the padding of dim {self.dim}, which is set to {self.fill}"


@final
@record
class UserCollective(Reason):
    """The user wrote the collective in a manual region, or it is the derivative of such a collective."""

    axis_names: tuple[Any, ...]

    def __str__(self) -> str:
        return f"written by hand, along {_quote(self.axis_names)}"


def is_inserted(reason: Reason | None) -> bool:
    """Return whether the partitioner inserted an equation with this reason. Otherwise the user wrote it."""
    return reason is not None and not isinstance(reason, UserCollective)


@contextmanager
def inserted_because(reason: Reason | None) -> Iterator[None]:
    """Attach a reason to the equations that are emitted in this context."""
    before, provenance.reason = provenance.reason, reason
    try:
        yield
    finally:
        provenance.reason = before


def _format_pending(partial: Iterable[tuple[str, Reduction]]) -> str:
    """Format pending reductions: `sum over 'data', 'model'`, or `sum over 'data' and max over 'model'`."""
    axes: dict[Reduction, list[str]] = {}
    for axis, reduction in partial:
        axes.setdefault(reduction, []).append(axis)
    return " and ".join(f"{reduction} over {_quote(names)}" for reduction, names in axes.items())


def _quote(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names))
