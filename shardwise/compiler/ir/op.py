"""Op: the interface of an op. An op is a frozen dataclass: static parameters are fields, rules are methods.

    out_type    operand types → result type; raises TypeError for invalid operands
    factors     operand types → FactorRule (read by propagation, partitioner, cost model and tests)
    localize    the op on the shards of one device
    jvp         primals, tangents (None is zero) → result, tangent
    transpose   cotangent, operands (`UndefinedPrimal` where linear) → one cotangent per operand (None is zero)
    vmap        the new axis, operands, batch dims (None is unbatched) → result, its batch dim
    lower       an HLO builder, operands → HLO value
    reference   numpy arrays → numpy array: the semantics of the op

An op is applied by calling it: `Sum((0,))(x)`. Rules apply ops, so they work in any frame. Their operands are
`Operand`s; in `transpose` also `UndefinedPrimal`s (`Primal`), in `lower` `HloValue`s, and in `reference` numpy arrays.
The base class declares `Any` where subclasses name their operands individually, or have one cotangent per result, so
that mypy accepts their narrower signatures.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias, final

import numpy as np

from shardwise.base.caches import registered_cache
from shardwise.base.config import config
from shardwise.compiler.dtypes import DType, DTypeLike, is_key
from shardwise.compiler.ir.dispatch import bind
from shardwise.compiler.ir.explicit_rule import with_result_shardings
from shardwise.compiler.ir.format import format_op, reserved_words
from shardwise.compiler.ir.fusion import OWN_KERNEL, Fusion
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Source, strongest_effect
from shardwise.compiler.ir.types import ArrayType, ScalarLike
from shardwise.compiler.reduction import Reduction
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context, mesh_of_types
from shardwise.compiler.traffic import Traffic, one_hop
from shardwise.errors import MissingRuleError, ShardingTypeError

NumpyArray = np.ndarray[Any, Any]
Shards = list[NumpyArray]  # the shards of one value, one per device
ProgramRunner = Callable[[int, list[Shards]], list[Shards]]  # (index of a program, its inputs) → its outputs
# Decorates `reference` methods. Devices do not warn about overflow or invalid values, so numpy must not either.
ignore_float_errors = np.errstate(all="ignore")


@final
@dataclass(frozen=True)
class UndefinedPrimal:
    """A linear operand in a transpose rule, as in JAX. Its type is known, its value is not."""

    type: ArrayType

    @property
    def aval(self) -> ArrayType:
        """The type, under JAX's name."""
        return self.type


Primal: TypeAlias = Operand | UndefinedPrimal  # an operand in a transpose rule


def known(operand: Primal) -> Operand:
    """Return an operand in a transpose rule whose value is known, because the op is not linear in it."""
    assert not isinstance(operand, UndefinedPrimal)
    return operand


@final
@dataclass(frozen=True)
class BatchAxis:
    """The dim that vmap adds.

    Attributes:
        size: its size.
        name: its axis name, for collectives; None if it has none.
        spmd: the mesh axes over which constraints shard it (`spmd_axis_name`).
        explicit: its sharding along Explicit mesh axes, as the sharding of an array with this dim alone.
    """

    size: int
    name: Hashable = None
    spmd: tuple[str, ...] = ()
    explicit: ExplicitSharding | None = None


@final
@dataclass(frozen=True)
class HloValue:
    """An SSA value of a StableHLO module: its name and type."""

    name: str
    type: ArrayType


XLA_GPU_PLATFORMS = ("cuda", "rocm")  # those of XLA's GPU compiler


