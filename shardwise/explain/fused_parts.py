"""fused_parts: find fused projections whose parts are across the borders of shards, and what separating them costs.

A fused projection multiplies by several weights at once, which are next to each other along one dim of an argument, and
slices the product. If the argument is sharded along that dim, the parts have other shards than the slices need, and the
plan moves data. Input: the stages of a plan. Output: the arguments, with the bytes that their slices send.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from shardwise.compiler.ir.program import Equation, Source, Value
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.shape.slicing import Slice
from shardwise.compiler.pipeline import Stages
from shardwise.compiler.search.pins import inserted_collectives
from shardwise.explain.end_groups import path_patterns
from shardwise.explain.text import human_bytes

# For each dim of a value: the argument, its dim, and whether a product is between them.
_Origins = dict[Value, list[set[tuple[str, int, bool]]]]


@final
@dataclass(frozen=True)
class FusedParts:
    """Fused arguments of the same parts.

    Attributes:
        names: the arguments.
        dim: the fused dim.
        sizes: the sizes of the parts.
        kinds: the names of the collectives there.
        sent: the bytes that each device sends at the line of the slices.
        source: the line of the slices.
    """

    names: tuple[str, ...]
    dim: int
    sizes: tuple[int, ...]
    kinds: tuple[str, ...]
    sent: float
    source: Source

    def __str__(self) -> str:
        count, verb = len(self.sizes), "is a fused projection" if len(self.names) == 1 else "are fused projections"
        if len(set(self.sizes)) == 1:
            apart = f"as [..., {count}, {self.sizes[0]}, ...], sharded along the last of these dims"
        else:
            apart = f"as {count} arrays of sizes {', '.join(map(str, self.sizes))}"
        return (
            f"{path_patterns(self.names)} {verb} of {count} parts along dim {self.dim}, which are across the borders "
            f"of shards. At {self.source.place}, where they are separated, {human_bytes(self.sent)} are sent per "
            f"device ({', '.join(self.kinds)}). Store the parts {apart}; for a PyTorch module, "
            "`functional(module, split=fused_projections(module))` does so"
        )


def find_fused_parts(stages: Stages) -> list[FusedParts]:
    """Return the fused arguments whose parts a plan separates by communication, costliest first."""
    local = stages.partitioned
    costs: dict[tuple[str, int], dict[str, float]] = {}  # file and line → bytes by kind
    for equation in inserted_collectives(stages.problem, local):
        if not equation.op.reduces_across_devices:
            kinds = costs.setdefault((equation.source.file, equation.source.line), {})
            sent = local.times[equation] * local.bytes_sent(equation)
            kinds[equation.op.name] = kinds.get(equation.op.name, 0.0) + sent
    groups: dict[tuple[int, tuple[int, ...], Source], dict[str, None]] = {}
    if costs:
        for name, dim, sizes, source in _split_arguments(stages):
            if (source.file, source.line) in costs:
                place = Source(source.file, source.line, source.function)
                groups.setdefault((dim, sizes, place), {})[name] = None
    found = []
    for (dim, sizes, source), names in groups.items():
        kinds = costs[source.file, source.line]
        found.append(FusedParts(tuple(names), dim, sizes, tuple(kinds), sum(kinds.values()), source))
    return sorted(found, key=lambda fused: -fused.sent)


def _split_arguments(stages: Stages) -> Iterator[tuple[str, int, tuple[int, ...], Source]]:
    """Yield each argument that is sharded along a dim whose products are sliced into parts, and the line of a slice."""
    problem = stages.problem
    sharded: dict[tuple[str, int], bool] = {}
    origins: _Origins = {}
    for value, pin in zip(problem.program.inputs, problem.in_pins, strict=True):
        if pin.reason and value.type.ndim > 1:  # a bias has the parts of its weight
            origins[value] = [{(pin.reason, dim, False)} for dim in range(value.type.ndim)]
            sharded |= {(pin.reason, dim): bool(axes) for dim, axes in enumerate(pin.layout.dims)}
    slices: dict[tuple[Value, int], dict[tuple[int, int], Equation]] = {}
    for equation in problem.program.equations:
        if isinstance(equation.op, Slice):
            _record_slice(equation, slices)
        elif not equation.op.programs:
            _propagate(equation, origins)
    for (value, dim), bounds in slices.items():
        starts, stops = zip(*sorted(bounds), strict=True)
        if len(bounds) > 1 and starts == (0, *stops[:-1]) and stops[-1] == value.type.shape[dim]:
            sizes = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
            source = next(iter(bounds.values())).source
            for name, argument_dim, is_product in sorted(origins.get(value, [set()] * (dim + 1))[dim]):
                if is_product and sharded[name, argument_dim]:
                    yield name, argument_dim, sizes, source


def _record_slice(equation: Equation, slices: dict[tuple[Value, int], dict[tuple[int, int], Equation]]) -> None:
    """Add a slice along the last dim, which has the features of a product."""
    (value,) = equation.inputs
    assert isinstance(equation.op, Slice)
    bounds = list(zip(equation.op.start, equation.op.limit, equation.op.stride, strict=True))
    sliced = [dim for dim, size in enumerate(value.type.shape) if bounds[dim] != (0, size, 1)]
    if sliced == [value.type.ndim - 1] and bounds[sliced[0]][2] == 1:
        start, limit, _ = bounds[sliced[0]]
        slices.setdefault((value, sliced[0]), {})[start, limit] = equation


def _propagate(equation: Equation, origins: _Origins) -> None:
    """Let the dims of results have the origins of the operands' dims with the same factor."""
    known = [(index, origins[value]) for index, value in enumerate(equation.inputs) if value in origins]
    if not known:
        return
    rule = equation.op.factors(*(value.type for value in equation.inputs))
    is_product = isinstance(equation.op, Dot)
    of_factor: dict[int, set[tuple[str, int, bool]]] = {}
    for index, dims in known:
        for factors, names in zip(rule.operands[index], dims, strict=True):
            if len(factors) == 1:
                found = {(name, dim, before or is_product) for name, dim, before in names}
                of_factor.setdefault(factors[0], set()).update(found)
    for value, result in zip(equation.outputs, rule.results, strict=True):
        origins[value] = [of_factor.get(factors[0], set()) if len(factors) == 1 else set() for factors in result]
