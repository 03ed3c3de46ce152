"""jit: a function compiled once for each type, layout and structure of its arguments."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, update_wrapper
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet

from shardwise import tree
from shardwise._jaxlib import CompilerOptions
from shardwise.api.aot import Lowered, Traced
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    broadcast_shardings,
    check_function,
    describe_function,
    function_name,
    leaf_types,
)
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.static_args import NOTHING, Selection, Split, check_overlap, donated_leaves, select, split
from shardwise.caches import register
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes, open_frames, tracked_axes
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.compiler.shardings.mesh import mesh_context
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.replay import replay
from shardwise.config import all_threads, config
from shardwise.errors import ShardingError
from shardwise.execute.executor import Launch, as_argument, as_array, compile_request
from shardwise.execute.executor import compiler_options as checked_options
from shardwise.execute.lru import LruCache
from shardwise.execute.request import Request
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.runtime.array import Array
from shardwise.runtime.sharding import Sharding, mesh_of

_flatten = tree.registry.flatten
_LEAF = _flatten(0)[1]
_log = logging.getLogger("shardwise")

MOST_KEPT = 4096  # programs for each function; those that were not used for long go first


@final
@dataclass(frozen=True, eq=False)
class TracedFunction:
    """A function staged for arguments of certain types. `captured` are outer values, the program's last inputs."""

    program: Program
    captured: list[Any]
    structure: tree.Structure  # of the results


@dataclass(frozen=True)
class JitOptions:
    """What `jit` was asked for beside the function; `pmap` is asked for more."""

    in_shardings: Any = None
    out_shardings: Any = None
    static: Selection = NOTHING
    donate: Selection = NOTHING
    keep_unused: bool = False
    inline: bool = False
    compiler_options: CompilerOptions = ()


@final
@dataclass(frozen=True, eq=False)
class _Given:
    """The arguments of a call: static ones apart, and the arrays among the others, as a tree."""

    found: Split
    leaves: list[Any]
    structure: tree.Structure

    @cached_property
    def types(self) -> tuple[ArrayType, ...]:
        return leaf_types(self.leaves)


