"""custom_partitioning: a function that the partitioner treats as one op, with a sharding rule from the user.

    in     a function, a sharding rule that relates the dims of its operands and results, and optionally a function that
           each device runs on its shards instead
    out    a function whose calls are single ops until the program is partitioned: the planner reads the rule, and the
           program of a device is traced for the shapes of its shards

Derivatives are those of the function, differentiated as an ordinary program. `custom_vjp` around it replaces them.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper, wraps
from typing import Any, final

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import struct
from shardwise.api.arguments import array_leaves, check_function, describe_function, function_name
from shardwise.api.flatten import FlatFunction
from shardwise.api.meshes.shard_map import ShardMapOptions, map_shards
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.candidates.refine import refine_program
from shardwise.compiler.control.call import Call
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.constants import IdentityKey, hashable
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.refine import coarsen_layout, sub_axes_of
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.erase_varying import erase_varying
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lower_keys import lower_keys
from shardwise.compiler.transforms.replay import restore_source
from shardwise.compiler.transforms.vmap import map_function, vmap_program
from shardwise.errors import ShardingError
from shardwise.experimental.sharding_rule import (
    BATCHING,
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    factor_rule,
    parse_rule,
)

__all__ = ["BATCHING", "ArrayMapping", "CompoundFactor", "SdyShardingRule", "custom_partitioning"]

Function = Callable[..., Any]


@final
class custom_partitioning:
    """Wrap a function so that the partitioner treats it as one op and partitions it as `def_partition` defines.

    Args:
        fun: the function of arrays and pytrees of arrays. It may not have keyword-only parameters, and may not close
            over arrays.
        static_argnums: the positions of arguments that are not arrays. The callbacks get them first.

    Raises:
        TypeError: if `fun` is not callable.

    Example:
        >>> @jax.experimental.custom_partitioning.custom_partitioning
        ... def scaled(x, w):
        ...     return x @ w * 2
        >>> scaled.def_partition(sharding_rule="... m k, k n -> ... m n", reduction_factors=("k",))
        >>> jax.jit(scaled)(jnp.ones((2, 3)), jnp.ones((3, 2)))
        Array([[6., 6.],
               [6., 6.]], dtype=float32)
    """

    def __init__(self, fun: Function, static_argnums: int | Sequence[int] = ()):
        check_function("custom_partitioning", fun)
        self.fun = fun
        self.static_argnums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        self.definition: _Definition | None = None
        update_wrapper(self, fun, updated=())

    def def_partition(
        self,
        partition: Function | None = None,
        infer_sharding_from_operands: Function | None = None,
        propagate_user_sharding: Function | None = None,
        decode_shardings: bool = True,
        sharding_rule: str | SdyShardingRule | Function | None = None,
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ) -> Function | None:
        """Define how the function is partitioned.

        With a rule and without `partition`, each device runs the function itself on its shards. The function must then
        be correct on shards along every factor that passes through. Three kinds of factors are replicated in this case:
        `permutation_factors`, factors that only results have, and factors after the first of a compound dim of an
        operand.

        Args:
            partition: a function `(*static, mesh, arg_shapes, result_shape)` that returns `(mesh, lower_fn,
                result_shardings, arg_shardings)`, as in JAX. The shapes come with the shardings that the planner
                suggests within the rule; operands and results whose returned sharding differs are resharded. `lower_fn`
                gets the shards of one device, which all have one size, and may use collectives over the mesh axes.
            infer_sharding_from_operands: accepted for compatibility and never called: the planner reads the rule.
            propagate_user_sharding: accepted for compatibility and never called.
            decode_shardings: ignored: shardings always have axis names.
            sharding_rule: an einsum-like string such as `"... m k, k n -> ... m n"`, an SdyShardingRule, or a function
                `(*static, mesh, operand_types, result_types)` that returns either, or a tuple of a string and a dict of
                the options below.
            reduction_factors: the factors along which the results of shards are partial sums. Those of `lower_fn` are
                not summed, as in JAX: it sums them itself, with `lax.psum`.
            need_replication_factors: the factors that are never sharded.
            permutation_factors: the factors along which shards depend on each other.
            **factor_sizes: the sizes of the factors that appear in compound dims only.

        Returns:
            `partition`, so that the method works as a decorator.

        Raises:
            NotImplementedError: if there is no `sharding_rule`, unless `partition` is the only callback.
            TypeError: if `sharding_rule` is of another type.
            ValueError: if the string is not a valid rule, or if options are passed with a rule that is not a string.
        """
        options = {
            "reduction_factors": reduction_factors,
            "need_replication_factors": need_replication_factors,
            "permutation_factors": permutation_factors,
            **factor_sizes,
        }
        if isinstance(sharding_rule, str):
            rule: Any = parse_rule(sharding_rule, **options)
        else:
            if passed := [name for name, value in options.items() if value != ()]:
                raise ValueError(
                    f"{self._label}: {passed[0]} is an option of a sharding_rule that is a string; put it into the "
                    "SdyShardingRule, or return it with the string"
                )
            rule = sharding_rule
        if rule is None and (partition is None or infer_sharding_from_operands or propagate_user_sharding):
            raise NotImplementedError(
                f"{self._label}: needs a sharding_rule. Shardings are propagated by rules, not by the callbacks "
                "infer_sharding_from_operands and propagate_user_sharding. The rule of an elementwise function of two "
                "arrays is sharding_rule='..., ... -> ...'."
            )
        if rule is not None and not (isinstance(rule, SdyShardingRule) or callable(rule)):
            raise TypeError(
                f"{self._label}: sharding_rule must be a string, an SdyShardingRule, or a function that returns one, "
                f"not {rule!r}"
            )
        self.definition = _Definition(rule, partition)
        return partition

    @property
    def _label(self) -> str:
        return f"custom_partitioning of {describe_function(self.fun)}"

    def __call__(self, *args: object, **keywords: object) -> Any:
        if self.definition is None:
            raise AttributeError(
                f"{self._label} has no sharding rule: define one with `.def_partition(sharding_rule=…)` before the call"
            )
        bound = inspect.signature(self.fun).bind(*args, **keywords)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{self._label}: keyword-only parameters are not supported, because callbacks cannot get them"
            )
        count = len(bound.args)
        static = {position % count: bound.args[position] for position in self.static_argnums}
        dynamic = tuple(arg for position, arg in enumerate(bound.args) if position not in static)
        leaves, structure = array_leaves(self.fun, dynamic, {})
        operands = [as_operand(leaf) for leaf in leaves]
        static_args = tuple((position, hashable(value)) for position, value in static.items())
        function = _BoundFunction(self.fun, static_args, count, structure)
        program, results = function.trace([x.type for x in operands], self._label)
        # With collectives along names of an outer vmap or shard_map, or without an axis to partition along, it is an
        # ordinary program.
        if program.axis_names or _has_only_manual_axes():
            return results.unflatten(list(Call(program)(*operands)))
        if any(x.type.varying for x in operands):  # in a manual region, the op itself does not track varying axes
            program, results = function.trace([x.type.with_varying(()) for x in operands], self._label)
        rule = self.definition.rule_for(self._label, function.static_args, program)
        user_partition = None
        if self.definition.partition is not None:
            mesh = mesh_context.mesh if isinstance(mesh_context.mesh, Mesh) else None
            user_partition = _UserPartition(self.definition.partition, function, results, mesh)
        return results.unflatten(list(CustomPartitioned(program, rule, function, user_partition)(*operands)))


def _has_only_manual_axes() -> bool:
    """Return whether the traced function is in a manual region over all axes of its mesh."""
    mesh = mesh_context.region_mesh
    return mesh is not None and mesh_context.manual_axes.issuperset(mesh.axis_names)


@final
class _Definition:
    """The arguments of `def_partition`."""

    def __init__(self, rule: SdyShardingRule | Function | None, partition: Function | None):
        self.rule = rule
        self.partition = partition

    def rule_for(self, label: str, static: Sequence[Any], program: Program) -> FactorRule:
        """Return the rule for the operand and result types of a program."""
        rule = self.rule
        if not (rule is None or isinstance(rule, SdyShardingRule)):
            rule = rule(*static, mesh_context.mesh, list(program.in_types), list(program.out_types))
            text, options = rule if isinstance(rule, (tuple, list)) and len(rule) == 2 else (rule, {})
            rule = parse_rule(text, **options) if isinstance(text, str) else text
            if not isinstance(rule, SdyShardingRule):
                raise TypeError(f"{label}: the sharding_rule function returned {rule!r}, which is not a rule")
        try:
            return factor_rule(rule, program, self.partition is not None)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None


@final
@record
class _BoundFunction:
    """The user's function with its static arguments bound, as a function of the leaves of the others.

    It is traced again for the shapes of shards. `vmapped_axes` are the dims that `vmap` has added, each with its
    position in every operand.
    """

    fun: Function
    static: tuple[tuple[int, Any], ...]
    arg_count: int
    structure: tree.Structure
    vmapped_axes: tuple[tuple[BatchAxis, tuple[int | None, ...]], ...] = ()

    @property
    def static_args(self) -> list[Any]:
        return [value.value if isinstance(value, IdentityKey) else value for _, value in self.static]

    @property
    def function(self) -> Function:
        """The function of the arguments that are not static."""
        static = dict(zip([position for position, _ in self.static], self.static_args, strict=True))

        @wraps(self.fun)
        def bound(*args: object) -> Any:
            dynamic = iter(args)
            return self.fun(*(static[k] if k in static else next(dynamic) for k in range(self.arg_count)))

        return bound

    def trace(self, types: Sequence[ArrayType], label: str) -> tuple[Program, tree.Structure]:
        """Return the program for operands of these types, and the pytree structure of its results."""
        flat = FlatFunction(self.function, self.structure)
        call: Callable[..., list[Any]] = flat
        for axis, dims in self.vmapped_axes:
            call = _vmapped(call, axis, dims, function_name(self.fun))
        program, captured = build(call, types, function_name(self.fun))
        _check_captures_nothing(label, captured)
        if forbidden := [equation for equation in program.walk() if isinstance(equation.op, (Constrain, Manual))]:
            raise TypeError(
                f"{label}: it contains a {forbidden[0].op.name}, at {forbidden[0].source}. The function runs on "
                "shards, whose sharding its rule defines: constrain shardings outside of it, or in its `partition`."
            )
        return program, flat.out_tree

    def vmapped(self, axis: BatchAxis, dims: tuple[int | None, ...]) -> "_BoundFunction":
        """Return the function over one more dim, which is dim 0 of all results."""
        return _BoundFunction(self.fun, self.static, self.arg_count, self.structure, (*self.vmapped_axes, (axis, dims)))


def _vmapped(
    function: Callable[..., list[Any]], axis: BatchAxis, dims: Sequence[int | None], name: str
) -> Callable[..., list[Any]]:
    def call(*leaves: Array) -> list[Any]:
        size = next(x.type.shape[dim] for x, dim in zip(leaves, dims, strict=True) if dim is not None)
        results, out_dims = map_function(function, replace(axis, size=size), leaves, dims, name)
        return [batch_dim_at(as_operand(x), dim, 0, size) for x, dim in zip(results, out_dims, strict=True)]

    return call


def _check_captures_nothing(label: str, captured: Sequence[Any]) -> None:
    if captured:
        raise TypeError(
            f"{label}: it closes over an array that is not one of its arguments, {captured[0].type}. The rule defines "
            "no sharding for it: pass it as an argument."
        )


@final
@record
class _UserPartition:
    """The user's `partition` callback, the pytree structure of the results, and the mesh in force at the call."""

    callback: Function
    function: _BoundFunction
    results: tree.Structure
    mesh: Mesh | None

    def localize(
        self, label: str, context: LocalContext, out_types: Sequence[ArrayType], operands: Sequence[Array]
    ) -> list[Any]:
        """Return the shards of the results: reshard the operands as the callback demands, and run its `lower_fn`."""
        mesh = self._user_mesh(context)
        abstract = mesh.abstract
        ins = [
            Layout(tuple(context.sharding_of(d, n)[0] for d in range(type.ndim)))
            for n, type in enumerate(context.global_types)
        ]
        outs = [Layout(layout.dims) for layout in context.layouts]
        arg_shapes = [
            struct(type, _suggested_sharding(mesh, layout, context.mesh))
            for type, layout in zip(context.global_types, ins, strict=True)
        ]
        result_shapes = [
            struct(type, _suggested_sharding(mesh, layout, context.mesh))
            for type, layout in zip(out_types, outs, strict=True)
        ]
        args, _ = self.function.structure.unflatten(arg_shapes)
        answer = self.callback(*self.function.static_args, mesh, args, self.results.unflatten(result_shapes))
        if not (isinstance(answer, tuple) and len(answer) == 4 and callable(answer[1])):
            raise TypeError(
                f"{label}: partition must return (mesh, lower_fn, result_shardings, arg_shardings), not {answer!r}"
            )
        _, lower_fn, result_shardings, arg_shardings = answer
        in_specs = self._specs(label, "arg_shardings", arg_shardings, args, abstract)
        out_specs = self._specs(
            label, "result_shardings", result_shardings, self.results.unflatten(result_shapes), abstract
        )
        sub_axes = sub_axes_of(abstract, context.mesh)
        manual_axes = frozenset(axis for axis in abstract.axis_names if set(sub_axes[axis]) <= set(context.auto_axes))
        region = map_shards(
            lower_fn,
            ShardMapOptions(
                "custom_partitioning",
                mesh,
                self.function.structure.unflatten(in_specs)[0],
                self.results.unflatten(out_specs),
                manual_axes,
                False,
            ),
        )

        def global_function(*leaves: Array) -> list[Any]:
            return tree.leaves(region(*self.function.structure.unflatten(leaves)[0]))

        program, captured = build(global_function, context.global_types, function_name(self.function.fun))
        _check_captures_nothing(f"{label}, in lower_fn", captured)
        if program.out_types != tuple(out_types):
            raise TypeError(
                f"{label}: lower_fn returns shards of {program.out_types}, but the results are {tuple(out_types)}"
            )
        problem = layout_problem(
            refine_program(_simplify(program), context.mesh),
            context.mesh,
            [Pin(layout, reason=f"operand {index} of {label}") for index, layout in enumerate(ins)],
            [Pin(layout, reason=f"result {index} of {label}") for index, layout in enumerate(outs)],
        )
        return _replay(partition(problem, choose(problem)).program, operands)

    def _user_mesh(self, context: LocalContext) -> Mesh | AbstractMesh:
        """Return the mesh for the callback: the user's, if it has the same devices, else that of the partitioner."""
        if self.mesh is None or self.mesh.device_count != context.mesh.device_count:
            return context.mesh
        sub_axes = sub_axes_of(self.mesh.abstract, context.mesh)
        fits = all(context.mesh.extent(sub_axes[axis]) == size for axis, size in self.mesh.shape.items())
        return self.mesh if fits else context.mesh

    def _specs(
        self, label: str, argument: str, shardings: object, arrays: object, mesh: AbstractMesh
    ) -> list[PartitionSpec]:
        """Return one spec per array, from a pytree prefix of NamedShardings."""
        try:
            leaves = tree.broadcast_prefix(
                shardings, arrays, lambda node: isinstance(node, NamedSharding) or node is None
            )
        except tree.TreeMismatch as mismatch:
            raise ValueError(f"{label}: the {argument} that partition returned do not match: {mismatch}") from None
        for sharding in leaves:
            if not isinstance(sharding, NamedSharding):
                raise TypeError(
                    f"{label}: the {argument} that partition returned contain {sharding!r}, not a NamedSharding"
                )
            if sharding.mesh_shape != mesh:
                raise ShardingError(
                    f"{label}: the {argument} that partition returned are on the mesh {sharding.mesh_shape}, but the "
                    f"mesh that it was passed is {mesh}: use that one"
                )
        return [sharding.spec for sharding in leaves]


