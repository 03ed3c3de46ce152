"""jit: a function compiled once for each type, layout and structure of its arguments."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

from shardwise import tree
from shardwise.api.aot import Lowered, Traced
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    described,
    function_name,
    leaf_types,
    spread_shardings,
)
from shardwise.api.boundary import boundary
from shardwise.api.execute import Launch, as_array, prepare
from shardwise.api.flat import Flat, is_traced
from shardwise.api.request import Request
from shardwise.api.static import NOTHING, Selection, Split, check_overlap, donated_leaves, select, split
from shardwise.api.struct import ShapeDtypeStruct
from shardwise.compiler.ir.dispatch import bound_axes, open_frames
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.call import Call
from shardwise.compiler.ops.constrain import Constrain
from shardwise.compiler.ops.operands import as_operand
from shardwise.compiler.shardings.mesh import in_force
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.replay import replay
from shardwise.config import config
from shardwise.runtime.sharding import Sharding, mesh_of

_flatten = tree.registry.flatten
_log = logging.getLogger("shardwise")


@final
@dataclass(frozen=True, eq=False)
class Recorded:
    """A function staged for arguments of certain types. `captured` are outer values, the program's last inputs."""

    program: Program
    captured: list[Any]
    structure: tree.Structure  # of the results


@final
@dataclass(frozen=True)
class Options:
    """What `jit` was asked for beside the function."""

    in_shardings: Any = None
    out_shardings: Any = None
    static: Selection = NOTHING
    donate: Selection = NOTHING
    keep_unused: bool = False
    inline: bool = False


