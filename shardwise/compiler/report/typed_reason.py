"""Reasons for collectives along Explicit mesh axes, in terms of types, because there types require every collective.

The input is a reason of the partitioner, and the shardings that types had before they were erased. Along Explicit axes,
users have the types of values in mind, and not the layouts that a plan chose.
"""

from collections.abc import Mapping, Sequence

from shardwise.compiler.candidates.explicit_axes import TYPED_RESULT, TypedAxis, decided_by_type
from shardwise.compiler.candidates.layout_problem import LayoutProblem
from shardwise.compiler.ir.program import Equation, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.reason import Exchange, OpSite, Reshard, Site


def explicit_type(value: Value, problem: LayoutProblem) -> ArrayType:
    """Return the type of a value with its sharding along Explicit axes."""
    sharding = problem.shardings.get(value)
    return value.type if sharding is None else value.type.with_explicit(sharding)


def format_typed_reason(
    equation: Equation, axes: Sequence[str], typed: Mapping[str, TypedAxis], problem: LayoutProblem
) -> str:
    """Describe the type that requires a collective along `axes`; "" if types do not decide there.

    Args:
        equation: the collective.
        axes: the mesh axes along which devices communicate.
        typed: the axes along which types decide.
        problem: the program before it is partitioned.
    """
    match reason := equation.reason:
        case Exchange() if all(decided_by_type(value, axes, typed) for value in reason.site.results):
            return f"{_asks(reason.site, problem)}: the op needs data from other shards along {_quote(reason.axes)}"
        case Reshard():
            results = reason.consumer.results if isinstance(reason.consumer, OpSite) else ()
            if all(decided_by_type(value, axes, typed) for value in (reason.value, *results)):
                return _format_reshard(reason, axes, problem)
    return ""


def _format_reshard(reason: Reshard, axes: Sequence[str], problem: LayoutProblem) -> str:
    type = explicit_type(reason.value, problem)
    sums = [axis for axis in axes if reason.before.is_partial(axis) and not reason.after.is_partial(axis)]
    is_unreduced = type.explicit is not None and not set(sums).isdisjoint(type.explicit.unreduced)
    consumer = reason.consumer
    if sums and not is_unreduced and not _is_reshard(consumer, reason.value, problem):
        return f"{_asks(reason.producer, problem, type)}: its terms are summed over {_quote(sums)}"
    if isinstance(consumer, OpSite) and consumer.results and not consumer.is_output:
        asks = _asks(consumer, problem)
    else:
        asks = f"{consumer} asks for it"
    return f"{asks}: {_sum_text(reason, sums) if sums else f'{reason.producer} has type {type}'}"


def _is_reshard(consumer: Site, value: Value, problem: LayoutProblem) -> bool:
    """Return whether the consumer reshards the value: a reshard, or a function's `out_sharding`."""
    if not isinstance(consumer, OpSite):
        return consumer != TYPED_RESULT
    return consumer.op == "reshard" and any(
        problem.shardings.get(result) != problem.shardings.get(value) for result in consumer.results
    )


def _sum_text(reason: Reshard, axes: Sequence[str]) -> str:
    """Describe the partial sums: of this op, or of the ops whose sum a loop keeps unreduced."""
    if not reason.summed:
        return f"the terms of {reason.producer} are summed over {_quote(axes)}"
    first, *others = reason.summed
    more = f" and {len(others)} other ops" if others else ""
    return f"the terms of {first}{more}, which {reason.producer} adds up, are summed over {_quote(axes)}"


def _asks(site: Site, problem: LayoutProblem, type: ArrayType | None = None) -> str:
    """Return `the type of the result of dot at train.py:41, f32[8,4], asks for it`."""
    if not isinstance(site, OpSite) or not site.results:
        return f"the type of {site}, {type}, asks for it" if type is not None else f"{site} asks for it"
    types = [type] if type is not None else [explicit_type(value, problem) for value in site.results]
    what = "result" if len(types) == 1 else "results"
    return f"the type of the {what} of {site}, {' and '.join(map(str, types))}, asks for it"


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