def _suggested_sharding(mesh: Mesh | AbstractMesh, layout: Layout, fine: AbstractMesh) -> NamedSharding:
    """Return the planner's layout in the axes of the user's mesh.

    A dim that is sharded along a part of a user's axis is suggested as replicated.
    """
    dims = [coarsen_layout(Layout((axes,)), mesh.abstract, fine) for axes in layout.dims]
    return NamedSharding(mesh, spec_of(Layout(tuple(() if dim is None else dim.dims[0] for dim in dims))))


def _simplify(program: Program) -> Program:
    """Return a program as the partitioner expects it: without calls, key types and varying types."""
    return dce(lower_keys(erase_varying(inline(program))))


def _replay(program: Program, operands: Sequence[Any]) -> list[Any]:
    """Emit the equations of a local program into the current trace, with their sources and reasons."""
    env = dict(zip(program.inputs, operands, strict=True))
    with restore_source():
        for equation in program.equations:
            provenance.source, provenance.reason = equation.source, equation.reason
            results = equation.op(*(env[value] for value in equation.inputs))
            env.update(zip(equation.outputs, (results,) if equation.op.single else results, strict=True))
        provenance.reason = None
    return [env[value] for value in program.outputs]


@final
@record
class CustomPartitioned(Op):
    """The results of `program`. On shards it runs `user_partition` if there is one, else `function` traced again."""

    name = "custom_partitioning"
    single = False
    program: Program
    rule: FactorRule
    function: _BoundFunction
    user_partition: _UserPartition | None = None

    @property
    def effect(self) -> str:
        return self.program.effect

    @property
    def _label(self) -> str:
        return f"custom_partitioning of {describe_function(self.function.fun)}"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != self.program.in_types:
            raise TypeError(f"{self._label}: expects operands {self.program.in_types}, not {types}")
        return self.program.out_types

    def factors(self, *types: ArrayType) -> FactorRule:
        return self.rule

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        """Estimate the communication of the user's function, which is unknown, as an all-gather of its operands."""
        sizes = [
            type.nbytes for type, dims in zip(types, self.rule.operands, strict=True) if any(factor in d for d in dims)
        ]
        return sum(sizes) * (count - 1) / count

    def localize(self, context: LocalContext, *operands: Array) -> Any:
        if self.user_partition is not None and context.mesh.extent(context.auto_axes) > 1:
            return self.user_partition.localize(self._label, context, self.program.out_types, operands)
        try:
            program, _ = self.function.trace([x.type for x in operands], self._label)
        except Exception as error:
            shards = ", ".join(str(x.type) for x in operands)
            error.add_note(f"({self._label} runs on shards, here {shards}, by its sharding_rule.)")
            raise
        shapes = tuple(type.shape for type in program.out_types)
        if shapes != context.out_shapes:
            ins, outs = (", ".join(map(str, types)) for types in (program.in_types, program.out_types))
            raise TypeError(
                f"{self._label}: for shards {ins} it returns {outs}, but by its sharding_rule the shards of the "
                f"results have the shapes {', '.join(map(str, context.out_shapes))}. List the factors along which the "
                "function is not correct on shards in `need_replication_factors`."
            )
        return _replay(_simplify(program), operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return Call(self.program).jvp(primals, tangents)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return Call(self.program).linearize(primals, tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return Call(self.program).transpose(cotangent, *operands)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Add a factor to the rule. With a user's `partition`, which is written for one rank, vmap the program."""
        if self.user_partition is not None:
            return Call(self.program).vmap(axis, operands, dims)
        program, out_dims = vmap_program(self.program, axis, tuple(dims), everywhere=True)
        rule = self.rule.vmapped(dims, axis.size)
        return CustomPartitioned(program, rule, self.function.vmapped(axis, tuple(dims)))(*operands), list(out_dims)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.program(_simplify(self.program), operands)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(_simplify(self.program), operands)


set_public_names(__name__, __all__)
