"""Ahead of time: a jitted function for certain arguments, stage by stage. Arguments may be arrays, or ShapeDtypeStructs
that say where an array would lie.

    traced = jit(f).trace(x)       what it computes
    lowered = traced.lower()       what each device does, as StableHLO
    compiled = lowered.compile()   what XLA made of that, ready to be called
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from shardwise import tree
from shardwise._jaxlib import CompilerOptions
from shardwise.api.shape_dtype_struct import struct
from shardwise.compiler.ir.program import Program
from shardwise.compiler.trace.tracer import Tracer
from shardwise.execute.executor import Launch, LoweredRequest, as_array, lower_for_compile
from shardwise.execute.executor import compiler_options as checked_options
from shardwise.execute.request import Request
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.execute.transfer import transfer
from shardwise.lazy import lazy_module
from shardwise.runtime.array import Array, ArraySignature
from shardwise.runtime.memory_stats import MemoryStats
from shardwise.runtime.sharding import Sharding

if TYPE_CHECKING:
    from shardwise.compiler.report.report import Report
    from shardwise.execute import plan_report as planning
else:
    planning = lazy_module("shardwise.execute.plan_report")


class _Stage:
    """What all stages know of the function: its arguments and its results."""

    def __init__(self, request: Request, in_tree: tree.Structure, out_tree: tree.Structure):
        self._request = request
        self.in_tree = in_tree
        self.out_tree = out_tree

    @property
    def args_info(self) -> Any:
        """The arguments, as `ShapeDtypeStruct`s: a tuple of the positional ones and a dict of the others."""
        given = self._request.signatures[: self.in_tree.num_leaves]
        return self.in_tree.unflatten([struct(one.type, one.sharding if one.committed else None) for one in given])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The numbers of the arrays among the arguments whose memory may be reused."""
        return tuple(number for number, donated in enumerate(self._request.donated) if donated)


@final
class Traced(_Stage):
    """A function as a program of ops."""

    def __init__(
        self,
        request: Request,
        captured: Sequence[Any],
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        options: CompilerOptions = (),
    ) -> None:
        super().__init__(request, in_tree, out_tree)
        self._captured = captured
        self._options = options

    @property
    def fun_name(self) -> str:
        return self._request.program.name

    @property
    def jaxpr(self) -> Program:
        """The program, of which `str(traced)` is the text."""
        return self._request.program

    @property
    def out_info(self) -> Any:
        """The types of the results, as `ShapeDtypeStruct`s."""
        return self.out_tree.unflatten([struct(type) for type in self._request.program.out_types])

    def __str__(self) -> str:
        return str(self._request.program)

    @filter_traceback
    def lower(self) -> "Lowered":
        """Planned, partitioned, and written as StableHLO."""
        prepared = lower_for_compile(self._request, [as_array(x) for x in self._captured])
        return Lowered(self._request, prepared, self.in_tree, self.out_tree, self._options)


class _Planned(_Stage):
    """A stage that knows what each device will do."""

    def __init__(
        self, request: Request, prepared: LoweredRequest, in_tree: tree.Structure, out_tree: tree.Structure
    ) -> None:
        super().__init__(request, in_tree, out_tree)
        self._prepared = prepared

    @property
    def out_info(self) -> Any:
        """The results, as `ShapeDtypeStruct`s that say where each will lie."""
        types = self._request.program.out_types
        return self.out_tree.unflatten(list(map(struct, types, self._prepared.out_shardings)))

    @cached_property
    def plan(self) -> "Report":
        """What each device will do: collectives, layouts, steps and memory, as plain data. `explain` shows it."""
        return planning.request_report(self._prepared.request, self._prepared.stages)


