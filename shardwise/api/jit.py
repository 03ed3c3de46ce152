"""jit: compile a function once per pytree structure, types and shardings of its arguments."""

import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, Unpack, final, overload
from weakref import WeakKeyDictionary, WeakSet

from shardwise import tree
from shardwise.api.ahead_of_time.aot import Lowered, StageRefs, Traced, captured_arrays, launch_key
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct, struct
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    broadcast_shardings,
    call_text,
    check_function,
    check_sharding_leaves,
    describe_function,
    function_name,
    leaf_types,
)
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.inline import Inline, inlines_early
from shardwise.api.meshes.constrain import constrain_all
from shardwise.api.ref import Ref, RefScope, current_values, set_refs
from shardwise.api.ref_arguments import FunctionOfArrays, find_refs, refs_as_arguments, update_refs
from shardwise.api.static_args import (
    NO_ARGUMENTS,
    ArgumentSelection,
    SplitArguments,
    check_overlap,
    select_arguments,
    selected_leaves,
    split_static,
)
from shardwise.api.trace_cache import argument_mesh, is_alive, may_be_cached, trace_context
from shardwise.api.transformations.float0 import hide_float0, is_float0
from shardwise.base._jaxlib import CompilerOptions, Device
from shardwise.base.caches import register
from shardwise.base.config import State, all_threads, config
from shardwise.base.progress import Task
from shardwise.base.unspecified import UNSPECIFIED, Unspecified
from shardwise.compiler.arrays.methods import Array, is_array_like
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.dispatch import bound_axes, open_frames
from shardwise.compiler.ir.program import Program, Source
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import traced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.replay import replay
from shardwise.errors import ShardingTypeError
from shardwise.execute.executor import Launch, as_argument, compile_request
from shardwise.execute.executor import compiler_options as checked_options
from shardwise.execute.launch_cache import LaunchCache
from shardwise.execute.lru import LruCache
from shardwise.execute.request import Request
from shardwise.execute.traceback_filter import explained, filter_traceback
from shardwise.runtime.array import ArrayImpl
from shardwise.runtime.client import local_devices

_flatten = tree.registry.flatten
_LEAF = _flatten(0)[1]
_log = logging.getLogger("shardwise")
_P = ParamSpec("_P")
_R = TypeVar("_R")

MAX_PROGRAMS = 4096  # per function; the least recently used are evicted first


@final
@dataclass(frozen=True, eq=False)
class TracedFunction:
    """A function traced for arguments of certain types.

    The inputs of the program are the arguments, the arrays of `refs`, and `captured`: the values that the function
    closes over. Its outputs are the results, and what the Refs in `written` hold at the end.
    """

    program: Program
    captured: list[Any]
    structure: tree.Structure  # of the results
    reads_argument_mesh: bool = False  # whether the trace depends on the mesh of the arguments
    refs: Sequence[Ref] = ()  # which the function closes over
    written: Sequence[Ref] = ()  # those of them that it changes
    launches: dict[Any, Launch] = field(default_factory=dict)  # compiled ahead of time, by `launch_key`

    @property
    def constants(self) -> list[Any]:
        """The values of the inputs after the arguments, as they are now."""
        return [*current_values(self.refs), *self.captured]

    @property
    def out_types(self) -> tuple[ArrayType, ...]:
        """The types of the results."""
        return self.program.out_types[: self.structure.num_leaves]


@dataclass(frozen=True)
class JitOptions:
    """The options of `jit`; `PmapOptions` extends them."""

    in_shardings: Any = None
    out_shardings: Any = None
    static: ArgumentSelection = NO_ARGUMENTS
    donate: ArgumentSelection = NO_ARGUMENTS
    keep_unused: bool = False
    inline: bool = False
    compiler_options: CompilerOptions = ()
    device: Any = None
    follows_with_mesh: bool = field(default=False, repr=False)  # whether it runs on the mesh of `with mesh:`, as `pjit`
    # The line that requests shardings; None if there are none. Not compared: equal jits of a function share caches.
    source: Source | None = field(default=None, repr=False, compare=False)