class Hlo(Protocol):
    """The StableHLO builder that `lower` receives. Operands and results are `HloValue`s."""

    platform: str  # PJRT's name of the target platform: cpu, cuda, rocm, tpu or another
    mesh: AbstractMesh
    in_loop: bool  # whether the ops are in the body of a while loop

    def unsupported(self, reason: str) -> Exception: ...
    @property
    def place(self) -> str: ...
    def compile_option(self, name: str, value: bool) -> None: ...

    def op(
        self,
        name: str,
        operands: Sequence[HloValue],
        out: ArrayType,
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> HloValue: ...
    def many(
        self,
        name: str,
        operands: Sequence[HloValue],
        out: Sequence[ArrayType],
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> list[HloValue]: ...
    def constant(self, value: ScalarLike, type: ArrayType) -> HloValue: ...
    def reducer(self, reduction: Reduction | None, dtype: DType) -> str: ...
    def groups(self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None) -> str: ...
    def group_attributes(
        self, axes: tuple[str, ...], parts: tuple[tuple[int, ...], ...] | None = None, has_global_ids: bool = True
    ) -> str: ...
    def pair_attributes(self, passing: Any) -> str: ...
    @property
    def channel(self) -> int: ...
    def device_index(self, axes: tuple[str, ...]) -> HloValue: ...
    def program(self, program: Program, operands: Sequence[HloValue]) -> list[HloValue]: ...
    def reduce(
        self,
        operands: Sequence[HloValue],
        starts: Sequence[HloValue],
        dims: Sequence[int],
        join: Callable[[Sequence[HloValue], Sequence[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]: ...
    def reduce_window(
        self,
        operands: Sequence[HloValue],
        starts: Sequence[HloValue],
        dim: int,
        window: int,
        join: Callable[[Sequence[HloValue], Sequence[HloValue]], Sequence[HloValue]],
    ) -> list[HloValue]: ...
    def sort(
        self,
        operands: Sequence[HloValue],
        dim: int,
        comes_first: Callable[[Sequence[HloValue], Sequence[HloValue]], HloValue],
    ) -> list[HloValue]: ...
    def loop(
        self,
        start: Sequence[HloValue],
        condition: Callable[[Sequence[HloValue]], HloValue],
        step: Callable[[Sequence[HloValue]], Sequence[HloValue]],
        ordered: bool = False,
    ) -> list[HloValue]: ...
    def callback(
        self, function: Callable[..., Any], operands: Sequence[HloValue], results: Sequence[ArrayType], effect: str
    ) -> list[HloValue]: ...
    def custom_call(
        self,
        target: str,
        operands: Sequence[HloValue],
        results: Sequence[ArrayType],
        attributes: Mapping[str, str],
        operand_layouts: Sequence[Sequence[int]],
        result_layouts: Sequence[Sequence[int]],
        written: Sequence[tuple[int, int]] = (),
        has_side_effect: bool = False,
    ) -> list[HloValue]: ...
    def in_memory(self, x: HloValue, kind: str) -> HloValue: ...
    def branch(
        self, index: HloValue, branches: Sequence[Callable[[], Sequence[HloValue]]], ordered: bool = False
    ) -> list[HloValue]: ...


class LocalContext(Protocol):
    """The layouts of an op's operands and results on the mesh, which `localize` receives.

    Attributes:
        out_shapes: the shapes of the shards of the results.
        auto_axes: the mesh axes along which the compiler partitions the program, as opposed to manual axes.
        global_types: the types of the unsharded operands, without padding.
        mesh: the mesh.
        layouts: the layouts of the results.
    """

    out_shapes: tuple[tuple[int, ...], ...]
    auto_axes: tuple[str, ...]
    global_types: tuple[ArrayType, ...]
    mesh: AbstractMesh
    layouts: Sequence[Layout]

    def mesh_axes_of(self, name: str) -> tuple[str, ...]:
        """Return the mesh axes that make up the manual axis `name`."""

    def sharding_of(self, dim: int, operand: int | None = None) -> tuple[tuple[str, ...], int]:
        """Return the axes that shard `dim` of the first result, or of an operand, and the number of shards."""

    def offset(self, dim: int, dtype: DTypeLike, operand: int | None = None) -> Any:
        """Return the start index along `dim` of this device's shard of the first result, or of an operand.

        Returns:
            A scalar; None if the dim is unsharded, so that the index is always 0.
        """


class Op:
    """Base class of all ops; the module docstring lists the rules.

    Attributes:
        name: the unique name of the op in printed programs.
        single: whether the op has one result, which rules accept and return bare instead of as a tuple.
        accepts_keys: whether operands may be PRNG keys, because the op only moves or compares elements.
        cheap_to_recompute: whether recomputing the result costs less than moving or storing it.
        fusion: how XLA groups the op with others into kernels.
        is_contraction: whether the op does one multiplication and one addition per point of its iteration space.
        is_product: whether the op is a matrix product, or a batch of them.
        needs_float8_units: whether the op is a product of float8 numbers for chips with units for them only.
        is_gradient: whether the op is the gradient of another one as a kernel of its own.
        repeated_flops: the fraction of the flops that repeats flops of the op whose gradient this is.
        is_factorization: whether the op factors matrices or solves systems with them.
        is_constant: whether the op has no operands and its result is a compile-time constant.
        is_elementwise: whether each element of the result depends on one element of each operand, at the same position.
        only_moves: whether the elements of the result are elements of the operands, at other positions.
        is_call: whether the op holds one program, which `inline` replaces it by before layouts are planned.
        opaque: for a call, whether transformations use its own rules instead of inlining it.
        user_function: for an op with a `user_mesh`, the function that the user calls, for messages.
        requested_by: for a constraint, the parameter of `jit` that requests it, or `reshard`; else empty.
        infers_varying: whether `out_types` computes the axes over which results vary; else `result_varying` does.
        infers_sharding: whether `out_types` computes the shardings along Explicit axes; else the factor rule does.
        casts_sums: whether `result_sums` changes the Manual axes along which the results are unreduced or reduced.
        irreversible: why the op has no transpose, and what to use instead; empty for the default error message.
        reduces_across_devices: whether the op is a collective that reduces.
        removed_on_one_device: whether XLA removes a collective over one device whose result has its operand's type.
        lowers_narrow: whether XLA compiles the op for 2-bit integers.
        reads_host_memory: whether the operand is in host memory, and the op copies it to the device.
        writes_host_memory: whether the result is in host memory, and the op copies it from the device.
        launch: the number of the launch that a collective shares with adjacent ones, or of the group of a barrier.
        runs_programs_together: for an op that holds programs, whether one iteration runs them all, each for another
            iteration, so that none needs another's results.
        runs_one_program: for an op that holds programs, whether one run of it runs only one of them, as of a
            conditional.
        registry: all op classes by name.

    Boundary ops connect the programs of a control op with the values outside. Other ops keep these defaults:
        is_boundary: whether the op is a boundary op.
        reduces_operands_first: whether partial operands are reduced before the op, although it is linear in them,
            because a program in a loop would reduce them in every iteration.
        reads_slices: whether a loop reads the operand one slice per iteration.
        writes_slices: whether a loop writes the result one slice per iteration.
        accumulates: whether a loop may leave the result unreduced until its last iteration.
        leaves_region: whether the operand is in a manual region, and the result outside.
    """

    name: ClassVar[str]
    single: ClassVar[bool] = True
    accepts_keys: ClassVar[bool] = False
    cheap_to_recompute: ClassVar[bool] = False
    fusion: ClassVar[Fusion] = OWN_KERNEL
    is_contraction: ClassVar[bool] = False
    is_product: ClassVar[bool] = False
    needs_float8_units: bool = False
    is_gradient: ClassVar[bool] = False
    repeated_flops: ClassVar[float] = 0.0
    is_factorization: ClassVar[bool] = False
    is_constant: ClassVar[bool] = False
    is_elementwise: ClassVar[bool] = False
    only_moves: ClassVar[bool] = False
    is_call: ClassVar[bool] = False
    opaque: ClassVar[bool] = False
    user_function: ClassVar[str] = ""
    requested_by: str = ""
    infers_varying: ClassVar[bool] = False
    infers_sharding: ClassVar[bool] = False
    casts_sums: ClassVar[bool] = False
    irreversible: ClassVar[str] = ""
    reduces_across_devices: ClassVar[bool] = False
    removed_on_one_device: ClassVar[bool] = False
    lowers_narrow: ClassVar[bool] = True
    reads_host_memory: ClassVar[bool] = False
    writes_host_memory: ClassVar[bool] = False
    launch: int | None = None
    runs_programs_together: ClassVar[bool] = False
    runs_one_program: ClassVar[bool] = False
    is_boundary: ClassVar[bool] = False
    reduces_operands_first: ClassVar[bool] = False
    reads_slices: ClassVar[bool] = False
    writes_slices: ClassVar[bool] = False
    accumulates: ClassVar[bool] = False
    leaves_region: ClassVar[bool] = False
    registry: ClassVar[dict[str, type["Op"]]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" in vars(cls):
            if cls.name in Op.registry:
                raise TypeError(f"two ops are named {cls.name!r}: {Op.registry[cls.name]} and {cls}")
            Op.registry[cls.name] = cls
            reserved_words.add(cls.name)

    def flops(self, *types: ArrayType) -> float:
        """Return the flops of the products for operands of these types; 0 if the op is not a contraction."""
        return 2.0 * math.prod(factor_rule(self, types).sizes) if self.is_contraction else 0.0

    def keys_per_query(self, *types: ArrayType) -> float | None:
        """Return the mean number of keys per query; None if the op is not an attention."""
        return None

    def workspace_bytes(self, *types: ArrayType) -> int | None:
        """Return the bytes that a GPU's library needs while the op runs on operands of these types, beside its results.

        None means a block of the result in f32 for each core of the chip.
        """
        return 0

    def copied_bytes(self, platform: str, *types: ArrayType) -> tuple[int, ...]:
        """Return the bytes of the copies that a platform's library reads instead of the operands; 0 for no copy.

        On CPU, XLA multiplies narrow floats as f32.
        """
        if not self.is_contraction or platform != "cpu":
            return (0,) * len(types)
        return tuple(2 * type.nbytes if type.dtype.itemsize == 2 else 0 for type in types)

    def copied_orders(self, platform: str, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Return, for each operand, the order of its dims in the copy that a platform's library reads; () if as stored.

        Two ops share a copy of a value if they need the same order.
        """
        return ((),) * len(types)

    @property
    def reduced_dims(self) -> tuple[int, ...] | None:
        """The dims of the operand along which the op reduces; None if it is not a reduction along dims."""
        return None

    def fused_bytes(self, operands: Sequence[ArrayType], results: Sequence[ArrayType]) -> float:
        """Return the bytes of memory traffic that the op adds to a program, for the planner.

        A contraction reads its operands and writes its result. Other ops are mostly fused with the producers of their
        operands, so only their results count.
        """
        return sum(type.nbytes for type in ((*operands, *results) if self.is_contraction else results))

    def __call__(self, *operands: Any) -> Any:
        results = bind(self, operands)
        return results[0] if self.single else results

    def __str__(self) -> str:
        return format_op(self)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that the op holds: branches, loop bodies, callees."""
        return ()

    @property
    def inlined_program(self) -> Program:
        """The program by which `inline` replaces a call."""
        return self.programs[0]

    def with_programs(self, programs: Sequence[Program]) -> Self:
        """Return the op with other programs instead of the programs that it holds."""
        raise self.missing_rule("with_programs")

    def map_programs(self, function: Callable[[Program], Program]) -> Self:
        """Return the op with `function` applied to its programs; the op itself if no program changes."""
        programs = [function(program) for program in self.programs]
        if all(new is old for new, old in zip(programs, self.programs, strict=True)):
            return self
        return self.with_programs(programs)

    @property
    def trip_count(self) -> int | None:
        """How many times the op's programs run; None if unknown."""
        return 1

    def refine(self, mesh: Mesh | AbstractMesh, refine_program: Callable[[Program], Program]) -> "Op":
        """Return the op on a finer mesh. `refine_program` refines the programs that it holds."""
        return self.map_programs(refine_program)

    @property
    def effect(self) -> str:
        """The side effect of the op: "" (none), "unordered" or "ordered" (with respect to other ordered effects)."""
        return strongest_effect(program.effect for program in self.programs) if self.programs else ""

    @property
    def axis_names(self) -> frozenset[Any]:
        """The names of the mapped axes that the op uses, itself or in the programs that it holds."""
        return frozenset().union(*(program.axis_names for program in self.programs))

    @property
    def communicates_along(self) -> tuple[str, ...]:
        """The mesh axes whose devices communicate when the op runs in a local program."""
        return ()

    def bytes_sent(self, operand: ArrayType, mesh: AbstractMesh) -> float:
        """Return the bytes that each device sends when the op runs in a local program."""
        return 0

    def host_bytes(self, *types: ArrayType) -> int:
        """Return the bytes that the op copies between the memory of the device and the host's."""
        return 0

    @property
    def user_mesh(self) -> Mesh | AbstractMesh | None:
        """The user's mesh in a constraint, a reshard or a manual region; None for other ops."""
        return None

    @property
    def constraint(self) -> Pin | None:
        """The user's pin of the operand and the result; None if the op is not a constraint."""
        return None

    @property
    def is_in_sharding(self) -> bool:
        """Whether the op constrains an input to its `in_shardings`."""
        return self.requested_by.startswith("in_shardings")

    @property
    def is_reshard(self) -> bool:
        """Whether the constraint was a `reshard` before Explicit shardings were erased from types."""
        return self.requested_by == "reshard"

    def pins(self, axis: str) -> bool:
        """Return whether the constraint decides along this axis."""
        return False

    def describe(self, source: Source) -> str:
        """Describe the op and the user's line, for messages."""
        return f"{self.name} at {source}"

    @property
    def operand_pin(self) -> Pin | None:
        """The user's pin of the operand; None if the planner chooses."""
        return self.constraint

    @property
    def result_pin(self) -> Pin | None:
        """The user's pin of the result; None if the planner chooses."""
        return self.constraint

    @property
    def shard_index_factors(self) -> Mapping[str, int]:
        """For each axis of a manual region that shards a dim at this boundary, the factor of the shard index."""
        return {}

    @property
    def terms_entering(self) -> tuple[str, ...]:
        """The axes along which each device of a manual region reads its term of an unreduced operand."""
        return ()

    @property
    def terms_leaving(self) -> tuple[str, ...]:
        """The axes along which each device of a manual region returns a term of an unreduced result."""
        return ()

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        """Return the types of all results. Ops with one result define `out_type` instead."""
        return (self.out_type(*types),)

    def out_type(self, *types: Any, **_: Any) -> ArrayType:
        raise self.missing_rule("out_type")

    def operand_varying(self, *types: ArrayType) -> tuple[tuple[str, ...], ...]:
        """Return the axes of manual regions over which each operand must vary.

        By default, all operands vary over the union of their axes: tracing casts replicated operands to varying.
        """
        return (varying(types),) * len(types)

    def result_varying(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes of manual regions over which the results vary if the operands vary over `axes`."""
        return axes

    def result_sums(self, result: ArrayType) -> ArrayType:
        """Return the type of a result with the Manual axes along which it is unreduced or reduced.

        `result` is the type that the factor rule infers, with the unreduced and reduced axes of the operands.
        """
        raise self.missing_rule("result_sums")

    def factors(self, *types: Any, **_: Any) -> FactorRule:
        raise self.missing_rule("factors")

    def check_as_jax(self, *types: Any) -> None:
        """Raise ShardingTypeError if JAX rejects these shardings along Explicit axes, and the factor rule does not.

        It applies if the setting `jax_compatibility` is "exact".
        """

    def types_as_jax(self, *types: Any) -> tuple[ArrayType, ...]:
        """Return operand types from which the factor rule infers the result's sharding in JAX.

        It applies if the setting `jax_compatibility` is "exact".
        """
        return types

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Return the sets of operands in which the op is jointly linear. Partial sums may flow through each set."""
        return ()

    def maxima_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        """Return the sets of operands through which partial maxima may flow.

        The op moves the elements of all operands of a set, or returns the larger elements.
        """
        return ()

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        """Return the bytes that each device sends if the exchange factor `factor` is sharded into `count` shards.

        An op that overrides `exchange_traffic` does not need it.
        """
        raise self.missing_rule("exchanged_bytes")

    def exchange_traffic(self, factor: int, count: int, *types: ArrayType) -> Traffic:
        """Return the traffic of the collectives of `localize` if `factor` is sharded into `count` shards.

        By default, all messages are sent at the same time: an op that gathers or exchanges rows overrides this.
        """
        return one_hop(self.exchanged_bytes(factor, count, *types))

    def padding(self, fills: Sequence[Any]) -> Any:
        """Return the fill of a padded dim of the result, given the fills of the operands; None if unknown."""
        return None

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        """Apply the op to one device's shards; by default, unchanged."""
        return self(*operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise self.missing_rule("jvp")

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Return the same as `jvp`, with primals that do not depend on tangents. Ops that hold a program split it."""
        return self.jvp(primals, tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        raise self.missing_rule("transpose")

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        raise self.missing_rule("vmap")

    def lower(self, hlo: Hlo, *operands: Any, **_: Any) -> Any:
        raise self.missing_rule("lower")

    def reference(self, *operands: Any, **_: Any) -> Any:
        raise self.missing_rule("reference")

    def run_on_shards(self, mesh: AbstractMesh, operands: list[Shards], run: ProgramRunner) -> list[Shards]:
        """Compute the results on all devices, in numpy. By default, each device computes `reference` on its shards.

        Args:
            mesh: the mesh.
            operands: for each operand, its shards on all devices.
            run: runs one of the op's programs, by its index.

        Returns:
            For each result, its shards on all devices.
        """
        by_device = [self.reference(*(shards[device] for shards in operands)) for device in range(mesh.device_count)]
        return [by_device] if self.single else list(map(list, zip(*by_device, strict=True)))

    def interpret(self, run: ProgramRunner, operands: list[Shards], devices: int = 1) -> list[Shards]:
        """Compute the results of an op that holds programs, in numpy. This is its `reference`.

        Args:
            run: runs one of the op's programs, by its index.
            operands: for each operand, its shards on all devices.
            devices: the number of devices.

        Returns:
            For each result, its shards on all devices.
        """
        raise self.missing_rule("interpret")

    def missing_rule(self, rule: str) -> MissingRuleError:
        """Return the error for a rule that the op does not define."""
        cls = type(self)
        return MissingRuleError(
            f"op {self.name!r} has no rule {rule!r}: write {cls.__qualname__}.{rule} in {cls.__module__}"
        )


@registered_cache(maxsize=65536)
def result_types(op: Op, types: tuple[ArrayType, ...]) -> tuple[ArrayType, ...]:
    """Return the types of an op's results, with their varying axes and Explicit shardings; cached.

    Raises:
        TypeError: if the operands are invalid, or PRNG keys that the op does not accept.
    """
    if not op.accepts_keys and (keys := [type for type in types if is_key(type.dtype)]):
        raise TypeError(
            f"{op.name}: PRNG keys are not numbers, and an operand is {keys[0]}. Draw numbers from a key with the "
            "functions of `random`, or get its words with `random.key_data`."
        )
    axes = varying(types)
    is_sharded = any([type.explicit is not None for type in types])
    if not (axes or is_sharded or op.casts_sums) or op.infers_varying:
        return op.out_types(*types)
    if not is_sharded or op.infers_sharding:
        results = op.out_types(*[type.with_varying(()) for type in types])
    else:
        results = _with_shardings(op, types, op.out_types(*[type.plain for type in types]))
    if op.casts_sums:
        results = tuple([op.result_sums(type) for type in results])
    return tuple([type.with_varying(op.result_varying(axes)) for type in results]) if axes else results


def check_shardings(op: Op, types: tuple[ArrayType, ...]) -> None:
    """Raise ShardingTypeError if operand types conflict along Explicit axes, or leave the result's sharding open."""
    if any([type.explicit is not None for type in types]) and not (op.infers_sharding or op.infers_varying):
        if config.is_exact:  # not cached: JAX's rule may depend on the current mesh
            op.check_as_jax(*types)
        _check_conflicts(op, types)


@registered_cache(maxsize=65536)
def _check_conflicts(op: Op, types: tuple[ArrayType, ...]) -> None:
    """Apply the factor rule strictly. Cached: operands without a conflict are checked once."""
    _with_shardings(op, types, op.out_types(*[type.plain for type in types]), strict=True)


def check_scope(op: Op, types: tuple[ArrayType, ...]) -> None:
    """Raise ShardingTypeError if the axes of an operand's mesh differ from the axes of the current mesh.

    This applies only in a part of a program with its own mesh.
    """
    if not mesh_context.scoped or op.infers_sharding or op.infers_varying:
        return
    current = mesh_context.mesh and mesh_of_types(mesh_context.mesh).abstract
    for index, type in enumerate(types):
        if current and type.explicit and type.explicit.mesh.abstract != current:
            raise ShardingTypeError(
                f"{op.name}: operand {index}, {type}, is on the mesh {type.explicit.mesh.abstract}, but the current "
                f"mesh is {current}. Reshard it first, `reshard(x, P(...))`, or pass it as an argument to the "
                "function that `auto_axes` or `explicit_axes` wraps."
            )


def _with_shardings(
    op: Op, types: tuple[ArrayType, ...], results: tuple[ArrayType, ...], strict: bool = False
) -> tuple[ArrayType, ...]:
    plain = tuple([type.plain for type in types])
    if config.is_exact:
        types = op.types_as_jax(*types)
        if all([type.explicit is None for type in types]):
            return results
    return with_result_shardings(
        op.name, factor_rule(op, plain), op.linear_in(*types), types, results, op.is_contraction, strict
    )


def varying(types: Sequence[ArrayType]) -> tuple[str, ...]:
    """Return the axes of manual regions over which at least one of the types varies, sorted."""
    return tuple(sorted({axis for type in types for axis in type.varying}))


@registered_cache(maxsize=65536)
def factor_rule(op: Op, types: tuple[ArrayType, ...]) -> FactorRule:
    """Return the factor rule of an op; cached."""
    return op.factors(*types)