@final
class Lowered(_Planned):
    """A function as the text that XLA gets, with every stage before it. `options` are XLA's, as `jit` got them."""

    def __init__(
        self,
        request: Request,
        prepared: LoweredRequest,
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        options: CompilerOptions,
    ) -> None:
        super().__init__(request, prepared, in_tree, out_tree)
        self._options = options

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """The text of a stage: "stablehlo" (what XLA gets), or one before it: "program", "sharded", "plan", "local".

        Every line of the user's is in the text, whether `debug_info` asks for it or not.
        """
        stages = self._prepared.stages
        texts = {
            "program": lambda: str(self._request.program),
            "sharded": lambda: str(stages.sharded),
            "plan": lambda: str(stages.plan),
            "local": lambda: str(stages.local),
            "stablehlo": lambda: stages.module.text,
        }
        wanted = dialect or "stablehlo"
        if wanted not in texts:
            raise ValueError(f"as_text: there is no stage {dialect!r}: there are {', '.join(map(repr, texts))}")
        return texts[wanted]()

    def cost_analysis(self) -> dict[str, float]:
        """Counts for one device and one call: "flops" of products, "bytes accessed" by ops, "wire bytes" sent."""
        return self._prepared.stages.local.counts()

    @filter_traceback
    def compile(self, compiler_options: dict[str, Any] | None = None) -> "Compiled":
        """Compiled by XLA for the devices of the arguments. `compiler_options` are XLA's, by name; those that `jit` was
        given hold where these say nothing."""
        options = {**dict(self._options), **dict(checked_options(compiler_options, "compile"))}
        launch = self._prepared.compile(tuple(sorted(options.items())))
        return Compiled(self._request, self._prepared, launch, self.in_tree, self.out_tree)


@final
class Compiled(_Planned):
    """A function ready to run on arrays like those it was compiled for. Static arguments are not given again."""

    def __init__(
        self,
        request: Request,
        prepared: LoweredRequest,
        launch: Launch,
        in_tree: tree.Structure,
        out_tree: tree.Structure,
    ) -> None:
        super().__init__(request, prepared, in_tree, out_tree)
        self._launch = launch

    @filter_traceback
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        if structure != self.in_tree:
            name = self._request.program.name
            raise TypeError(f"`{name}` was compiled for arguments {self.in_tree}, and is called with {structure}")
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            raise TypeError(
                f"`{self._request.program.name}` is compiled already, and is called where another function is traced: "
                "it cannot be part of that. Call the jitted function there."
            )
        arrays = [
            self._fitting(number, as_array(leaf), expected)
            for number, (leaf, expected) in enumerate(zip(leaves, self._request.signatures, strict=False))
        ]
        return self.out_tree.unflatten(self._launch.run(arrays))

    def _fitting(self, number: int, array: Array, expected: ArraySignature) -> Array:
        """An array as an argument; one that nobody has placed is moved to where it is expected."""
        if array.signature is expected:
            return array
        if array.type.strong() is not expected.type.strong():
            raise TypeError(f"{self._called(number)} is {array.type}; it was compiled for {expected.type}")
        if array.sharding == expected.sharding:
            return array
        if array.signature.committed:
            raise ValueError(
                f"{self._called(number)} lies as {array.sharding}; it was compiled for {expected.sharding}.\n"
                "  Move it there with `device_put` first, or call the jitted function, which compiles for both."
            )
        return transfer(array, expected.sharding)

    def _called(self, number: int) -> str:
        return f"argument {self._request.names[number]} of `{self._request.program.name}`"

    @property
    def input_shardings(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Where the arguments are expected: a tuple of the positional ones, and a dict of the others."""
        moves, kept = self._prepared.moves, self._prepared.request.kept
        given = list(self._request.signatures[: self.in_tree.num_leaves])
        places: dict[int, Sharding] = {number if kept is None else kept[number]: s for number, s in moves.items()}
        expected = [places.get(number, one.sharding) for number, one in enumerate(given)]
        # What lies in another memory is expected there: the call takes it to where devices compute.
        return self.in_tree.unflatten(  # type: ignore[no-any-return]
            [one.sharding if one.sharding.in_default_memory == s else s for one, s in zip(given, expected, strict=True)]
        )

    @property
    def output_shardings(self) -> Any:
        """Where the results will lie."""
        return self.out_tree.unflatten(self._prepared.out_shardings)

    def as_text(self) -> str:
        """XLA's own text of what each device runs, optimised."""
        return "\n".join(self._launch.executable.texts())

    def cost_analysis(self) -> dict[str, float]:
        """XLA's counts for one device and one call: "flops", "bytes accessed" and more; and "wire bytes" sent."""
        return {**self._launch.executable.loaded.cost_analysis(), "wire bytes": self._counts()["wire bytes"]}

    def memory_analysis(self) -> MemoryStats:
        """The account of one device's memory: argument_size_in_bytes, output_size_in_bytes, temp_size_in_bytes, …"""
        return MemoryStats.of(self._launch.executable.loaded)

    def runtime_executable(self) -> Any:
        """jaxlib's own object."""
        return self._launch.executable.loaded

    def _counts(self) -> dict[str, float]:
        return self._prepared.stages.local.counts()
