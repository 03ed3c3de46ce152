"""custom_partitioning: a function that is one op to the planner, with a rule that the user gives.

    in     a function, how the dims of its arguments and results hang together, and, if the function is not right on
           pieces as it is, another one for pieces
    out    a function whose calls are ops of their own until programs are partitioned: the planner reads the rule, and
           what runs on each device is staged for the shapes of its pieces

Derivatives are those of the function, as an ordinary program: `custom_vjp` around it gives others.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper, wraps
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import array_leaves, check_function, described, function_name
from shardwise.api.flatten import Flat
from shardwise.api.shape_dtype_struct import struct
from shardwise.api.shard_map import Options, mapped
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, Shard
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.call import Call
from shardwise.compiler.ops.control.manual import Manual
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.reduce.broadcast import batch_at
from shardwise.compiler.ops.shape.constants import Identity
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.propagate.propagate import propagate
from shardwise.compiler.propagate.refine import refined_program
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.layout import Layout, Pin
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, in_force
from shardwise.compiler.shardings.refine import axes_on, coarsened
from shardwise.compiler.shardings.spec import PartitionSpec, spec_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import working
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.erase_varying import untrack
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lower_keys import keys_as_words
from shardwise.compiler.transforms.replay import sourced
from shardwise.compiler.transforms.vmap import map_function, vmap_program
from shardwise.errors import ShardingError
from shardwise.experimental.sharding_rule import (
    BATCHING,
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    factor_rule,
    mapped_rule,
    parse_rule,
)
from shardwise.runtime.sharding import NamedSharding

__all__ = ["BATCHING", "ArrayMapping", "CompoundFactor", "SdyShardingRule", "custom_partitioning"]

Function = Callable[..., Any]


@final
class custom_partitioning:
    """A function that the planner takes for one op, and cuts as `def_partition` says.

    Arguments in `static_argnums` may be anything; the callbacks get them first.

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
        sharding_rule: Any = None,
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ) -> Function | None:
        """Say how the function is cut.

        `sharding_rule` says how dims hang together: a text such as `"... m k, k n -> ... m n"`, an SdyShardingRule, or
        a function `(*static, mesh, operand_types, result_types)` that gives one of these, or a text and a dict of the
        options here. A factor passes through, unless it is one of `reduction_factors` (what pieces along it give is
        added up), `need_replication_factors` (it stays whole) or `permutation_factors` (pieces along it need something
        of each other). `factor_sizes` are those of factors that no dim shows.

        With a rule alone each device runs the function itself on its pieces, so that along factors that pass through it
        must be right as it is. `permutation_factors` stay whole then, and so does what results alone have, and what
        comes after another factor in a dim of an operand.

        `partition(*static, mesh, arg_shapes, result_shape)` returns `(mesh, lower_fn, result_shardings,
        arg_shardings)`, as JAX has it. It is told how the planner would have everything lie, as the rule allows, and
        says how it must: what differs is moved. `lower_fn` gets one device's pieces and may use collectives along the
        axes of the mesh; pieces are always of one size.

        The other callbacks are for partitioners that read no rule: they are not called. `decode_shardings` has nothing
        to decide: layouts have names here.
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
            if given := [name for name, value in options.items() if value != ()]:
                raise ValueError(
                    f"{self._what}: {given[0]} goes with a rule that is a text; here the rule says it itself"
                )
            rule = sharding_rule
        if rule is None and (partition is None or infer_sharding_from_operands or propagate_user_sharding):
            raise NotImplementedError(
                f"{self._what}: needs a sharding_rule. The planner reads rules and calls nobody back to find out how "
                "layouts go through an op. Elementwise, for two arrays, that is sharding_rule='..., ... -> ...'."
            )
        if rule is not None and not (isinstance(rule, SdyShardingRule) or callable(rule)):
            raise TypeError(
                f"{self._what}: sharding_rule is a text, an SdyShardingRule, or a function that gives one, not {rule!r}"
            )
        self.definition = _Definition(rule, partition)
        return partition

    @property
    def _what(self) -> str:
        return f"custom_partitioning of {described(self.fun)}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.definition is None:
            raise AttributeError(f"{self._what} has no rule: give one with `.def_partition(sharding_rule=…)`")
        given = inspect.signature(self.fun).bind(*args, **keywords)
        given.apply_defaults()
        if given.kwargs:
            raise TypeError(f"{self._what}: it has keyword-only parameters, which callbacks cannot get")
        count = len(given.args)
        static = {place % count: given.args[place] for place in self.static_argnums}
        dynamic = tuple(arg for place, arg in enumerate(given.args) if place not in static)
        leaves, structure = array_leaves(self.fun, dynamic, {})
        operands = [as_operand(leaf) for leaf in leaves]
        body = _Body(self.fun, tuple((place, _hashable(value)) for place, value in static.items()), count, structure)
        program, results = body.staged([x.type for x in operands], self._what)
        if program.axis_names:  # only who binds the names can say what becomes of them: there it is an ordinary program
            return results.unflatten(list(Call(program)(*operands)))
        if any(x.type.varying for x in operands):  # in a manual region, what varies stays outside
            program, results = body.staged([x.type.over(()) for x in operands], self._what)
        rule = self.definition.rule_for(self._what, body.static_args, program)
        by_hand = None
        if self.definition.partition is not None:
            by_hand = _ByHand(self.definition.partition, body, results, in_force.mesh)
        return results.unflatten(list(CustomPartitioned(program, rule, body, by_hand)(*operands)))


@final
class _Definition:
    """What `def_partition` was given."""

    def __init__(self, rule: Any, partition: Function | None):
        self.rule = rule
        self.partition = partition

    def rule_for(self, what: str, static: Sequence[Any], program: Program) -> FactorRule:
        """The rule for the types of a program."""
        rule = self.rule
        if not (rule is None or isinstance(rule, SdyShardingRule)):
            rule = rule(*static, in_force.mesh, list(program.in_types), list(program.out_types))
            text, options = rule if isinstance(rule, (tuple, list)) and len(rule) == 2 else (rule, {})
            rule = parse_rule(text, **options) if isinstance(text, str) else text
            if not isinstance(rule, SdyShardingRule):
                raise TypeError(f"{what}: the function for the sharding_rule gave {rule!r}, which is none")
        try:
            return factor_rule(rule, program, self.partition is not None)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None


def _hashable(value: Any) -> Any:
    """A static argument; one that has no hash is equal to itself alone."""
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return value


@final
@record
class _Body:
    """The function, with its static arguments, of the leaves of the others. It is staged again for pieces.

    `axes`: the dims that vmaps have added, each with the operands' places of it.
    """

    fun: Function
    static: tuple[tuple[int, Any], ...]
    count: int
    structure: tree.Structure
    axes: tuple[tuple[BatchAxis, tuple[int | None, ...]], ...] = ()

    @property
    def static_args(self) -> list[Any]:
        return [value.value if isinstance(value, Identity) else value for _, value in self.static]

    @property
    def function(self) -> Function:
        """The function of the arguments that are not static."""
        fixed = dict(zip([place for place, _ in self.static], self.static_args, strict=True))

        @wraps(self.fun)
        def bound(*args: Any) -> Any:
            rest = iter(args)
            return self.fun(*(fixed[place] if place in fixed else next(rest) for place in range(self.count)))

        return bound

    def staged(self, types: Sequence[ArrayType], what: str) -> tuple[Program, tree.Structure]:
        """The program for operands of these types, and the structure of its results."""
        flat = Flat(self.function, self.structure)
        call: Callable[..., list[Any]] = flat
        for axis, dims in self.axes:
            call = _over(call, axis, dims, function_name(self.fun))
        program, captured = build(call, types, function_name(self.fun))
        _check_closed(what, captured)
        if planned := [equation for equation in program.walk() if isinstance(equation.op, (Constrain, Manual))]:
            raise TypeError(
                f"{what}: there is a {planned[0].op.name} in it, at {planned[0].source}. It runs on pieces, as the "
                "rule has them lie: layouts are said outside of it, or in its partition."
            )
        return program, flat.results

    def over(self, axis: BatchAxis, dims: tuple[int | None, ...]) -> "_Body":
        """The same over one more dim, which all results have in front."""
        return _Body(self.fun, self.static, self.count, self.structure, (*self.axes, (axis, dims)))


def _over(
    function: Callable[..., list[Any]], axis: BatchAxis, dims: Sequence[int | None], name: str
) -> Callable[..., list[Any]]:
    def call(*leaves: Any) -> list[Any]:
        size = next(x.type.shape[dim] for x, dim in zip(leaves, dims, strict=True) if dim is not None)
        found, places = map_function(function, replace(axis, size=size), leaves, dims, name)
        return [batch_at(as_operand(x), place, 0, size) for x, place in zip(found, places, strict=True)]

    return call


def _check_closed(what: str, captured: Sequence[Any]) -> None:
    if captured:
        raise TypeError(
            f"{what}: it uses an array that is not among its arguments, {captured[0].type}. How that lies nobody says: "
            "make it an argument, which the rule has a place for."
        )


@final
@record
class _ByHand:
    """What the user has written for pieces. `results`: the structure of the results; `mesh`: the one in force."""

    partition: Function
    body: _Body
    results: tree.Structure
    mesh: Mesh | None

    def localized(self, what: str, shard: Shard, out_types: Sequence[ArrayType], operands: Sequence[Any]) -> list[Any]:
        """The pieces of the results: what the user's function gives, of operands that lie as it asks."""
        grid = self._grid(shard)
        abstract = grid.abstract
        ins = [Layout(tuple(shard.cut(d, n)[0] for d in range(type.ndim))) for n, type in enumerate(shard.types)]
        outs = [Layout(layout.dims) for layout in shard.layouts]
        arg_shapes = [struct(type, _suggested(grid, x, shard.mesh)) for type, x in zip(shard.types, ins, strict=True)]
        results = [struct(type, _suggested(grid, x, shard.mesh)) for type, x in zip(out_types, outs, strict=True)]
        args, _ = self.body.structure.unflatten(arg_shapes)
        asked = self.partition(*self.body.static_args, grid, args, self.results.unflatten(results))
        if not (isinstance(asked, tuple) and len(asked) == 4 and callable(asked[1])):
            raise TypeError(
                f"{what}: partition must return (mesh, lower_fn, result_shardings, arg_shardings), not {asked!r}"
            )
        _, lower_fn, result_shardings, arg_shardings = asked
        in_specs = self._specs(what, "arg_shardings", arg_shardings, args, abstract)
        out_specs = self._specs(what, "result_shardings", result_shardings, self.results.unflatten(results), abstract)
        made_of = axes_on(abstract, shard.mesh)
        own = frozenset(axis for axis in abstract.axis_names if set(made_of[axis]) <= set(shard.axes))
        region = mapped(
            lower_fn,
            Options(
                "custom_partitioning",
                grid,
                self.body.structure.unflatten(in_specs)[0],
                self.results.unflatten(out_specs),
                own,
                False,
            ),
        )

        def whole(*leaves: Any) -> list[Any]:
            return tree.leaves(region(*self.body.structure.unflatten(leaves)[0]))

        program, captured = build(whole, shard.types, function_name(self.body.fun))
        _check_closed(f"{what}, in lower_fn", captured)
        if program.out_types != tuple(out_types):
            raise TypeError(
                f"{what}: of its pieces, lower_fn makes {program.out_types}, which should be {tuple(out_types)}"
            )
        sharded = propagate(
            refined_program(_simple(program), shard.mesh),
            shard.mesh,
            [Pin(layout, reason=f"operand {number} of {what}") for number, layout in enumerate(ins)],
            [Pin(layout, reason=f"result {number} of {what}") for number, layout in enumerate(outs)],
        )
        return _emitted(partition(sharded, choose(sharded)).program, operands)

    def _grid(self, shard: Shard) -> Mesh | AbstractMesh:
        """The mesh by whose axes the user's functions go: the one that was in force, where it is over these devices."""
        if self.mesh is None or self.mesh.size != shard.mesh.size:
            return shard.mesh
        pieces = axes_on(self.mesh.abstract, shard.mesh)
        fits = all(shard.mesh.extent(pieces[axis]) == size for axis, size in self.mesh.shape.items())
        return self.mesh if fits else shard.mesh

    def _specs(self, what: str, which: str, given: Any, of: Any, mesh: AbstractMesh) -> list[PartitionSpec]:
        """The specs that are asked for each array."""
        try:
            found = tree.broadcast_prefix(given, of, lambda node: isinstance(node, NamedSharding) or node is None)
        except tree.TreeMismatch as mismatch:
            raise ValueError(f"{what}: the {which} that partition returned do not fit: {mismatch}") from None
        for sharding in found:
            if not isinstance(sharding, NamedSharding):
                raise TypeError(f"{what}: the {which} that partition returned have {sharding!r}, not a NamedSharding")
            if sharding.mesh_shape != mesh:
                raise ShardingError(
                    f"{what}: the {which} that partition returned are on the mesh {sharding.mesh_shape}, and it was "
                    f"given {mesh}: use that one"
                )
        return [sharding.spec for sharding in found]


