"""Ahead-of-time compilation of a jitted function, stage by stage.

    traced = jit(f).trace(x)       the program
    lowered = traced.lower()       the local program of each device, as StableHLO
    compiled = lowered.compile()   the executable, which can be called

Arguments are arrays, or `ShapeDtypeStruct`s with optional shardings. A later call of the jitted function uses the
executable, if its arguments have the same types and shardings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, final

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct, struct
from shardwise.api.jaxprs.jaxpr import ClosedJaxpr
from shardwise.api.jaxprs.jaxpr_forms import closed_jaxpr
from shardwise.api.ref import Ref, current_values, set_refs
from shardwise.api.ref_arguments import update_refs
from shardwise.base._jaxlib import CompilerOptions, hlo_computation, hlo_text, parse_module
from shardwise.base.lazy import lazy_module
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.shardings.mesh import AbsentDevice, AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.errors import DeviceMismatchError
from shardwise.execute.executor import Launch, LoweredRequest, as_array, lower_for_compile
from shardwise.execute.executor import compiler_options as checked_options
from shardwise.execute.request import Request
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.execute.transfer import transfer
from shardwise.runtime.array import ArrayImpl, ArraySignature
from shardwise.runtime.client import canonical_lowering_platform
from shardwise.runtime.memory_stats import MemoryStats

if TYPE_CHECKING:
    from shardwise.compiler.report.report import Plan
    from shardwise.execute import plan_report as planning
else:  # 41 ms
    planning = lazy_module("shardwise.execute.plan_report")


@final
class ArgInfo(Typed):
    """The type of an argument, its sharding if it is committed, and whether it is donated."""

    __slots__ = ("donated", "sharding", "type")

    def __init__(self, type: ArrayType, donated: bool, sharding: Sharding | None = None):
        self.type = type
        self.donated = donated
        self.sharding = sharding

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArgInfo) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.type, self.sharding, self.donated

    def __repr__(self) -> str:
        sharding = f", sharding={self.sharding}" if self.sharding is not None else ""
        return f"ArgInfo({self.type}{sharding}, donated={self.donated})"


def _is_explicit(sharding: Sharding) -> bool:
    """Return whether the types of arrays with this sharding show it."""
    return isinstance(sharding, NamedSharding) and bool(sharding.mesh_shape.explicit_axes)


def launch_key(request: Request) -> Any:
    """Return what an executable depends on besides the traced function: where the arguments are, and the mesh."""
    return tuple(signature.canonical for signature in request.signatures), request.mesh, request.on_current_mesh


@final
@dataclass(frozen=True)
class StageRefs:
    """The Refs of a function that is compiled ahead of time.

    Attributes:
        arguments: the positions of Refs among the leaves of the arguments. With some, the program returns the result
            and the arrays that they hold at the end.
        closed_over: the Refs that the function closes over, whose arrays are the last inputs of the program.
        written: those of them that it changes, whose new arrays are the last outputs.
    """

    arguments: tuple[int, ...] = ()
    closed_over: Sequence[Ref] = ()
    written: Sequence[Ref] = ()

    def __bool__(self) -> bool:
        return bool(self.arguments or self.closed_over)


def captured_arrays(program: Program, captured: Iterable[Any]) -> list[ArrayImpl]:
    """Return the values that a traced function closes over as arrays.

    Raises:
        TypeError: if one of them is a `ShapeDtypeStruct`, which has a type but no elements.
    """
    values = list(captured)
    for value in values:
        if isinstance(value, ShapeDtypeStruct):
            raise TypeError(
                f"`{program.name}` uses {value!r} as an array: it has a type, but no elements. Use an array, or only "
                "trace the function, with `eval_shape` or `make_jaxpr`."
            )
    return [as_array(value) for value in values]


SHOWN_TYPES = 8  # in the repr of a stage


def _type_list(types: Sequence[ArrayType]) -> str:
    """Return the first types, and the number of the others."""
    hidden = len(types) - SHOWN_TYPES
    return ", ".join([*map(str, types[:SHOWN_TYPES]), *([f"... {hidden} more"] if hidden > 0 else [])])


class _Stage:
    """Base of all stages: the pytree structures and types of arguments and results."""

    def __init__(self, request: Request, in_tree: tree.Structure, out_tree: tree.Structure, refs: StageRefs):
        self._request = request
        self.in_tree = in_tree
        self.out_tree = out_tree
        self._refs = refs

    def _results(self, leaves: Iterable[Any]) -> Any:
        """Return the pytree of the results for one leaf per output of the program, without those for Refs."""
        results = self.out_tree.unflatten(list(islice(leaves, self.out_tree.num_leaves)))
        return results[0] if self._refs.arguments else results

    def __repr__(self) -> str:
        """Return the name of the function, the types of its arguments and results, and the mesh if it is planned."""
        arguments = [signature.type for signature in self._request.signatures[: self.in_tree.num_leaves]]
        program = self._request.program
        mesh = "" if self._mesh is None else f" on {self._mesh}" if self._mesh.shape else " on one device"
        call = f"{program.name}({_type_list(arguments)}) -> ({_type_list(program.out_types)})"
        return f"<{type(self).__name__} {call}{mesh}>"

    @property
    def _mesh(self) -> AbstractMesh | None:
        """The mesh that the program is planned for; None before planning."""
        return None

    @property
    def args_info(self) -> Any:
        """The arguments as `ArgInfo`s: a tuple of the positional ones and a dict of the others."""
        signatures = self._request.signatures[: self.in_tree.num_leaves]
        donated = self._request.donated or (False,) * len(signatures)
        return self.in_tree.unflatten(
            [ArgInfo(s.type, d, s.sharding if s.committed else None) for s, d in zip(signatures, donated, strict=True)]
        )

    @property
    def in_avals(self) -> Any:
        """The types of the arguments: a tuple of the positional ones and a dict of the others."""
        return self.in_tree.unflatten(list(self._request.program.in_types[: self.in_tree.num_leaves]))

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of the donated leaves among the leaves of the arguments."""
        return tuple(index for index, donated in enumerate(self._request.donated) if donated)


