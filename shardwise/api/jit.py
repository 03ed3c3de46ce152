"""jit: a function compiled once for each type, layout and structure of its arguments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    described,
    function_name,
    leaf_types,
    spread_shardings,
)
from shardwise.api.execute import Launch, Request, as_array, prepare
from shardwise.compiler.ir.dispatch import open_frames
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.constrain import Constrain
from shardwise.compiler.ops.control import Call
from shardwise.compiler.ops.methods import as_operand, is_array_like
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.runtime.sharding import NamedSharding, Sharding

_flatten = tree.registry.flatten


@final
@dataclass(frozen=True, eq=False)
class Traced:
    """A function staged for arguments of certain types. `captured` are outer values, the program's last inputs."""

    program: Program
    captured: list[Any]
    structure: tree.Structure  # of the results


class Jitted:
    """A function that `jit` has wrapped. Called, it runs compiled; called inside another trace, it is one op there."""

    def __init__(self, function: Callable[..., Any], in_shardings: Any, out_shardings: Any):
        self.function = function
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings
        self._traced: dict[Any, Traced] = {}
        self._launches: dict[Any, tuple[Launch, tree.Structure]] = {}
        update_wrapper(self, function, updated=())  # not the attributes: another jit has those of the same names

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        leaves, structure = _flatten((args, keywords))
        if frames := open_frames():
            for frame in frames:
                if frame.absorbs or any(frame.owns(x) for x in leaves):
                    return self._staged(args, keywords)
        try:
            key = (structure, *[x.signature for x in leaves])
        except AttributeError:  # not all are arrays yet
            array_leaves(self.function, args, keywords)
            leaves = [as_array(x) for x in leaves]
            key = (structure, *[x.signature for x in leaves])
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = self._compiled(args, keywords)
        launch, results = found
        return results.unflatten(launch(leaves))

    def traced(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        """The function staged for these arguments; once for each types and structure."""
        leaves, structure = array_leaves(self.function, args, keywords)
        types = leaf_types(leaves)
        found = self._traced.get((structure, types))
        if found is None or not _is_alive(found.captured):
            found = self._traced[(structure, types)] = trace(self.function, structure, types)
        return found

    def request(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Request, Traced]:
        """What it takes to run the function on these arguments."""
        leaves, _ = array_leaves(self.function, args, keywords)
        traced = self.traced(args, keywords)
        names = argument_names(self.function, args, keywords)
        asked = self._in_shardings(args, leaf_types(leaves), names)
        arrays = [as_array(x) for x in (*leaves, *traced.captured)]
        signatures = tuple(x.signature for x in arrays)
        return Request(traced.program, signatures, self._out_shardings(traced), tuple(names), asked), traced

    def _compiled(self, args: Any, keywords: Any) -> tuple[Launch, tree.Structure]:
        request, traced = self.request(args, keywords)
        return prepare(request, [as_array(x) for x in traced.captured]), traced.structure

    def _staged(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """As one op of the frame that is open; shardings become constraints."""
        leaves, _ = array_leaves(self.function, args, keywords)
        traced = self.traced(args, keywords)
        names = argument_names(self.function, args, keywords)
        pinned = _constrained(map(as_operand, leaves), self._in_shardings(args, leaf_types(leaves), names))
        results = Call(traced.program)(*pinned, *traced.captured)
        return traced.structure.unflatten(_constrained(results, self._out_shardings(traced)))

    def _in_shardings(self, args: Any, types: Sequence[ArrayType], names: Sequence[str]) -> tuple[Sharding | None, ...]:
        count = len(tree.leaves(args))
        shardings = self.in_shardings
        if isinstance(shardings, list):
            shardings = tuple(shardings)
        given = spread_shardings(shardings, args, "in_shardings", self.function, types[:count], names[:count])
        return given + (None,) * (len(types) - count)

    def _out_shardings(self, traced: Traced) -> tuple[Sharding | None, ...]:
        count = len(traced.program.outputs)
        outputs = traced.structure.unflatten(list(range(count)))
        names = [f"output {number}" for number in range(count)]
        return spread_shardings(
            self.out_shardings, outputs, "out_shardings", self.function, traced.program.out_types, names
        )


def jit(function: Callable[..., Any] | None = None, *, in_shardings: Any = None, out_shardings: Any = None) -> Any:
    """`function`, compiled. Its arguments and results are arrays in trees.

    `in_shardings` and `out_shardings` are trees of shardings, or prefixes of such trees; None leaves the layout to what
    the arguments have and to the planner.
    """
    if function is None:
        return lambda f: jit(f, in_shardings=in_shardings, out_shardings=out_shardings)
    if not callable(function):
        raise TypeError(f"jit needs a function, not {function!r}")
    return Jitted(function, in_shardings, out_shardings)


def trace(function: Callable[..., Any], structure: tree.Structure, types: Sequence[ArrayType]) -> Traced:
    """Stage `function` for arguments of this structure whose arrays have these types."""
    results: list[tree.Structure] = []

    def flat(*tracers: Any) -> list[Any]:
        args, keywords = structure.unflatten(tracers)
        outputs, out_structure = tree.flatten(function(*args, **keywords))
        check_results(function, outputs)
        results.append(out_structure)
        return outputs

    program, captured = build(flat, types, function_name(function))
    return Traced(program, captured, results[0])


def check_results(function: Callable[..., Any], outputs: Sequence[Any]) -> None:
    """A traced function returns arrays and numbers; anything else is an error."""
    for number, output in enumerate(outputs):
        if not is_array_like(output):
            raise TypeError(
                f"{described(function)} returned {output!r} of type {type(output).__name__} as result {number}: "
                "a traced function returns arrays and numbers, in tuples, lists, dicts and None"
            )


def _constrained(values: Any, shardings: Sequence[Sharding | None]) -> list[Any]:
    return [x if s is None else constrain(x, s) for x, s in zip(values, shardings, strict=True)]


def constrain(x: Any, sharding: Sharding) -> Any:
    """`x` pinned to a sharding; on one device there is nothing to pin."""
    if not isinstance(sharding, NamedSharding):
        return x
    pin = sharding.pin(x.type.shape)
    return Constrain(pin.layout.dims, sharding.mesh, tuple(sorted(pin.open_dims)))(x)


def _is_alive(captured: Sequence[Any]) -> bool:
    """Whether the outer values that a trace closed over can still be used."""
    return all(not isinstance(x, Tracer) or x.frame in open_frames() for x in captured)