def _suggested(grid: Mesh | AbstractMesh, layout: Layout, fine: AbstractMesh) -> NamedSharding:
    """How the planner has a value lie, by the axes of the user's mesh; a dim that takes one of these apart is whole."""
    mesh = grid.abstract
    dims = [coarsened(Layout((axes,)), mesh, fine) for axes in layout.dims]
    return NamedSharding(grid, spec_of(Layout(tuple(() if dim is None else dim.dims[0] for dim in dims))))


def _simple(program: Program) -> Program:
    """A program as the partitioner takes it: without calls and keys."""
    return dce(keys_as_words(untrack(inline(program))))


def _emitted(program: Program, operands: Sequence[Any]) -> list[Any]:
    """The results of a program of pieces, in the open frame; its equations keep their reasons."""
    env = dict(zip(program.inputs, operands, strict=True))
    with sourced():
        for equation in program.equations:
            working.source, working.reason = equation.source, equation.reason
            found = equation.op(*(env[value] for value in equation.inputs))
            env.update(zip(equation.outputs, (found,) if equation.op.single else found, strict=True))
        working.reason = ""
    return [env[value] for value in program.outputs]


@final
@record
class CustomPartitioned(Op):
    """The results of `program`, which on pieces is `by_hand`, where that is given, and else `body` again."""

    name = "custom_partitioning"
    single = False
    program: Program
    rule: FactorRule
    body: _Body
    by_hand: _ByHand | None = None

    @property
    def effect(self) -> str:
        return self.program.effect

    @property
    def _what(self) -> str:
        return f"custom_partitioning of {described(self.body.fun)}"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != self.program.in_types:
            raise TypeError(f"{self._what}: it takes {self.program.in_types}, not {types}")
        return self.program.out_types

    def factors(self, *types: ArrayType) -> FactorRule:
        return self.rule

    def exchanged(self, factor: int, count: int, *types: ArrayType) -> float:
        """What the user's function sends is not known: supposed is that each device gets all that is cut."""
        cut = [
            type.nbytes for type, dims in zip(types, self.rule.operands, strict=True) if any(factor in d for d in dims)
        ]
        return sum(cut) * (count - 1) / count

    def localize(self, shard: Shard, *operands: Any) -> Any:
        if self.by_hand is not None and shard.axes:
            return self.by_hand.localized(self._what, shard, self.program.out_types, operands)
        try:
            program, _ = self.body.staged([x.type for x in operands], self._what)
        except Exception as error:
            pieces = ", ".join(str(x.type) for x in operands)
            error.add_note(f"({self._what} runs on pieces, here {pieces}, by its sharding_rule.)")
            raise
        shapes = tuple(type.shape for type in program.out_types)
        if shapes != shard.out_shapes:
            took, made = (", ".join(map(str, types)) for types in (program.in_types, program.out_types))
            raise TypeError(
                f"{self._what}: of pieces {took} it makes {made}, but by its sharding_rule pieces of the results have "
                f"the shapes {', '.join(map(str, shard.out_shapes))}. Name the factors along which it is not right on "
                "pieces in `need_replication_factors`."
            )
        return _emitted(_simple(program), operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return Call(self.program).jvp(primals, tangents)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return Call(self.program).linearize(primals, tangents)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        return Call(self.program).transpose(cotangent, *operands)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """What is written for pieces of some rank is not for those of another: then it is an ordinary program."""
        if self.by_hand is not None:
            return Call(self.program).vmap(axis, operands, dims)
        program, out_dims = vmap_program(self.program, axis, tuple(dims), everywhere=True)
        rule = mapped_rule(self.rule, dims, axis.size)
        return CustomPartitioned(program, rule, self.body.over(axis, tuple(dims)))(*operands), list(out_dims)

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return hlo.program(_simple(self.program), operands)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return evaluate(_simple(self.program), operands)