class Jitted:
    """A function that `jit` has wrapped. Called, it runs compiled; called inside another trace, it is one op there."""

    def __init__(self, function: Callable[..., Any], options: Options):
        self.function = function
        self.options = options
        self._traced: dict[Any, Recorded]
        self._launches: dict[Any, tuple[Launch, tree.Structure]]
        self._traced, self._launches = _caches(function, options)
        _jitted.add(self)
        update_wrapper(self, function, updated=())  # not the attributes: another jit has those of the same names

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        state = config.state
        if state.disable_jit:
            return self.function(*args, **keywords)
        found = None
        if self.options.static:
            found = split(self.function, self.options.static, args, keywords)
            leaves, structure = _flatten((found.args, found.keywords))
        else:
            leaves, structure = _flatten((args, keywords))
        if open_frames() and (is_traced(leaves) or bound_axes()):  # it may compute along the axes that have a name here
            return self._staged(found or split(self.function, NOTHING, args, keywords))
        fixed = (in_force.mesh, state.traced, found.key if found is not None else ())
        try:
            key = (structure, fixed, *[x.signature for x in leaves])
        except AttributeError:  # not all are arrays yet
            found = found or split(self.function, NOTHING, args, keywords)
            self._array_leaves(found)
            leaves = [as_array(x) for x in leaves]
            key = (structure, fixed, *[x.signature for x in leaves])
        entry = self._launches.get(key)
        if entry is None:
            found = found or split(self.function, NOTHING, args, keywords)
            if any(isinstance(x, Tracer) for x in self._captured(found)):
                return self._staged(found)  # it closes over a value that is being traced
            self._explain_miss(key, found)
            entry = self._launches[key] = self._compiled(found)
        launch, results = entry
        return results.unflatten(launch(leaves))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else partial(self, instance)

    def clear_cache(self) -> None:
        """Forget what was traced and compiled for this function."""
        self._traced.clear()
        self._launches.clear()

    def trace(self, *args: Any, **keywords: Any) -> Traced:
        """What the function computes for these arguments, or for such as ShapeDtypeStructs say; nothing runs."""
        return self._looked_at(args, keywords)

    def lower(self, *args: Any, **keywords: Any) -> Lowered:
        """What each device would do, as text for XLA; nothing runs."""
        return self._looked_at(args, keywords).lower()

    def eval_shape(self, *args: Any, **keywords: Any) -> Any:
        """The types of the results, as `ShapeDtypeStruct`s; nothing runs."""
        return self._looked_at(args, keywords).out_info

    @boundary
    def _looked_at(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        request, recorded = self.request(args, keywords)
        found = split(self.function, self.options.static, args, keywords)
        structure = self._array_leaves(found, abstract=True)[1]
        return Traced(request, recorded.captured, structure, recorded.structure)

    def traced(self, found: Split) -> Recorded:
        """The function staged for these arguments; once for each structure, types, static arguments and named axes."""
        leaves, structure = self._array_leaves(found, abstract=True)
        fixed = (config.state.traced, in_force.mesh, found.key, tuple(bound_axes().items()))
        key = (structure, fixed, leaf_types(leaves))
        traced = self._traced.get(key)
        if traced is None or not _is_alive(traced.captured):
            traced = self._traced[key] = trace(found.bind(self.function), structure, leaf_types(leaves))
        return traced

    def request(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Request, Recorded]:
        """What it takes to run the function on these arguments."""
        return self._request(split(self.function, self.options.static, args, keywords))

    def _request(self, found: Split) -> tuple[Request, Recorded]:
        leaves, _ = self._array_leaves(found, abstract=True)
        traced = self.traced(found)
        names = self._names(found)
        request = Request(
            traced.program,
            tuple(
                x.placed if isinstance(x, ShapeDtypeStruct) else as_array(x).signature
                for x in (*leaves, *traced.captured)
            ),
            self._out_shardings(traced),
            tuple(names),
            self._in_shardings(found.args, leaf_types(leaves), names),
            donated_leaves(self.options.donate, found) if self.options.donate else (),
            self.options.keep_unused,
        )
        return request, traced

    @boundary
    def _captured(self, found: Split) -> list[Any]:
        return self.traced(found).captured

    @boundary
    def _compiled(self, found: Split) -> tuple[Launch, tree.Structure]:
        request, traced = self._request(found)
        return prepare(request, [as_array(x) for x in traced.captured]), traced.structure

    @boundary
    def _staged(self, found: Split) -> Any:
        """As one op of the frame that is open; shardings become constraints."""
        leaves, _ = self._array_leaves(found)
        traced = self.traced(found)
        asked = self._in_shardings(found.args, leaf_types(leaves), self._names(found))
        pinned = _constrained(map(as_operand, leaves), asked)
        operands = [*pinned, *traced.captured]
        results = replay(traced.program, operands) if self.options.inline else Call(traced.program)(*operands)
        return traced.structure.unflatten(_constrained(results, self._out_shardings(traced)))

    def _array_leaves(self, found: Split, abstract: bool = False) -> tuple[list[Any], tree.Structure]:
        return array_leaves(found.bind(self.function), found.args, found.keywords, abstract)

    def _names(self, found: Split) -> list[str]:
        return argument_names(found.bind(self.function), found.args, found.keywords)

    def _in_shardings(self, args: Any, types: Sequence[ArrayType], names: Sequence[str]) -> tuple[Sharding | None, ...]:
        count = len(tree.leaves(args))
        shardings = self.options.in_shardings
        if isinstance(shardings, list):
            shardings = tuple(shardings)
        if shardings is not None and len(types) > count:
            raise TypeError(
                f"{described(self.function)} has in_shardings, which are for positional arguments, but {names[count]} "
                "was given by keyword"
            )
        given = spread_shardings(shardings, args, "in_shardings", self.function, types[:count], names[:count])
        return given + (None,) * (len(types) - count)

    def _out_shardings(self, traced: Recorded) -> tuple[Sharding | None, ...]:
        count = len(traced.program.outputs)
        outputs = traced.structure.unflatten(list(range(count)))
        names = [f"output {number}" for number in range(count)]
        return spread_shardings(
            self.options.out_shardings, outputs, "out_shardings", self.function, traced.program.out_types, names
        )

    def _explain_miss(self, key: tuple[Any, ...], found: Split) -> None:
        """Log why this call needs another compilation, where the user wants to know."""
        if not config.explain_cache_misses or not self._launches:
            return
        last = next(reversed(self._launches))
        reasons = []
        if key[0] != last[0]:
            reasons.append(f"the arguments are {key[0]}, last time {last[0]}")
        elif key[1] != last[1]:
            reasons.append(f"the mesh in force, settings and static arguments are {key[1]}, last time {last[1]}")
        for name, now, before in zip(self._names(found), key[2:], last[2:], strict=False):
            if now is not before:
                here, there = (f"{s.type} in {s.sharding}" for s in (now, before))
                committed = "" if here != there else f" (committed: {now.committed}, last time {before.committed})"
                reasons.append(f"{name} is {here}, last time {there}{committed}")
        count = len(self._launches) + 1
        _log.warning("%s is compiled for the %d. time:\n  %s", described(self.function), count, "\n  ".join(reasons))


def jit(
    function: Callable[..., Any] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
) -> Any:
    """`function`, compiled. Its arguments and results are arrays in trees.

    `in_shardings` and `out_shardings` are trees of shardings, or prefixes of such trees; None leaves the layout to what
    the arguments have and to the planner. Static arguments are hashable Python values that the function may branch on;
    it is compiled for each. The memory of donated arguments is reused for results: they cannot be used afterwards.
    Arrays that the function does not use are not even moved to its devices, unless `keep_unused`. With `inline`, a call
    inside another trace leaves its ops there instead of one call.
    """
    if function is None:
        keywords = {name: value for name, value in locals().items() if name != "function"}
        return lambda f: jit(f, **keywords)
    if not callable(function):
        raise TypeError(f"jit needs a function, not {function!r}")
    static = select(function, "static", static_argnums, static_argnames)
    donate = select(function, "donate", donate_argnums, donate_argnames)
    check_overlap(function, static, donate)
    return Jitted(function, Options(in_shardings, out_shardings, static, donate, keep_unused, inline))


def trace(function: Callable[..., Any], structure: tree.Structure, types: Sequence[ArrayType]) -> Recorded:
    """Stage `function` for arguments of this structure whose arrays have these types."""
    flat = Flat(function, structure)
    program, captured = build(flat, types, function_name(function))
    return Recorded(program, captured, flat.results)


def _constrained(values: Any, shardings: Sequence[Sharding | None]) -> list[Any]:
    return [x if s is None else constrain(x, s) for x, s in zip(values, shardings, strict=True)]


def constrain(x: Any, sharding: Sharding) -> Any:
    """`x` pinned to a sharding; on one device there is nothing to pin."""
    mesh = mesh_of(sharding)
    if mesh is None:
        return x
    pin = sharding.pin(x.type.shape)
    return Constrain(pin.layout.dims, mesh, tuple(sorted(pin.open_dims)))(x)


_shared: WeakKeyDictionary[Any, dict[Options, Any]] = WeakKeyDictionary()
_jitted: WeakSet[Jitted] = WeakSet()


def forget_functions() -> None:
    """Drop all that was traced and compiled for jitted functions."""
    for jitted in list(_jitted):
        jitted.clear_cache()
    _shared.clear()


def _caches(function: Callable[..., Any], options: Options) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What was traced and compiled for a function, shared by all who jit it alike, for as long as it lives."""
    try:
        found: tuple[dict[Any, Any], dict[Any, Any]] = _shared.setdefault(function, {}).setdefault(options, ({}, {}))
    except TypeError:  # shardings in dicts, or a callable without hash or weak references
        return {}, {}
    return found


def _is_alive(captured: Sequence[Any]) -> bool:
    """Whether the outer values that a trace closed over can still be used."""
    return all(not isinstance(x, Tracer) or x.frame in open_frames() for x in captured)
