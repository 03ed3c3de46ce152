"""Errors for calls that pass freed memory, or donate an array that is also another argument.

XLA ends the process for such a call on several CPU devices, and JAX's fast path for repeated calls does not check it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shardwise.inside_jax import _jax
from shardwise.inside_jax.plan import Call, PlannedJaxpr, plan


def check_donated(call: Call, args: Sequence[_jax.Array]) -> None:
    """Raise a RuntimeError if XLA would end the process because of a freed or donated argument.

    Arguments that the program does not read, or that JAX copies to another sharding, are valid.

    Args:
        call: the call, with the shardings of its arguments.
        args: the arguments.
    """
    if call.mesh is None:  # XLA raises errors for one device
        return
    planned = plan(call)
    kept = planned.request.kept
    read = [index for index in (range(len(args)) if kept is None else kept) if index < len(args)]
    arrays = [index for index in read if isinstance(args[index], _jax.Array)]
    for index in arrays:
        if args[index].is_deleted():
            raise RuntimeError(
                f"inside_jax.jit of `{call.name}`: {call.names[index]} is a {_jax.typeof(args[index])} whose memory "
                "was freed: it was donated to a compiled function, or deleted. Use the function's result instead, or "
                "do not donate it."
            )
    reused = _reused_arguments(call, planned, read)
    first: dict[int, int] = {}
    for index in arrays:
        if not args[index].sharding.is_equivalent_to(planned.in_shardings[index], args[index].ndim):
            continue
        other = first.setdefault(id(args[index]), index)
        if other != index and not reused.isdisjoint((other, index)):
            raise RuntimeError(
                f"inside_jax.jit of `{call.name}` gets the same array as {call.names[other]} and as "
                f"{call.names[index]}, and one of them is donated: its memory is reused while the other is read. "
                "Pass a copy, or do not donate it."
            )


def _reused_arguments(call: Call, planned: PlannedJaxpr, read: Sequence[int]) -> set[int]:
    """Return the donated arguments whose memory a result certainly reuses: each has a result of the same layout."""
    outs = Counter(map(_layout, call.jaxpr.out_avals, planned.out_shardings))
    ins = map(_layout, call.jaxpr.in_avals, planned.in_shardings)
    donated = {index: layout for index, layout in enumerate(ins) if call.donated[index] and index in read}
    counts = Counter(donated.values())
    return {index for index, layout in donated.items() if counts[layout] <= outs[layout]}


def _layout(aval: _jax.ShapedArray, sharding: _jax.NamedSharding) -> tuple[Any, ...]:
    """Return what an argument and a result must have in common to share memory."""
    spec = (*sharding.spec, *[None] * (aval.ndim - len(sharding.spec)))
    return aval.shape, aval.dtype, spec, sharding.memory_kind
