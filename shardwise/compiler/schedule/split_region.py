"""SplitRegion: the equations around a collective that can be computed in parts.

A part of a value is a range of its indices along one dim. An equation can be split along a factor of its op that passes
through: a part of its result needs the same part of its operands. Operands without the factor, such as weights, are
read by all parts. A collective can be split along a dim along which no elements move.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shardwise.base.caches import registered_cache
from shardwise.compiler.ir.op import Op, factor_rule
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.shardings.factors import FactorRule


class SplitDims(NamedTuple):
    """The dims along which an equation is split.

    Attributes:
        operands: the dim of each operand; None if all parts read all of it.
        result: the dim of the result.
    """

    operands: tuple[int | None, ...]
    result: int


@final
@dataclass(frozen=True, eq=False)
class SplitRegion:
    """Equations that are split together.

    Attributes:
        parts: the number of parts.
        dims: the dims along which each equation is split.
    """

    parts: int
    dims: dict[Equation, SplitDims] = field(default_factory=dict)

    def before(self, end: int, positions: Mapping[Equation, int]) -> "SplitRegion":
        """Return the equations of the region whose position in the program is before `end`."""
        return SplitRegion(self.parts, {each: dims for each, dims in self.dims.items() if positions[each] < end})

    def joined_values(self, program: Program) -> list[Value]:
        """Return the results of the region that some equation reads as a whole, or along another dim, and outputs."""
        consumers, outputs = _consumers(program), set(program.outputs)
        return [equation.outputs[0] for equation in self.dims if self.is_joined(equation, consumers, outputs)]

    def is_joined(
        self, equation: Equation, consumers: Mapping[Value, Sequence[Equation]], outputs: Collection[Value]
    ) -> bool:
        """Return whether all of an equation's result is read. A constant is computed as a whole once more."""
        (result,) = equation.outputs
        if not equation.inputs:
            return False
        if result in outputs:
            return True
        for consumer in consumers.get(result, ()):
            dims = self.dims.get(consumer)
            if dims is None:
                return True
            for value, dim in zip(consumer.inputs, dims.operands, strict=True):
                if value is result and dim != self.dims[equation].result:
                    return True
        return False


@final
class RegionFinder:
    """Finds regions of a program.

    Args:
        program: the program.
        uses: the equations that read each value.
        parts: the number of parts.
        collectives: the equations that communicate.
        splittable: those that may be split.
    """

    def __init__(
        self,
        program: Program,
        uses: Mapping[Value, Sequence[Equation]],
        parts: int,
        collectives: Collection[Equation],
        splittable: Collection[Equation],
    ):
        self._parts = parts
        self._collectives = collectives
        self._splittable = splittable
        self._producers = program.producers()
        self._consumers = uses
        self._outputs = set(program.outputs)

    def region(self, seed: Equation, excluded: Collection[Equation]) -> SplitRegion:
        """Return the region of a collective along the dim for which the fewest bytes are joined; empty if it has none.

        Args:
            seed: the collective.
            excluded: equations that must not be split.
        """
        regions = [self._grow(seed, dim, excluded) for dim in range(seed.inputs[0].type.ndim)]
        regions = [region for region in regions if region.dims]
        return min(regions, key=self._joined_bytes, default=SplitRegion(self._parts))

    def _joined_bytes(self, region: SplitRegion) -> int:
        joined = (each for each in region.dims if region.is_joined(each, self._consumers, self._outputs))
        return sum(equation.outputs[0].type.nbytes for equation in joined)

    def _grow(self, seed: Equation, dim: int, excluded: Collection[Equation]) -> SplitRegion:
        """Return the region of the equations that can be split together with a collective along a dim.

        Where the operands of an equation would be split along different factors, the first one that is reached is
        chosen, and the other operands are joined.
        """
        region = SplitRegion(self._parts)
        reached: dict[Value, int] = {}
        queue = deque([(seed, 0, dim)])
        while queue:
            equation, position, dim = queue.popleft()
            if equation in region.dims or equation in excluded or not self._can_split(equation):
                continue
            dims = split_dims(equation, position, dim, self._parts)
            if dims is None:
                continue
            region.dims[equation] = dims
            values = zip((*equation.inputs, *equation.outputs), (*dims.operands, dims.result), strict=True)
            for value, other in values:
                if other is not None and value not in reached:
                    reached[value] = other
                    queue.extend(self._neighbours(value, other))
        return region

    def _neighbours(self, value: Value, dim: int) -> Iterator[tuple[Equation, int, int]]:
        """Yield the producer and the consumers of a value, with its position among their values, and a dim."""
        producer = self._producers.get(value)
        if producer is not None:
            yield producer, len(producer.inputs), dim
        for consumer in self._consumers.get(value, ()):
            yield consumer, consumer.inputs.index(value), dim

    def _can_split(self, equation: Equation) -> bool:
        op = equation.op
        if equation in self._collectives:
            return equation in self._splittable
        return op.single and not (op.effect or op.programs or op.fusion.is_barrier or op.axis_names)


def _consumers(program: Program) -> dict[Value, list[Equation]]:
    """Return the equations that read each value."""
    consumers: dict[Value, list[Equation]] = {}
    for equation in program.equations:
        for value in equation.inputs if len(equation.inputs) == 1 else dict.fromkeys(equation.inputs):
            consumers.setdefault(value, []).append(equation)
    return consumers


def split_dims(equation: Equation, position: int, dim: int, parts: int) -> SplitDims | None:
    """Return the dims along which an equation is split, given one of them; None if it cannot be split.

    Args:
        equation: an equation with one result.
        position: the index of a value among the operands and the result.
        dim: the dim of this value.
        parts: the number of parts.
    """
    return _split_dims(equation.op, tuple([value.type for value in equation.inputs]), position, dim, parts)


@registered_cache(maxsize=65536)  # equal layers have equal equations
def _split_dims(op: Op, types: tuple[ArrayType, ...], position: int, dim: int, parts: int) -> SplitDims | None:
    rule = _rule(op, types)
    if rule is None:
        return None
    values = (*rule.operands, *rule.results)
    factors = values[position][dim]
    if len(factors) != 1 or not _passes_through(rule, factors[0]) or rule.sizes[factors[0]] % parts:
        return None
    *operands, result = (_dim_of(dims, factors[0]) for dims in values)
    return None if result is None else SplitDims(tuple(operands), result)


def _rule(op: Op, types: tuple[ArrayType, ...]) -> FactorRule | None:
    """Return the factors of an op; those of a collective that move elements need replication."""
    if not isinstance(op, Collective):
        return factor_rule(op, types)
    if op.moved_dims is None or not types:
        return None
    shape = types[0].shape
    dims = tuple((dim,) for dim in range(len(shape)))
    return FactorRule((dims,), (dims,), shape, need_replication=frozenset(op.moved_dims))


def _passes_through(rule: FactorRule, factor: int) -> bool:
    """Return whether a factor is not reduced, and alone in each of its dims: parts are then ranges of indices."""
    if factor in rule.reduce or factor in rule.need_replication or factor in rule.exchange:
        return False
    return all(
        factors == (factor,) for dims in (*rule.operands, *rule.results) for factors in dims if factor in factors
    )


def _dim_of(dims: tuple[tuple[int, ...], ...], factor: int) -> int | None:
    return next((dim for dim, factors in enumerate(dims) if factor in factors), None)