class Jitted:
    """A function that `jit` has wrapped. Called, it runs compiled; called inside another trace, it is one op there."""

    def __init__(self, function: Callable[..., Any], options: JitOptions):
        self.function = function
        self.options = options
        self._has_static = bool(options.static)
        self._programs: LruCache  # → TracedFunction
        self._launches: LruCache  # → Launch, and the structure of its results; None where that is one array
        self._programs, self._launches = _caches(function, options)
        _jitted.add(self)
        update_wrapper(self, function, updated=())  # not the attributes: another jit has those of the same names

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        state = all_threads.state or config.state
        if state.disable_jit:
            return self.function(*args, **keywords)
        found = None
        if self._has_static:
            found = split(self.function, self.options.static, args, keywords)
            leaves, structure = _flatten((found.args, found.keywords))
        else:
            bare = not keywords
            for x in args:
                bare = bare and x.__class__ is Array
            # Of arrays alone, their number says all: the shortest way for the shortest calls.
            leaves, structure = (args, len(args)) if bare else _flatten((args, keywords))
        if open_frames() and (is_traced(leaves) or bound_axes()):  # it may compute along the axes that have a name here
            return self._staged(self._given(args, keywords))
        statics = found.key if found is not None else ()
        try:
            key = (structure, mesh_context.mesh, state.trace_settings, statics, *[x.signature for x in leaves])
        except AttributeError:  # not all are arrays yet
            if not all(map(is_array_like, leaves)):
                self._given(args, keywords)  # an error that names what can be none
            leaves = [as_argument(x) for x in leaves]
            key = (structure, mesh_context.mesh, state.trace_settings, statics, *[x.signature for x in leaves])
        launches = self._launches
        entry = launches.get(key)
        if entry is None:
            entry = launches.promote(key)
        if entry is None:
            given = self._given(args, keywords)
            if any(isinstance(x, Tracer) for x in self._captured(given)):
                return self._staged(given)  # it closes over a value that is being traced
            self._explain_miss(key, given)
            entry = launches.insert(key, self._compiled(given))
        launch, results = entry
        made = launch.run(leaves)
        return made[0] if results is None else results.unflatten(made)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance is the first argument."""
        return self if instance is None else partial(self, instance)

    def __reduce__(self) -> Any:
        """What is found by its name is pickled as that; else the function is, and what `jit` was asked for."""
        name = str(getattr(self, "__qualname__", ""))  # which objects that can be called lack
        if getattr(sys.modules.get(self.__module__), name, None) is self:
            return name
        return Jitted, (self.function, self.options)

    def clear_cache(self) -> None:
        """Forget what was traced and compiled for this function."""
        self._programs.clear()
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

    @filter_traceback
    def _looked_at(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        given = self._given(args, keywords, abstract=True)
        request, recorded = self._request(given)
        return Traced(request, recorded.captured, given.structure, recorded.structure, self.options.compiler_options)

    def request(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Request, TracedFunction]:
        """What it takes to run the function on these arguments."""
        return self._request(self._given(args, keywords, abstract=True))

    def _given(self, args: tuple[Any, ...], keywords: dict[str, Any], abstract: bool = False) -> _Given:
        """The arguments as arrays and numbers; `abstract`: or as what stands for such. Anything else is an error."""
        found = split(self.function, self.options.static, args, keywords)
        return _Given(found, *array_leaves(found.bind(self.function), found.args, found.keywords, abstract))

    def _traced(self, given: _Given) -> TracedFunction:
        """The function staged for these arguments; once for each structure, types, static arguments and named axes."""
        axes = (tuple(bound_axes().items()), tracked_axes())
        key = (given.structure, config.state.trace_settings, mesh_context.mesh, given.found.key, axes, given.types)
        traced: TracedFunction | None = self._programs.get(key) or self._programs.promote(key)
        if traced is None or not _is_alive(traced.captured):
            traced = self._programs.insert(key, trace(self._body(given.found), given.structure, given.types))
        return traced

    def _body(self, found: Split) -> Callable[..., Any]:
        """What is traced: a function of the arguments that are not static."""
        return found.bind(self.function)

    def _request(self, given: _Given) -> tuple[Request, TracedFunction]:
        traced = self._traced(given)
        names = self._names(given)
        request = Request(
            traced.program,
            tuple(
                x.placed if isinstance(x, ShapeDtypeStruct) else as_argument(x).signature
                for x in (*given.leaves, *traced.captured)
            ),
            self._out_shardings(traced),
            tuple(names),
            self._in_shardings(traced, given.found.args, given.types, names),
            donated_leaves(self.options.donate, given.found) if self.options.donate else (),
            self.options.keep_unused,
        )
        return request, traced

    @filter_traceback
    def _captured(self, given: _Given) -> list[Any]:
        return self._traced(given).captured

    @filter_traceback
    def _compiled(self, given: _Given) -> tuple[Launch, tree.Structure | None]:
        """What runs the function, and the structure of its results; None where that is one array."""
        request, traced = self._request(given)
        launch = compile_request(request, [as_array(x) for x in traced.captured], self.options.compiler_options)
        return launch, None if traced.structure == _LEAF else traced.structure

    @filter_traceback
    def _staged(self, given: _Given) -> Any:
        """As one op of the frame that is open; shardings become constraints."""
        if self.options.compiler_options:
            raise ValueError(
                f"{describe_function(self.function)} has compiler_options, and is called where another function is "
                "traced: "
                "there is one program, which is compiled as the outermost `jit` says. Give them to that one."
            )
        traced = self._traced(given)
        asked = self._in_shardings(traced, given.found.args, given.types, self._names(given))
        pinned = _constrained(map(as_operand, given.leaves), asked)
        operands = [*pinned, *traced.captured]
        results = replay(traced.program, operands) if self.options.inline else Call(traced.program)(*operands)
        return traced.structure.unflatten(_constrained(results, self._out_shardings(traced)))

    def _names(self, given: _Given) -> list[str]:
        found = given.found
        return argument_names(found.bind(self.function), found.args, found.keywords)

    def _in_shardings(
        self, traced: TracedFunction, args: Any, types: Sequence[ArrayType], names: Sequence[str]
    ) -> tuple[Sharding | None, ...]:
        count = len(tree.leaves(args))
        shardings = self.options.in_shardings
        if isinstance(shardings, list):
            shardings = tuple(shardings)
        if shardings is not None and len(types) > count:
            raise TypeError(
                f"{describe_function(self.function)} has in_shardings, which are for positional arguments, but "
                f"{names[count]} "
                "was given by keyword"
            )
        given = broadcast_shardings(shardings, args, "in_shardings", self.function, types[:count], names[:count])
        return given + (None,) * (len(types) - count)

    def _out_shardings(self, traced: TracedFunction) -> tuple[Sharding | None, ...]:
        count = len(traced.program.outputs)
        outputs = traced.structure.unflatten(list(range(count)))
        names = [f"output {number}" for number in range(count)]
        return broadcast_shardings(
            self.options.out_shardings, outputs, "out_shardings", self.function, traced.program.out_types, names
        )

    def _explain_miss(self, key: tuple[Any, ...], given: _Given) -> None:
        """Log why this call needs another compilation, where the user wants to know."""
        if not config.explain_cache_misses or not self._launches:
            return
        last = next(reversed(self._launches))
        reasons = []
        if key[0] != last[0]:
            here, there = (f"{s} arrays" if isinstance(s, int) else str(s) for s in (key[0], last[0]))
            reasons.append(f"the arguments are {here}, last time {there}")
        elif key[1:4] != last[1:4]:
            reasons.append(f"the mesh in force, settings and static arguments are {key[1:4]}, last time {last[1:4]}")
        for name, now, before in zip(self._names(given), key[4:], last[4:], strict=False):
            if now is not before:
                here, there = (f"{s.type} in {s.sharding}" for s in (now, before))
                committed = "" if here != there else f" (committed: {now.committed}, last time {before.committed})"
                reasons.append(f"{name} is {here}, last time {there}{committed}")
        count = self._launches.count + 1
        _log.warning(
            "%s is compiled for the %d. time:\n  %s", describe_function(self.function), count, "\n  ".join(reasons)
        )


def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """`function`, compiled. Its arguments and results are arrays in trees.

    `in_shardings` and `out_shardings` are trees of shardings, or prefixes of such trees; None leaves the layout to what
    the arguments have and to the planner. Static arguments are hashable Python values that the function may branch on;
    it is compiled for each. The memory of donated arguments is reused for results: they cannot be used afterwards.
    Arrays that the function does not use are not even moved to its devices, unless `keep_unused`. With `inline`, a call
    inside another trace leaves its ops there instead of one call. `compiler_options` are XLA's, by their names.

    >>> @jax.jit
    ... def scaled(x, by):
    ...     return x * by
    >>> scaled(jnp.arange(3), 2)
    Array([0, 2, 4], dtype=int32)
    """
    if function is None:
        keywords = {name: value for name, value in locals().items() if name != "function"}
        return lambda f: jit(f, **keywords)
    check_function("jit", function)
    static = select(function, "static", static_argnums, static_argnames)
    donate = select(function, "donate", donate_argnums, donate_argnames)
    check_overlap(function, static, donate)
    options = checked_options(compiler_options, "jit")
    return Jitted(function, JitOptions(in_shardings, out_shardings, static, donate, keep_unused, inline, options))


def trace(function: Callable[..., Any], structure: tree.Structure, types: Sequence[ArrayType]) -> TracedFunction:
    """Stage `function` for arguments of this structure whose arrays have these types."""
    flat = FlatFunction(function, structure)
    program, captured = build(flat, types, function_name(function))
    return TracedFunction(program, captured, flat.out_tree)


def _constrained(values: Any, shardings: Sequence[Sharding | None]) -> list[Any]:
    return [x if s is None else constrain(x, s) for x, s in zip(values, shardings, strict=True)]


def constrain(x: Any, sharding: Sharding) -> Any:
    """`x` pinned to a sharding, in the memory that it names."""
    pinned = _laid_out(x, sharding)
    return InMemory(sharding.kind)(pinned) if sharding.kind else pinned


def _laid_out(x: Any, sharding: Sharding) -> Any:
    """`x` pinned to the layout of a sharding; on one device there is nothing to pin."""
    mesh = mesh_of(sharding)
    if mesh is None:
        return x
    pin = sharding.pin(x.type.shape)
    if taken := [axis for axis in pin.layout.axes if axis in mesh_context.manual_axes]:
        raise ShardingError(
            f"with_sharding_constraint: {pin.layout} names {', '.join(map(repr, taken))}, which the shard_map around "
            "it looks after: inside, each device has its own piece along that axis already. Name only the other axes."
        )
    return Constrain(pin.layout.dims, mesh, tuple(sorted(pin.open_dims)))(x)


_shared: WeakKeyDictionary[Any, dict[JitOptions, tuple[LruCache, LruCache]]] = WeakKeyDictionary()
_jitted: WeakSet[Jitted] = WeakSet()


@register
def _clear_function_caches() -> None:
    """Drop all that was traced and compiled for jitted functions."""
    for jitted in list(_jitted):
        jitted.clear_cache()
    _shared.clear()


def _caches(function: Callable[..., Any], options: JitOptions) -> tuple[LruCache, LruCache]:
    """What was traced and compiled for a function, shared by all who jit it alike, for as long as it lives."""
    caches = LruCache(MOST_KEPT), LruCache(MOST_KEPT)
    try:
        return _shared.setdefault(function, {}).setdefault(options, caches)
    except TypeError:  # shardings in dicts, or a callable without hash or weak references
        return caches


def _is_alive(captured: Sequence[Any]) -> bool:
    """Whether the outer values that a trace closed over can still be used."""
    return all(not isinstance(x, Tracer) or x.frame in open_frames() for x in captured)