@final
@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a call: split into static and dynamic ones, with the leaves of the dynamic ones."""

    split: SplitArguments
    leaves: list[Any]
    structure: tree.Structure

    @cached_property
    def types(self) -> tuple[ArrayType, ...]:
        return leaf_types(self.leaves)


class Jitted(Generic[_P, _R]):
    """A function that `jit` has wrapped. A call runs it compiled; inside another trace, a call records one op."""

    _transformation = "jit"  # in its repr

    def __init__(self, function: Callable[_P, _R], options: JitOptions):
        self.function: Callable[..., Any] = function
        self.options = options
        self._has_static = bool(options.static)
        self._programs: LruCache  # → TracedFunction
        self._launches: LaunchCache  # → (Launch, structure of the results or None for a single array)
        self._programs, self._launches = _caches(function, options)
        self._of_arrays: dict[tuple[int, ...], Jitted[..., Any]] = {}  # by the positions of Refs among the leaves
        _jitted.add(self)
        update_wrapper(self, function, updated=())
        for name, value in getattr(function, "__dict__", {}).items():
            if not hasattr(self, name):  # another Jitted has attributes of the same names
                setattr(self, name, value)

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        """Run the compiled function. This is the fast path, for cached programs; `_call` and `_launch` do the rest."""
        try:
            state = all_threads.state or config.state
            if self._has_static or state.disable_jit or open_frames():
                return self._call(state, args, keywords)
            leaves, structure = _flatten_arguments(args, keywords)
            try:
                mesh = mesh_context.mesh, mesh_context.runs_programs
                entry = self._launches.get((structure, mesh, state.trace_settings, (), *[x.signature for x in leaves]))
            except AttributeError:  # a leaf is not an array
                entry = None
            if entry is None:
                return self._launch(state, args, keywords, (), leaves, structure)
            launch, out_tree = entry
            outputs = launch.run(leaves)
            return outputs[0] if out_tree is None else out_tree.unflatten(outputs)
        except Exception as error:
            raise explained(error)  # noqa: B904 - the same error

    def _call(self, state: State, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function that may have static arguments, inside other traces too."""
        if state.disable_jit:
            return self.function(*args, **keywords)
        statics: Hashable = ()
        if self._has_static:
            split = split_static(self.function, self.options.static, args, keywords)
            leaves, structure = _flatten((split.args, split.keywords))
            statics = split.key
        else:
            leaves, structure = _flatten_arguments(args, keywords)
        if open_frames() and (is_traced(leaves) or bound_axes()):  # the function may use the bound axis names
            if any(isinstance(x, Ref) for x in leaves):
                return self._call_with_refs(args, keywords)
            return self._stage(self._arguments(args, keywords, accepts_structs=True))
        return self._launch(state, args, keywords, statics, leaves, structure)

    def _launch(
        self,
        state: State,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        statics: Hashable,
        leaves: Sequence[Any],
        structure: tree.Structure | int,
    ) -> Any:
        """Run the function on concrete leaves, which may be numbers and Refs; compile it if that is necessary."""
        if not all(isinstance(x, ArrayImpl) for x in leaves):
            if any(isinstance(x, Ref) for x in leaves):
                return self._call_with_refs(args, keywords)
            if any(map(is_float0, leaves)):
                args, keywords = hide_float0((args, keywords))
                return self(*args, **keywords)
            if not all(map(is_array_like, leaves)):
                self._arguments(args, keywords)  # raises an error that names the argument
            leaves = [as_argument(x, may_be_donated=bool(self.options.donate)) for x in leaves]
        mesh = mesh_context.mesh, mesh_context.runs_programs
        key = (structure, mesh, state.trace_settings, statics, *[x.signature for x in leaves])
        launches = self._launches
        entry = launches.get(key) or launches.promote(key)
        if entry is None:
            arguments = self._arguments(args, keywords)
            traced = self._traced(arguments)
            if any(isinstance(x, Tracer) for x in traced.constants):
                return self._stage(arguments)  # the function closes over a tracer
            if traced.refs:
                return self._run_with_refs(arguments, traced, leaves, key)
            self._explain_miss(key, arguments)
            entry = launches.add(key, self._compile(arguments))
        launch, out_tree = entry
        outputs: list[Any] = launch.run(leaves)
        return outputs[0] if out_tree is None else out_tree.unflatten(outputs)

    def _call_with_refs(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the function with Refs among its arguments, which it may change and return."""
        function, refs, args, keywords = self._of_array_arguments(args, keywords)
        with refs_as_arguments(refs):
            result, arrays = function(*args, **keywords)
        return update_refs(refs, result, arrays)

    def _of_array_arguments(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple["Jitted[..., Any]", list[Ref], tuple[Any, ...], dict[str, Any]]:
        """Return the function of the arrays of the Refs among its arguments, the Refs, and the arguments for it."""
        leaves, structure = _flatten((args, keywords))
        refs = find_refs(f"jit of {describe_function(self.function)}", leaves)
        positions = tuple(refs)
        if positions not in self._of_arrays:
            options, out_shardings = self.options, self.options.out_shardings
            if out_shardings is not None:
                options = replace(options, out_shardings=(out_shardings, None))
            self._of_arrays[positions] = type(self)(FunctionOfArrays(self.function, positions), options)
        for position, ref in refs.items():
            leaves[position] = ref[...]
        return self._of_arrays[positions], list(refs.values()), *structure.unflatten(leaves)

    def _run_with_refs(
        self, arguments: Arguments, traced: TracedFunction, leaves: Sequence[Any], key: tuple[Any, ...]
    ) -> Any:
        """Run a function that closes over Refs, and change them. `key` is the one of a function without Refs."""
        arrays = [as_argument(value) for value in current_values(traced.refs)]
        key = (*key, *[x.signature for x in arrays])
        entry = self._launches.get(key) or self._launches.promote(key)
        if entry is None:
            entry = self._launches.add(key, self._compile(arguments))
        outputs = entry[0].run([*leaves, *arrays])
        return self._finish(traced, outputs)

    def _finish(self, traced: TracedFunction, outputs: Sequence[Any]) -> Any:
        """Change the Refs that the function changes, and return its result."""
        count = traced.structure.num_leaves
        set_refs(traced.written, outputs[count:])
        return traced.structure.unflatten(list(outputs[:count]))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a jitted method to its instance."""
        return self if instance is None else partial(self, instance)

    def __reduce__(self) -> Any:
        """Pickle by name if the module attribute of that name is this object, else by function and options."""
        name = str(getattr(self, "__qualname__", ""))  # callable objects have none
        if getattr(sys.modules.get(self.__module__), name, None) is self:
            return name
        return Jitted, (self.function, self.options)

    def __repr__(self) -> str:
        """Return the function with its parameters, and the options that differ from their defaults."""
        options = [
            f"{option.name}={value!r}"
            for option in fields(self.options)
            if option.repr and (value := getattr(self.options, option.name)) != option.default
        ]
        return f"<{self._transformation} of {', '.join([call_text(self.function), *options])}>"

    def clear_cache(self) -> None:
        """Clear the caches of traced and compiled programs of this function."""
        self._programs.clear()
        self._launches.clear()

    def trace(self, *args: object, **keywords: object) -> Traced:
        """Trace the function for arrays or `ShapeDtypeStruct`s, without running it."""
        return self._trace_stage(args, keywords)

    def lower(self, *args: object, **keywords: object) -> Lowered:
        """Trace, plan, partition and lower the function to StableHLO, without running it."""
        return self._trace_stage(args, keywords).lower()

    def eval_shape(self, *args: object, **keywords: object) -> Any:
        """Return the types of the results as `ShapeDtypeStruct`s, without running the function."""
        return self._trace_stage(args, keywords).out_info

    @filter_traceback
    def _trace_stage(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Traced:
        split = split_static(self.function, self.options.static, args, keywords)
        leaves, _ = _flatten((split.args, split.keywords))
        positions = tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, Ref))
        if not positions:
            return self._stage_of_arrays(args, keywords)
        function, refs, args, keywords = self._of_array_arguments(args, keywords)
        with refs_as_arguments(refs):
            return function._stage_of_arrays(args, keywords, positions)

    def _stage_of_arrays(
        self, args: tuple[Any, ...], keywords: dict[str, Any], ref_positions: tuple[int, ...] = ()
    ) -> Traced:
        """Trace the function for arguments without Refs; `ref_positions` are those that stand for Refs."""
        arguments = self._arguments(args, keywords, abstract=True)
        request, traced = self._request(arguments)
        return Traced(
            request,
            traced.captured,
            arguments.structure,
            traced.structure,
            self.options.compiler_options,
            traced.launches,
            StageRefs(ref_positions, traced.refs, traced.written),
        )

    def request(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Request, TracedFunction]:
        """Return the compilation request for these arguments, which may be abstract, and the traced function."""
        return self._request(self._arguments(args, keywords, abstract=True))

    def _arguments(
        self, args: tuple[Any, ...], keywords: dict[str, Any], abstract: bool = False, accepts_structs: bool = False
    ) -> Arguments:
        """Split and flatten arguments; leaves are arrays and numbers.

        With `abstract` or `accepts_structs`, they may also be ShapeDtypeStructs. With `abstract`, a tracer counts as
        the struct of its type: only types matter.
        """
        args, keywords = hide_float0((args, keywords))
        split = split_static(self.function, self.options.static, args, keywords)
        function = split.bind(self.function)
        leaves, structure = array_leaves(function, split.args, split.keywords, abstract or accepts_structs)
        if abstract:
            leaves = [struct(x.type) if isinstance(x, Tracer) else x for x in leaves]
        return Arguments(split, leaves, structure)

    def _traced(self, arguments: Arguments) -> TracedFunction:
        """Return the function traced for these arguments, from a cache.

        The key holds everything that a trace depends on: structure, types, static arguments, settings, the mesh and the
        named axes; and the mesh of the arguments, if the function has asked for it.
        """
        key: tuple[Any, ...] = (arguments.structure, trace_context(), arguments.split.key, arguments.types)
        traced: TracedFunction | None = self._programs.get(key) or self._programs.promote(key)
        mesh = argument_mesh(arguments.leaves)
        if traced is not None and traced.reads_argument_mesh:
            mesh_context.reads_argument_mesh = True
            traced = self._programs.get((*key, mesh)) or self._programs.promote((*key, mesh))
        if traced is None or not is_alive(traced.captured):
            if config.no_tracing:
                raise RuntimeError(
                    f"no_tracing is set, so {describe_function(self.function)} cannot be traced here for arguments of "
                    f"types {', '.join(map(str, arguments.types)) or 'none'}"
                )
            with mesh_context.traced_for(mesh), Task(f"tracing `{function_name(self.function)}`"):
                traced = trace(
                    self._body(arguments.split),
                    arguments.structure,
                    self._types_inside(arguments),
                    partial(self._names, arguments),
                )
            if may_be_cached(traced.captured):
                self._programs.insert(key, traced)
                if traced.reads_argument_mesh:
                    self._programs.insert((*key, mesh), traced)
        return traced

    def _body(self, split: SplitArguments) -> Callable[..., Any]:
        """Return the function of the dynamic arguments, which is traced."""
        return split.bind(self.function)

    def _request(self, arguments: Arguments) -> tuple[Request, TracedFunction]:
        traced = self._traced(arguments)
        names = self._names(arguments)
        request = Request(
            traced.program,
            tuple(
                x.array_signature if isinstance(x, ShapeDtypeStruct) else as_argument(x).signature
                for x in (*arguments.leaves, *traced.constants)
            ),
            (*self._out_shardings(traced), *[None] * len(traced.written)),
            (*names, *["a Ref"] * len(traced.refs)),
            (*self._in_shardings(traced, arguments, names), *[None] * len(traced.refs)),
            (*selected_leaves(self.options.donate, arguments.split), *[False] * len(traced.refs))
            if self.options.donate
            else (),
            self.options.keep_unused,
            device=self.options.device,
            out_names=(*_output_names(traced), *["a Ref"] * len(traced.written)),
            jit_source=self.options.source,
            mesh=mesh_context.mesh,
            on_current_mesh=self._runs_on_current_mesh,
        )
        return request, traced

    @property
    def _runs_on_current_mesh(self) -> bool:
        """Whether a call without committed arguments and shardings runs on the current mesh."""
        if self.options.follows_with_mesh and isinstance(mesh_context.mesh, Mesh):
            return True
        return mesh_context.program_mesh is not None

    def _compile(self, arguments: Arguments) -> tuple[Launch, tree.Structure | None]:
        """Compile the function; return its launch, and the structure of its results or None for a single array."""
        request, traced = self._request(arguments)
        launch = traced.launches.get(launch_key(request))
        if launch is None:
            captured = captured_arrays(request.program, traced.captured)
            launch = compile_request(request, captured, self.options.compiler_options)
        return launch, None if traced.structure == _LEAF else traced.structure

    def _stage(self, arguments: Arguments) -> Any:
        """Record the function as one op of the open frame; its shardings become sharding constraints."""
        if self.options.compiler_options:
            raise ValueError(
                f"jit of {describe_function(self.function)} has compiler_options, but is called inside another traced "
                "function, which is compiled as one program: pass compiler_options to the outermost jit"
            )
        traced = self._traced(arguments)
        names = self._names(arguments)
        in_shardings = self._in_shardings(traced, arguments, names)
        inputs = [as_operand(leaf) for leaf in arguments.leaves]
        operands = [*constrain_all(inputs, in_shardings, "in_shardings", names), *traced.constants]
        outputs = replay(traced.program, operands) if self.options.inline else Call(traced.program)(*operands)
        count = traced.structure.num_leaves
        out_shardings = self._out_shardings(traced)
        results = constrain_all(outputs[:count], out_shardings, "out_shardings", _output_names(traced))
        return self._finish(traced, [*results, *outputs[count:]])

    def _names(self, arguments: Arguments) -> list[str]:
        split = arguments.split
        return argument_names(split.bind(self.function), split.args, split.keywords)

    def _types_inside(self, arguments: Arguments) -> Sequence[ArrayType]:
        """Return the types of the arguments in the function: `in_shardings` decide along Explicit axes."""
        if self.options.in_shardings is None:
            return arguments.types
        shardings = self._requested_in_shardings(arguments, self._names(arguments))
        return [
            type if sharding is None else type.with_explicit(traced_sharding(sharding, type.shape))
            for type, sharding in zip(arguments.types, shardings, strict=True)
        ]

    def _in_shardings(
        self, traced: TracedFunction, arguments: Arguments, names: Sequence[str]
    ) -> tuple[Sharding | None, ...]:
        return self._requested_in_shardings(arguments, names)

    def _requested_in_shardings(self, arguments: Arguments, names: Sequence[str]) -> tuple[Sharding | None, ...]:
        """Return the sharding of each argument that `in_shardings` requests."""
        args, types = arguments.split.args, arguments.types
        count = len(tree.leaves(args))
        shardings = self.options.in_shardings
        if isinstance(shardings, list):
            shardings = tuple(shardings)
        if shardings is not None and len(types) > count:
            raise ShardingTypeError(
                f"jit of {describe_function(self.function)}: in_shardings applies to positional arguments only, but "
                f"{names[count]} was passed by keyword"
            )
        positional = broadcast_shardings(shardings, args, "in_shardings", self.function, types[:count], names[:count])
        return positional + (None,) * (len(types) - count)

    def _out_shardings(self, traced: TracedFunction) -> tuple[Sharding | None, ...]:
        outputs = hide_float0(traced.structure.unflatten(list(range(len(traced.out_types)))))
        names = _output_names(traced)
        return broadcast_shardings(
            self.options.out_shardings, outputs, "out_shardings", self.function, traced.out_types, names
        )

    def _explain_miss(self, key: tuple[Any, ...], arguments: Arguments) -> None:
        """Log how this call differs from the last one that was compiled, if `explain_cache_misses` is set."""
        if not config.explain_cache_misses or not self._launches:
            return
        last = next(reversed(self._launches))
        reasons = []
        if key[0] != last[0]:
            now, before = (f"{s} arrays" if isinstance(s, int) else str(s) for s in (key[0], last[0]))
            reasons.append(f"the arguments are {now}, before {before}")
        elif key[1:4] != last[1:4]:
            reasons.append(f"current mesh, settings and static arguments are {key[1:4]}, before {last[1:4]}")
        for name, signature, last_signature in zip(self._names(arguments), key[4:], last[4:], strict=False):
            if signature.canonical is not last_signature.canonical:
                now, before = (f"{s.type} with {s.sharding}" for s in (signature, last_signature))
                committed = f" (committed: {signature.committed}, before {last_signature.committed})"
                reasons.append(f"{name} is {now}, before {before}{committed if now == before else ''}")
        count = self._launches.count + 1
        _log.warning("compilation #%d of %s:\n  %s", count, describe_function(self.function), "\n  ".join(reasons))


