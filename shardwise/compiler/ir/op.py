"""The contract of an op. One op is one frozen dataclass: static parameters are fields, rules are methods.

    out_type    types of the operands → type of the result; a wrong operand is an error here
    factors     types → FactorRule: how dims hang together (propagation, partitioner, cost and tests read it)
    localize    the op on one device's pieces
    jvp         primals, tangents (None is zero) → result, tangent
    transpose   cotangent, operands (`UndefinedPrimal` where linear) → one cotangent an operand (None is zero)
    vmap        the new axis, operands, batch dims (None is unbatched) → result, its batch dim
    lower       an HLO builder, operands → HLO value
    reference   numpy arrays → numpy array: what the op means

The base takes `**_: Any` in rules whose operands each op names for itself: it lets mypy accept the narrower signature.
Rules compute by applying ops, so they work in any frame. Applying an op is calling it: `Sum((0,))(x)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

import numpy as np

from shardwise.caches import registered_cache
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.dispatch import bind
from shardwise.compiler.ir.format import format_op, reserved_words
from shardwise.compiler.ir.program import Program, strongest_effect
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import MissingRuleError

NumpyArray = np.ndarray[Any, Any]
Shards = list[NumpyArray]  # of one value, one a device
ProgramRunner = Callable[[int, list[Shards]], list[Shards]]  # the number of a program, its inputs → its outputs
ignore_float_errors = np.errstate(
    all="ignore"
)  # decorates a `reference`: devices do not warn of an overflow, nor does its meaning


@final
@dataclass(frozen=True)
class UndefinedPrimal:
    """Stands for a linear operand while transposing: its type is known, its value is not."""

    type: ArrayType


@final
@dataclass(frozen=True)
class BatchAxis:
    """The dim that vmap adds. `name`: for collectives inside. `spmd`: the mesh axes that constraints give it."""

    size: int
    name: Any = None
    spmd: tuple[str, ...] = ()


class Hlo(Protocol):
    """What `lower` is handed. Operands and results are the builder's own values, which carry their type."""

    platform: str  # that the text is for: cpu, gpu

    def op(
        self,
        name: str,
        operands: Sequence[Any],
        out: ArrayType,
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> Any: ...
    def many(
        self,
        name: str,
        operands: Sequence[Any],
        out: Sequence[ArrayType],
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> list[Any]: ...
    def constant(self, value: Any, type: ArrayType) -> Any: ...
    def reducer(self, reduction: Reduction | None, dtype: Any) -> str: ...
    def groups(self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None) -> str: ...
    def device_index(self, axes: tuple[str, ...]) -> Any: ...
    def pairs(self, passing: Any) -> str: ...
    def program(self, program: Program, operands: Sequence[Any]) -> list[Any]: ...
    def reduce(
        self,
        operands: Sequence[Any],
        starts: Sequence[Any],
        dims: Sequence[int],
        join: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]: ...
    def reduce_window(
        self,
        operands: Sequence[Any],
        starts: Sequence[Any],
        dim: int,
        window: int,
        join: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    ) -> list[Any]: ...
    def sort(
        self, operands: Sequence[Any], dim: int, comes_first: Callable[[Sequence[Any], Sequence[Any]], Any]
    ) -> list[Any]: ...
    def loop(
        self,
        start: Sequence[Any],
        goes_on: Callable[[Sequence[Any]], Any],
        step: Callable[[Sequence[Any]], Sequence[Any]],
        ordered: bool = False,
    ) -> list[Any]: ...
    def callback(
        self, function: Any, operands: Sequence[Any], results: Sequence[ArrayType], effect: str
    ) -> list[Any]: ...
    def custom_call(
        self,
        target: str,
        operands: Sequence[Any],
        results: Sequence[ArrayType],
        attributes: Mapping[str, str],
        operand_layouts: Sequence[Sequence[int]],
        result_layouts: Sequence[Sequence[int]],
        written: Sequence[tuple[int, int]] = (),
    ) -> list[Any]: ...
    def in_memory(self, x: Any, kind: str) -> Any: ...
    def branch(
        self, index: Any, branches: Sequence[Callable[[], Sequence[Any]]], ordered: bool = False
    ) -> list[Any]: ...


class LocalContext(Protocol):
    """What `localize` is handed: the pieces that one device makes of the op's results."""

    out_shapes: tuple[tuple[int, ...], ...]
    auto_axes: tuple[str, ...]  # the axes of the mesh along which the program is cut for the user; not the manual ones
    global_types: tuple[ArrayType, ...]  # of the whole operands, without padding
    mesh: AbstractMesh
    layouts: Sequence[Layout]  # of the results

    def mesh_axes_of(self, name: Any) -> tuple[str, ...]:
        """The axes of the mesh that an axis of a manual region around the op consists of."""

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        """The axes that cut `dim` of the first result, or of an operand, and into how many pieces."""

    def offset(self, dim: int, dtype: Any, operand: int | None = None) -> Any:
        """Where this device's piece of the first result, or of an operand, starts along `dim`: a scalar, or None where
        that is always 0."""


class Op:
    """The base of every op; see this module's head for the rules."""

    name: ClassVar[str]
    single: ClassVar[bool] = True  # one result, given and returned bare; else a tuple
    accepts_keys: ClassVar[bool] = False  # it only moves or compares elements, so keys may be among its operands
    cheap_to_recompute: ClassVar[bool] = False  # costs next to nothing to make again, wherever it is needed
    is_contraction: ClassVar[bool] = False  # a product: one multiplication and one addition for each turn of its loops
    is_call: ClassVar[bool] = False  # it holds one program, whose equations take its place before `propagate`
    infers_varying: ClassVar[bool] = False  # its own rule for types says over what results vary in a manual region
    opaque: ClassVar[bool] = False  # what is inlined has rules of its own: no transformation takes it apart before
    irreversible: ClassVar[str] = ""  # why it has no transpose, and what to do instead, where that needs saying
    registry: ClassVar[dict[str, type["Op"]]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" in vars(cls):
            if cls.name in Op.registry:
                raise TypeError(f"two ops are named {cls.name!r}: {Op.registry[cls.name]} and {cls}")
            Op.registry[cls.name] = cls
            reserved_words.add(cls.name)

    def __call__(self, *operands: Any) -> Any:
        results = bind(self, operands)
        return results[0] if self.single else results

    def __str__(self) -> str:
        return format_op(self)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that the op holds."""
        return ()

    def with_programs(self, programs: Sequence[Program]) -> "Op":
        """Return the op with other programs in place of those that it holds."""
        raise self.missing_rule("with_programs")

    def map_programs(self, function: Callable[[Program], Program]) -> "Op":
        """Return the op with `function` applied to the programs that it holds; itself if that changes none of them."""
        programs = [function(program) for program in self.programs]
        if all(new is old for new, old in zip(programs, self.programs, strict=True)):
            return self
        return self.with_programs(programs)

    @property
    def effect(self) -> str:
        """What running it does besides giving results: "" (nothing), "unordered" or "ordered" (among each other)."""
        return strongest_effect(program.effect for program in self.programs)

    @property
    def axis_names(self) -> frozenset[Any]:
        """The names of mapped axes along which it computes: its own, and those in the programs that it holds."""
        return frozenset().union(*(program.axis_names for program in self.programs))

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        """The types of all results; ops with one result write `out_type`."""
        return (self.out_type(*types),)

    def out_type(self, *types: Any, **_: Any) -> ArrayType:
        raise self.missing_rule("out_type")

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        """In a manual region, the axes over which each operand varies once it is in: all over those of any."""
        return (varying(types),) * len(types)

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """In a manual region, the axes over which the results vary, where the operands vary over `axes`."""
        return axes

    def factors(self, *types: Any, **_: Any) -> FactorRule:
        raise self.missing_rule("factors")

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Sets of operands in which the op is linear together: partial sums may flow through these. () where none."""
        return ()

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        """The bytes that each device sends where the op is cut into `count` along a factor that it reaches across."""
        raise self.missing_rule("exchanged_bytes")

    def padding(self, fills: Sequence[Any]) -> Any:
        """What the result holds past the end of a dim whose operands hold `fills` there; None where unknown."""
        return None

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return self(*operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise self.missing_rule("jvp")

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """As `jvp`, but no work on primals may depend on tangents: ops that hold a program split it."""
        return self.jvp(primals, tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        raise self.missing_rule("transpose")

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        raise self.missing_rule("vmap")

    def lower(self, hlo: Hlo, *operands: Any, **_: Any) -> Any:
        raise self.missing_rule("lower")

    def reference(self, *operands: Any, **_: Any) -> Any:
        raise self.missing_rule("reference")

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        """What an op that holds programs means. A value is the list of its pieces on all devices; `run` runs one."""
        raise self.missing_rule("interpret")

    def missing_rule(self, rule: str) -> MissingRuleError:
        where = type(self)
        return MissingRuleError(
            f"op {self.name!r} has no rule {rule!r}: write {where.__qualname__}.{rule} in {where.__module__}"
        )


@registered_cache(maxsize=65536)
def result_types(op: Op, types: tuple[ArrayType, ...]) -> tuple[ArrayType, ...]:
    """`op.out_types`, remembered: equal ops on equal types are common."""
    if not op.accepts_keys and (keys := [type for type in types if is_key(type.dtype)]):
        raise TypeError(
            f"{op.name}: keys are no numbers, and this is {keys[0]}. The functions of `random` make numbers of a key; "
            "`random.key_data` gives its words."
        )
    axes = varying(types)
    if not axes or op.infers_varying:
        return op.out_types(*types)
    found = op.out_types(*[type.with_varying(()) for type in types])
    return tuple([type.with_varying(op.result_varying(axes)) for type in found])


def varying(types: Sequence[ArrayType]) -> tuple[str, ...]:
    """The axes of manual regions over which any of these varies."""
    return tuple(sorted({axis for type in types for axis in type.varying}))


@registered_cache(maxsize=65536)
def factor_rule(op: Op, types: tuple[ArrayType, ...]) -> FactorRule:
    """`op.factors`, remembered."""
    return op.factors(*types)