@final
class Traced(_Stage):
    """A traced function: a program of ops on unsharded arrays.

    `options` are jit's `compiler_options`; `launches` are the executables that calls of the jitted function use.
    """

    def __init__(
        self,
        request: Request,
        captured: Sequence[Any],
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        options: CompilerOptions,
        launches: dict[Any, Launch],
        refs: StageRefs,
    ) -> None:
        super().__init__(request, in_tree, out_tree, refs)
        self._captured = captured
        self._options = options
        self._launches = launches

    @property
    def fun_name(self) -> str:
        return self._request.program.name

    @property
    def program(self) -> Program:
        """The program; `str(traced)` is its text."""
        return self._request.program

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as a jaxpr, as `make_jaxpr` returns it."""
        return closed_jaxpr(self._request.program, self._captured)

    @property
    def out_info(self) -> Any:
        """The types of the results as `ShapeDtypeStruct`s, with their `out_shardings`."""
        types, shardings = self._request.program.out_types, self._request.out_shardings
        return self._results(map(struct, types, shardings))

    def __str__(self) -> str:
        return str(self._request.program)

    @filter_traceback
    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> "Lowered":
        """Plan and partition the program, and lower it to StableHLO.

        `lowering_platforms` has one name: the platform to lower for, if it is not that of the devices. A program is
        compiled only for platforms that have devices.
        """
        request = self._request
        if lowering_platforms is not None:
            names = tuple(lowering_platforms)
            if len(names) != 1 or not isinstance(names[0], str):
                raise ValueError(f"lower: lowering_platforms must be a tuple of one name, not {lowering_platforms!r}")
            request = replace(request, platform=canonical_lowering_platform(names[0]))
        captured = captured_arrays(request.program, self._captured)
        prepared = lower_for_compile(request, captured)
        trees = self.in_tree, self.out_tree
        return Lowered(request, prepared, captured, *trees, self._options, self._launches, self._refs)


class _PlannedStage(_Stage):
    """Base of the stages after planning."""

    def __init__(
        self,
        request: Request,
        prepared: LoweredRequest,
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        refs: StageRefs,
    ) -> None:
        super().__init__(request, in_tree, out_tree, refs)
        self._prepared = prepared

    @property
    def _mesh(self) -> AbstractMesh:
        return self._prepared.stages.problem.mesh

    @cached_property
    def plan(self) -> "Plan":
        """The plan as plain data: layouts, collectives, estimated times and memory. `explain` displays it."""
        return planning.request_report(self._prepared.request, self._prepared.stages)


@final
class Lowered(_PlannedStage):
    """A function lowered to StableHLO, with the texts of all earlier stages.

    `options` are jit's `compiler_options`; `launches` are the executables that calls of the jitted function use.
    """

    def __init__(
        self,
        request: Request,
        prepared: LoweredRequest,
        captured: Sequence[ArrayImpl],
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        options: CompilerOptions,
        launches: dict[Any, Launch],
        refs: StageRefs,
    ) -> None:
        super().__init__(request, prepared, in_tree, out_tree, refs)
        self._captured = captured
        self._options = options
        self._launches = launches

    @property
    def out_info(self) -> Any:
        """The types of the results as `ShapeDtypeStruct`s, with the shardings that the program determines.

        These are the shardings along Explicit axes and the `out_shardings`. `Compiled.out_info` has those that the
        planner chooses, too.
        """
        types, requested = self._request.program.out_types, self._request.out_shardings
        planned = self._prepared.out_shardings
        shardings = [
            sharding if request is not None or _is_explicit(sharding) else None
            for request, sharding in zip(requested, planned, strict=True)
        ]
        return self._results(map(struct, types, shardings))

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the text of a stage: "stablehlo", the default, or "program", "sharded", "plan", "local" or "hlo".

        `debug_info` is ignored: the text always has the user's source lines.
        """
        stages = self._prepared.stages
        texts = {
            "program": lambda: str(self._request.program),
            "sharded": lambda: str(stages.problem),
            "plan": lambda: str(stages.plan),
            "local": lambda: str(stages.local),
            "stablehlo": lambda: stages.module.text,
            "hlo": lambda: hlo_text(stages.module.text),
        }
        stage = dialect or "stablehlo"
        if stage not in texts:
            raise ValueError(f"as_text: dialect must be one of {', '.join(map(repr, texts))}, not {dialect!r}")
        return texts[stage]()

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Return the program as an MLIR module of the StableHLO dialect, for "stablehlo", the default.

        For "hlo", return XLA's computation, which has `as_hlo_text`. For the other dialects of `as_text`, return their
        text.
        """
        if dialect == "hlo":
            return hlo_computation(self._prepared.stages.module.text)
        text = self.as_text(dialect)
        return parse_module(text) if dialect in (None, "stablehlo") else text

    def cost_analysis(self) -> dict[str, float]:
        """Return counts per device and call: "flops" of products, "bytes accessed" by ops and "wire bytes" sent."""
        return self._prepared.stages.local.counts()

    @filter_traceback
    def compile(
        self, compiler_options: dict[str, Any] | None = None, *, device_assignment: Sequence[Any] | None = None
    ) -> "Compiled":
        """Compile with XLA for the devices of the arguments.

        `compiler_options` are XLA's compiler options by name; they override those of `jit`. `device_assignment` are
        the devices for a program that was lowered for an AbstractMesh; for any other, they must be those of its
        arguments.
        """
        options = {**dict(self._options), **dict(checked_options(compiler_options, "compile"))}
        request, prepared = self._request, self._prepared
        if device_assignment is not None:
            request, prepared = self._assigned(tuple(device_assignment))
        launch = prepared.compile(tuple(sorted(options.items())))
        if request.platform is None and options == dict(self._options):
            self._launches[launch_key(request)] = launch
        return Compiled(request, prepared, launch, self.in_tree, self.out_tree, self._refs)

    def _assigned(self, devices: tuple[Any, ...]) -> tuple[Request, LoweredRequest]:
        """Return the program on these devices."""
        expected = self._prepared.target.devices
        if devices == expected:
            return self._request, self._prepared
        if not isinstance(expected[0], AbsentDevice):
            raise DeviceMismatchError(
                f"compile: device_assignment is {list(devices)}, but the arguments of `{self._request.program.name}` "
                f"are on {list(expected)}. Leave it out, or lower for ShapeDtypeStructs on an AbstractMesh."
            )
        request = self._request.on_devices(devices)
        return request, lower_for_compile(request, self._captured)


@final
class Compiled(_PlannedStage):
    """A compiled function of the dynamic arguments, which must have the types and shardings it was compiled for."""

    def __init__(
        self,
        request: Request,
        prepared: LoweredRequest,
        launch: Launch,
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        refs: StageRefs,
    ) -> None:
        super().__init__(request, prepared, in_tree, out_tree, refs)
        self._launch = launch

    @property
    def out_info(self) -> Any:
        """The types and shardings of the results as `ShapeDtypeStruct`s."""
        types = self._request.program.out_types
        return self._results(map(struct, types, self._prepared.out_shardings))

    @filter_traceback
    def __call__(self, *args: object, **keywords: object) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        if structure != self.in_tree:
            name = self._request.program.name
            raise TypeError(
                f"`{name}` was compiled for arguments of structure {self.in_tree}, but is called with {structure}"
            )
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise TypeError(
                f"`{self._request.program.name}` is compiled already and cannot be called inside a traced function: "
                "call the jitted function there"
            )
        refs = self._refs_among(leaves)
        values = current_values([*leaves, *self._refs.closed_over])
        arrays = [
            self._check_argument(index, as_array(value), expected)
            for index, (value, expected) in enumerate(zip(values, self._request.signatures, strict=False))
        ]
        outputs = self._launch.run(arrays)
        count = self.out_tree.num_leaves
        set_refs(self._refs.written, outputs[count:])
        results = self.out_tree.unflatten(outputs[:count])
        return update_refs(refs, *results) if refs else results

    def _refs_among(self, leaves: Sequence[Any]) -> list[Ref]:
        """Return the Refs among the leaves of the arguments; they must be where the function was compiled for them."""
        refs = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Ref)}
        if wrong := sorted(refs.keys() ^ set(self._refs.arguments)):
            expected = "an array" if wrong[0] in refs else "a Ref"
            raise TypeError(f"{self._argument_name(wrong[0])} must be {expected}, for which the function was compiled")
        return list(refs.values())

    def _check_argument(self, number: int, array: ArrayImpl, expected: ArraySignature) -> ArrayImpl:
        """Check an argument's type and sharding; reshard it if it is uncommitted, or if jit has a device."""
        if array.signature is expected:
            return array
        if array.type.strong() is not expected.type.strong():
            raise TypeError(
                f"{self._argument_name(number)} is {array.type}, but the function was compiled for {expected.type}"
            )
        requested = self._request.in_shardings[number] if self._request.in_shardings else None
        if array.sharding in (expected.sharding, requested):
            return array
        if array.signature.committed and self._request.device is None:
            raise ValueError(
                f"{self._argument_name(number)} has {array.sharding}, but the function was compiled for "
                f"{expected.sharding}.\n"
                "  Reshard it with `device_put` first, or call the jitted function, which compiles for every sharding."
            )
        return transfer(array, expected.sharding)

    def _argument_name(self, number: int) -> str:
        return f"argument {self._request.names[number]} of `{self._request.program.name}`"

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The shardings of the arguments: a tuple of the positional ones and a dict of the others."""
        moves, kept = self._prepared.moves, self._prepared.request.kept
        shardings = [s.sharding for s in self._request.signatures[: self.in_tree.num_leaves]]
        resharded: dict[int, Sharding] = {number if kept is None else kept[number]: s for number, s in moves.items()}
        expected = [resharded.get(number, sharding) for number, sharding in enumerate(shardings)]
        # An argument in another memory, such as pinned_host, is expected there: the call copies it to device memory.
        return self.in_tree.unflatten(
            [own if own.in_default_memory == s else s for own, s in zip(shardings, expected, strict=True)]
        )

    @property
    def output_shardings(self) -> Any:
        """The shardings of the results."""
        return self._results(self._prepared.out_shardings)

    def as_text(self) -> str:
        """Return the optimized HLO of each device's program."""
        return "\n".join(self._launch.executable.texts())

    def cost_analysis(self) -> dict[str, float]:
        """Return XLA's counts per device and call, such as "flops" and "bytes accessed", and our "wire bytes" sent.

        For devices of a topology, XLA has no counts, and all are ours.
        """
        return {**self._counts(), **self._launch.executable.costs()}

    def memory_analysis(self) -> MemoryStats:
        """Return the memory per device: argument_size_in_bytes, output_size_in_bytes, temp_size_in_bytes, …"""
        return MemoryStats.from_executable(self._launch.executable.loaded)

    def runtime_executable(self) -> Any:
        """Return jaxlib's loaded executable."""
        return self._launch.executable.loaded

    def _counts(self) -> dict[str, float]:
        return self._prepared.stages.local.counts()