class JitKeywords(TypedDict, total=False):
    """The keyword arguments of `jit`, for type checkers."""

    in_shardings: object
    out_shardings: object
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Sequence[str] | None
    keep_unused: bool
    device: Device | None
    backend: str | None
    inline: bool | Inline
    compiler_options: dict[str, Any] | None


@overload
def jit(fun: Callable[_P, _R], /, **options: Unpack[JitKeywords]) -> Jitted[_P, _R]: ...


@overload
def jit(
    fun: Unspecified = UNSPECIFIED, /, **options: Unpack[JitKeywords]
) -> Callable[[Callable[_P, _R]], Jitted[_P, _R]]: ...


def jit(
    fun: Callable[..., Any] | Unspecified = UNSPECIFIED,
    /,
    *,
    in_shardings: object = UNSPECIFIED,
    out_shardings: object = UNSPECIFIED,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    inline: bool | Inline = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """Compile a function with XLA, partitioned over the devices of its arguments.

    The function is traced and compiled once per pytree structure, types and shardings of its arguments. The planner
    chooses the shardings of all other values.

    Args:
        fun: a function of pytrees of arrays. Without it, the result is a decorator.
        in_shardings: shardings of the positional arguments, as a tree prefix; arguments with another sharding are
            resharded. None keeps the sharding that an argument has. A bare PartitionSpec is on the current mesh.
        out_shardings: shardings of the results, as a tree prefix. The planner chooses where it is None.
        static_argnums: the positional arguments that are hashable Python values, for each of which the function is
            compiled separately.
        static_argnames: the names of such arguments.
        donate_argnums: the positional arguments whose buffers may be reused for results. They are deleted by the call.
        donate_argnames: the names of such arguments.
        keep_unused: whether to transfer arguments that the function does not use to its devices.
        device: the device to run on, to which all arguments are transferred. Deprecated, as in JAX: use `device_put`.
        backend: the platform to whose first device the same applies. Deprecated.
        inline: whether a call inside another traced function inlines the ops of `fun` there, or an `Inline`.
        compiler_options: XLA's compiler options by name.

    Returns:
        A function like `fun`. Its methods `trace`, `lower` and `eval_shape` give access to the stages of
        compilation.

    Raises:
        TypeError: if `fun` is not callable, if numbers or names of arguments have a wrong type, or if
            `in_shardings` or `out_shardings` holds something else; when called, if an argument or a result is not a
            pytree of arrays.
        ValueError: if `fun` has no such argument, if an argument is both static and donated, or if `device` or
            `backend` is combined with the other or with shardings, or if `inline` is something else; when called, if a
            static argument is not hashable.
        RuntimeError: if there is no platform `backend`.
        ShardingError: when called, if `in_shardings` or `out_shardings` is not a tree prefix, or does not match the
            rank of an array.
        DeviceMismatchError: when called, if arguments are committed to different devices.

    Example:
        >>> @jax.jit
        ... def scale(x, factor):
        ...     return x * factor
        >>> scale(jnp.arange(3), 2)
        Array([0, 2, 4], dtype=int32)
    """
    in_shardings, out_shardings = (None if x is UNSPECIFIED else x for x in (in_shardings, out_shardings))
    if isinstance(fun, Unspecified):
        keywords = {name: value for name, value in locals().items() if name != "fun"}
        return lambda f: jit(f, **keywords)
    check_function("jit", fun)
    static = select_arguments(fun, "static", static_argnums, static_argnames)
    donate = select_arguments(fun, "donate", donate_argnums, donate_argnames)
    check_overlap(fun, static, donate)
    options, early = checked_options(compiler_options, "jit"), inlines_early(inline)
    if device is not None or backend is not None:
        device = _only_device(device, backend, in_shardings, out_shardings)
    source = None
    if in_shardings is not None or out_shardings is not None:
        source = user_source()
        check_sharding_leaves(in_shardings, "in_shardings")
        check_sharding_leaves(out_shardings, "out_shardings")
    return Jitted(
        fun,
        JitOptions(in_shardings, out_shardings, static, donate, keep_unused, early, options, device, source=source),
    )


def _only_device(device: Device | None, backend: str | None, in_shardings: object, out_shardings: object) -> Device:
    """Return the device that the deprecated parameters `device` and `backend` of `jit` select."""
    if device is not None and backend is not None:
        raise ValueError(f"jit: pass either device or backend, not both: device={device}, backend={backend!r}")
    if in_shardings is not None or out_shardings is not None:
        raise ValueError("jit: device and backend cannot be combined with in_shardings and out_shardings")
    warnings.warn(
        "jit: device and backend are deprecated: put the arguments on the device with `device_put`",
        DeprecationWarning,
        stacklevel=3,
    )
    return local_devices(backend=backend)[0] if device is None else device


def trace(
    function: Callable[..., Any],
    structure: tree.Structure,
    types: Sequence[ArrayType],
    input_names: Callable[[], Sequence[str]] | None = None,
) -> TracedFunction:
    """Trace `function` for arguments of this pytree structure, whose leaves have these types.

    `input_names` returns the names of the leaves, for messages.
    """
    flat = FlatFunction(function, structure)
    scope = RefScope(as_inputs=True)

    def with_refs(*leaves: Array) -> list[Any]:
        with scope:
            return [*flat(*leaves), *scope.written_values]

    program, captured = build(with_refs, types, function_name(function), input_names=input_names)
    reads_mesh = mesh_context.reads_argument_mesh
    refs = [x for x in captured if isinstance(x, Ref)]
    if refs:
        inputs = dict(zip(map(id, captured), program.inputs[len(types) :], strict=True))
        captured = [x for x in captured if not isinstance(x, Ref)]
        order = [inputs[id(x)] for x in (*refs, *captured)]
        program = replace(program, inputs=(*program.inputs[: len(types)], *order))
    return TracedFunction(program, captured, flat.out_tree, reads_mesh, refs, scope.written)


def _flatten_arguments(args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Sequence[Any], tree.Structure | int]:
    """Return the leaves and the structure of arguments. If all are arrays, their number is the structure."""
    only_arrays = not keywords
    for x in args:
        only_arrays = only_arrays and x.__class__ is ArrayImpl
    return (args, len(args)) if only_arrays else _flatten((args, keywords))


def _output_names(traced: TracedFunction) -> list[str]:
    """Return the path of each output in the result: `output['loss']`."""
    outputs = hide_float0(traced.structure.unflatten(list(range(len(traced.out_types)))))
    return [f"`{name}`" for name in tree.leaf_names(outputs, "output")]


_shared: WeakKeyDictionary[Any, dict[JitOptions, tuple[LruCache, LaunchCache]]] = WeakKeyDictionary()
_jitted: WeakSet[Jitted[..., Any]] = WeakSet()


@register
def _clear_function_caches() -> None:
    """Clear the caches of all jitted functions."""
    for jitted in list(_jitted):
        jitted.clear_cache()
    _shared.clear()


def _caches(function: Callable[..., Any], options: JitOptions) -> tuple[LruCache, LaunchCache]:
    """Return the caches of traced and compiled programs; all `jit`s of a function with equal options share them."""
    caches = LruCache(MAX_PROGRAMS), LaunchCache(MAX_PROGRAMS)
    try:
        return _shared.setdefault(function, {}).setdefault(options, caches)
    except TypeError:  # options or callable are not hashable, or the callable has no weak references
        return caches
